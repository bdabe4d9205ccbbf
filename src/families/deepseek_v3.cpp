/// DeepSeek-V3.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kDeepseekV3Experts = std::to_array<Naming>({
    {.name = "hf:deepseek_v3",
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExperts,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.weight"},
});

constexpr auto kDeepseekV3Families = std::to_array<Family>({
    {.model_type = "deepseek_v3",
     .model_class = "DeepseekV3ForCausalLM",
     .wrappers = {{{"kimi_k25", "language_model.model.", kKimiTower}}},
     .naming = hf_naming(kHfLatent, kHfCorrectedRouter, kHfDense, kHfMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kLatentYarnArgs, kTwoWidthArgs, kTopkArgs,
              kCorrectedArgs, kDenseFirstArgs, kNoauxArgs, kNextTokenArgs},
     .expert_naming = "hf:deepseek_v3",
     .torchtitan = &kTitanLatentNaming,
     .attention = Attention::Latent,
     .declared_biases = kLatentBiases,
     .corrected_router = true,
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
       "rope_theta": 10000.0, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4,
       "first_k_dense_replace": 3, "n_shared_experts": 1, "q_lora_rank": 1536, "num_key_value_heads": 128})"},
});

}  // namespace

extern const Knowledge k_deepseek_v3;
constinit const Knowledge k_deepseek_v3{.experts = kDeepseekV3Experts, .families = kDeepseekV3Families};

}  // namespace glu_ckpt
