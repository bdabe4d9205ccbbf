/// Granite MoE, without and with a shared expert.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kGraniteRouter =
    std::to_array<DenseRow>({layer_row("block_sparse_moe.router.layer.weight", DenseRole::Router, kExperts)});

constexpr auto kGranitemoeExperts = std::to_array<Naming>({
    {.name = "hf:granitemoe",
     .stacks = kHfStacks,
     .indexed = {"block_sparse_moe.input_linear.{E}.{K}", "block_sparse_moe.gate_linear.{E}.{K}",
                 "block_sparse_moe.up_linear.{E}.{K}", "block_sparse_moe.output_linear.{E}.{K}"},
     .grouped = {"block_sparse_moe.input_linear.{K}", "block_sparse_moe.gate_linear.{K}",
                 "block_sparse_moe.up_linear.{K}", "block_sparse_moe.output_linear.{K}"},
     .shared = {"shared_mlp.input_linear.{K}", "shared_mlp.gate_linear.{K}", "shared_mlp.up_linear.{K}",
                "shared_mlp.output_linear.{K}"},
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .native_shared_fused = true,
     .mtp_follows_decoder = true,
     .router = "block_sparse_moe.router.layer.weight"},
});

constexpr auto kGraniteArgs = std::to_array<ArgRow>({
    {"attention_multiplier", "kv_channels", warn_of_softmax_scale, usual_softmax_scale},
    {"embedding_multiplier", "", warn_of_factor, constant, "", "1.0"},
    {"residual_multiplier", "", warn_of_factor, constant, "", "1.0"},
    {"logits_scaling", "", warn_of_factor, constant, "", "1.0"},
});

constexpr auto kGraniteSharedArgs =
    std::to_array<ArgRow>({{"shared_intermediate_size", "moe_shared_expert_intermediate_size", nullptr, shared_width}});

constexpr std::string_view kGraniteDefaults = R"({"num_experts_per_tok": 2, "rms_norm_eps": 1e-6,
  "max_position_embeddings": 2048, "rope_theta": 10000.0, "attention_multiplier": 1.0})";

constexpr auto kGranitemoeFamilies = std::to_array<Family>({
    {.model_type = "granitemoe",
     .model_class = "GraniteMoeForCausalLM",
     .naming = hf_naming(kHfGrouped, kGraniteRouter),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kUsualLayerArgs, kYarnArgs, kOneWidthArgs,
              kExpertsEverywhereArgs, kTopkArgs, kSoftmaxArgs, kRenormalisedArgs, kGraniteArgs},
     .expert_naming = "hf:granitemoe",
     .renormalised = Renormalised::Always,
     .softmax_scale_field = "attention_multiplier",
     .intermediate_is_experts = true,
     .packed_experts = true,
     .declared_biases = kOutBias,
     .defaults = kGraniteDefaults},
    {.model_type = "granitemoeshared",
     .model_class = "GraniteMoeSharedForCausalLM",
     .naming = hf_naming(kHfGrouped, kGraniteRouter),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kUsualLayerArgs, kYarnArgs, kOneWidthArgs,
              kExpertsEverywhereArgs, kGraniteSharedArgs, kTopkArgs, kSoftmaxArgs, kRenormalisedArgs, kGraniteArgs},
     .expert_naming = "hf:granitemoe",
     .renormalised = Renormalised::Always,
     .shared_width_field = "shared_intermediate_size",
     .softmax_scale_field = "attention_multiplier",
     .intermediate_is_experts = true,
     .packed_experts = true,
     .declared_biases = kOutBias,
     .defaults = kGraniteDefaults},
});

}  // namespace

extern const Knowledge k_granitemoe;
constinit const Knowledge k_granitemoe{.experts = kGranitemoeExperts, .families = kGranitemoeFamilies};

}  // namespace glu_ckpt
