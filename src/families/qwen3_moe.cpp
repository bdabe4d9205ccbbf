/// Qwen3-MoE.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kQwen3MoeExperts = std::to_array<Naming>({
    // Hugging Face, one tensor per expert and projection.
    {.name = "hf:qwen3_moe",
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.weight"},
});

constexpr auto kQwen3MoeFamilies = std::to_array<Family>({
    {.model_type = "qwen3_moe",
     .model_class = "Qwen3MoeForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kUsualLayerArgs, kYarnArgs,
              kTwoWidthArgs, kQwenExpertArgs, kTopkArgs, kSoftmaxArgs, kNormTopkArgs},
     .expert_naming = "hf:qwen3_moe",
     .torchtitan = &kTitanGroupedNaming,
     .window = Window::AllIfAsked,
     .declared_biases = kOutBias,
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 4, "norm_topk_prob": false, "sliding_window": 4096})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_qwen3_moe;
constinit const Knowledge k_qwen3_moe{.experts = kQwen3MoeExperts, .families = kQwen3MoeFamilies};

}  // namespace glu_ckpt
