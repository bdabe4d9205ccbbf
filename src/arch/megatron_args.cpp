#include "arch/megatron_args.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "arch/dense_table.hpp"
#include "core/fail.hpp"
#include "families/architecture.hpp"
#include "families/config_fields.hpp"
#include "families/yarn_scale.hpp"

namespace glu_ckpt {
namespace {

/// Numbers as argparse's float takes them, with a point or an exponent.
std::string float_text(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".einf") == text.npos ? text + ".0" : text;
}

/// "[0]*1+[1]*2": runs of equal flags, without a space.
std::string pattern(const std::vector<bool>& flags) {
  std::string text;
  for (std::size_t first = 0; first < flags.size();) {
    std::size_t last = first;
    while (last < flags.size() && flags[last] == flags[first]) ++last;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", flags[first] ? 1 : 0, last - first);
    first = last;
  }
  return text;
}

class ArgsWriter {
 public:
  ArgsWriter(const std::string& config, const Recognition& model, const GluOrders& to)
      : config_(config), model_(model), architecture_(*model.architecture), to_(to) {}

  MegatronArgs write() {
    add_sizes();
    add_experts();
    add_router();
    add_norms_and_activation();
    add_attention();
    add_delta();
    add_rope();
    add_vocabulary();
    add_run();
    if (!architecture_.family->needs.empty())
      warn("models of type '{}' do not load into GPTModel as it is: {}", architecture_.model_type,
           architecture_.family->needs);
    return std::move(args_);
  }

