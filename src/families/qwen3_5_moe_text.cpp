/// Qwen3.5-MoE's language model.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kQwen35Delta = std::to_array<DenseRow>({
    fused_row("linear_attn.in_proj_qkv.weight", kDeltaQkv, Groups::One, kDelta),
    layer_row("linear_attn.in_proj_z.weight", DenseRole::DeltaZ, kDelta),
    layer_row("linear_attn.in_proj_b.weight", DenseRole::DeltaBeta, kDelta),
    layer_row("linear_attn.in_proj_a.weight", DenseRole::DeltaAlpha, kDelta),
});

constexpr auto kQwen35MoeTextExperts = std::to_array<Naming>({
    // Hugging Face, packed: one tensor for all experts.
    {.name = "hf:qwen3_5_moe",
     .stacks = kHfMultimodalStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExpert,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
});

constexpr BesidePart kQwen35Tower[] = {
    {"model.visual.", "vision_config", kQwenTowerKeys, "depth"},
    {"model.visual.", "vision_config", kQwenMergerKeys},
};

constexpr auto kQwen35MoeTextFamilies = std::to_array<Family>({
    {.model_type = "qwen3_5_moe_text",
     .model_class = "Qwen3_5MoeForCausalLM",
     .wrappers = {{{"qwen3_5_moe", "model.language_model.", kQwen35Tower}}},
     .naming = qwen3_next_naming(kQwen35Delta),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kDeltaArgs, kUsualLayerArgs,
              kPartialRopeArgs, kTwoWidthArgs, kQwenExpertArgs, kSharedExpertArgs, kTopkArgs, kSoftmaxArgs,
              kRenormalisedArgs},
     .expert_naming = "hf:qwen3_5_moe",
     .torchtitan = &kTitanDeltaNaming,
     .gated_attention = true,
     .renormalised = Renormalised::Always,
     .packed_experts = true,
     .declared_biases = kOutBias,
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25,
       "shared_expert_intermediate_size": 512})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_qwen3_5_moe_text;
constinit const Knowledge k_qwen3_5_moe_text{.experts = kQwen35MoeTextExperts, .families = kQwen35MoeTextFamilies};

}  // namespace glu_ckpt
