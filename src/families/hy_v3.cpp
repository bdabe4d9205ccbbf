/// Hunyuan-3.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kHyRows = std::to_array<DenseRow>({
    layer_row("mlp.router.gate.weight", DenseRole::Router, kExperts),
    optional_row("mlp.expert_bias", DenseRole::CorrectionBias, kExperts),
});

constexpr auto kHyArgs = std::to_array<ArgRow>({
    {"num_experts", "num_experts", write_num_experts, as_integer},
    {"num_shared_experts", "moe_shared_expert_intermediate_size", nullptr, shared_experts},
    {"", "moe_router_score_function", nullptr, always, "sigmoid"},
    {"", "moe_router_num_groups", nullptr, no_groups},
    {"router_scaling_factor", "moe_router_topk_scaling_factor", nullptr, as_factor},
    {"mlp_layer_types", "moe_layer_freq", write_expert_layers, layer_kinds},
});

constexpr auto kHyV3Families = std::to_array<Family>({
    {.model_type = "hy_v3",
     .model_class = "HYV3ForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHyRows, kHfDense, kPlainMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kUsualLayerArgs, kYarnArgs,
              kTwoWidthArgs, kTopkArgs, kHyArgs, kExpertBiasArgs, kNextTokenArgs},
     .expert_naming = "hf:hunyuan_v1_moe",
     .renormalised = Renormalised::Always,
     .words = {{{"n_shared_experts", "num_shared_experts"}, {"routed_scaling_factor", "router_scaling_factor"}}},
     .declared_biases = kOutAndMlpBiases,
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later",
     // transformers has one dense layer where no mlp_layer_types say which.
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 11158840.0, "num_key_value_heads": 8, "head_dim": 128, "num_shared_experts": 1,
       "router_scaling_factor": 2.826, "first_k_dense_replace": 1})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_hy_v3;
constinit const Knowledge k_hy_v3{.families = kHyV3Families};

}  // namespace glu_ckpt
