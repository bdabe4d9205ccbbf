/// Qwen2 and Qwen2.5, dense: q, k and v have biases.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

/// Its config.json has no field for it.
constexpr auto kQwen2BiasArgs = std::to_array<ArgRow>({{"", "add_qkv_bias", nullptr, always, "True"}});

constexpr auto kQwen2Families = std::to_array<Family>({
    {.model_type = "qwen2",
     .model_class = "Qwen2ForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQwen2BiasArgs, kUsualLayerArgs, kYarnArgs,
              kDenseArgs},
     .window = Window::FromLayerIfAsked,
     .megatron_versions = "0.19.2 or later",
     // No field says that q, k and v have biases: the class gives them to every model.
     .defaults =
         R"({"attention_bias": true, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 10000.0,
       "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28})"},
});

}  // namespace

extern const Knowledge k_qwen2;
constinit const Knowledge k_qwen2{.families = kQwen2Families};

}  // namespace glu_ckpt
