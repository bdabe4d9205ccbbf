/// Solar Open: GLM-4.5 without norms of q and k, with experts in all layers.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

/// No layer is dense, so config.json says no width of one.
constexpr auto kExpertWidthArgs = std::to_array<ArgRow>({
    {"", "ffn_hidden_size", write_dense_width},
    {"moe_intermediate_size", "moe_ffn_hidden_size", write_expert_width, as_integer},
});

constexpr auto kSolarOpenFamilies = std::to_array<Family>({
    {.model_type = "solar_open",
     .model_class = "SolarOpenForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfCorrectedRouter),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kUsualLayerArgs, kYarnArgs, kPartialRopeArgs,
              kExpertWidthArgs, kTopkArgs, kCorrectedArgs, kExpertsEverywhereArgs, kExpertBiasArgs},
     .expert_naming = "hf:deepseek_v3",
     .corrected_router = true,
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 1000000.0, "num_key_value_heads": 8, "head_dim": 128, "norm_topk_prob": true,
       "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "n_shared_experts": 1})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_solar_open;
constinit const Knowledge k_solar_open{.families = kSolarOpenFamilies};

}  // namespace glu_ckpt
