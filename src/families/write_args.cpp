/// From config.json to Megatron-LM's arguments.

#include <algorithm>
#include <cmath>
#include <map>

#include "core/fail.hpp"
#include "families/arg_steps.hpp"

namespace glu_ckpt {

std::string float_text(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".einf") == text.npos ? text + ".0" : text;
}

bool ArgsWriter::has(DenseRole role, TensorKind kind) const {
  return std::ranges::any_of(
      recognized.dense, [&](const DenseMatrix& matrix) { return matrix.role == role && matrix.matrix.kind == kind; });
}

i64 ArgsWriter::mtp_steps() const {
  i64 layers = 0;
  for (const DenseMatrix& matrix : recognized.dense)
    if (matrix.stack == "mtp") layers = std::max(layers, matrix.layer + 1);
  if (layers > 0 && model.mtp_repeats > 0) return model.mtp_repeats;
  return (layers + model.mtp_depth() - 1) / model.mtp_depth();
}

void ArgsWriter::flag(std::string_view name) { add(name, std::string_view()); }

void ArgsWriter::add(std::string_view name, std::string_view value) {
  std::string option(name);
  std::ranges::replace(option, '_', '-');
  written.text += fmt::format("--{}{}{}\n", option, value.empty() ? "" : " ", value);
}

void ArgsWriter::fail_without(std::string_view name) const {
  fail(ErrorCode::NoMap, {},
       "config.json: {} is missing, and no default of models of type '{}' is known: without it the arguments of "
       "Megatron-Core would compute another model",
       name, model.model_type);
}

std::string layer_pattern(const std::vector<bool>& flags) {
  std::string text;
  for (std::size_t first = 0; first < flags.size();) {
    std::size_t last = first;
    while (last < flags.size() && flags[last] == flags[first]) ++last;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", flags[first] ? 1 : 0, last - first);
    first = last;
  }
  return text;
}

