/// Two tables: which family an argument fits (kFits), and which key of config.json is made of which argument (kRows). A
/// family of Megatron-Core's is added by a line in the first, and a bit in the rows that it has.

#include "arch/trained_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/json.hpp"

namespace glu_ckpt {
namespace {

// ---- families by what the arguments say of them -------------------------------------------------

enum Trait : u32 {
  kLatentAttention = 1U << 0,
  kDeltaLayers = 1U << 1,
  kOutputGate = 1U << 2,
  kSigmoid = 1U << 3,
  kCorrection = 1U << 4,
  kQkNorm = 1U << 5,
  kWideQkNorm = 1U << 6,
  kQkvBias = 1U << 7,
  kAllBiases = 1U << 8,
  kSharedExpert = 1U << 9,
  kSharedExpertGate = 1U << 10,
  kInterleavedRope = 1U << 11,
  kLearnableSinks = 1U << 12,
  kL2Norm = 1U << 13,
  kDenseLayers = 1U << 14,
  kPartialRope = 1U << 15,
  kProbsOnInput = 1U << 16,
  kExpertGroups = 1U << 17,
  kPredictsTokens = 1U << 18,
  kWindow = 1U << 19,
  kYarn = 1U << 20,
  kPreSoftmax = 1U << 21,
  kScaledRouting = 1U << 22,
  kSwiglu = 1U << 23,
  kQuickGeglu = 1U << 24,
  kZeroCentred = 1U << 25,
  kLayersWithoutRope = 1U << 26,
  kNoRms = 1U << 27,
  kNoRope = 1U << 28,
};
constexpr auto kTraitNames = std::to_array<std::string_view>({
    "multi_latent_attention",
    "experimental_attention_variant gated_delta_net",
    "attention_output_gate",
    "moe_router_score_function sigmoid",
    "moe_router_enable_expert_bias",
    "qk_layernorm",
    "q and k norms over all heads",
    "add_qkv_bias",
    "add_bias_linear",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate",
    "rotary_interleaved",
    "softmax_type learnable",
    "qk_l2_norm",
    "dense layers in moe_layer_freq",
    "rotary_percent",
    "moe_apply_probs_on_input",
    "moe_router_num_groups",
    "mtp_num_layers",
    "window_size",
    "YaRN",
    "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor",
    "swiglu",
    "quick_geglu",
    "apply_layernorm_1p",
    "no_rope_freq",
    "a normalization other than RMSNorm",
    "a position_embedding_type other than rope and yarn",
});
static_assert(kTraitNames.size() == 29);

std::string trait_text(u32 traits) {
  std::string text;
  for (std::size_t i = 0; i < kTraitNames.size(); ++i)
    if ((traits >> i & 1U) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", kTraitNames[i]);
  return text;
}

enum FamilyBit : u32 {
  kMixtralBit = 1U << 0,
  kQwen2Bit = 1U << 1,
  kQwen3Bit = 1U << 2,
  kV2Bit = 1U << 3,
  kV3Bit = 1U << 4,
  kKimiBit = 1U << 5,
  kLiteBit = 1U << 6,
  kGlmBit = 1U << 7,
  kDotsBit = 1U << 8,
  kGptOssBit = 1U << 9,
  kLlamaBit = 1U << 10,
  kGraniteBit = 1U << 11,
  kNextBit = 1U << 12,
  kQwen35Bit = 1U << 13,
};
constexpr u32 kEveryFamily = (1U << 14) - 1;
constexpr u32 kQwenBits = kQwen2Bit | kQwen3Bit | kNextBit | kQwen35Bit;
constexpr u32 kDeltaBits = kNextBit | kQwen35Bit;
constexpr u32 kLatentV3Bits = kV3Bit | kKimiBit | kLiteBit;
constexpr u32 kLatentBits = kV2Bit | kLatentV3Bits;
/// Those with a correction bias, shared experts counted in widths of one, and dense layers first.
constexpr u32 kSigmoidBits = kLatentV3Bits | kGlmBit | kDotsBit;
/// Their intermediate_size is the width of an expert.
constexpr u32 kPlainWidthBits = kMixtralBit | kGptOssBit | kLlamaBit | kGraniteBit;

/// A model fits where it has all of `required` and nothing beside that and `possible`.
struct Fit {
  std::string_view model_type;
  std::string_view model_class;
  FamilyBit bit;
  u32 required;
  u32 possible;
};
constexpr u32 kLikeV3 = kSwiglu | kSigmoid | kCorrection | kSharedExpert;
constexpr u32 kMayLikeV3 = kDenseLayers | kExpertGroups | kScaledRouting;
constexpr u32 kLikeQwenNext =
    kSwiglu | kDeltaLayers | kOutputGate | kQkNorm | kZeroCentred | kSharedExpert | kSharedExpertGate;
constexpr auto kFits = std::to_array<Fit>({
    {"mixtral", "MixtralForCausalLM", kMixtralBit, kSwiglu, 0},
    {"granitemoe", "GraniteMoeForCausalLM", kGraniteBit, kSwiglu, 0},
    {"qwen2_moe", "Qwen2MoeForCausalLM", kQwen2Bit, kSwiglu | kSharedExpert | kSharedExpertGate,
     kQkvBias | kDenseLayers | kPreSoftmax},
    {"qwen3_moe", "Qwen3MoeForCausalLM", kQwen3Bit, kSwiglu | kQkNorm, kDenseLayers | kPreSoftmax},
    {"deepseek_v2", "DeepseekV2ForCausalLM", kV2Bit, kSwiglu | kLatentAttention | kPreSoftmax | kSharedExpert,
     kQkNorm | kDenseLayers | kScaledRouting | kYarn},
    {"deepseek_v3", "DeepseekV3ForCausalLM", kV3Bit, kLikeV3 | kLatentAttention,
     kMayLikeV3 | kQkNorm | kYarn | kPredictsTokens},
    {"kimi_k2", "DeepseekV3ForCausalLM", kKimiBit, kLikeV3 | kLatentAttention, kMayLikeV3 | kQkNorm | kYarn},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", kLiteBit, kLikeV3 | kLatentAttention,
     kMayLikeV3 | kQkNorm | kYarn | kPredictsTokens},
    {"glm4_moe", "Glm4MoeForCausalLM", kGlmBit, kLikeV3,
     kMayLikeV3 | kQkNorm | kQkvBias | kPartialRope | kPredictsTokens},
    {"dots1", "Dots1ForCausalLM", kDotsBit, kLikeV3 | kQkNorm, kMayLikeV3},
    {"gpt_oss", "GptOssForCausalLM", kGptOssBit, kQuickGeglu | kAllBiases | kLearnableSinks,
     kQkvBias | kWindow | kYarn},
    {"llama4_text", "Llama4ForCausalLM", kLlamaBit,
     kSwiglu | kSigmoid | kProbsOnInput | kInterleavedRope | kSharedExpert, kL2Norm | kDenseLayers},
    {"qwen3_next", "Qwen3NextForCausalLM", kNextBit, kLikeQwenNext,
     kPreSoftmax | kPartialRope | kDenseLayers | kPredictsTokens},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", kQwen35Bit, kLikeQwenNext,
     kPartialRope | kDenseLayers | kPredictsTokens},
});

// ---- the arguments ------------------------------------------------------------------------------

std::string float_word(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string flag_word(bool value) { return value ? "true" : "false"; }

class SavedArgs {
 public:
  SavedArgs(const std::string& args, const Inventory& tensors) : document_(args, kDepth), tensors_(tensors) {}

  bool is_object() const { return !document_.fault() && document_.root().kind() == JsonKind::Object; }
  const Inventory& tensors() const { return tensors_; }
  /// Names of arguments that were asked for and are not there, and what stands in the way otherwise.
  std::vector<std::string> missing;
  std::vector<std::string> faults;

  bool flag(std::string_view name) const { return find<bool>(name).value_or(false); }
  std::optional<i64> integer(std::string_view name) const { return find<i64>(name); }
  std::optional<double> number(std::string_view name) const { return find<double>(name); }
  std::string text(std::string_view name) const { return std::string(find<std::string_view>(name).value_or("")); }
  bool has(std::string_view name) const { return document_.root().find(name).has_value(); }

  i64 needed(std::string_view name) {
    if (const auto value = integer(name)) return *value;
    ask(name);
    return 1;
  }
  double needed_number(std::string_view name) {
    if (const auto value = number(name)) return *value;
    ask(name);
    return 1;
  }
  bool needed_flag(std::string_view name) {
    if (!find<bool>(name)) ask(name);
    return flag(name);
  }
  void ask(std::string_view name) {
    if (std::ranges::find(missing, name) == missing.end()) missing.emplace_back(name);
  }

  i64 layers() const {
    constexpr i64 kMaxLayers = 100'000;
    return std::clamp<i64>(integer("num_layers").value_or(0), 0, kMaxLayers);
  }

  /// Flags of the layers: a list says one for each; of a number N, `of_number(layer, N)`; nothing, `otherwise`.
  template <typename OfNumber>
  std::vector<bool> pattern(std::string_view name, bool otherwise, const OfNumber& of_number) {
    std::vector<bool> flags(static_cast<std::size_t>(layers()), otherwise);
    const auto value = document_.root().find(name);
    if (!value || value->kind() == JsonKind::Null) return flags;
    if (const auto number = value->get<i64>(); number && *number > 0) {
      for (std::size_t layer = 0; layer < flags.size(); ++layer)
        flags[layer] = of_number(static_cast<i64>(layer), *number);
      return flags;
    }
    if (value->size() != flags.size()) {
      faults.push_back(fmt::format("{} has {} entries for {} layers", name, value->size(), flags.size()));
      return flags;
    }
    std::size_t layer = 0;
    for (const JsonValue item : value->items()) flags[layer++] = item.get<i64>().value_or(0) != 0;
    return flags;
  }

  std::vector<bool> expert_layers() {
    return pattern("moe_layer_freq", true, [](i64 layer, i64 number) { return layer % number == 0; });
  }
  std::vector<bool> delta_layers() {
    return pattern("linear_attention_freq", false, [](i64 layer, i64 number) { return (layer + 1) % number != 0; });
  }
  std::vector<bool> window_layers() {
    return pattern("window_attn_skip_freq", true, [](i64 layer, i64 number) { return (layer + 1) % number != 0; });
  }
  std::vector<bool> ropeless_layers() {
    return pattern("no_rope_freq", false, [](i64 layer, i64 number) { return (layer + 1) % number == 0; });
  }
  /// Tokens to the left of a token that it sees; none where it sees all.
  std::optional<i64> window() const {
    const auto value = document_.root().find("window_size");
    if (!value || value->size() != 2) return std::nullopt;
    return (*value->items().begin()).get<i64>();
  }

  const TensorRef* tensor(std::string_view name) const {
    const auto found = std::ranges::find(tensors_.tensors, name, &TensorRef::name);
    return found == tensors_.tensors.end() ? nullptr : &*found;
  }

 private:
  static constexpr std::size_t kDepth = 8;
  template <typename Type>
  std::optional<Type> find(std::string_view name) const {
    return document_.root().find<Type>(name);
  }

  JsonDocument document_;
  const Inventory& tensors_;
};

constexpr std::string_view kEmbeddingKey = "embedding.word_embeddings.weight";

bool has_wide_norms(const SavedArgs& args) {
  constexpr std::string_view kNorm = ".self_attention.q_layernorm.weight";
  for (const TensorRef& tensor : args.tensors().tensors)
    if (tensor.name.ends_with(kNorm) && !tensor.shape.empty())
      return tensor.shape.back() != args.integer("kv_channels").value_or(tensor.shape.back());
  return false;
}

u32 traits_of(SavedArgs& args) {
  u32 traits = 0;
  const auto set = [&](bool is, Trait trait) { traits |= is ? static_cast<u32>(trait) : 0U; };
  const bool latent = args.flag("multi_latent_attention");
  const std::string embedding = args.text("position_embedding_type");
  const auto any = [](const std::vector<bool>& flags) { return std::ranges::find(flags, true) != flags.end(); };
  set(latent, kLatentAttention);
  set(any(args.delta_layers()) && !args.text("experimental_attention_variant").empty(), kDeltaLayers);
  set(args.flag("attention_output_gate"), kOutputGate);
  set(args.text("moe_router_score_function") == "sigmoid", kSigmoid);
  set(args.flag("moe_router_enable_expert_bias"), kCorrection);
  set(args.flag("qk_layernorm"), kQkNorm);
  set(has_wide_norms(args), kWideQkNorm);
  set(args.flag("add_qkv_bias"), kQkvBias);
  set(args.flag("add_bias_linear"), kAllBiases);
  set(args.integer("moe_shared_expert_intermediate_size").value_or(0) > 0, kSharedExpert);
  set(args.flag("moe_shared_expert_gate"), kSharedExpertGate);
  set(args.flag("rotary_interleaved") && !latent, kInterleavedRope);
  set(args.text("softmax_type") == "learnable", kLearnableSinks);
  set(args.flag("qk_l2_norm"), kL2Norm);
  const std::vector<bool> experts = args.expert_layers();
  set(std::ranges::find(experts, false) != experts.end(), kDenseLayers);
  set(args.number("rotary_percent").value_or(1.0) != 1.0 && !latent, kPartialRope);
  set(args.flag("moe_apply_probs_on_input"), kProbsOnInput);
  set(args.integer("moe_router_num_groups").value_or(1) > 1, kExpertGroups);
  set(args.integer("mtp_num_layers").value_or(0) > 0, kPredictsTokens);
  set(args.window().has_value(), kWindow);
  set(latent ? args.text("rope_type") == "yarn" : embedding == "yarn", kYarn);
  set(args.flag("moe_router_pre_softmax"), kPreSoftmax);
  set(args.number("moe_router_topk_scaling_factor").value_or(1.0) != 1.0, kScaledRouting);
  set(args.flag("swiglu"), kSwiglu);
  set(args.flag("quick_geglu"), kQuickGeglu);
  // The second is the field that newer versions make arguments of.
  set(args.flag("apply_layernorm_1p") || args.flag("layernorm_zero_centered_gamma"), kZeroCentred);
  set(any(args.ropeless_layers()), kLayersWithoutRope);
  set(args.has("normalization") && args.text("normalization") != "RMSNorm", kNoRms);
  set(!embedding.empty() && embedding != "rope" && embedding != "yarn", kNoRope);
  return traits;
}

// ---- from arguments to keys ---------------------------------------------------------------------

struct ConfigRow {
  std::string_view key;
  u32 families;
  /// Megatron-LM's name of what it is made of; empty where it follows from what Megatron-Core always does.
  std::string_view argument;
  /// Returns the value as JSON; none: the key is left out.
  std::optional<std::string> (*value)(SavedArgs& args, const ConfigRow& row);
};
using Value = std::optional<std::string>;

Value as_integer(SavedArgs& args, const ConfigRow& row) { return fmt::format("{}", args.needed(row.argument)); }
Value as_float(SavedArgs& args, const ConfigRow& row) { return float_word(args.needed_number(row.argument)); }
Value as_flag(SavedArgs& args, const ConfigRow& row) { return flag_word(args.flag(row.argument)); }
Value as_opposite(SavedArgs& args, const ConfigRow& row) { return flag_word(!args.needed_flag(row.argument)); }
Value as_count(SavedArgs& args, const ConfigRow& row) {
  return fmt::format("{}", args.integer(row.argument).value_or(0));
}
Value as_one_or_more(SavedArgs& args, const ConfigRow& row) {
  return fmt::format("{}", args.integer(row.argument).value_or(1));
}
Value always_true(SavedArgs&, const ConfigRow&) { return "true"; }
Value always_false(SavedArgs&, const ConfigRow&) { return "false"; }
Value always_one(SavedArgs&, const ConfigRow&) { return "1.0"; }
Value always_silu(SavedArgs&, const ConfigRow&) { return "\"silu\""; }
Value always_sigmoid(SavedArgs&, const ConfigRow&) { return "\"sigmoid\""; }
Value always_noaux(SavedArgs&, const ConfigRow&) { return "\"noaux_tc\""; }
Value always_greedy(SavedArgs&, const ConfigRow&) { return "\"greedy\""; }

/// 0.16's name, and that of the field that newer versions make arguments of.
Value epsilon(SavedArgs& args, const ConfigRow& row) {
  if (!args.number(row.argument))
    if (const auto value = args.number("layernorm_epsilon")) return float_word(*value);
  return as_float(args, row);
}

/// Without query groups each head has its own key.
Value key_heads(SavedArgs& args, const ConfigRow& row) {
  if (!args.flag("group_query_attention")) return fmt::format("{}", args.needed("num_attention_heads"));
  return as_integer(args, row);
}

/// Many runs take their vocabulary from a tokenizer; the rows that are stored are then all that is known.
Value vocabulary(SavedArgs& args, const ConfigRow& row) {
  if (const auto words = args.integer(row.argument)) return fmt::format("{}", *words);
  const TensorRef* const embedding = args.tensor(kEmbeddingKey);
  if (embedding != nullptr && embedding->shape.size() == 2) return fmt::format("{}", embedding->shape[0]);
  return as_integer(args, row);
}

Value stored_dtype(SavedArgs& args, const ConfigRow&) {
  const TensorRef* const norm = args.tensor("decoder.final_layernorm.weight");
  if (norm == nullptr) return std::nullopt;
  switch (norm->dtype) {
    case Dtype::BF16: return "\"bfloat16\"";
    case Dtype::F16: return "\"float16\"";
    case Dtype::F32: return "\"float32\"";
    default: return std::nullopt;
  }
}

Value query_latent(SavedArgs& args, const ConfigRow& row) {
  const auto rank = args.integer(row.argument);
  return rank ? fmt::format("{}", *rank) : "null";
}

Value shared_experts(SavedArgs& args, const ConfigRow& row) {
  const i64 shared = args.needed(row.argument), routed = args.needed("moe_ffn_hidden_size");
  if (routed < 1 || shared % routed != 0)
    args.faults.push_back(fmt::format("{} {} is no multiple of moe_ffn_hidden_size {}, as {} needs", row.argument,
                                      shared, routed, row.key));
  return fmt::format("{}", routed < 1 ? 0 : shared / routed);
}

/// Llama's shared expert is as wide as a routed one.
Value llama_width(SavedArgs& args, const ConfigRow& row) {
  const i64 shared = args.needed("moe_shared_expert_intermediate_size"), routed = args.needed(row.argument);
  if (shared != routed)
    args.faults.push_back(fmt::format("moe_shared_expert_intermediate_size {} is not {} {}, as {} needs", shared,
                                      row.argument, routed, row.key));
  return fmt::format("{}", routed);
}

Value first_dense(SavedArgs& args, const ConfigRow& row) {
  const std::vector<bool> experts = args.expert_layers();
  const auto first = std::ranges::find(experts, true);
  if (std::find(first, experts.end(), false) != experts.end())
    args.faults.push_back(
        fmt::format("{} has a dense layer behind a MoE layer, which {} cannot say", row.argument, row.key));
  return fmt::format("{}", first - experts.begin());
}

template <typename Text>
std::string list_of(const std::vector<bool>& flags, const Text& text) {
  std::string list;
  for (std::size_t layer = 0; layer < flags.size(); ++layer) {
    const std::string item = text(layer, flags[layer]);
    if (!item.empty()) list += (list.empty() ? "" : ", ") + item;
  }
  return "[" + list + "]";
}

Value layer_kinds(SavedArgs& args, const ConfigRow&) {
  return list_of(args.expert_layers(), [](std::size_t, bool experts) { return experts ? "\"sparse\"" : "\"dense\""; });
}
Value dense_layers(SavedArgs& args, const ConfigRow&) {
  return list_of(args.expert_layers(),
                 [](std::size_t layer, bool experts) { return experts ? std::string() : fmt::format("{}", layer); });
}
Value expert_layers(SavedArgs& args, const ConfigRow&) {
  return list_of(args.expert_layers(),
                 [](std::size_t layer, bool experts) { return experts ? fmt::format("{}", layer) : std::string(); });
}
/// Where each N-th layer has experts; other patterns are in `moe_layers` alone.
Value expert_step(SavedArgs& args, const ConfigRow&) {
  const std::vector<bool> experts = args.expert_layers();
  const auto step = static_cast<std::size_t>(std::ranges::find(experts, true) - experts.begin()) + 1;
  for (std::size_t layer = 0; layer < experts.size(); ++layer)
    if (experts[layer] != ((layer + 1) % step == 0)) return std::nullopt;
  return fmt::format("{}", step);
}
Value attention_kinds(SavedArgs& args, const ConfigRow& row) {
  const bool delta = row.argument == "linear_attention_freq";
  const std::string_view marked = delta ? "\"linear_attention\"" : "\"sliding_attention\"";
  const std::vector<bool> flags = delta           ? args.delta_layers()
                                  : args.window() ? args.window_layers()
                                                  : std::vector<bool>(args.delta_layers().size());
  return list_of(
      flags, [&](std::size_t, bool flag) { return flag ? std::string(marked) : std::string("\"full_attention\""); });
}
Value all_full_attention(SavedArgs& args, const ConfigRow&) {
  return list_of(std::vector<bool>(static_cast<std::size_t>(args.layers())),
                 [](std::size_t, bool) { return "\"full_attention\""; });
}
Value all_with_rope(SavedArgs& args, const ConfigRow&) {
  return list_of(std::vector<bool>(static_cast<std::size_t>(args.layers())), [](std::size_t, bool) { return "1"; });
}

/// Megatron-Core counts the tokens to the left of a token, Hugging Face that one as well.
Value window_width(SavedArgs& args, const ConfigRow&) {
  const auto window = args.window();
  return window ? fmt::format("{}", *window + 1) : "null";
}

Value usual_softmax_scale(SavedArgs& args, const ConfigRow& row) {
  return float_word(1.0 / std::sqrt(static_cast<double>(std::max<i64>(1, args.needed(row.argument)))));
}

/// Those without an argument in some version have there what its models are built with by default.
std::string yarn_number(const SavedArgs& args, std::string_view key, std::initializer_list<std::string_view> names,
                        double usual) {
  double value = usual;
  for (const std::string_view name : names)
    if (const auto said = args.number(name)) value = *said;
  return fmt::format(",\n    \"{}\": {}", key, float_word(value));
}

Value rope_scaling(SavedArgs& args, const ConfigRow& row) {
  const bool latent = args.flag("multi_latent_attention");
  if ((latent ? args.text("rope_type") : args.text("position_embedding_type")) != "yarn") return "null";
  constexpr double kLength = 4096;
  std::string text = fmt::format("{{\n    \"rope_type\": \"yarn\",\n    \"type\": \"yarn\",\n    \"factor\": {}",
                                 float_word(args.needed_number(row.argument)));
  text += yarn_number(args, "beta_fast", {"beta_fast", "yarn_beta_fast"}, 32);
  text += yarn_number(args, "beta_slow", {"beta_slow", "yarn_beta_slow"}, 1);
  const double length = args.number("original_max_position_embeddings")
                            .value_or(args.number("yarn_original_max_position_embeddings").value_or(kLength));
  text += fmt::format(",\n    \"original_max_position_embeddings\": {}", static_cast<i64>(length));
  const double all_dim = args.number("mscale_all_dim").value_or(0.0);
  // transformers has no such factor where both are 1 and 0.
  if (latent || all_dim != 0.0) {
    text += fmt::format(",\n    \"mscale\": {}", float_word(args.number("mscale").value_or(1.0)));
    text += fmt::format(",\n    \"mscale_all_dim\": {}", float_word(all_dim));
  }
  if (!latent)
    text += fmt::format(",\n    \"truncate\": {}", flag_word(!args.has("yarn_correction_range_round_to_int") ||
                                                             args.flag("yarn_correction_range_round_to_int")));
  return text + "\n  }";
}

/// Which key of config.json is made of which argument.
constexpr auto kRows = std::to_array<ConfigRow>({
    {"hidden_act", kEveryFamily, "swiglu", always_silu},
    {"torch_dtype", kEveryFamily, "", stored_dtype},
    {"num_hidden_layers", kEveryFamily, "num_layers", as_integer},
    {"hidden_size", kEveryFamily, "hidden_size", as_integer},
    {"vocab_size", kEveryFamily, "vocab_size", vocabulary},
    {"max_position_embeddings", kEveryFamily, "max_position_embeddings", as_integer},
    {"tie_word_embeddings", kEveryFamily, "untie_embeddings_and_output_weights", as_opposite},
    {"rms_norm_eps", kEveryFamily, "norm_epsilon", epsilon},
    {"rope_theta", kEveryFamily, "rotary_base", as_float},
    {"rope_scaling", kLatentBits | kGptOssBit, "rotary_scaling_factor", rope_scaling},
    {"partial_rotary_factor", kGlmBit | kDeltaBits, "rotary_percent", as_float},
    // attention
    {"num_attention_heads", kEveryFamily, "num_attention_heads", as_integer},
    {"num_key_value_heads", kEveryFamily & ~kLatentBits, "num_query_groups", key_heads},
    {"num_key_value_heads", kLatentBits, "num_attention_heads", as_integer},
    {"head_dim", kEveryFamily & ~kLatentBits, "kv_channels", as_integer},
    {"q_lora_rank", kLatentBits, "q_lora_rank", query_latent},
    {"kv_lora_rank", kLatentBits, "kv_lora_rank", as_integer},
    {"qk_nope_head_dim", kLatentBits, "qk_head_dim", as_integer},
    {"qk_rope_head_dim", kLatentBits, "qk_pos_emb_head_dim", as_integer},
    {"v_head_dim", kLatentBits, "v_head_dim", as_integer},
    {"attention_bias", kGlmBit, "add_qkv_bias", as_flag},
    {"qkv_bias", kQwen2Bit, "add_qkv_bias", as_flag},
    {"attention_bias", kGptOssBit, "add_bias_linear", always_true},
    {"use_qk_norm", kGlmBit, "qk_layernorm", as_flag},
    {"use_qk_norm", kLlamaBit, "qk_l2_norm", as_flag},
    {"sliding_window", kGptOssBit, "window_size", window_width},
    {"layer_types", kGptOssBit, "window_attn_skip_freq", attention_kinds},
    {"layer_types", kDeltaBits, "linear_attention_freq", attention_kinds},
    {"layer_types", kLlamaBit, "", all_full_attention},
    {"no_rope_layers", kLlamaBit, "no_rope_freq", all_with_rope},
    {"attn_temperature_tuning", kLlamaBit, "", always_false},
    {"linear_conv_kernel_dim", kDeltaBits, "linear_conv_kernel_dim", as_integer},
    {"linear_key_head_dim", kDeltaBits, "linear_key_head_dim", as_integer},
    {"linear_value_head_dim", kDeltaBits, "linear_value_head_dim", as_integer},
    {"linear_num_key_heads", kDeltaBits, "linear_num_key_heads", as_integer},
    {"linear_num_value_heads", kDeltaBits, "linear_num_value_heads", as_integer},
    {"attention_multiplier", kGraniteBit, "kv_channels", usual_softmax_scale},
    {"embedding_multiplier", kGraniteBit, "", always_one},
    {"residual_multiplier", kGraniteBit, "", always_one},
    {"logits_scaling", kGraniteBit, "", always_one},
    // experts and dense layers
    {"num_local_experts", kPlainWidthBits, "num_experts", as_integer},
    {"num_experts", kQwenBits, "num_experts", as_integer},
    {"n_routed_experts", kV2Bit | kSigmoidBits, "num_experts", as_integer},
    {"intermediate_size", kPlainWidthBits & ~kLlamaBit, "moe_ffn_hidden_size", as_integer},
    {"intermediate_size", kLlamaBit, "moe_ffn_hidden_size", llama_width},
    {"intermediate_size_mlp", kLlamaBit, "ffn_hidden_size", as_integer},
    {"intermediate_size", kEveryFamily & ~kPlainWidthBits, "ffn_hidden_size", as_integer},
    {"moe_intermediate_size", kEveryFamily & ~kPlainWidthBits, "moe_ffn_hidden_size", as_integer},
    {"n_shared_experts", kV2Bit | kSigmoidBits, "moe_shared_expert_intermediate_size", shared_experts},
    {"shared_expert_intermediate_size", kQwen2Bit | kDeltaBits, "moe_shared_expert_intermediate_size", as_integer},
    {"first_k_dense_replace", (kV2Bit | kSigmoidBits) & ~kLiteBit, "moe_layer_freq", first_dense},
    {"mlp_layer_types", kLiteBit, "moe_layer_freq", layer_kinds},
    {"mlp_only_layers", kQwenBits, "moe_layer_freq", dense_layers},
    {"moe_layers", kLlamaBit, "moe_layer_freq", expert_layers},
    {"interleave_moe_layer_step", kLlamaBit, "moe_layer_freq", expert_step},
    {"num_nextn_predict_layers", kLatentV3Bits | kGlmBit, "mtp_num_layers", as_count},
    {"mtp_num_hidden_layers", kDeltaBits, "mtp_num_layers", as_count},
    // routing
    {"num_experts_per_tok", kEveryFamily, "moe_router_topk", as_integer},
    {"norm_topk_prob", kQwenBits, "moe_router_pre_softmax", as_opposite},
    {"norm_topk_prob", kV2Bit, "moe_router_pre_softmax", always_false},
    {"norm_topk_prob", kSigmoidBits, "moe_router_score_function", always_true},
    {"topk_method", kV2Bit, "moe_router_num_groups", always_greedy},
    {"topk_method", kLatentV3Bits, "moe_router_enable_expert_bias", always_noaux},
    {"scoring_func", kLatentV3Bits, "moe_router_score_function", always_sigmoid},
    {"n_group", kSigmoidBits, "moe_router_num_groups", as_one_or_more},
    {"topk_group", kSigmoidBits, "moe_router_group_topk", as_one_or_more},
    {"routed_scaling_factor", kV2Bit | kSigmoidBits, "moe_router_topk_scaling_factor",
     [](SavedArgs& args, const ConfigRow& row) -> Value {
       return float_word(args.number(row.argument).value_or(1.0));
     }},
    {"swiglu_limit", kGptOssBit, "activation_func_clamp_value", as_float},
});

std::string print_config(SavedArgs& args, const Fit& fit) {
  std::string text = fmt::format("{{\n  \"architectures\": [\n    \"{}\"\n  ],\n  \"model_type\": \"{}\"",
                                 fit.model_class, fit.model_type);
  for (const ConfigRow& row : kRows) {
    if ((row.families & fit.bit) == 0) continue;
    if (const Value value = row.value(args, row)) text += fmt::format(",\n  \"{}\": {}", row.key, *value);
  }
  return text + "\n}\n";
}

TrainedConfig none(std::string why, std::vector<std::string> options) {
  return {{}, std::move(why), std::move(options)};
}

constexpr const char* kTypeOption = "--to";
constexpr const char* kFileOption = "--from-config";

TrainedConfig no_fit(u32 traits, const std::string& model_type) {
  const std::string has = trait_text(traits);
  if (model_type.empty())
    return none(fmt::format("no family that is known has what the saved arguments say of the model ({}), so that "
                            "--from-config FILE has to name a config.json",
                            has),
                {kFileOption});
  const auto found = std::ranges::find(kFits, model_type, &Fit::model_type);
  if (found == kFits.end())
    return none(fmt::format("no config.json can be made from the saved arguments for models of type '{}'; "
                            "--from-config FILE names one",
                            model_type),
                {kFileOption});
  const u32 lacking = found->required & ~traits, surplus = traits & ~(found->required | found->possible);
  std::string why;
  if (lacking != 0) why += "without " + trait_text(lacking);
  if (surplus != 0) why += fmt::format("{}with {}", why.empty() ? "" : " and ", trait_text(surplus));
  return none(fmt::format("the saved arguments are of a model {}, which is none of type '{}'; --from-config FILE names "
                          "a config.json that says otherwise",
                          why, model_type),
              {kFileOption});
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

bool has_vocabulary(const std::string& args) {
  constexpr std::size_t kDepth = 8;
  const JsonDocument document(args, kDepth);
  return !document.fault() && document.root().find<i64>("vocab_size").has_value();
}

TrainedConfig make_trained_config(const std::string& args_text, const Inventory& tensors,
                                  const std::string& model_type) {
  SavedArgs args(args_text, tensors);
  if (!args.is_object() || args.tensor(kEmbeddingKey) == nullptr)
    return none(
        "there is no config.json that says what model this is, and the names of the tensors are not those of a "
        "GPTModel whose saved arguments would; --from-config FILE names one",
        {kFileOption});
  const u32 traits = traits_of(args);
  std::vector<const Fit*> fits;
  for (const Fit& fit : kFits)
    if ((traits & fit.required) == fit.required && (traits & ~(fit.required | fit.possible)) == 0 &&
        (model_type.empty() || fit.model_type == model_type))
      fits.push_back(&fit);
  if (!args.faults.empty()) return none("of the saved arguments, " + joined(args.faults), {kFileOption});
  if (fits.empty()) return no_fit(traits, model_type);
  if (fits.size() > 1) {
    std::vector<std::string> types;
    for (const Fit* fit : fits) types.push_back(fmt::format("--to hf:{}", fit->model_type));
    return none(fmt::format("the saved arguments fit models of {} types and do not say which one this is: {}",
                            fits.size(), joined(types)),
                {kTypeOption});
  }
  std::string text = print_config(args, *fits.front());
  if (!args.missing.empty())
    return none(fmt::format("the saved arguments do not say {}, so that --from-config FILE has to name a config.json",
                            joined(args.missing)),
                {kFileOption});
  if (!args.faults.empty()) return none("of the saved arguments, " + joined(args.faults), {kFileOption});
  return {std::move(text), {}, {}};
}

}  // namespace glu_ckpt
