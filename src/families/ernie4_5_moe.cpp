/// ERNIE 4.5 MoE.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kErnieRouter = std::to_array<DenseRow>({
    layer_row("mlp.gate.weight", DenseRole::Router, kExperts),
    {Place::Layer,
     "mlp.moe_statics.e_score_correction_bias",
     {DenseRole::CorrectionBias},
     1,
     kExperts,
     true,
     Groups::One,
     Form::OneRow},
});

/// The weights of the chosen experts are divided by their sum, or by this if that is less. A softmax gives them
/// moe_k / moe_num_experts at least.
void warn_of_least_sum(ArgsWriter& args, const ArgRow& row) {
  const double least = args.config.number({row.field}).value_or(0.0);
  const double smallest_sum =
      static_cast<double>(args.integer({"moe_k"})) / static_cast<double>(args.model.num_experts);
  if (least > smallest_sum)
    args.warn(
        "{} is {}, and the weights of the chosen experts may sum to less: Megatron-Core divides them by their sum, "
        "whatever it is, so logits may differ",
        row.field, float_text(least));
}

constexpr auto kErnieArgs = std::to_array<ArgRow>({
    {"use_bias", "add_bias_linear", nullptr, only, "False", "false"},
    {"moe_num_experts", "num_experts", write_num_experts, as_integer},
    {"moe_num_shared_experts", "moe_shared_expert_intermediate_size", nullptr, shared_experts_if_any},
    {"moe_layer_start_index", "moe_layer_freq", write_expert_layers, first_dense},
    {"moe_k", "moe_router_topk", write_router, as_integer},
    {"moe_norm_min", "", warn_of_least_sum},
});

constexpr auto kErnie45MoeFamilies = std::to_array<Family>({
    {.model_type = "ernie4_5_moe",
     .model_class = "Ernie4_5_MoeForCausalLM",
     .naming = hf_naming(kHfGrouped, kErnieRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kGroupedArgs, kUsualLayerArgs, kYarnArgs, kInterleavedRopeArgs, kTwoWidthArgs,
              kErnieArgs, kSoftmaxArgs, kRenormalisedArgs},
     .expert_naming = "hf:deepseek_v3",
     .scores = Scores::Softmax,
     .renormalised = Renormalised::Always,
     .interleaved_rope = true,
     .zero_correction_bias = true,
     .defaults = R"({"num_experts_per_tok": 6, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 500000.0, "num_key_value_heads": 4, "moe_layer_start_index": 1, "tie_word_embeddings": true,
       "moe_num_shared_experts": 2, "moe_k": 6, "moe_layer_end_index": -1, "moe_layer_interval": 1,
       "moe_norm_min": 1e-12})"},
});

}  // namespace

extern const Knowledge k_ernie4_5_moe;
constinit const Knowledge k_ernie4_5_moe{.families = kErnie45MoeFamilies};

}  // namespace glu_ckpt
