/// The language model of Mistral Small 4: DeepSeek's latent attention and a router by softmax, without a correction
/// bias.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kMistral4Experts = std::to_array<Naming>({packed_beside_shared("hf:mistral4")});

/// A query is multiplied by 1 + beta log(1 + floor(position / original_max_position_embeddings)).
void warn_of_query_scale(ArgsWriter& args, const ArgRow& row) {
  const double beta = args.config.number({row.field, "rope_scaling.llama_4_scaling_beta"}).value_or(0.0);
  const auto positions = args.config.integer(
      {"rope_parameters.original_max_position_embeddings", "rope_scaling.original_max_position_embeddings"});
  if (beta != 0.0)
    args.warn(
        "llama_4_scaling_beta is {}: Megatron-Core does not scale queries by their position, so logits differ in "
        "sequences of more than {} tokens (original_max_position_embeddings)",
        float_text(beta), args.needed(positions, "rope_parameters.original_max_position_embeddings"));
}

/// Megatron-Core sums the logits of a group where it divides after the softmax, transformers its scores.
void warn_of_softmax_groups(ArgsWriter& args, const ArgRow& row) {
  if (const i64 groups = args.integer({row.field}); groups > 1)
    args.warn("{} is {}: Megatron-Core ranks groups of experts by their logits, and not by the softmax of those",
              row.field, groups);
}

/// No argument says beta. It has no say where no text is longer than what YaRN stretches from. Megatron-Core does not
/// scale queries, but those of a model that began as Mistral's are to be scaled: so neither 0 nor 0.1 is chosen here.
/// The class takes a part of each head to be turned that fits, and needs the length also without a scale.
JsonWord yarn_and_query_scale(SavedArgs& args, const ArgRow& row) {
  constexpr std::string_view kKind = "rope_type";
  if (const std::string kind = args.text(kKind); !kind.empty() && kind != "yarn")
    args.strange.push_back(fmt::format("{} {} instead of yarn", kKind, kind));
  if (const i64 positions = args.needed("max_position_embeddings"), length = yarn_length(args); positions > length)
    args.unsaid.push_back(
        fmt::format("llama_4_scaling_beta, by which transformers scales the queries of positions from {} on "
                    "(max_position_embeddings is {}) and Megatron-Core does not",
                    length, positions));
  return yarn_object(args, row, ",\n    \"llama_4_scaling_beta\": 0.0");
}

constexpr auto kMistral4Args = std::to_array<ArgRow>({
    {"rope_parameters.llama_4_scaling_beta", "", warn_of_query_scale},
    {"rope_parameters", "rotary_scaling_factor", nullptr, yarn_and_query_scale},
    {"n_group", "moe_router_num_groups", warn_of_softmax_groups, no_groups, "", "1"},
    {"n_routed_experts", "num_experts", write_num_experts, as_integer},
    {"n_shared_experts", "moe_shared_expert_intermediate_size", nullptr, shared_experts},
    {"first_k_dense_replace", "moe_layer_freq", write_expert_layers, first_dense},
    {"norm_topk_prob", "moe_router_pre_softmax", nullptr, as_opposite},
    {"", "moe_router_pre_softmax", nullptr, softmax_not_first},
    {"routed_scaling_factor", "moe_router_topk_scaling_factor", nullptr, as_factor},
});

constexpr BesideKey kPixtralKeys[] = {
    {"ln_pre.weight", "hidden_size"},
    {"patch_conv.weight", "hidden_size, num_channels, patch_size, patch_size"},
    {"transformer.layers.{N}.attention.k_proj.weight", "hidden_size, hidden_size"},
    {"transformer.layers.{N}.attention.o_proj.weight", "hidden_size, hidden_size"},
    {"transformer.layers.{N}.attention.q_proj.weight", "hidden_size, hidden_size"},
    {"transformer.layers.{N}.attention.v_proj.weight", "hidden_size, hidden_size"},
    {"transformer.layers.{N}.attention_norm.weight", "hidden_size"},
    {"transformer.layers.{N}.feed_forward.down_proj.weight", "hidden_size, intermediate_size"},
    {"transformer.layers.{N}.feed_forward.gate_proj.weight", "intermediate_size, hidden_size"},
    {"transformer.layers.{N}.feed_forward.up_proj.weight", "intermediate_size, hidden_size"},
    {"transformer.layers.{N}.ffn_norm.weight", "hidden_size"},
};
constexpr BesideKey kMistral3ProjectorKeys[] = {
    {"linear_1.weight", ".text_config.hidden_size, hidden_size"},
    {"linear_2.weight", ".text_config.hidden_size, .text_config.hidden_size"},
    {"norm.weight", "hidden_size"},
    {"patch_merger.merging_layer.weight", "hidden_size, hidden_size*.spatial_merge_size*.spatial_merge_size"},
};
constexpr BesidePart kMistral3Tower[] = {
    {"vision_tower.", "vision_config", kPixtralKeys, "num_hidden_layers"},
    {"multi_modal_projector.", "vision_config", kMistral3ProjectorKeys},
};

constexpr auto kMistral4Families = std::to_array<Family>({
    {.model_type = "mistral4",
     .inner_class = "Mistral4ForCausalLM",
     .wrappers = {{{"mistral3", "language_model.model.", kMistral3Tower}}},
     .naming = hf_naming(kHfLatent, kHfRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kTwoWidthArgs, kTopkArgs, kSoftmaxArgs, kMistral4Args},
     .expert_naming = "hf:mistral4",
     .attention = Attention::Latent,
     .scores = Scores::Softmax,
     .packed_experts = true,
     .declared_biases = kLatentBiases,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 1048576,
       "norm_topk_prob": true, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
       "first_k_dense_replace": 0, "q_lora_rank": 1024, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0,
       "factor": 128.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
       "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}, "num_key_value_heads": 32})"},
});

}  // namespace

extern const Knowledge k_mistral4;
constinit const Knowledge k_mistral4{.experts = kMistral4Experts, .families = kMistral4Families};

}  // namespace glu_ckpt
