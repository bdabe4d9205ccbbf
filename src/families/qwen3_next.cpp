/// Qwen3-Next.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kQwen3NextDelta = std::to_array<DenseRow>({
    fused_row("linear_attn.in_proj_qkvz.weight", kDeltaQkvz, Groups::DeltaKeyHeads, kDelta),
    fused_row("linear_attn.in_proj_ba.weight", kDeltaBa, Groups::DeltaKeyHeads, kDelta),
});

constexpr auto kQwen3NextFamilies = std::to_array<Family>({
    {.model_type = "qwen3_next",
     .model_class = "Qwen3NextForCausalLM",
     .naming = qwen3_next_naming(kQwen3NextDelta),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kDeltaArgs, kUsualLayerArgs,
              kPartialRopeArgs, kTwoWidthArgs, kQwenExpertArgs, kSharedExpertArgs, kTopkArgs, kSoftmaxArgs,
              kNormTopkArgs},
     .expert_naming = "hf:qwen2_moe",
     .gated_attention = true,
     .declared_biases = kOutBias,
     .defaults = R"({"num_experts_per_tok": 10, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 2, "head_dim": 256, "norm_topk_prob": true,
       "partial_rotary_factor": 0.25, "shared_expert_intermediate_size": 512})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_qwen3_next;
constinit const Knowledge k_qwen3_next{.families = kQwen3NextFamilies};

}  // namespace glu_ckpt
