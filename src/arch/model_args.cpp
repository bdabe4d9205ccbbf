/// One table, kArgs. An argument that is in neither it nor kNoSay, and whose name says that it is about the model
/// (kModelWords), differs where it has a value: nobody here knows what it does.

#include "arch/model_args.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "arch/unread_fields.hpp"
#include "core/parse_number.hpp"
#include "families/yarn_scale.hpp"

namespace glu_ckpt {
namespace {

/// The models in which an argument has a say.
enum class In {
  Every,
  /// Arguments of models with multi-latent attention, and of models without.
  Latent,
  Usual,
  /// Arguments that YaRN of latent attention does not read.
  NoLatentYarn,
  /// Arguments of models that turn heads by positions.
  Rotary,
  /// Arguments of models with YaRN; then of those among them with and without multi-latent attention.
  Yarn,
  UsualYarn,
  /// Arguments of models that have experts.
  Experts,
  /// Arguments of models that choose groups of experts first, and of runs that do.
  Groups,
  ChosenGroups,
  /// Arguments of models that choose several experts by a softmax.
  SeveralBySoftmax,
  QueryGroups,
  /// Arguments of models without an experimental attention variant.
  NoVariant,
  /// Arguments of models whose linear layers have no bias; in all others q, k and v have one as well.
  NoOtherBias,
};

struct ModelArg {
  std::string_view name;
  In in = In::Every;
  /// The values that change nothing, with a '|' between two; None always is one.
  std::string_view neutral = {};
  /// Its name in megatron_args.txt where that is another one; one with a '!' in front says the opposite.
  std::string_view option = {};
};

constexpr auto kArgs = std::to_array<ModelArg>({
    // layers and norms
    {"normalization", In::Every, "LayerNorm"},
    {"norm_epsilon"},
    {"layernorm_epsilon", In::Every, "", "norm_epsilon"},
    {"apply_layernorm_1p", In::Every, "False"},
    {"layernorm_zero_centered_gamma", In::Every, "False", "apply_layernorm_1p"},
    {"apply_residual_connection_post_layernorm", In::Every, "False"},
    {"add_bias_linear", In::Every, "", "!disable_bias_linear"},
    {"add_qkv_bias", In::NoOtherBias, "False"},
    {"untie_embeddings_and_output_weights", In::Every, "False"},
    {"is_hybrid_model", In::Every, "False"},
    {"hybrid_override_pattern"},
    {"hybrid_layer_pattern"},
    {"hybrid_attention_ratio", In::Every, "0"},
    {"hybrid_mlp_ratio", In::Every, "0"},
    {"heterogeneous_layers_config_path"},
    {"heterogeneous_layers_config_encoded_json"},
    {"heterogeneous_block_specs", In::Every, "False"},
    {"spec", In::Every, "[]"},
    {"use_mup", In::Every, "False"},
    {"mtp_num_layers", In::NoVariant, "0"},
    {"experimental_attention_variant", In::Every, "None"},
    {"moe_latent_size", In::Every, "0"},
    {"use_legacy_models", In::Every, "False"},
    // activation
    {"swiglu", In::Every, "False"},
    {"quick_geglu", In::Every, "False"},
    {"squared_relu", In::Every, "False"},
    {"openai_gelu", In::Every, "False"},
    {"onnx_safe", In::Every, "False"},
    {"glu_linear_offset", In::Every, "0"},
    {"activation_func_clamp_value"},
    {"activation_func", In::Every, "torch.nn.functional.silu|torch._C._nn.silu|torch.nn.functional.gelu"},
    // attention
    {"num_attention_heads"},
    {"num_query_groups", In::QueryGroups},
    {"kv_channels", In::Usual},
    {"multi_latent_attention", In::Every, "False"},
    {"qk_head_dim", In::Latent},
    {"qk_pos_emb_head_dim", In::Latent},
    {"v_head_dim", In::Latent},
    {"qk_layernorm", In::Usual, "False"},
    {"qk_l2_norm", In::Every, "False"},
    {"attention_output_gate", In::Every, "False"},
    {"softmax_type", In::Every, "vanilla"},
    {"softmax_scale"},
    {"attn_logit_softcapping", In::Every, "0"},
    {"final_logit_softcapping", In::Every, "0"},
    {"linear_conv_kernel_dim"},
    {"linear_key_head_dim"},
    {"linear_value_head_dim"},
    {"linear_num_key_heads"},
    {"linear_num_value_heads"},
    {"dsa_indexer_n_heads"},
    {"dsa_indexer_head_dim"},
    {"dsa_indexer_topk", In::Every, "0"},
    {"dsa_indexer_k_norm_epsilon"},
    {"dsa_indexer_rope_interleaved", In::Every, "False"},
    {"dsa_indexer_scoring_relu", In::Every, "True"},
    // positions
    {"rotary_base", In::Rotary},
    {"rotary_percent", In::NoLatentYarn, "1"},
    {"rotary_interleaved", In::Every, "False"},
    {"rotary_seq_len_interpolation_factor", In::Every, "1"},
    {"use_rope_scaling", In::Every, "False"},
    {"rotary_scaling_factor", In::Yarn},
    {"yarn_original_max_position_embeddings", In::UsualYarn, "4096"},
    {"yarn_beta_fast", In::UsualYarn, "32"},
    {"yarn_beta_slow", In::UsualYarn, "1"},
    {"mrope_section"},
    // experts
    {"moe_router_topk", In::Experts},
    {"moe_router_score_function", In::Experts, "softmax"},
    {"moe_router_pre_softmax", In::SeveralBySoftmax, "False"},
    {"moe_router_enable_expert_bias", In::Experts, "False"},
    {"moe_router_num_groups", In::ChosenGroups, "0|1"},
    {"moe_router_group_topk", In::Groups, "0"},
    {"moe_router_topk_limited_devices", In::Experts},
    {"moe_router_topk_scaling_factor", In::Experts, "0|1"},
    {"moe_router_force_load_balancing", In::Experts, "False"},
    {"moe_router_force_biased", In::Experts},
    {"moe_apply_probs_on_input", In::Experts, "False"},
    {"moe_shared_expert_intermediate_size", In::Experts, "0"},
    {"moe_shared_expert_gate", In::Experts, "False"},
    {"moe_expert_capacity_factor", In::Experts},
});

/// Arguments whose names sound like the model's and that have no say in what it computes, or whose say the shapes of
/// tensors have, or code below.
constexpr auto kNoSay = std::to_array<std::string_view>({
    "rotary_scaling_factor",
    "rope_scaling_factor",
    "rope_type",
    "rotary_base",
    "attention_dropout",
    "moe_router_load_balancing_type",
    "moe_router_dtype",
    "moe_router_bias_update_rate",
    "moe_router_fusion",
    "moe_router_padding_for_fp8",
    "moe_router_padding_for_quantization",
    "activation_func_fp8_input_store",
    "qk_clip",
    "qk_clip_alpha",
    "qk_clip_threshold",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "no_rope_freq",
    "no_rope_fusion",
    "window_size",
    "window_attn_skip_freq",
    "linear_attention_freq",
    "linear_attention_type",
    "dsa_indexer_loss_coeff",
    "dsa_indexer_use_sparse_loss",
    // 0.19.2 saves its defaults of these whatever the attention is; experimental_attention_variant says that it is
    // DSA's.
    "dsa_indexer_rotate_activation",
    "dsa_indexer_topk_freq",
    "dsa_indexer_skip_topk_offset",
    "dsa_kernel_backend",
    "yarn_correction_range_round_to_int",
    "mamba_state_dim",
    "mamba_head_dim",
    "mamba_num_groups",
    "mamba_num_heads",
    "mamba_conv_dim",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
});

constexpr auto kModelWords = std::to_array<std::string_view>({
    "rotary_",
    "rope_",
    "use_rope_",
    "softmax_",
    "activation_func",
    "glu_",
    "qk_",
    "moe_router_",
    "mup_",
    "dsa_",
    "no_rope",
    "window_",
    "linear_",
    "attn_logit",
    "final_logit",
    "logits_scal",
    "residual_",
    "embedding_multiplier",
    "embedding_scale",
    "attention_multiplier",
    "yarn_",
});

constexpr std::string_view kNone = "None";

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool same(std::string_view a, std::string_view b) {
  const auto x = number_in(a), y = number_in(b);
  return x && y ? *x == *y : a == b;
}

bool is_among(std::string_view value, std::string_view list) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find('|'), list.size());
    if (same(value, list.substr(0, end))) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

/// "[0]*1+[1]*2" as flags, a text for each layer.
std::vector<bool> flags_in(std::string_view pattern) {
  std::vector<bool> flags;
  while (!pattern.empty()) {
    const std::size_t end = std::min(pattern.find('+'), pattern.size());
    const std::string_view run = pattern.substr(0, end);
    if (const std::size_t times = run.find("]*"); times != run.npos)
      if (const auto count = number_in(run.substr(times + 2)))
        flags.insert(flags.end(), static_cast<std::size_t>(*count), run.starts_with("[1"));
    pattern.remove_prefix(std::min(end + 1, pattern.size()));
  }
  return flags;
}

std::string layers_word(const std::vector<bool>& flags) {
  std::string text;
  for (std::size_t layer = 0; layer < flags.size(); ++layer)
    if (flags[layer]) text += fmt::format("{}{}", text.empty() ? "layers " : ", ", layer);
  return text.empty() ? "no layer" : text;
}

/// Returns true for numbers that say nothing of a model without the variant of attention that they are of.
bool is_size_of_variant(const ModelArg& arg) {
  return arg.neutral.empty() && (arg.name.starts_with("linear_") || arg.name.starts_with("dsa_"));
}

std::string neutral_of(const ModelArg& arg) {
  return std::string(arg.neutral.empty() ? kNone : arg.neutral.substr(0, arg.neutral.find('|')));
}

/// The arguments that change the model and have no row in any family or in kArgs.
void add_rowless(const SavedArgs& args, std::vector<ArgumentDifference>& differences) {
  // The other ways balance by a loss or a bias; Sinkhorn's chooses other experts.
  constexpr std::string_view kBalancing = "moe_router_load_balancing_type";
  if (const std::string saved = args.word(kBalancing); saved.find("sinkhorn") != saved.npos)
    differences.push_back({std::string(kBalancing), saved, "none"});
  for (const auto& [key, value] : args.root().members()) {
    const std::string_view name = key;
    if (std::ranges::find(kArgs, name, &ModelArg::name) != kArgs.end() ||
        std::ranges::find(kNoSay, name) != kNoSay.end() ||
        std::ranges::none_of(kModelWords, [&](std::string_view word) { return name.starts_with(word); }))
      continue;
    if (std::string saved = python_word(value); !is_among(saved, "None|False|0|1|[]|"))
      differences.push_back({std::string(name), std::move(saved), std::string(kNone)});
  }
}

class Comparison {
 public:
  Comparison(const std::string& asked, const std::string& saved, const Inventory& tensors) : saved_(saved, tensors) {
    std::string_view left = asked;
    while (!left.empty()) {
      const std::size_t end = std::min(left.find('\n'), left.size());
      std::string_view line = left.substr(0, end);
      left.remove_prefix(std::min(end + 1, left.size()));
      if (!line.starts_with("--")) continue;
      line.remove_prefix(2);
      const std::size_t space = std::min(line.find(' '), line.size());
      std::string name(line.substr(0, space));
      std::ranges::replace(name, '-', '_');
      asked_[name] = space < line.size() ? std::string(line.substr(space + 1)) : "True";
    }
  }