namespace {

/// Returns whether the weights of the chosen experts are divided by their sum.
bool renormalises(ArgsWriter& args) {
  if (args.family().renormalised != Renormalised::AsConfigured)
    return args.family().renormalised == Renormalised::Always;
  return args.needed(args.config.flag({"norm_topk_prob"}), "norm_topk_prob");
}

void warn_of_one_expert(ArgsWriter& args, i64 topk) {
  if (topk == 1)
    args.warn(
        "num_experts_per_tok is 1, and the weight of the one expert is divided by itself, so it is 1: Megatron-Core "
        "multiplies one expert by its own score, and no argument changes it: logits differ");
}

void add_sigmoid_router(ArgsWriter& args, i64 topk) {
  args.add("moe_router_score_function", "sigmoid");
  if (args.has(DenseRole::CorrectionBias)) args.flag("moe_router_enable_expert_bias");
  if (args.family().weights_on_input) {
    args.flag("moe_apply_probs_on_input");
    if (topk > 1)
      args.warn(
          "num_experts_per_tok is {}: Megatron-Core takes the routing weights to the experts' input for one expert "
          "alone, and stops",
          topk);
  } else if (renormalises(args)) {
    warn_of_one_expert(args, topk);
  } else if (topk > 1) {
    args.warn("norm_topk_prob is false, but Megatron-Core divides the weights of sigmoid routing by their sum");
  }
}

void add_softmax_router(ArgsWriter& args, i64 topk) {
  args.add("moe_router_score_function", "softmax");
  const bool post = renormalises(args);
  // Megatron-Core stops where one expert is chosen before the softmax.
  if (!post || topk == 1) args.flag("moe_router_pre_softmax");
  // DeepSeek's own code does not renormalise the weight of one expert.
  if (post && !args.family().divides_or_scales) warn_of_one_expert(args, topk);
  if (args.has(DenseRole::CorrectionBias))
    args.warn(
        "the model chooses experts by softmax plus a correction bias, which Megatron-Core has for sigmoid alone: the "
        "model computes the same only where that bias is zero");
}

void add_router_scaling(ArgsWriter& args, i64 topk) {
  constexpr std::string_view kField = "routed_scaling_factor";
  double scaling = args.config.is_of_class(kField) ? args.config.number({kField}).value_or(1.0) : 1.0;
  if (args.family().divides_or_scales || args.family().corrected_router)
    scaling = args.needed_number("routed_scaling_factor");
  if (args.family().divides_or_scales && renormalises(args) && topk > 1) {
    args.warn(
        "norm_topk_prob is true: the arguments divide the weights of the chosen experts by their sum and leave "
        "routed_scaling_factor ({}) away, as DeepSeek's own code does; transformers multiplies by it and does not "
        "divide: logits differ from its",
        float_text(scaling));
    return;
  }
  if (scaling != 1.0) args.add_float("moe_router_topk_scaling_factor", scaling);
}

void add_groups(ArgsWriter& args, i64 topk) {
  const i64 groups = args.integer({"n_group"}), chosen = args.integer({"topk_group"});
  const std::string method = args.config.text({"topk_method"});
  constexpr std::string_view kByGroups = "group_limited_greedy";
  if (args.family().divides_or_scales && method != kByGroups) {
    if (method != "greedy")
      args.warn(
          "topk_method is '{}', where models of type '{}' have 'greedy' or '{}': transformers stops, and the "
          "arguments choose among all experts",
          method, args.family().model_type, kByGroups);
    return;
  }
  if (groups > 0 && (chosen > groups || (chosen < 1 && groups > 1)))
    fail(ErrorCode::ConfigJson, {}, "config.json: n_group is {}, of which topk_group chooses {}{}", groups, chosen,
         args.config.has("topk_group") ? "" : " (the default of its class)");
  if (groups <= 1) return;
  if (!args.family().divides_or_scales && args.model.num_experts / groups < 2)
    fail(ErrorCode::ConfigJson, {},
         "config.json: n_group is {}, so that a group has one of {} experts; programs rank groups by the best two of "
         "each, and stop",
         groups, args.model.num_experts);
  args.add("moe_router_num_groups", groups);
  args.add("moe_router_group_topk", chosen);
  if (args.family().divides_or_scales)
    args.warn(
        "topk_method group_limited_greedy ranks groups by their best expert, Megatron-Core by the sum of their best "
        "{}: other experts may be chosen",
        chosen > 0 ? topk / chosen : topk);
  else if (chosen > 0 && topk / chosen != 2)
    args.warn(
        "groups are ranked by the sum of their best 2 experts, in Megatron-Core by that of their best {} "
        "(num_experts_per_tok {} / topk_group {})",
        topk / chosen, topk, chosen);
}

std::vector<bool> layers_without_rope(ArgsWriter& args) {
  std::vector<bool> without(static_cast<std::size_t>(args.model.layers), false);
  const std::vector<i64> said = args.config.integers({"no_rope_layers"});
  constexpr i64 kUsualInterval = 4;
  const i64 interval = std::max<i64>(1, args.config.integer({"no_rope_layer_interval"}).value_or(kUsualInterval));
  for (std::size_t i = 0; i < without.size(); ++i)
    without[i] = said.empty() ? (static_cast<i64>(i) + 1) % interval == 0 : i < said.size() && said[i] == 0;
  return without;
}

/// Layers with rotary embedding see the tokens of their own chunk alone.
void warn_of_chunks(ArgsWriter& args, const std::vector<bool>& without_rope) {
  const auto chunk = args.config.integer({"attention_chunk_size"});
  const std::vector<std::string> types = args.config.texts({"layer_types"});
  const bool chunked = types.empty() ? std::ranges::find(without_rope, false) != without_rope.end()
                                     : std::ranges::find(types, std::string("chunked_attention")) != types.end();
  if (chunk && chunked && *chunk < args.needed_integer("max_position_embeddings"))
    args.warn(
        "attention_chunk_size is {}: Megatron-Core's attention has no chunks, so logits differ in sequences of more "
        "than {} tokens",
        *chunk, *chunk);
}

/// Marks the layers that have a window where no layer_types say which.
void add_usual_window(ArgsWriter& args, std::vector<bool>& sliding) {
  const bool asked = args.config.flag({"use_sliding_window"}).value_or(false);
  switch (args.family().window) {
    case Window::None: return;
    case Window::All: return sliding.flip();
    case Window::AllIfAsked:
      if (asked) sliding.flip();
      return;
    case Window::EveryOther:
      for (std::size_t i = 0; i < sliding.size(); i += 2) sliding[i] = true;
      return;
    case Window::FromLayerIfAsked:
      if (!asked) return;
      [[fallthrough]];
    case Window::FromLayer:
      for (auto i = static_cast<std::size_t>(args.needed_integer("max_window_layers")); i < sliding.size(); ++i)
        sliding[i] = true;
      return;
    case Window::Unclear:
      if (asked)
        args.warn(
            "use_sliding_window without layer_types: releases of transformers differ in the layers that it is for, "
            "so no argument is written");
  }
}

/// Returns which layers see no more than the last `sliding_window` tokens; empty where none does.
std::vector<bool> sliding_layers(ArgsWriter& args) {
  const auto layers = static_cast<std::size_t>(args.model.layers);
  std::vector<bool> sliding(layers, false);
  if (const std::vector<std::string> types = args.config.texts({"layer_types"}); !types.empty())
    for (std::size_t i = 0; i < std::min(layers, types.size()); ++i) sliding[i] = types[i] == "sliding_attention";
  else
    add_usual_window(args, sliding);
  return std::ranges::find(sliding, true) == sliding.end() ? std::vector<bool>() : sliding;
}

/// Returns the dtype that most elements are in; norms, biases and the router may be in another. None where all are
/// codes.
std::optional<Dtype> dtype_of_weights(ArgsWriter& args) {
  std::map<Dtype, i64> elements;
  const auto count = [&](Dtype dtype, const Matrix& matrix) {
    if (dtype == Dtype::F32 || dtype == Dtype::BF16 || dtype == Dtype::F16)
      elements[dtype] += matrix.rows * matrix.cols;
  };
  for (const DenseMatrix& dense : args.recognized.dense) count(dense.stored_dtype, dense.matrix);
  for (const ExpertBlock& block : args.recognized.blocks)
    for (const Matrix& matrix : block.matrices)
      if (!block.is_optimizer_state() && matrix.kind == TensorKind::Weight) count(matrix.dtype, matrix);
  const auto most = std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
  return most == elements.end() ? std::nullopt : std::optional(most->first);
}

}  // namespace

