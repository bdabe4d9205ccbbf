/// Kimi-K2, whose class is not in transformers.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

/// It predicts no further tokens.
constexpr auto kKimiArgs =
    std::to_array<ArgRow>({{"num_nextn_predict_layers", "mtp_num_layers", nullptr, only, "0", "0"}});

constexpr auto kKimiK2Families = std::to_array<Family>({
    {.model_type = "kimi_k2",
     .model_class = "DeepseekV3ForCausalLM",
     .wrappers = {{{"kimi_k25", "language_model.model.", kKimiTower}}},
     .naming = hf_naming(kHfLatent, kHfCorrectedRouter, kHfDense, kHfMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kLatentYarnArgs, kTwoWidthArgs, kTopkArgs,
              kCorrectedArgs, kDenseFirstArgs, kNoauxArgs, kKimiArgs},
     .expert_naming = "hf:deepseek_v3",
     .torchtitan = &kTitanLatentNaming,
     .attention = Attention::Latent,
     .declared_biases = kLatentBiases,
     .corrected_router = true,
     .has_class = false,
     .tried = false},
});

}  // namespace

extern const Knowledge k_kimi_k2;
constinit const Knowledge k_kimi_k2{.families = kKimiK2Families};

}  // namespace glu_ckpt
