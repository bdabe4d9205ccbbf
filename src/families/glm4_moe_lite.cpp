/// GLM-4.7-Flash.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kLiteArgs = std::to_array<ArgRow>({{"mlp_layer_types", "moe_layer_freq", nullptr, layer_kinds}});

constexpr auto kGlm4MoeLiteFamilies = std::to_array<Family>({
    {.model_type = "glm4_moe_lite",
     .model_class = "Glm4MoeLiteForCausalLM",
     .naming = hf_naming(kHfLatent, kHfCorrectedRouter, kHfDense, kHfMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kLatentYarnArgs, kTwoWidthArgs, kTopkArgs,
              kCorrectedArgs, kDenseFirstArgs, kNoauxArgs, kNextTokenArgs, kLiteArgs},
     .expert_naming = "hf:deepseek_v3",
     .torchtitan = &kTitanLatentNaming,
     .attention = Attention::Latent,
     .declared_biases = kLatentBiases,
     .corrected_router = true,
     .defaults = R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 202752,
       "rope_theta": 10000.0, "norm_topk_prob": true, "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1,
       "first_k_dense_replace": 1, "n_shared_experts": 1, "q_lora_rank": 768, "num_key_value_heads": 20})",
     .counts_key_heads = true,
     .loose_field = "first_k_dense_replace"},
});

}  // namespace

extern const Knowledge k_glm4_moe_lite;
constinit const Knowledge k_glm4_moe_lite{.families = kGlm4MoeLiteFamilies};

}  // namespace glu_ckpt