  std::vector<ArgumentDifference> run() {
    if (!saved_.is_object()) return {};
    for (const ModelArg& arg : kArgs)
      if (has_say(arg.in)) compare(arg);
    if (has_other_layers()) add("num_layers", saved_.word("num_layers"), asked("num_layers"));
    compare_positions();
    compare_yarn();
    compare_indexers();
    compare_mtp();
    if (const std::string needed = saved_.window_fault(); !needed.empty())
      add("window_size", saved_.word("window_size"), needed);
    compare_layers("window_size", windows_asked(), saved_.window() ? saved_.window_layers() : no_layers());
    compare_layers("no_rope_freq", flags_in(asked("no_rope_freq")), saved_.ropeless_layers());
    compare_layers("dsa_indexer_topk_freq", indexers_asked(), saved_.indexer_layers());
    add_rowless(saved_, differences_);
    return std::move(differences_);
  }

 private:
  std::string asked(std::string_view name) const {
    const auto found = asked_.find(name);
    return found == asked_.end() ? std::string() : found->second;
  }
  /// Returns whether the run had another number of layers; lists with an entry a layer cannot be compared then.
  bool has_other_layers() const {
    const auto saved = saved_.integer("num_layers");
    return saved && number_in(asked("num_layers")) && static_cast<double>(*saved) != *number_in(asked("num_layers"));
  }
  bool is_latent() const { return asked_.contains("multi_latent_attention"); }
  bool asks_yarn() const { return (is_latent() ? asked("rope_type") : asked("position_embedding_type")) == "yarn"; }
  std::vector<bool> no_layers() const { return std::vector<bool>(static_cast<std::size_t>(saved_.layers())); }

