#include "arch/megatron_args.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "arch/architecture.hpp"
#include "arch/config_fields.hpp"
#include "arch/dense_table.hpp"

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
  bool is(std::string_view model_type) const { return architecture_.model_type == model_type; }
  bool is_latent() const { return architecture_.family->attention == Attention::Latent; }
  i64 integer(Spellings names) const { return config_.integer(names).value_or(0); }

  void add_sizes() {
    add("num-layers", architecture_.layers);
    add("hidden-size", architecture_.extent(Dim::Hidden));
    add("num-attention-heads", architecture_.heads);
    const i64 dense = architecture_.extent(Dim::DenseWidth);
    const bool has_dense =
        std::ranges::any_of(architecture_.kinds, [](LayerKind kind) { return kind.mlp == Mlp::Dense; });
    add("ffn-hidden-size", dense > 0 || has_dense ? dense : architecture_.expert_width);
    const i64 positions = std::max<i64>(1, integer({"max_position_embeddings"}));
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
    const i64 topk = integer({"num_experts_per_tok", "moe_topk", "moe_k"});
    add("moe-router-topk", topk);
    add("moe-router-dtype", "fp32");
    add("moe-router-load-balancing-type", "none");
    const bool renormalised = config_.flag({"norm_topk_prob"}).value_or(true);
    const double scaling = config_.number({"routed_scaling_factor"}).value_or(1.0);
    const bool is_v2 = is("deepseek_v2");
    const bool sigmoid = has(DenseRole::CorrectionBias) || is("llama4_text") || is("minimax_m2") ||
                         config_.text({"scoring_func"}) == "sigmoid";
    if (sigmoid && !is("ernie4_5_moe")) {
      add("moe-router-score-function", "sigmoid");
      if (has(DenseRole::CorrectionBias)) flag("moe-router-enable-expert-bias");
      if (is("llama4_text")) flag("moe-apply-probs-on-input");
      if (!renormalised && topk > 1 && !is("llama4_text"))
        warn("norm_topk_prob is false, but Megatron-Core divides the weights of sigmoid routing by their sum");
    } else {
      add("moe-router-score-function", "softmax");
      const bool always =
          is("mixtral") || is("gpt_oss") || is("granitemoe") || is("ernie4_5_moe") || is("qwen3_5_moe_text");
      const bool default_false = is("qwen2_moe") || is("qwen3_moe") || is("olmoe");
      const bool post = always || config_.flag({"norm_topk_prob"}).value_or(!default_false && !is_v2);
      if ((!post || topk == 1)) flag("moe-router-pre-softmax");
      if (is("ernie4_5_moe") && has(DenseRole::CorrectionBias))
        warn(
            "ERNIE chooses experts by softmax plus a correction bias, which Megatron-Core has for sigmoid alone: the "
            "model computes the same only where that bias is zero");
    }
    add_groups(topk);
    if (scaling != 1.0) add_float("moe-router-topk-scaling-factor", scaling);
  }

  void add_groups(i64 topk) {
    const i64 groups = integer({"n_group"}), chosen = integer({"topk_group"});
    if (groups <= 1) return;
    const std::string method = config_.text({"topk_method"});
    if (is("deepseek_v2") && method != "group_limited_greedy") return;
    add("moe-router-num-groups", groups);
    add("moe-router-group-topk", chosen);
    if (is("deepseek_v2"))
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
    add_float("norm-epsilon", config_.number({"rms_norm_eps", "layer_norm_eps", "norm_eps"}).value_or(1e-6));
    if (architecture_.gated_attention) flag("apply-layernorm-1p");
    if (is_latent() && config_.number({"rms_norm_eps"}).value_or(1e-6) != 1e-6)
      warn(
          "rms_norm_eps is {}, but transformers builds the norms of the latents with 1e-06, which Megatron-Core "
          "cannot: logits differ in the fifth digit",
          float_text(*config_.number({"rms_norm_eps"})));
    if (is("gpt_oss")) {
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
      if (!act.empty() && act != "silu") warn("hidden_act is '{}'; --swiglu computes silu", act);
    }
    for (const std::string_view name : {"embedding_multiplier", "residual_multiplier", "logits_scaling"})
      if (const double value = config_.number({name}).value_or(1.0); value != 1.0)
        warn("{} is {}, but 1 in Megatron-Core, and no argument changes it: logits differ", name, float_text(value));
    if (const auto value = config_.number({"attention_multiplier"}); value && is("granitemoe"))
      add_granite_scale(*value);
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
    if (has(DenseRole::Q, TensorKind::Bias) && !is("gpt_oss")) flag("add-qkv-bias");
    if (has(DenseRole::AttentionOut, TensorKind::Bias) && !is("gpt_oss"))
      warn("attention's output has a bias, for which Megatron-Core wants biases in every linear layer");
    if (has(DenseRole::QNorm) || has(DenseRole::WideQNorm)) flag("qk-layernorm");
    if (is("llama4_text")) add_llama4_attention();
    if (architecture_.gated_attention) flag("attention-output-gate");
    if (has(DenseRole::Sinks)) add("softmax-type", "learnable");
    add_window();
  }

  void add_llama4_attention() {
    if (config_.flag({"use_qk_norm"}).value_or(true)) flag("qk-l2-norm");
    if (contains_zero(config_.integers({"no_rope_layers"})))
      warn(
          "layers without rotary embedding (no_rope_layers) have no QK norm in Llama 4, and temperature tuning, which "
          "Megatron-Core does not have: logits differ");
  }

  static bool contains_zero(const std::vector<i64>& list) { return std::ranges::find(list, 0) != list.end(); }

  /// transformers takes `max_window_layers` of dots1 to be this where config.json does not say it.
  static constexpr i64 kDotsFullLayers = 62;

  /// Returns which layers see no more than the last `sliding_window` tokens; empty where none does.
  std::vector<bool> sliding_layers() {
    const auto layers = static_cast<std::size_t>(architecture_.layers);
    std::vector<bool> sliding(layers, false);
    if (const std::vector<std::string> types = config_.texts({"layer_types"}); !types.empty())
      for (std::size_t i = 0; i < std::min(layers, types.size()); ++i) sliding[i] = types[i] == "sliding_attention";
    else if (is("mixtral") || (is("qwen3_moe") && config_.flag({"use_sliding_window"}).value_or(false)))
      sliding.flip();
    else if (is("gpt_oss"))
      for (std::size_t i = 0; i < layers; i += 2) sliding[i] = true;
    else if (is("dots1"))
      for (std::size_t i = static_cast<std::size_t>(config_.integer({"max_window_layers"}).value_or(kDotsFullLayers));
           i < layers; ++i)
        sliding[i] = true;
    else if (is("qwen2_moe") && config_.flag({"use_sliding_window"}).value_or(false))
      warn(
          "use_sliding_window without layer_types: releases of transformers differ in the layers that it is for, so no "
          "argument is written");
    return std::ranges::find(sliding, true) == sliding.end() ? std::vector<bool>() : sliding;
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

  /// Reads a number of `rope_parameters` (transformers 5) or `rope_scaling`.
  std::optional<double> rope_number(std::string_view name) const {
    const std::string parameters = fmt::format("rope_parameters.{}", name),
                      scaling = fmt::format("rope_scaling.{}", name);
    return config_.number({parameters, scaling});
  }

  std::string rope_type() const {
    return config_.text(
        {"rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type"});
  }

  void add_rope() {
    const bool yarn = rope_type() == "yarn";
    add("position-embedding-type", yarn && !is_latent() ? "yarn" : "rope");
    const double theta = config_.number({"rope_theta", "rope_parameters.rope_theta"}).value_or(10000.0);
    if (theta == std::floor(theta))
      add("rotary-base", static_cast<i64>(theta));
    else
      warn("rope_theta is {}; --rotary-base takes whole numbers alone", float_text(theta));
    const auto partial = config_.number({"partial_rotary_factor", "rope_parameters.partial_rotary_factor"});
    // The defaults of transformers' own configuration classes.
    const double usual = architecture_.gated_attention ? 0.25 : is("glm4_moe") ? 0.5 : 1.0;
    if (!is_latent() && partial.value_or(usual) != 1.0) add_float("rotary-percent", partial.value_or(usual));
    if (is("llama4_text") || is("ernie4_5_moe")) flag("rotary-interleaved");
    if (yarn)
      is_latent() ? add_latent_yarn() : add_yarn();
    else
      add_plain_rope();
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
    if (is_latent() && !config_.flag({"rope_interleave"}).value_or(true))
      warn("rope_interleave is false, but Megatron-Core's latent attention interleaves");
  }

  void add_latent_yarn() {
    add("rope-type", "yarn");
    add_float("rotary-scaling-factor", rope_number("factor").value_or(1.0));
    add_float("mscale", rope_number("mscale").value_or(1.0));
    add_float("mscale-all-dim", rope_number("mscale_all_dim").value_or(0.0));
    const auto check = [&](std::string_view name, double fixed) {
      if (const double value = rope_number(name).value_or(fixed); value != fixed)
        warn(
            "{} of the rotary embedding is {}; Megatron-LM's latent attention has {}, and no argument changes it: "
            "logits "
            "differ",
            name, float_text(value), float_text(fixed));
    };
    check("original_max_position_embeddings", 4096);
    check("beta_fast", 32);
    check("beta_slow", 1);
  }

  void add_yarn() {
    add_float("rotary-scaling-factor", rope_number("factor").value_or(1.0));
    const double positions = rope_number("original_max_position_embeddings")
                                 .value_or(static_cast<double>(integer({"max_position_embeddings"})));
    add("yarn-original-max-position-embeddings", static_cast<i64>(positions));
    add_float("yarn-beta-fast", rope_number("beta_fast").value_or(32.0));
    add_float("yarn-beta-slow", rope_number("beta_slow").value_or(1.0));
    add_float("mscale", rope_number("mscale").value_or(1.0));
    add_float("mscale-all-dim", rope_number("mscale_all_dim").value_or(0.0));
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
    const auto norm = std::ranges::find(model_.dense, DenseRole::FinalNorm, &DenseMatrix::role);
    if (norm != model_.dense.end() && norm->stored_dtype == Dtype::BF16) flag("bf16");
    if (norm != model_.dense.end() && norm->stored_dtype == Dtype::F16) flag("fp16");
    add("transformer-impl", "transformer_engine");
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
