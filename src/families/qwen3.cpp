/// Qwen3, dense.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kQwen3Families = std::to_array<Family>({
    {.model_type = "qwen3",
     .model_class = "Qwen3ForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kUsualLayerArgs, kYarnArgs, kDenseArgs},
     .torchtitan = &kTitanGroupedNaming,
     .window = Window::FromLayerIfAsked,
     .declared_biases = kOutBias,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 10000.0,
       "num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28})"},
});

}  // namespace

extern const Knowledge k_qwen3;
constinit const Knowledge k_qwen3{.families = kQwen3Families};

}  // namespace glu_ckpt