  bool has_say(In in) const {
    switch (in) {
      case In::Every: return true;
      case In::Latent: return is_latent();
      case In::Usual: return !is_latent();
      case In::NoLatentYarn: return !is_latent() || !asks_yarn();
      case In::Rotary: return asked("position_embedding_type") != "none";
      case In::Yarn: return asks_yarn() && saved_.has_yarn();
      case In::UsualYarn: return asks_yarn() && saved_.has_yarn() && !is_latent();
      case In::Experts: return asked_.contains("num_experts");
      case In::Groups: return asked_.contains("moe_router_num_groups");
      case In::ChosenGroups:
        return asked_.contains("num_experts") && saved_.integer("moe_router_group_topk").value_or(0) != 0;
      case In::SeveralBySoftmax:
        return asked("moe_router_score_function") == "softmax" &&
               (asked("moe_router_topk") != "1" || saved_.integer("moe_router_topk") != 1);
      case In::NoOtherBias: return asked_.contains("disable_bias_linear");
      case In::NoVariant: return !asked_.contains("experimental_attention_variant");
      case In::QueryGroups: return saved_.flag("group_query_attention") && asked_.contains("num_query_groups");
    }
    return true;
  }

  void add(std::string_view name, std::string saved, std::string asked) {
    differences_.push_back({std::string(name), std::move(saved), std::move(asked)});
  }

