/// A field is known if something asked for it on the way to the arguments, or if it is in kFieldsWithoutSay. Whatever
/// else a config.json says may change what the model computes: published models have fields that no class of
/// transformers has.

#include "arch/unread_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "families/arg_steps.hpp"

namespace glu_ckpt {
namespace {

/// Fields that have no say in what a model computes of a text, or whose say the tensors have: asked for or not, they
/// are known. A '*' stands for any text, in front or behind.
constexpr auto kFieldsWithoutSay = std::to_array<std::string_view>({
    // the file and the programs that wrote it
    "model_type",
    "architectures",
    "auto_map",
    "*transformers_version",
    "unsloth_*",
    "_*",
    "name_or_path",
    "*dtype",
    "*_implementation",
    "use_cache",
    "return_*",
    "output_*",
    "torchscript",
    "is_decoder",
    "problem_type",
    "tokenizer_class",
    "chunk_size*",
    "use_mamba_kernels",
    "moe_shared_expert_overlap",
    "*_fp32_combine",
    "*_fp32_softmax",
    "*_head_fp32",
    "pretraining_tp",
    "ep_size",
    "tie_encoder_decoder",
    // tokens, and how a program chooses the next one
    "*_token_id",
    "*_token_ids",
    "*_token_index",
    "*_token",
    "suppress_tokens",
    "begin_suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "do_sample",
    "max_length",
    "min_length",
    "max_new_tokens",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "*_penalty",
    "*no_repeat_ngram_size",
    // training
    "*initializer*",
    "*dropout*",
    "*aux_loss*",
    "*loss_coef*",
    "*loss_scaling_factor",
    "*loss_weight",
    "seq_aux",
    "router_jitter_noise",
    "rescale_prenorm_residual",
    "time_step_max",
    "time_step_floor",
    "time_step_limit",
    // the tensors say it
    "*_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "use_qk_norm",
    "qk_norm",
    "qk_norm_type",
    "use_routing_bias",
    "moe_use_aux_free",
    "moe_router_enable_expert_bias",
    "use_rmsnorm",
    "attn_output_gate",
    "attn_type_list",
    "use_mtp",
    "num_mtp_modules",
    "mtp_num_layers",
    "moe_capacity",
    "shared_moe_mode",
});

/// Sizes of tensors, and how long a text may be. Not here: sizes that cut a tensor in another way (heads, groups).
constexpr auto kSizes = std::to_array<std::string_view>({
    "hidden_size",
    "num_hidden_layers",
    "*vocab_size",
    "*intermediate_size",
    "*_experts",
    "num_nextn_predict_layers",
    "max_position_embeddings",
    "tie_word_embeddings",
});

/// Fields that other fields decide where they count.
constexpr auto kDecidedElsewhere = std::to_array<std::string_view>({
    "head_dim",
    "qk_head_dim",
    "num_key_value_heads",
    "expand",
    "layer_types",
    "sliding_window*",
    "max_window_layers",
    "full_attention_interval",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "mlp_only_layers",
    "*intermediate_size",
    "expert_hidden_dim",
    "is_moe_layer",
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "initial_context_length",
    "experts_per_token",
    "num_experts_per_tok",
    "attn_scale",
    "floor_scale",
    "route_norm",
    "norm_topk_prob",
    "num_hidden_layers",
    "attn_temperature_tuning",
    "moe_router_use_sigmoid",
    "moe_gate",
    "router_dtype",
    // positions of pictures are those of words in a text
    "*.mrope_section",
    "*.mrope_interleaved",
    "*.max_position_embeddings",
});

bool fits(std::string_view name, std::string_view pattern) {
  const bool any_front = pattern.starts_with('*'), any_behind = pattern.ends_with('*');
  if (any_front) pattern.remove_prefix(1);
  if (any_behind) pattern.remove_suffix(1);
  if (any_front && any_behind) return name.find(pattern) != name.npos;
  return any_front ? name.ends_with(pattern) : any_behind ? name.starts_with(pattern) : name == pattern;
}

template <std::size_t size>
bool fits_any(std::string_view name, const std::array<std::string_view, size>& patterns) {
  return std::ranges::any_of(patterns, [&](std::string_view pattern) { return fits(name, pattern); });
}

/// The row by which all models of the family have one value of the field.
const ArgRow* constant_row(const Family& family, std::string_view name) {
  for (const std::span<const ArgRow> rows : family.args)
    for (const ArgRow& row : rows)
      if (!row.field.empty() && family.own_word(row.field) == name && !row.json.empty() && row.json != "null")
        return &row;
  return nullptr;
}

/// Fields of all classes that read them for which transformers takes no null.
constexpr auto kNeverNullOfAnyClass = std::to_array<std::string_view>({
    "hidden_act",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "use_qk_norm",
    "decoder_sparse_step",
    "use_sliding_window",
    "use_conv_bias",
    "mamba_proj_bias",
});

/// Fields of a class that may be null: "none", "all", or what other fields decide.
constexpr auto kMayBeNull = std::to_array<std::string_view>({
    "*dtype",
    "rope_*",
    "partial_rotary_factor",
    "rotary_dim",
    "quantization_config",
    "q_lora_rank",
    "qk_head_dim",
    "sliding_window",
    "sliding_window_pattern",
    "attention_chunk_size",
    "*layer_types",
    "*layers_block_type",
    "mlp_only_layers",
    "moe_layers",
    "no_rope_layers",
    "indexer_types",
    "moe_latent_size",
    "num_nextn_predict_layers",
    "norm_topk_prob",
    "use_bias",
    "clip_qkv",
});

/// Fields of all classes that have them for which transformers takes a float and no whole number.
constexpr auto kFloatsAlone = std::to_array<std::string_view>({
    "initializer_range",
    "rms_norm_eps",
    "routed_scaling_factor",
    "swiglu_alpha",
    "swiglu_limit",
    "attn_scale",
    "time_step_min",
    "moe_norm_min",
    "clip_qkv",
});

bool stops_at_null(ArgsWriter& args, std::string_view name) {
  const Family& family = args.family();
  if (name == family.loose_field) return false;
  if (name == "num_key_value_heads") return family.counts_key_heads;
  // Latent attention multiplies by it; other classes work it out.
  if (name == "head_dim") return args.is_latent();
  return std::ranges::find(kNeverNullOfAnyClass, name) != kNeverNullOfAnyClass.end() ||
         (args.config.is_of_class(name) && !fits_any(name, kMayBeNull));
}

}  // namespace

void warn_of_nulls(ArgsWriter& args) {
  std::string nulls;
  std::size_t found = 0;
  for (const std::string& name : args.config.nulls())
    if (stops_at_null(args, name)) nulls += fmt::format("{}{}", found++ == 0 ? "" : ", ", name);
  if (found > 0)
    args.warn(
        "config.json says null of {}, which transformers does not take for \"not given\": it stops, and another "
        "program "
        "may compute something else. Give {} a value, or leave {} out",
        nulls, found == 1 ? "it" : "them", found == 1 ? "it" : "them");
}

void warn_of_whole_numbers(ArgsWriter& args) {
  const Family& family = args.family();
  if (!family.has_class) return;
  for (const std::string_view name : kFloatsAlone) {
    const std::string said = args.config.said(name);
    const bool is_whole = !said.empty() && said.find_first_not_of("-0123456789") == said.npos;
    if (is_whole && name != family.loose_field && (args.config.is_of_class(name) || name == kFloatsAlone.front()))
      args.warn("config.json says {0} of {1}: transformers 5.24.0 takes a float alone and stops, so write {0}.0", said,
                family.own_word(name));
  }
}

bool has_no_say(std::string_view name) { return fits_any(name, kFieldsWithoutSay) || fits_any(name, kSizes); }

void warn_of_unread_fields(ArgsWriter& args) {
  // Sizes and kinds of layers were asked of another ConfigFields: asking again notes what they are made of.
  read_architecture(args.config);
  std::string unknown;
  for (const ConfigFields::Said& said : args.config.unread()) {
    const std::string& value = said.value;
    if (fits_any(said.name, kFieldsWithoutSay) || fits_any(said.name, kDecidedElsewhere)) continue;
    if (const ArgRow* const row = constant_row(args.family(), said.name)) {
      if (row->json != value && value != "null")
        args.warn("{} is {}, and {} in all models of type '{}' as Megatron-Core and transformers compute them",
                  said.name, value, row->json, args.family().model_type);
    } else if (!said.is_off) {
      constexpr std::size_t kShown = 60;
      unknown += fmt::format("{}{} {}", unknown.empty() ? "" : ", ", said.name,
                             value.size() > kShown ? value.substr(0, kShown) + "..." : value);
    }
  }
  if (!unknown.empty())
    args.warn(
        "config.json says {}, of which nothing is known here in models of type '{}': no argument says it, and where it "
        "changes what the model computes, logits differ",
        unknown, args.family().model_type);
}

namespace {

constexpr std::string_view kOtherPrograms = "as in transformers; other programs may read the other";

void warn_of_number_of_layers(ArgsWriter& args) {
  const auto said = args.config.integer({"num_hidden_layers"});
  if (!args.family().hybrid || !args.config.has("num_hidden_layers") || !said || *said == args.model.layers) return;
  args.warn("num_hidden_layers is {}, but {} lists {} layers, which counts here, {}", *said,
            args.model.dense_layers_fields, args.model.layers, kOtherPrograms);
}

void warn_of_dense_layers(ArgsWriter& args) {
  constexpr std::string_view kField = "first_k_dense_replace", kList = "mlp_layer_types";
  const auto said = args.config.integer({kField});
  if (!args.config.has(kField) || !args.config.has(kList) || !said) return;
  const auto first = std::ranges::find(args.model.kinds, Mlp::Experts, &LayerKind::mlp);
  const i64 dense = first - args.model.kinds.begin();
  const bool dense_behind =
      std::any_of(first, args.model.kinds.end(), [](const LayerKind& kind) { return kind.mlp == Mlp::Dense; });
  if (dense == std::min(*said, args.model.layers) && !dense_behind) return;
  args.warn("{} is {}, but {} makes {} layers dense, of which {} are the first, and counts here, {}", kField, *said,
            kList, std::ranges::count(args.model.kinds, Mlp::Dense, &LayerKind::mlp), dense, kOtherPrograms);
}

void warn_of_windows(ArgsWriter& args) {
  constexpr std::string_view kField = "sliding_window_pattern", kList = "layer_types";
  const i64 period = args.config.integer({kField}).value_or(0);
  const std::vector<std::string> types = args.config.texts({kList});
  if (!args.config.has(kField) || period <= 0) return;
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    const bool has_window = types[layer] == "sliding_attention";
    if (has_window == ((static_cast<i64>(layer) + 1) % period != 0)) continue;
    return args.warn("{} is {}, but {} says '{}' of layer {}, and counts here, {}", kField, period, kList, types[layer],
                     layer, kOtherPrograms);
  }
}

/// Some sizes follow from other fields: the part of a head that is rotated, and the heads of latent attention.
void warn_of_heads(ArgsWriter& args) {
  const auto expect = [&](std::string_view field, i64 wanted, std::string_view of) {
    const auto said = args.config.integer({field});
    if (said && *said != wanted)
      args.warn("{} is {}{}, but {} it {}, which counts here, {}", field, *said,
                args.config.has(field) ? "" : " (the default of its class)", of, wanted, kOtherPrograms);
  };
  const auto part = args.config.number({"rope_parameters.partial_rotary_factor", "partial_rotary_factor"});
  if (const std::string_view field = args.family().rotated_dims_field; !field.empty() && part)
    expect(field, std::lround(*part * static_cast<double>(args.model.extent(Dim::HeadDim))),
           "partial_rotary_factor and head_dim make");
  const auto rope = args.config.integer({"qk_rope_head_dim"}), nope = args.config.integer({"qk_nope_head_dim"});
  if (!args.is_latent() || !rope || !nope) return;
  expect("qk_head_dim", *rope + *nope, "qk_nope_head_dim and qk_rope_head_dim make");
  // The class of one family takes the whole head for it, those of the others what is rotated.
  if (args.config.integer({"head_dim"}) != *rope + *nope) expect("head_dim", *rope, "qk_rope_head_dim makes");
  expect("num_key_value_heads", args.model.heads, "num_attention_heads makes");
}

}  // namespace

void warn_of_fields_said_twice(ArgsWriter& args) {
  warn_of_number_of_layers(args);
  warn_of_dense_layers(args);
  warn_of_windows(args);
  warn_of_heads(args);
}

}  // namespace glu_ckpt
