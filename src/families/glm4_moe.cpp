/// GLM-4.5 and 4.6.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kGlmArgs = std::to_array<ArgRow>({
    {"use_qk_norm", "qk_layernorm", write_qk_norms, head_norms},
    {"attention_bias", "add_qkv_bias", nullptr, as_flag},
});

constexpr auto kGlm4MoeFamilies = std::to_array<Family>({
    {.model_type = "glm4_moe",
     .model_class = "Glm4MoeForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfOptionalQkNorm, kHfCorrectedRouter, kHfDense, kHfMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kGlmArgs, kUsualLayerArgs, kYarnArgs,
              kPartialRopeArgs, kTwoWidthArgs, kTopkArgs, kCorrectedArgs, kDenseFirstArgs, kExpertBiasArgs,
              kNextTokenArgs},
     .expert_naming = "hf:deepseek_v3",
     .corrected_router = true,
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 10000.0, "num_key_value_heads": 8, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
       "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5, "n_shared_experts": 1,
       "use_qk_norm": false})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_glm4_moe;
constinit const Knowledge k_glm4_moe{.families = kGlm4MoeFamilies};

}  // namespace glu_ckpt