  void compare(const ModelArg& arg) {
    const auto value = saved_.root().find(arg.name);
    if (!value) return;
    const std::string saved = python_word(*value);
    std::string_view option = arg.option.empty() ? arg.name : arg.option;
    if (option.starts_with('!')) {
      const std::string opposite = asked_.contains(option.substr(1)) ? "False" : "True";
      if (saved != kNone && saved != opposite) add(arg.name, saved, opposite);
      return;
    }
    const auto found = asked_.find(option);
    if (found == asked_.end()) {
      if (saved != kNone && !is_size_of_variant(arg) && !is_among(saved, arg.neutral))
        add(arg.name, saved, neutral_of(arg));
      return;
    }
    if (saved != kNone && !same(saved, found->second)) add(arg.name, saved, found->second);
    // None stands for what the argument is without a value, where that is known.
    if (saved == kNone && !arg.neutral.empty() && !is_among(found->second, arg.neutral))
      add(arg.name, saved, found->second);
  }

  void compare_positions() {
    const std::string saved = saved_.text("position_embedding_type"), said = saved_.text("rope_type");
    const std::string rope = said.empty() && saved_.has("rope_type") ? (saved_.has_yarn() ? "yarn" : "rope") : said;
    if (is_latent() && !rope.empty() && rope != asked("rope_type"))
      add("rope_type", said.empty() ? fmt::format("{} (as which Megatron-Core takes None)", rope) : said,
          asked("rope_type"));
    if (saved.empty()) return;
    const bool is_other = is_latent() ? saved != "rope" && saved != "yarn" : saved != asked("position_embedding_type");
    if (is_other) add("position_embedding_type", saved, asked("position_embedding_type"));
  }

