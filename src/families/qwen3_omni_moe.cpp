/// The language model that thinks in Qwen3-Omni: Qwen3-MoE. What sees, hears and talks beside it is not converted.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kOmniStacks = std::to_array<StackPrefix>({
    {"decoder", "thinker.model.layers."},
    {"talker", "talker.model.layers."},
});

constexpr auto kQwen3OmniMoeExperts = std::to_array<Naming>({
    {.name = "hf:qwen3_omni_moe",
     .stacks = kOmniStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExpert,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
});

constexpr auto kQwen3OmniMoeFamilies = std::to_array<Family>({
    {.model_type = "qwen3_omni_moe_text",
     .wrappers = {{{"qwen3_omni_moe", "thinker.model."}}},
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kUsualLayerArgs, kYarnArgs,
              kTwoWidthArgs, kQwenExpertArgs, kTopkArgs, kSoftmaxArgs, kNormTopkArgs},
     .expert_naming = "hf:qwen3_omni_moe",
     .root = "thinker.model.",
     .declared_biases = kOutBias,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 1000000.0, "num_key_value_heads": 4, "norm_topk_prob": true})"},
});

}  // namespace

extern const Knowledge k_qwen3_omni_moe;
constinit const Knowledge k_qwen3_omni_moe{.experts = kQwen3OmniMoeExperts, .families = kQwen3OmniMoeFamilies};

}  // namespace glu_ckpt