void write_value(ArgsWriter& args, const ArgRow& row) {
  row.value == "True" ? args.flag(row.argument) : args.add(row.argument, row.value);
}
void write_integer(ArgsWriter& args, const ArgRow& row) { args.add(row.argument, args.integer({row.field})); }

// ---- sizes and experts ------------------------------------------------------------------------

void write_layers(ArgsWriter& args, const ArgRow& row) { args.add(row.argument, args.model.layers); }
void write_with_experts(ArgsWriter& args, const ArgRow& row) {
  if (args.model.num_experts > 0) write_value(args, row);
}

void write_heads(ArgsWriter& args, const ArgRow& row) { args.add(row.argument, args.model.heads); }
void write_num_experts(ArgsWriter& args, const ArgRow& row) { args.add(row.argument, args.model.num_experts); }
void write_expert_width(ArgsWriter& args, const ArgRow& row) { args.add(row.argument, args.model.expert_width); }

void write_dense_width(ArgsWriter& args, const ArgRow& row) {
  const i64 dense = args.model.extent(Dim::DenseWidth);
  const bool has_dense = std::ranges::any_of(args.model.kinds, [](LayerKind kind) { return kind.mlp == Mlp::Dense; });
  args.add(row.argument, dense > 0 || has_dense ? dense : args.model.expert_width);
}

void write_positions(ArgsWriter& args, const ArgRow& row) {
  const i64 positions = args.needed_integer(row.field);
  args.add(row.argument, positions);
  constexpr i64 kUsualLength = 4096;
  args.add("seq_length", std::min(positions, kUsualLength));
}

