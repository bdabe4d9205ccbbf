/// Mistral, dense: all layers have a window, or none has.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kMistralLayerArgs = std::to_array<ArgRow>({
    {"sliding_window", "window_size", write_window, window_of_all},
    {"", "no_rope_freq", nullptr, all_with_rope},
});

constexpr auto kMistralFamilies = std::to_array<Family>({
    {.model_type = "mistral",
     .model_class = "MistralForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kMistralLayerArgs, kYarnArgs, kDenseArgs},
     .window = Window::All,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 131072, "rope_theta": 10000.0,
       "num_key_value_heads": 8, "sliding_window": 4096})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_mistral;
constinit const Knowledge k_mistral{.families = kMistralFamilies};

}  // namespace glu_ckpt
