/// Qwen3-VL-MoE's language model.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kQwen3VlMoeTextExperts = std::to_array<Naming>({
    // transformers v5 writes [E, 2F, H] and the hub release [E, H, 2F], transposed, under the same keys
    // and model_type; FC1 and FC2 together tell the two apart (recognize.cpp).
    {.name = "hf:qwen3_vl_moe",
     .stacks = kHfMultimodalStacks,
     .indexed = kPackedIndexed,
     .grouped = kProjGrouped,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:qwen3_vl_moe-v5",
     .stacks = kHfMultimodalStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
});

constexpr BesideKey kDeepstackKeys[] = {
    {"deepstack_merger_list.{N}.linear_fc1.{K}", kMergedTwice},
    {"deepstack_merger_list.{N}.linear_fc2.{K}", kMergedOut},
    {"deepstack_merger_list.{N}.norm.{K}", kMerged},
};
constexpr BesidePart kQwen3VlTower[] = {
    {"model.visual.", "vision_config", kQwenTowerKeys, "depth"},
    {"model.visual.", "vision_config", kQwenMergerKeys},
    {"model.visual.", "vision_config", kDeepstackKeys, "deepstack_visual_indexes"},
};

constexpr auto kQwen3VlMoeTextFamilies = std::to_array<Family>({
    {.model_type = "qwen3_vl_moe_text",
     .wrappers = {{{"qwen3_vl_moe", "model.language_model.", kQwen3VlTower}}},
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kUsualLayerArgs, kTwoWidthArgs,
              kQwenExpertArgs, kTopkArgs, kSoftmaxArgs, kRenormalisedArgs},
     .expert_naming = "hf:qwen3_vl_moe",
     .other_expert_naming = "hf:qwen3_vl_moe-v5",
     .torchtitan = &kTitanGroupedNaming,
     .renormalised = Renormalised::Always,
     .packed_experts = true,
     .declared_biases = kOutBias,
     .defaults = R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 128000,
       "rope_theta": 500000.0, "num_key_value_heads": 16})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_qwen3_vl_moe_text;
constinit const Knowledge k_qwen3_vl_moe_text{.experts = kQwen3VlMoeTextExperts, .families = kQwen3VlMoeTextFamilies};

}  // namespace glu_ckpt