void write_mtp_layers(ArgsWriter& args, const ArgRow& row) {
  const i64 layers = args.mtp_steps();
  if (layers > 0 && args.model.has_attention_variant())
    args.warn(
        "the checkpoint has {} layer{} of multi-token prediction, and no --mtp-num-layers is written: Megatron-Core "
        "0.19.2 stops where a model has both an experimental attention variant and such layers; they are stored under "
        "the keys that it would ask for",
        layers, layers == 1 ? "" : "s");
  else if (layers > 0)
    args.add(row.argument, layers);
}

void write_expert_layers(ArgsWriter& args, const ArgRow& row) {
  // With a list, even of equal numbers, Megatron-Core asks for keys with a layer number.
  if (args.to.stacked) return;
  std::vector<bool> experts;
  for (const LayerKind kind : args.model.kinds) experts.push_back(kind.mlp == Mlp::Experts);
  args.add(row.argument, layer_pattern(experts));
}

void write_shared_width(ArgsWriter& args, const ArgRow& row) {
  const auto& blocks = args.recognized.blocks;
  const auto shared = std::ranges::find(blocks, ExpertSet::Shared, &ExpertBlock::set);
  if (shared == blocks.end()) return;
  args.add(row.argument, shared->intermediate_size);
  constexpr std::string_view kCount = "n_shared_experts";
  if (args.family().has_class && args.config.is_of_class(kCount) && !args.config.integer({kCount}) &&
      !args.config.is_null(kCount))
    args.warn("config.json does not say {}, and the class of models of type '{}' has none: transformers stops",
              args.config.spelling({kCount}), args.family().model_type);
  if (args.has(DenseRole::SharedGate)) args.flag("moe_shared_expert_gate");
  if (args.to.shared && args.to.shared->kind == Glu::Kind::Interleaved)
    args.add("moe_shared_expert_glu_interleave_size", args.to.shared->block_rows);
}

void write_glu_orders(ArgsWriter& args, const ArgRow& row) {
  if (!args.to.routed || args.to.routed->kind != Glu::Kind::Interleaved) return;
  const i64 rows = args.to.routed->block_rows;
  if (args.family().has_experts()) return args.add(row.argument, rows);
  if (rows != kFusedDenseRows)
    args.warn(
        "gate and up of dense layers are interleaved:{}; Megatron-Core's fused dense MLP reads blocks of {} rows alone",
        rows, kFusedDenseRows);
  for (const std::string_view name : kFusedDenseArgs) args.flag(name);
}

void write_router(ArgsWriter& args, const ArgRow& row) {
  const i64 topk =
      args.needed(args.config.integer({"num_experts_per_tok", "moe_topk", "moe_k"}), "num_experts_per_tok");
  if (topk < 1 || topk > args.model.num_experts)
    fail(ErrorCode::ConfigJson, {}, "config.json: {} is {}, but there are {} experts to choose from",
         args.config.spelling({"num_experts_per_tok", "moe_topk", "moe_k"}), topk, args.model.num_experts);
  args.add(row.argument, topk);
  const std::string said = args.config.text({"scoring_func"});
  const bool says_sigmoid = said == "sigmoid" && args.config.is_of_class("scoring_func");
  const bool sigmoid =
      args.family().scores == Scores::Sigmoid ||
      (args.family().scores == Scores::AsConfigured && (args.has(DenseRole::CorrectionBias) || says_sigmoid));
  if (said == (sigmoid ? "softmax" : "sigmoid"))
    args.warn("{} is '{}', but models of type '{}' score experts by a {}, which is what the arguments say",
              args.config.spelling({"scoring_func"}), said, args.family().model_type, sigmoid ? "sigmoid" : "softmax");
  sigmoid ? add_sigmoid_router(args, topk) : add_softmax_router(args, topk);
  add_groups(args, topk);
  add_router_scaling(args, topk);
}

// ---- norms and activation ---------------------------------------------------------------------

void write_epsilon(ArgsWriter& args, const ArgRow& row) {
  args.add_float(row.argument,
                 args.needed(args.config.number({"rms_norm_eps", "layer_norm_eps", "norm_eps"}), row.field));
}

