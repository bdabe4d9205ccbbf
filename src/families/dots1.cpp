/// dots.llm1.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kDots1Families = std::to_array<Family>({
    {.model_type = "dots1",
     .model_class = "Dots1ForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfCorrectedRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kUsualLayerArgs, kYarnArgs,
              kTwoWidthArgs, kTopkArgs, kCorrectedArgs, kDenseFirstArgs, kExpertBiasArgs},
     .expert_naming = "hf:deepseek_v3",
     .window = Window::FromLayer,
     .declared_biases = kOutBias,
     .corrected_router = true,
     .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0,
       "num_key_value_heads": 32, "norm_topk_prob": false, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
       "sliding_window": 4096, "max_window_layers": 62})",
     .loose_field = "max_window_layers"},
});

}  // namespace

extern const Knowledge k_dots1;
constinit const Knowledge k_dots1{.families = kDots1Families};

}  // namespace glu_ckpt
