/// OLMoE.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kOlmoeFamilies = std::to_array<Family>({
    {.model_type = "olmoe",
     .model_class = "OlmoeForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfWideQkNorm, kHfRouter),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kWideNormArgs, kUsualLayerArgs, kYarnArgs,
              kOneWidthArgs, kExpertsEverywhereArgs, kTopkArgs, kSoftmaxArgs, kNormTopkArgs},
     .expert_naming = "hf:qwen3_moe",
     .wide_qk_norms = true,
     .words = {{{"num_local_experts", "num_experts"}}},
     .intermediate_is_experts = true,
     .declared_biases = kOutBias,
     .needs = kWideNormNeed,
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
       "rope_theta": 10000.0, "norm_topk_prob": false})"},
});

}  // namespace

extern const Knowledge k_olmoe;
constinit const Knowledge k_olmoe{.families = kOlmoeFamilies};

}  // namespace glu_ckpt
