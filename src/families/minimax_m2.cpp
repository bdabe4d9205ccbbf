/// MiniMax-M2.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kMinimaxRouter = std::to_array<DenseRow>({
    layer_row("block_sparse_moe.gate.weight", DenseRole::Router, kExperts),
    optional_row("block_sparse_moe.e_score_correction_bias", DenseRole::CorrectionBias, kExperts),
});

constexpr auto kMinimaxArgs = std::to_array<ArgRow>({
    {"rotary_dim", "rotary_percent", nullptr, as_rotated_dims},
    {"scoring_func", "moe_router_score_function", nullptr, always, "sigmoid", "\"sigmoid\""},
    {"use_routing_bias", "moe_router_enable_expert_bias", nullptr, as_flag},
});

constexpr auto kMinimaxM2Families = std::to_array<Family>({
    {.model_type = "minimax_m2",
     .model_class = "MiniMaxM2ForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfWideQkNorm, kMinimaxRouter),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kWideNormArgs, kUsualLayerArgs, kYarnArgs,
              kOneWidthArgs, kExpertsEverywhereArgs, kTopkArgs, kMinimaxArgs},
     .expert_naming = "hf:mixtral",
     .wide_qk_norms = true,
     .scores = Scores::Sigmoid,
     .renormalised = Renormalised::Always,
     .rotated_dims_field = "rotary_dim",
     .intermediate_is_experts = true,
     .needs = kWideNormNeed,
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 196608,
       "rope_theta": 5000000.0, "num_key_value_heads": 8, "head_dim": 128})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_minimax_m2;
constinit const Knowledge k_minimax_m2{.families = kMinimaxM2Families};

}  // namespace glu_ckpt