 private:
  void flag(std::string_view name) { args_.text += fmt::format("--{}\n", name); }
  template <typename Value>
  void add(std::string_view name, const Value& value) {
    args_.text += fmt::format("--{} {}\n", name, value);
  }
  void add_float(std::string_view name, double value) { add(name, float_text(value)); }
  template <typename... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) {
    args_.warnings.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  bool has(DenseRole role, TensorKind kind = TensorKind::Weight) const {
    return std::ranges::any_of(
        model_.dense, [&](const DenseMatrix& matrix) { return matrix.role == role && matrix.matrix.kind == kind; });
  }
  const Family& family() const { return *architecture_.family; }
  bool is_latent() const { return family().attention == Attention::Latent; }
  i64 integer(Spellings names) const { return config_.integer(names).value_or(0); }

  /// Takes the value of a field that every run needs; throws where neither config.json nor its class says it.
  template <typename Value>
  Value needed(const std::optional<Value>& value, std::string_view name) const {
    if (!value)
      fail(ErrorCode::NoMap, {},
           "config.json: {} is missing, and no default of models of type '{}' is known: without it the arguments of "
           "Megatron-Core would compute another model",
           name, architecture_.model_type);
    return *value;
  }
  i64 needed_integer(std::string_view name) const { return needed(config_.integer({name}), name); }
  double needed_number(std::string_view name) const { return needed(config_.number({name}), name); }

  void add_sizes() {
    add("num-layers", architecture_.layers);
    add("hidden-size", architecture_.extent(Dim::Hidden));
    add("num-attention-heads", architecture_.heads);
    const i64 dense = architecture_.extent(Dim::DenseWidth);
    const bool has_dense =
        std::ranges::any_of(architecture_.kinds, [](LayerKind kind) { return kind.mlp == Mlp::Dense; });
    add("ffn-hidden-size", dense > 0 || has_dense ? dense : architecture_.expert_width);
    const i64 positions = needed_integer("max_position_embeddings");
    add("max-position-embeddings", positions);
    constexpr i64 kUsualLength = 4096;
    add("seq-length", std::min(positions, kUsualLength));
    i64 mtp_layers = 0;
    for (const DenseMatrix& matrix : model_.dense)
      if (matrix.stack == "mtp") mtp_layers = std::max(mtp_layers, matrix.layer + 1);
    if (mtp_layers > 0) add("mtp-num-layers", mtp_layers);
  }

  void add_experts() {
    add("num-experts", architecture_.num_experts);
    add("moe-ffn-hidden-size", architecture_.expert_width);
    std::vector<bool> experts;
    for (const LayerKind kind : architecture_.kinds) experts.push_back(kind.mlp == Mlp::Experts);
    add("moe-layer-freq", pattern(experts));
    flag("moe-grouped-gemm");
    const auto shared = std::ranges::find(model_.blocks, ExpertSet::Shared, &ExpertBlock::set);
    if (shared != model_.blocks.end()) add("moe-shared-expert-intermediate-size", shared->intermediate_size);
    if (has(DenseRole::SharedGate)) flag("moe-shared-expert-gate");
    if (to_.routed && to_.routed->kind == Glu::Kind::Interleaved)
      add("moe-mlp-glu-interleave-size", to_.routed->block_rows);
    if (shared != model_.blocks.end() && to_.shared && to_.shared->kind == Glu::Kind::Interleaved)
      add("moe-shared-expert-glu-interleave-size", to_.shared->block_rows);
  }

  void add_router() {
    const i64 topk = needed(config_.integer({"num_experts_per_tok", "moe_topk", "moe_k"}), "num_experts_per_tok");
    if (topk < 1 || topk > architecture_.num_experts)
      fail(ErrorCode::ConfigJson, {}, "config.json: {} is {}, but there are {} experts to choose from",
           config_.spelling({"num_experts_per_tok", "moe_topk", "moe_k"}), topk, architecture_.num_experts);
    add("moe-router-topk", topk);
    add("moe-router-dtype", "fp32");
    add("moe-router-load-balancing-type", "none");
    const bool sigmoid = family().scores == Scores::Sigmoid ||
                         (family().scores == Scores::AsConfigured &&
                          (has(DenseRole::CorrectionBias) || config_.text({"scoring_func"}) == "sigmoid"));
    sigmoid ? add_sigmoid_router(topk) : add_softmax_router(topk);
    add_groups(topk);
    add_router_scaling(topk);
  }

  /// Returns whether the weights of the chosen experts are divided by their sum.
  bool renormalises() const {
    if (family().renormalised != Renormalised::AsConfigured) return family().renormalised == Renormalised::Always;
    return needed(config_.flag({"norm_topk_prob"}), "norm_topk_prob");
  }

  void add_sigmoid_router(i64 topk) {
    add("moe-router-score-function", "sigmoid");
    if (has(DenseRole::CorrectionBias)) flag("moe-router-enable-expert-bias");
    if (family().weights_on_input) {
      flag("moe-apply-probs-on-input");
      if (topk > 1)
        warn(
            "num_experts_per_tok is {}: Megatron-Core takes the routing weights to the experts' input for one expert "
            "alone, and stops",
            topk);
    } else if (renormalises()) {
      warn_of_one_expert(topk);
    } else if (topk > 1) {
      warn("norm_topk_prob is false, but Megatron-Core divides the weights of sigmoid routing by their sum");
    }
  }

  void add_softmax_router(i64 topk) {
    add("moe-router-score-function", "softmax");
    const bool post = renormalises();
    // Megatron-Core stops where one expert is chosen before the softmax.
    if (!post || topk == 1) flag("moe-router-pre-softmax");
    // DeepSeek's own code does not renormalise the weight of one expert.
    if (post && !family().divides_or_scales) warn_of_one_expert(topk);
    if (has(DenseRole::CorrectionBias))
      warn(
          "the model chooses experts by softmax plus a correction bias, which Megatron-Core has for sigmoid alone: the "
          "model computes the same only where that bias is zero");
  }

  void warn_of_one_expert(i64 topk) {
    if (topk == 1)
      warn(
          "num_experts_per_tok is 1, and the weight of the one expert is divided by itself, so it is 1: Megatron-Core "
          "multiplies one expert by its own score, and no argument changes it: logits differ");
  }

  void add_router_scaling(i64 topk) {
    double scaling = config_.number({"routed_scaling_factor"}).value_or(1.0);
    if (family().divides_or_scales || family().corrected_router) scaling = needed_number("routed_scaling_factor");
    if (family().divides_or_scales && renormalises() && topk > 1) {
      warn(
          "norm_topk_prob is true: the arguments divide the weights of the chosen experts by their sum and leave "
          "routed_scaling_factor ({}) away, as DeepSeek's own code does; transformers multiplies by it and does not "
          "divide: logits differ from its",
          float_text(scaling));
      return;
    }
    if (scaling != 1.0) add_float("moe-router-topk-scaling-factor", scaling);
  }

  void add_groups(i64 topk) {
    const i64 groups = integer({"n_group"}), chosen = integer({"topk_group"});
    if (groups <= 1) return;
    const std::string method = config_.text({"topk_method"});
    if (family().divides_or_scales && method != "group_limited_greedy") return;
    add("moe-router-num-groups", groups);
    add("moe-router-group-topk", chosen);
    if (family().divides_or_scales)
      warn(
          "topk_method group_limited_greedy ranks groups by their best expert, Megatron-Core by the sum of their best "
          "{}: other experts may be chosen",
          chosen > 0 ? topk / chosen : topk);
    else if (chosen > 0 && topk / chosen != 2)
      warn(
          "groups are ranked by the sum of their best 2 experts, in Megatron-Core by that of their best {} "
          "(num_experts_per_tok {} / topk_group {})",
          topk / chosen, topk, chosen);
  }

  void add_norms_and_activation() {
    add("normalization", "RMSNorm");
    const double epsilon = needed(config_.number({"rms_norm_eps", "layer_norm_eps", "norm_eps"}), "rms_norm_eps");
    add_float("norm-epsilon", epsilon);
    if (architecture_.gated_attention) flag("apply-layernorm-1p");
    if (constexpr double kLatentEpsilon = 1e-6; is_latent() && epsilon != kLatentEpsilon)
      warn(
          "rms_norm_eps is {}, but transformers builds the norms of the latents with 1e-06, which Megatron-Core "
          "cannot: logits differ in the fifth digit",
          float_text(epsilon));
    if (family().quick_geglu) {
      flag("quick-geglu");
      add_float("glu-linear-offset", 1.0);
      constexpr double kUsualLimit = 7.0, kQuickGeluAlpha = 1.702;
      add_float("activation-func-clamp-value", config_.number({"swiglu_limit"}).value_or(kUsualLimit));
      if (const double alpha = config_.number({"swiglu_alpha"}).value_or(kQuickGeluAlpha); alpha != kQuickGeluAlpha)
        warn("swiglu_alpha is {}; Megatron-Core's quick GeGLU has 1.702", float_text(alpha));
      flag("no-bias-gelu-fusion");
      flag("no-bias-dropout-fusion");
    } else {
      flag("swiglu");
      flag("disable-bias-linear");
      const std::string act = config_.text({"hidden_act", "hidden_activation"});
      if (!act.empty() && act != "silu" && act != "swish") warn("hidden_act is '{}'; --swiglu computes silu", act);
    }
    for (const std::string_view name : {"embedding_multiplier", "residual_multiplier", "logits_scaling"})
      if (const double value = config_.number({name}).value_or(1.0); value != 1.0)
        warn("{} is {}, but 1 in Megatron-Core, and no argument changes it: logits differ", name, float_text(value));
    if (const auto value = config_.number({family().softmax_scale_field})) add_granite_scale(*value);
  }

  void add_granite_scale(double multiplier) {
    const double usual = 1.0 / std::sqrt(static_cast<double>(architecture_.extent(Dim::HeadDim)));
    if (std::abs(multiplier - usual) > 1e-9 * usual)
      warn(
          "attention_multiplier is {}, where Megatron-Core has 1/sqrt(head_dim) = {}, and no argument changes it: "
          "logits differ",
          float_text(multiplier), float_text(usual));
  }

  void add_attention() {
    add("attention-dropout", "0.0");
    add("hidden-dropout", "0.0");
    if (is_latent()) {
      flag("multi-latent-attention");
      if (architecture_.extent(Dim::QLora) > 0) add("q-lora-rank", architecture_.extent(Dim::QLora));
      add("kv-lora-rank", architecture_.extent(Dim::KvLora));
      add("qk-head-dim", integer({"qk_nope_head_dim"}));
      add("qk-pos-emb-head-dim", integer({"qk_rope_head_dim"}));
      add("v-head-dim", integer({"v_head_dim"}));
      flag("qk-layernorm");
      return;
    }
    flag("group-query-attention");
    add("num-query-groups", architecture_.kv_heads);
    add("kv-channels", architecture_.extent(Dim::HeadDim));
    if (has(DenseRole::Q, TensorKind::Bias) && !family().biases_everywhere) flag("add-qkv-bias");
    if (has(DenseRole::AttentionOut, TensorKind::Bias) && !family().biases_everywhere)
      warn("attention's output has a bias, for which Megatron-Core wants biases in every linear layer");
    if (has(DenseRole::QNorm) || has(DenseRole::WideQNorm)) flag("qk-layernorm");
    if (family().chunked_attention) add_chunked_attention();
    if (architecture_.gated_attention) flag("attention-output-gate");
    if (has(DenseRole::Sinks)) add("softmax-type", "learnable");
    add_window();
  }

  void add_chunked_attention() {
    const bool norms = config_.flag({"use_qk_norm"}).value_or(true);
    if (norms) flag("qk-l2-norm");
    const std::vector<bool> without = layers_without_rope();
    if (std::ranges::find(without, true) != without.end()) {
      add("no-rope-freq", pattern(without));
      if (norms || config_.flag({"attn_temperature_tuning"}).value_or(true))
        warn(
            "layers without rotary embedding (no_rope_layers; every fourth where it is missing or empty) have no QK "
            "norm in Llama 4, and temperature tuning, which Megatron-Core does not have: logits differ");
    }
    warn_of_chunks(without);
  }

  std::vector<bool> layers_without_rope() const {
    std::vector<bool> without(static_cast<std::size_t>(architecture_.layers), false);
    const std::vector<i64> said = config_.integers({"no_rope_layers"});
    constexpr i64 kUsualInterval = 4;
    const i64 interval = std::max<i64>(1, config_.integer({"no_rope_layer_interval"}).value_or(kUsualInterval));
    for (std::size_t i = 0; i < without.size(); ++i)
      without[i] = said.empty() ? (static_cast<i64>(i) + 1) % interval == 0 : i < said.size() && said[i] == 0;
    return without;
  }

  /// Layers with rotary embedding see the tokens of their own chunk alone.
  void warn_of_chunks(const std::vector<bool>& without_rope) {
    const auto chunk = config_.integer({"attention_chunk_size"});
    const std::vector<std::string> types = config_.texts({"layer_types"});
    const bool chunked = types.empty() ? std::ranges::find(without_rope, false) != without_rope.end()
                                       : std::ranges::find(types, std::string("chunked_attention")) != types.end();
    if (chunk && chunked && *chunk < needed_integer("max_position_embeddings"))
      warn(
          "attention_chunk_size is {}: Megatron-Core's attention has no chunks, so logits differ in sequences of more "
          "than {} tokens",
          *chunk, *chunk);
  }

  /// Returns which layers see no more than the last `sliding_window` tokens; empty where none does.
  std::vector<bool> sliding_layers() {
    const auto layers = static_cast<std::size_t>(architecture_.layers);
    std::vector<bool> sliding(layers, false);
    if (const std::vector<std::string> types = config_.texts({"layer_types"}); !types.empty())
      for (std::size_t i = 0; i < std::min(layers, types.size()); ++i) sliding[i] = types[i] == "sliding_attention";
    else
      add_usual_window(sliding);
    return std::ranges::find(sliding, true) == sliding.end() ? std::vector<bool>() : sliding;
  }

  /// Marks the layers that have a window where no layer_types say which.
  void add_usual_window(std::vector<bool>& sliding) {
    const bool asked = config_.flag({"use_sliding_window"}).value_or(false);
    switch (family().window) {
      case Window::None: return;
      case Window::All: return sliding.flip();
      case Window::AllIfAsked:
        if (asked) sliding.flip();
        return;
      case Window::EveryOther:
        for (std::size_t i = 0; i < sliding.size(); i += 2) sliding[i] = true;
        return;
      case Window::FromLayer:
        for (auto i = static_cast<std::size_t>(needed_integer("max_window_layers")); i < sliding.size(); ++i)
          sliding[i] = true;
        return;
      case Window::Unclear:
        if (asked)
          warn(
              "use_sliding_window without layer_types: releases of transformers differ in the layers that it is for, "
              "so no argument is written");
    }
  }

  void add_window() {
    const i64 window = integer({"sliding_window"});
    if (window <= 0) return;
    const std::vector<bool> sliding = sliding_layers();
    if (sliding.empty()) return;
    // Megatron-Core counts the tokens to the left of a token, Hugging Face that one as well.
    add("window-size", fmt::format("{},0", window - 1));
    add("window-attn-skip-freq", pattern(sliding));
  }

  void add_delta() {
    if (architecture_.delta_key_heads == 0) return;
    // Core 0.16 knows this spelling alone; later ones take it for "gdn".
    add("experimental-attention-variant", "gated_delta_net");
    std::vector<bool> delta;
    for (const LayerKind kind : architecture_.kinds) delta.push_back(kind.attention == Attention::Delta);
    add("linear-attention-freq", pattern(delta));
    add("linear-conv-kernel-dim", architecture_.extent(Dim::ConvKernel));
    add("linear-key-head-dim", integer({"linear_key_head_dim"}));
    add("linear-value-head-dim", integer({"linear_value_head_dim"}));
    add("linear-num-key-heads", integer({"linear_num_key_heads"}));
    add("linear-num-value-heads", integer({"linear_num_value_heads"}));
  }

  // ---- rotary embedding -------------------------------------------------------------------------

  /// Reads a number of `rope_parameters` (transformers 5) or `rope_scaling`; else a field beside them.
  std::optional<double> rope_number(std::string_view name, std::string_view beside = {}) const {
    const std::string parameters = fmt::format("rope_parameters.{}", name),
                      scaling = fmt::format("rope_scaling.{}", name);
    return config_.number({parameters, scaling, beside});
  }

  std::string rope_type() const {
    return config_.text(
        {"rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type"});
  }

  void add_rope() {
    const bool yarn = rope_type() == "yarn";
    add("position-embedding-type", yarn && !is_latent() ? "yarn" : "rope");
    const double theta = needed(rope_number("rope_theta", "rope_theta"), "rope_theta");
    if (theta == std::floor(theta))
      add("rotary-base", static_cast<i64>(theta));
    else
      warn("rope_theta is {}; --rotary-base takes whole numbers alone", float_text(theta));
    const double part = rotated_part();
    if (!is_latent() && part != 1.0) add_float("rotary-percent", part);
    const bool interleaved = family().interleaved_rope;
    if (interleaved) flag("rotary-interleaved");
    if (is_latent() && !config_.flag({"rope_interleave"}).value_or(true))
      warn("rope_interleave is false, but Megatron-Core's latent attention interleaves");
    if (!yarn) return add_plain_rope();
    if (is_latent()) return add_latent_yarn();
    add_yarn();
    if (part != 1.0)
      warn(
          "{} of each head is rotated (partial_rotary_factor), but Megatron-Core's YaRN rotates whole heads, whatever "
          "--rotary-percent says: logits differ",
          float_text(part));
    if (interleaved) warn("Megatron-Core's YaRN has no interleaved form, which this model needs, and stops");
  }

  /// Returns the part of each head that is rotated. Released MiniMax-M2 says it in dimensions.
  double rotated_part() const {
    double part = 1.0;
    if (const auto dim = config_.number({family().rotated_dims_field}))
      part = *dim / static_cast<double>(architecture_.extent(Dim::HeadDim));
    return rope_number("partial_rotary_factor", "partial_rotary_factor").value_or(part);
  }

  void add_plain_rope() {
    if (is_latent()) {
      add("rope-type", "rope");
      flag("no-rope-fusion");
    }
    const std::string type = rope_type();
    if (!type.empty() && type != "default")
      warn("rotary embeddings are scaled as '{}', for which no argument is written; compare config.json's rope_scaling",
           type);
  }

  /// transformers multiplies the cosine and sine by `attention_factor`; without it, by the quotient of both scales, or,
  /// where one of the two is missing, by what the factor alone gives. Megatron-Core always takes the quotient, so the
  /// first scale is chosen for it; the second also belongs to the scale of latent attention's softmax.
  void add_yarn_scales() {
    const double factor = needed(rope_number("factor"), "the factor of YaRN");
    add_float("rotary-scaling-factor", factor);
    const auto said = rope_number("attention_factor");
    const double first = rope_number("mscale").value_or(0.0), second = rope_number("mscale_all_dim").value_or(0.0);
    const double below = yarn_scale(factor, second), alone = yarn_scale(factor, 1.0);
    const bool both = first != 0.0 && second != 0.0;
    const double scale = both && !said  ? first
                         : factor > 1.0 ? (said.value_or(alone) * below - 1.0) / (alone - 1.0)
                                        : 1.0;
    add_float("mscale", scale);
    add_float("mscale-all-dim", second);
    if (said && factor <= 1.0 && *said != 1.0)
      warn("attention_factor is {} with a factor of {}, where Megatron-Core has 1: logits differ", float_text(*said),
           float_text(factor));
    const bool neutral = second == 0.0 && (first == 0.0 || first == 1.0);
    if (is_latent() && !said && !both && !neutral)
      warn(
          "{} of YaRN is there without {}: the arguments scale by the factor alone, as transformers does, but "
          "DeepSeek's "
          "own code by both, of which the missing one has a default: logits differ from its",
          first != 0.0 ? "mscale" : "mscale_all_dim", first != 0.0 ? "mscale_all_dim" : "mscale");
  }

  void add_latent_yarn() {
    add("rope-type", "yarn");
    add_yarn_scales();
    const auto check = [&](std::string_view name, double value, double fixed) {
      if (value != fixed)
        warn(
            "{} of the rotary embedding is {}; Megatron-LM's latent attention has {}, and no argument changes it: "
            "logits differ",
            name, float_text(value), float_text(fixed));
    };
    check("original_max_position_embeddings", original_positions(), 4096);
    check("beta_fast", rope_number("beta_fast").value_or(32), 32);
    check("beta_slow", rope_number("beta_slow").value_or(1), 1);
  }

  double original_positions() const {
    return rope_number("original_max_position_embeddings").value_or(needed_number("max_position_embeddings"));
  }

  void add_yarn() {
    add_yarn_scales();
    add("yarn-original-max-position-embeddings", static_cast<i64>(original_positions()));
    add_float("yarn-beta-fast", rope_number("beta_fast").value_or(32.0));
    add_float("yarn-beta-slow", rope_number("beta_slow").value_or(1.0));
    const bool truncate = config_.flag({"rope_parameters.truncate", "rope_scaling.truncate"}).value_or(true);
    flag(truncate ? "yarn-correction-range-round-to-int" : "no-yarn-correction-range-round-to-int");
    flag("no-rope-fusion");
  }

  // ---- the rest ---------------------------------------------------------------------------------

  void add_vocabulary() {
    add("vocab-size", architecture_.extent(Dim::Vocab));
    // The rows of the file: otherwise the tokenizer's words would be counted, and padded.
    add("padded-vocab-size", architecture_.extent(Dim::Vocab));
    if (!architecture_.tied) flag("untie-embeddings-and-output-weights");
  }

  void add_run() {
    const std::optional<Dtype> dtype = dtype_of_weights();
    if (dtype == Dtype::BF16) flag("bf16");
    if (dtype == Dtype::F16) flag("fp16");
    add("transformer-impl", "transformer_engine");
  }

  /// Returns the dtype that most elements are in; norms, biases and the router may be in another. None where all are
  /// codes.
  std::optional<Dtype> dtype_of_weights() const {
    std::map<Dtype, i64> elements;
    const auto count = [&](Dtype dtype, const Matrix& matrix) {
      if (dtype == Dtype::F32 || dtype == Dtype::BF16 || dtype == Dtype::F16)
        elements[dtype] += matrix.rows * matrix.cols;
    };
    for (const DenseMatrix& dense : model_.dense) count(dense.stored_dtype, dense.matrix);
    for (const ExpertBlock& block : model_.blocks)
      for (const Matrix& matrix : block.matrices)
        if (!block.is_optimizer_state() && matrix.kind == TensorKind::Weight) count(matrix.dtype, matrix);
    const auto most = std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
    return most == elements.end() ? std::nullopt : std::optional(most->first);
  }

  const ConfigFields config_;
  const Recognition& model_;
  const Architecture& architecture_;
  const GluOrders& to_;
  MegatronArgs args_;
};

}  // namespace

MegatronArgs megatron_args(const std::string& config, const Recognition& model, const GluOrders& to) {
  return ArgsWriter(config, model, to).write();
}

}  // namespace glu_ckpt
