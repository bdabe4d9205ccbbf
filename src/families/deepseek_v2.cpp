/// DeepSeek-V2.

#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kDeepseekV2Families = std::to_array<Family>({
    {.model_type = "deepseek_v2",
     .naming = hf_naming(kHfLatent, kHfCorrectedRouter, kHfDense),
     .expert_naming = "hf:deepseek_v3",
     .torchtitan = &kTitanLatentNaming,
     .attention = Attention::Latent,
     .divides_or_scales = true,
     .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0,
       "norm_topk_prob": false, "routed_scaling_factor": 1.0, "topk_method": "greedy"})"},
});

}  // namespace

extern const Knowledge k_deepseek_v2;
constinit const Knowledge k_deepseek_v2{.families = kDeepseekV2Families};

}  // namespace glu_ckpt