void write_latent_epsilon(ArgsWriter& args, const ArgRow&) {
  const auto epsilon = args.config.number({"rms_norm_eps"});
  if (constexpr double kLatentEpsilon = 1e-6; epsilon && *epsilon != kLatentEpsilon)
    args.warn(
        "rms_norm_eps is {}, but transformers builds the norms of the latents with 1e-06, which Megatron-Core "
        "cannot: logits differ in the fifth digit",
        float_text(*epsilon));
}

void write_quick_geglu(ArgsWriter& args, const ArgRow& row) {
  args.flag(row.argument);
  args.add_float("glu_linear_offset", 1.0);
  constexpr double kUsualLimit = 7.0, kQuickGeluAlpha = 1.702;
  args.add_float("activation_func_clamp_value", args.config.number({"swiglu_limit"}).value_or(kUsualLimit));
  if (const double alpha = args.config.number({"swiglu_alpha"}).value_or(kQuickGeluAlpha); alpha != kQuickGeluAlpha)
    args.warn("swiglu_alpha is {}; Megatron-Core's quick GeGLU has 1.702", float_text(alpha));
  args.flag("no_bias_gelu_fusion");
  args.flag("no_bias_dropout_fusion");
}

void write_swiglu(ArgsWriter& args, const ArgRow& row) {
  args.flag(row.argument);
  args.flag("disable_bias_linear");
  const std::string act = args.config.text({"hidden_act", "hidden_activation"});
  if (!act.empty() && act != "silu" && act != "swish") args.warn("hidden_act is '{}'; --swiglu computes silu", act);
}

void warn_of_factor(ArgsWriter& args, const ArgRow& row) {
  if (const double value = args.config.number({row.field}).value_or(1.0); value != 1.0)
    args.warn("{} is {}, but 1 in Megatron-Core, and no argument changes it: logits differ", row.field,
              float_text(value));
}

void warn_of_softmax_scale(ArgsWriter& args, const ArgRow& row) {
  const auto multiplier = args.config.number({row.field});
  const double usual = 1.0 / std::sqrt(static_cast<double>(args.model.extent(Dim::HeadDim)));
  if (multiplier && std::abs(*multiplier - usual) > 1e-9 * usual)
    args.warn("{} is {}, where Megatron-Core has 1/sqrt(head_dim) = {}, and no argument changes it: logits differ",
              row.field, float_text(*multiplier), float_text(usual));
}

// ---- attention --------------------------------------------------------------------------------

void write_query_latent(ArgsWriter& args, const ArgRow& row) {
  if (args.config.integer({row.field}) == 0 && args.config.has(row.field))
    args.warn(
        "{} is 0, for which transformers builds a projection to no dimensions; null is what says that there is none",
        row.field);
  if (args.model.extent(Dim::QLora) > 0) args.add(row.argument, args.model.extent(Dim::QLora));
}

void write_query_groups(ArgsWriter& args, const ArgRow& row) {
  args.flag("group_query_attention");
  args.add(row.argument, args.model.kv_heads);
}

void write_attention_biases(ArgsWriter& args, const ArgRow& row) {
  if (args.family().biases_everywhere) return;
  if (args.has(DenseRole::Q, TensorKind::Bias)) args.flag(row.argument);
}

void write_qk_norms(ArgsWriter& args, const ArgRow& row) {
  if (args.has(DenseRole::QNorm) || args.has(DenseRole::WideQNorm)) args.flag(row.argument);
}

void write_chunked_attention(ArgsWriter& args, const ArgRow& row) {
  const bool norms = args.config.flag({row.field}).value_or(true);
  if (norms) args.flag(row.argument);
  const std::vector<bool> without = layers_without_rope(args);
  if (std::ranges::find(without, true) != without.end()) {
    args.add("no_rope_freq", layer_pattern(without));
    if (norms || args.config.flag({"attn_temperature_tuning"}).value_or(true))
      args.warn(
          "layers without rotary embedding (no_rope_layers; every fourth where it is missing or empty) have no QK "
          "norm in Llama 4, and temperature tuning, which Megatron-Core does not have: logits differ");
  }
  warn_of_chunks(args, without);
}