  /// One scale of cosine and sine can be said by several pairs of arguments.
  void compare_yarn() {
    if (!has_say(In::Yarn)) return;
    const auto factor = number_in(asked("rotary_scaling_factor"));
    const auto mscale = number_in(asked("mscale")), all_dim = number_in(asked("mscale_all_dim"));
    const auto saved_factor = saved_.number("rotary_scaling_factor");
    if (!factor || !mscale || !all_dim || !saved_factor) return;
    const double saved_all = saved_.number("mscale_all_dim").value_or(0.0);
    const double saved_first = saved_.number("mscale").value_or(1.0);
    const double saved_scale = yarn_scale(*saved_factor, saved_first) / yarn_scale(*saved_factor, saved_all);
    const double scale = yarn_scale(*factor, *mscale) / yarn_scale(*factor, *all_dim);
    constexpr double kRounding = 1e-9;
    const bool is_other_scale = std::abs(scale - saved_scale) > kRounding * std::abs(scale);
    if (is_other_scale && saved_first != *mscale) add("mscale", fmt::format("{}", saved_first), asked("mscale"));
    if ((is_other_scale || is_latent()) && saved_all != *all_dim)
      add("mscale_all_dim", fmt::format("{}", saved_all), asked("mscale_all_dim"));
    if (const auto whole = saved_.root().find<bool>("yarn_correction_range_round_to_int"); whole && !is_latent())
      if (*whole != asked_.contains("yarn_correction_range_round_to_int"))
        add("yarn_correction_range_round_to_int", *whole ? "True" : "False", *whole ? "False" : "True");
  }

  /// Their norm has the other norms' epsilon where no argument says its own.
  void compare_indexers() {
    constexpr std::string_view kEpsilon = "dsa_indexer_k_norm_epsilon";
    const auto epsilon = number_in(asked(kEpsilon)), saved = saved_.indexer_epsilon();
    if (epsilon && saved && saved_.word(kEpsilon).empty() && *epsilon != *saved)
      add(kEpsilon, fmt::format("None, which is {} (that of the other norms),", *saved), asked(kEpsilon));
  }

  /// No argument is asked for beside a variant of attention, whether there are such layers or not.
  void compare_mtp() {
    if (!asked_.contains("experimental_attention_variant")) return;
    i64 stored = 0;
    for (const TensorRef& tensor : saved_.tensors().tensors) {
      constexpr std::string_view kStack = "mtp.layers.";
      if (!tensor.name.starts_with(kStack)) continue;
      const std::string_view rest = std::string_view(tensor.name).substr(kStack.size());
      stored = std::max<i64>(stored, 1 + parse_number<i64>(rest.substr(0, rest.find('.'))).value_or(0));
    }
    if (const auto saved = saved_.integer("mtp_num_layers"); saved && *saved != stored)
      add("mtp_num_layers", fmt::format("{}", *saved), fmt::format("{}", stored));
  }

  std::vector<bool> windows_asked() const {
    return asked_.contains("window_size") ? flags_in(asked("window_attn_skip_freq")) : std::vector<bool>();
  }

  std::vector<bool> indexers_asked() const {
    const auto number = [&](std::string_view name) { return static_cast<i64>(number_in(asked(name)).value_or(0)); };
    return layers_with_indexers(saved_.layers(), number("dsa_indexer_topk_freq"),
                                number("dsa_indexer_skip_topk_offset"));
  }

