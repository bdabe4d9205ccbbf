/// Llama 1 to 3.3, dense.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kLlamaFamilies = std::to_array<Family>({
    {.model_type = "llama",
     .model_class = "LlamaForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kUsualLayerArgs, kYarnArgs, kLlama3RopeArgs,
              kDenseArgs},
     .torchtitan = &kTitanPairedNaming,
     .declared_biases = kOutAndMlpBiases,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0})"},
});

}  // namespace

extern const Knowledge k_llama;
constinit const Knowledge k_llama{.families = kLlamaFamilies};

}  // namespace glu_ckpt