void write_window(ArgsWriter& args, const ArgRow& row) {
  const i64 window = args.integer({"sliding_window"});
  if (window == 0 && args.config.has("sliding_window"))
    args.warn(
        "sliding_window is 0, and transformers stops at a window of no tokens; null is what says that there is none");
  if (window <= 0) return;
  const std::vector<bool> sliding = sliding_layers(args);
  if (sliding.empty()) return;
  // Megatron-Core counts the tokens to the left of a token, Hugging Face that one as well.
  args.add(row.argument, fmt::format("{},0", window - 1));
  args.add("window_attn_skip_freq", layer_pattern(sliding));
}

void write_delta(ArgsWriter& args, const ArgRow& row) {
  if (args.model.delta_key_heads == 0) return;
  // Core 0.16 knows this spelling alone; later ones take it for "gdn".
  args.add("experimental_attention_variant", "gated_delta_net");
  std::vector<bool> delta;
  for (const LayerKind kind : args.model.kinds) delta.push_back(kind.attention == Attention::Delta);
  args.add(row.argument, layer_pattern(delta));
}

/// Layer l of Megatron-Core, counted from 1, shares an indexer unless max(l - max(offset, 1), 0) is a multiple of freq.
void write_indexers(ArgsWriter& args, const ArgRow& row) {
  std::vector<bool> own;
  for (const LayerKind kind : args.model.kinds) own.push_back(kind.indexer);
  const auto first_shared = std::ranges::find(own, false);
  if (first_shared == own.end()) return;
  const i64 offset = first_shared - own.begin();
  const i64 freq = std::find(first_shared, own.end(), true) - first_shared + 1;
  if (layers_with_indexers(std::ssize(own), freq, offset) != own)
    fail(ErrorCode::NoMap, {},
         "config.json: the layers with an indexer of their own ({}) are {}, which Megatron-Core cannot build: it has "
         "one in the first layers and in each N-th behind them (--dsa-indexer-skip-topk-offset, "
         "--dsa-indexer-topk-freq)",
         args.config.spelling({"indexer_types", "index_topk_pattern", "index_topk_freq"}), layer_pattern(own));
  args.add(row.argument, freq);
  args.add("dsa_indexer_skip_topk_offset", offset);
}

// ---- the rest ---------------------------------------------------------------------------------

void write_vocabulary(ArgsWriter& args, const ArgRow& row) {
  args.add(row.argument, args.model.extent(Dim::Vocab));
  // The rows of the file: otherwise the tokenizer's words would be counted, and padded.
  args.add("padded_vocab_size", args.model.extent(Dim::Vocab));
}

void write_untied(ArgsWriter& args, const ArgRow& row) {
  if (!args.model.tied) args.flag(row.argument);
}

/// transformers saves the routers of some families in F32 beside weights in BF16, and Megatron-Core keeps them in the
/// dtype of the run.
void warn_of_wide_routers(ArgsWriter& args, Dtype dtype) {
  const DenseMatrix* first = nullptr;
  i64 routers = 0;
  for (const DenseMatrix& matrix : args.recognized.dense) {
    if (matrix.role != DenseRole::Router || matrix.stored_dtype != Dtype::F32) continue;
    if (matrix.matrix.kind != TensorKind::Weight) continue;
    if (first == nullptr) first = &matrix;
    ++routers;
  }
  if (first == nullptr) return;
  args.warn(
      "{} routers, the first of layer {}, are F32, and a run with --{} rounds them when it loads them; the "
      "checkpoint keeps them in F32",
      routers, layer_label(*first), dtype == Dtype::BF16 ? "bf16" : "fp16");
}

void write_dtype(ArgsWriter& args, const ArgRow&) {
  const std::optional<Dtype> dtype = dtype_of_weights(args);
  if (dtype == Dtype::BF16 || dtype == Dtype::F16) warn_of_wide_routers(args, *dtype);
  if (dtype == Dtype::BF16) args.flag("bf16");
  if (dtype == Dtype::F16) args.flag("fp16");
}

}  // namespace glu_ckpt