  void compare_layers(std::string_view name, std::vector<bool> asked_layers, std::vector<bool> saved_layers) {
    if (!saved_.has(name) || has_other_layers()) return;
    asked_layers.resize(std::max(asked_layers.size(), saved_layers.size()));
    saved_layers.resize(asked_layers.size());
    if (asked_layers != saved_layers)
      return add(name, fmt::format("for {}", layers_word(saved_layers)), layers_word(asked_layers));
    if (name != "window_size" || std::ranges::find(saved_layers, true) == saved_layers.end()) return;
    const std::string width = asked(name).substr(0, asked(name).find(','));
    if (const auto saved = saved_.window(); saved && !same(fmt::format("{}", *saved), width))
      add(name, fmt::format("{}", *saved), width);
  }

  SavedArgs saved_;
  std::map<std::string, std::string, std::less<>> asked_;
  std::vector<ArgumentDifference> differences_;
};

}  // namespace

std::vector<ArgumentDifference> argument_differences(const std::string& asked, const std::string& saved,
                                                     const Inventory& tensors) {
  return Comparison(asked, saved, tensors).run();
}

std::vector<ArgumentDifference> unread_arguments(const SavedArgs& args, const std::vector<std::string_view>& read) {
  const bool latent = args.flag("multi_latent_attention");
  const auto has_say = [&](In in) {
    switch (in) {
      case In::Every:
      case In::NoVariant: return true;
      case In::Usual: return !latent;
      case In::NoLatentYarn: return !latent || !args.has_yarn();
      case In::Experts: return args.integer("num_experts").value_or(0) > 0;
      case In::ChosenGroups:
        return args.integer("num_experts").value_or(0) > 0 && args.integer("moe_router_group_topk").value_or(0) != 0;
      case In::SeveralBySoftmax:
        return args.text("moe_router_score_function") != "sigmoid" && args.integer("moe_router_topk") != 1;
      case In::NoOtherBias: return !args.flag("add_bias_linear");
      default: return false;  // They are read with the argument that brings them into play.
    }
  };
  const auto is_read = [&](std::string_view name) { return std::ranges::find(read, name) != read.end(); };
  std::vector<ArgumentDifference> unread;
  for (const ModelArg& arg : kArgs) {
    const std::string word = args.word(arg.name);
    if (word.empty() || !has_say(arg.in) || is_size_of_variant(arg) || is_read(arg.name) || is_read(arg.option) ||
        is_among(word, arg.neutral))
      continue;
    unread.push_back({std::string(arg.name), word, neutral_of(arg)});
  }
  add_rowless(args, unread);
  std::erase_if(unread, [&](const ArgumentDifference& argument) { return is_read(argument.name); });
  return unread;
}

namespace {

/// Who asks for keys that all layers share may want a HybridModel, whose builder does not take all of a GPTModel's
/// arguments.
void warn_of_hybrid_model(ArgsWriter& args) {
  const auto has = [&](std::string_view name) { return args.written.text.find(name) != std::string::npos; };
  if (has("--use-rope-scaling"))
    args.warn(
        "--stack-layers: HybridModel of Megatron-Core 0.19.2 does not read --use-rope-scaling, so it would not compute "
        "what the model does; GPTModel does");
  for (const std::string_view name : {"--window-attn-skip-freq", "--no-rope-freq"})
    if (has(name))
      args.warn(
          "--stack-layers: {} counts layers, and a HybridModel has two for each one of a GPTModel: give it a list "
          "twice as long",
          name);
}

}  // namespace

MegatronArgs megatron_args(const std::string& config, const Recognition& model, const WrittenForm& to) {
  ArgsWriter args(config, model, to);
  const Family& family = args.family();
  for (const std::span<const ArgRow> rows : family.args)
    for (const ArgRow& row : rows)
      if (row.to_argument != nullptr) row.to_argument(args, row);
  warn_of_fields_said_twice(args);
  warn_of_nulls(args);
  warn_of_whole_numbers(args);
  warn_of_unread_fields(args);
  if (!family.needs.empty())
    args.warn("models of type '{}' do not load into GPTModel as it is: {}", family.model_type, family.needs);
  args.written.stacked = to.stacked;
  if (to.stacked) warn_of_hybrid_model(args);
  return std::move(args.written);
}

}  // namespace glu_ckpt
