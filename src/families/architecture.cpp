#include "families/architecture.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "families/config_fields.hpp"

namespace glu_ckpt {
namespace {

/// More than any model has; what a product of two extents cannot overflow.
constexpr i64 kMaxExtent = i64{1} << 30;

class ArchitectureReader {
 public:
  ArchitectureReader(const ConfigFields& config, const Family& family, std::string model_type)
      : config_(config), family_(family) {
    model_.family = &family;
    model_.model_type = std::move(model_type);
    model_.gated_attention = family.gated_attention;
  }

  Architecture read() {
    if (family_.hybrid) read_mixers();
    model_.layers = family_.hybrid ? std::ssize(model_.kinds) : required({"num_hidden_layers"});
    if (model_.layers > kMaxLayers)
      fail(ErrorCode::ConfigJson, {}, "config.json: num_hidden_layers is {}; at most {} are read", model_.layers,
           kMaxLayers);
    model_.heads = required({"num_attention_heads"});
    set(Dim::One, 1);
    set(Dim::Hidden, required({"hidden_size"}));
    set(Dim::TwiceHidden, 2 * hidden());
    set(Dim::Vocab, required({"vocab_size"}));
    set(Dim::Heads, model_.heads);
    read_attention();
    read_widths();
    read_delta();
    if (family_.hybrid)
      read_mamba();
    else
      read_kinds();
    // Moonlight's relatives may rank by the scores alone, which they say.
    constexpr std::string_view kCorrected = "noaux_tc";
    const std::string method = config_.text({"topk_method"});
    model_.corrected_router = family_.corrected_router && (method.empty() || method == kCorrected);
    model_.tied = config_.flag({"tie_word_embeddings"}).value_or(false);
    model_.mtp_layers = config_.integer({"num_nextn_predict_layers", "mtp_num_hidden_layers"}).value_or(0);
    model_.mtp_field = config_.spelling({"num_nextn_predict_layers", "mtp_num_hidden_layers"});
    model_.says_mtp_layers = config_.integer({model_.mtp_field}).has_value();
    if (config_.flag({"mtp_use_repeated_layer"}).value_or(false)) {
      model_.mtp_repeats = model_.mtp_layers;
      model_.mtp_layers = std::min<i64>(model_.mtp_layers, 1);
    }
    compare_counts();
    compare_classes();
    return std::move(model_);
  }

 private:
  i64 hidden() const { return model_.extent(Dim::Hidden); }
  void set(Dim dim, i64 extent) { model_.extents[static_cast<std::size_t>(dim)] = extent; }

  std::optional<i64> optional(Spellings names) const {
    const auto value = config_.integer(names);
    if (value && (*value < 0 || *value > kMaxExtent))
      fail(ErrorCode::ConfigJson, {}, "config.json: {} is {}", config_.spelling(names), *value);
    return value;
  }

  i64 required(Spellings names) const {
    const auto value = optional(names);
    if (!value || *value < 1)
      fail(ErrorCode::ConfigJson, {}, "config.json: {} is {}, which a model of type {} needs", *names.begin(),
           value ? "0" : "missing", model_.model_type);
    return *value;
  }

  /// Notes numbers of experts that differ: a class of transformers reads one of the fields, other programs another.
  void compare_counts() {
    if (!family_.has_experts()) return;
    const std::string_view counts = config_.spelling(kExpertCounts);
    for (const std::string_view name : kExpertCounts) {
      const auto other = config_.integer({name});
      if (name == counts || !config_.has(name) || !other || *other == model_.num_experts) continue;
      model_.contradictions.push_back(
          fmt::format("config.json says {} {} and {} {}: programs read the one or the other, so give both one number",
                      counts, model_.num_experts, name, *other));
    }
  }

  /// Notes a class of another family: transformers goes by model_type, vLLM and SGLang by `architectures`.
  void compare_classes() {
    for (const std::string& name : config_.texts({"architectures"})) {
      const auto has_class = [&](const Family& family) { return family.made_class() == name; };
      const auto other = std::ranges::find_if(families(), has_class);
      if (other == families().end() || family_.made_class() == name) continue;
      model_.contradictions.push_back(fmt::format(
          "config.json says model_type {}, and \"{}\" in architectures is the class of {} models: transformers goes by "
          "the former, vLLM and SGLang by the latter. Let both name one model",
          model_.model_type, name, other->model_type));
    }
  }

  void read_attention() {
    std::ranges::copy_if(family_.declared_biases, std::back_inserter(model_.declared_biases),
                         [&](const DeclaredBias& bias) { return config_.flag({bias.field}) == true; });
    if (family_.attention == Attention::Latent) return read_latent_attention();
    model_.kv_heads = optional({"num_key_value_heads"}).value_or(model_.heads);
    if (model_.kv_heads < 1 || model_.heads % model_.kv_heads != 0)
      fail(ErrorCode::ConfigJson, {}, "config.json: num_attention_heads {} is no multiple of num_key_value_heads {}",
           model_.heads, model_.kv_heads);
    i64 head_dim = optional({"head_dim"}).value_or(0);
    if (head_dim == 0 && hidden() % model_.heads != 0)
      fail(ErrorCode::ConfigJson, {}, "config.json: hidden_size {} is no multiple of num_attention_heads {}", hidden(),
           model_.heads);
    if (head_dim == 0) head_dim = hidden() / model_.heads;
    set(Dim::HeadDim, head_dim);
    set(Dim::QRows, model_.heads * head_dim);
    set(Dim::KvRows, model_.kv_heads * head_dim);
    set(Dim::AttentionOutCols, model_.heads * head_dim);
    // Programs leave out what the class of the family does not ask for.
    model_.attention_bias = config_.flag({"attention_bias", "qkv_bias"}).value_or(family_.biases_everywhere);
    model_.qk_norms = config_.flag({"use_qk_norm"});
    if (config_.has("attention_bias") || config_.has("qkv_bias"))
      model_.attention_bias_field = config_.spelling({"attention_bias", "qkv_bias"});
  }

  void read_latent_attention() {
    const i64 nope = required({"qk_nope_head_dim"}), rope = required({"qk_rope_head_dim"});
    const i64 value = required({"v_head_dim"}), latent = required({"kv_lora_rank"});
    model_.kv_heads = model_.heads;
    set(Dim::QLora, optional({"q_lora_rank"}).value_or(0));
    if (family_.sparse_attention) read_indexer();
    set(Dim::KvLora, latent);
    set(Dim::KvDownRows, latent + rope);
    set(Dim::LatentQRows, model_.heads * (nope + rope));
    set(Dim::KvUpRows, model_.heads * (nope + value));
    set(Dim::AttentionOutCols, model_.heads * value);
  }

  void read_indexer() {
    set(Dim::QLora, required({"q_lora_rank"}));
    const i64 heads = required({"index_n_heads"}), dim = required({"index_head_dim"});
    set(Dim::IndexerHeads, heads);
    set(Dim::IndexerDim, dim);
    set(Dim::IndexerRows, heads * dim);
  }

  void read_widths() {
    if (!family_.has_experts()) return set(Dim::DenseWidth, required({family_.dense_width_field}));
    model_.num_experts = required(kExpertCounts);
    set(Dim::Experts, model_.num_experts);
    const i64 intermediate = optional({"intermediate_size"}).value_or(0);
    model_.expert_width =
        family_.intermediate_is_experts ? intermediate : optional({"moe_intermediate_size"}).value_or(intermediate);
    model_.expert_hidden = hidden();
    if (const auto latent = optional({"moe_latent_size"}); latent && *latent > 0) {
      set(Dim::ExpertLatent, *latent);
      model_.expert_hidden = *latent;
      model_.expert_hidden_field = "moe_latent_size";
    }
    set(Dim::DenseWidth, optional({family_.dense_width_field}).value_or(0));
    model_.expert_width_field = family_.intermediate_is_experts
                                    ? "intermediate_size"
                                    : config_.spelling({"moe_intermediate_size", "intermediate_size"});
    read_shared_width();
  }

  void read_shared_width() {
    const std::string_view own = family_.shared_width_field;
    if (!own.empty()) return set_shared_width(optional({own}).value_or(0), std::string(own));
    constexpr std::string_view kWidth = "shared_expert_intermediate_size";
    if (const auto width = optional({kWidth})) return set_shared_width(*width, std::string(kWidth));
    const auto count =
        optional({"n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"});
    if (!count) return;
    const auto field =
        config_.spelling({"n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"});
    set_shared_width(*count * model_.expert_width, fmt::format("{} x {}", field, model_.expert_width_field));
  }

  void set_shared_width(i64 width, std::string field) {
    model_.shared_width = width;
    model_.shared_width_field = std::move(field);
    model_.says_shared_width = true;
  }

  void read_delta() {
    const auto key_heads = optional({"linear_num_key_heads"});
    if (!key_heads || !family_.gated_attention) return;
    model_.delta_key_heads = required({"linear_num_key_heads"});
    const i64 value_heads = required({"linear_num_value_heads"});
    const i64 key_dim = required({"linear_key_head_dim"}), value_dim = required({"linear_value_head_dim"});
    if (value_heads % model_.delta_key_heads != 0)
      fail(ErrorCode::ConfigJson, {},
           "config.json: linear_num_value_heads {} is no multiple of linear_num_key_heads {}", value_heads,
           model_.delta_key_heads);
    set(Dim::DeltaKeyRows, model_.delta_key_heads * key_dim);
    set(Dim::DeltaValueRows, value_heads * value_dim);
    set(Dim::DeltaValueHeads, value_heads);
    set(Dim::DeltaValueDim, value_dim);
    set(Dim::ConvKernel, required({"linear_conv_kernel_dim"}));
  }

  void read_mamba() {
    const i64 heads = required({"mamba_num_heads"});
    set(Dim::MambaHeads, heads);
    set(Dim::MambaRows, heads * required({"mamba_head_dim"}));
    set(Dim::MambaStateRows, required({"n_groups"}) * required({"ssm_state_size"}));
    set(Dim::MambaKernel, required({"conv_kernel"}));
  }

  // ---- layers -----------------------------------------------------------------------------------

  void read_kinds() {
    model_.kinds.assign(static_cast<std::size_t>(model_.layers), {family_.attention, Mlp::Experts});
    for (i64 layer = 0; layer < model_.layers; ++layer) {
      LayerKind& kind = model_.kinds[static_cast<std::size_t>(layer)];
      if (is_dense(layer)) kind.mlp = Mlp::Dense;
      if (is_delta(layer)) kind.attention = Attention::Delta;
    }
    if (family_.sparse_attention) read_indexers();
    for (const char* field : {"mlp_layer_types", "moe_layers", "interleave_moe_layer_step", "moe_layer_start_index",
                              "mlp_only_layers", "decoder_sparse_step", "first_k_dense_replace"})
      if (config_.has(field))
        model_.dense_layers_fields += (model_.dense_layers_fields.empty() ? "" : ", ") + std::string(field);
  }

  /// The mixer of each layer: a letter, or a word of transformers.
  void read_mixers() {
    constexpr std::string_view kLetters = "hybrid_override_pattern", kWords = "layers_block_type",
                               kTypes = "layer_types";
    const std::string letters = config_.text({kLetters});
    for (const char letter : letters) model_.kinds.push_back(mixer_of(std::string(1, letter), kLetters));
    const std::vector<LayerKind> said = mixers_of(kWords, kTypes), types = mixers_of(kTypes, kTypes);
    if (!types.empty() && types != said)
      fail(ErrorCode::ConfigJson, {}, "config.json: {} and {} are not the same layers", kWords, kTypes);
    if (!letters.empty() && !said.empty() && said != model_.kinds)
      fail(ErrorCode::ConfigJson, {}, "config.json: {} and {} are not the same layers", kLetters, kWords);
    if (letters.empty()) model_.kinds = said;
    if (model_.kinds.empty())
      fail(ErrorCode::ConfigJson, {}, "config.json: {} is missing, which a model of type {} needs", kWords,
           model_.model_type);
    model_.dense_layers_fields = config_.spelling({kWords, kTypes, kLetters});
    read_mtp_mixers();
  }

  void read_mtp_mixers() {
    constexpr std::string_view kLetters = "mtp_hybrid_override_pattern", kWords = "mtp_layers_block_type";
    const std::string letters = config_.text({kLetters});
    for (const char letter : letters) model_.mtp_kinds.push_back(mixer_of(std::string(1, letter), kLetters));
    std::vector<LayerKind> said;
    for (const std::string& word : config_.texts({kWords})) said.push_back(mixer_of(word, kWords));
    if (!letters.empty() && !said.empty() && said != model_.mtp_kinds)
      fail(ErrorCode::ConfigJson, {}, "config.json: {} and {} are not the same layers", kLetters, kWords);
    if (letters.empty()) model_.mtp_kinds = said;
    if (model_.mtp_kinds.empty()) model_.mtp_kinds = {mixer_of("*", kLetters), mixer_of("E", kLetters)};
  }

  std::vector<LayerKind> mixers_of(std::string_view field, std::string_view other) const {
    std::vector<LayerKind> mixers;
    for (const std::string& word : config_.texts({field, other})) mixers.push_back(mixer_of(word, field));
    return mixers;
  }

  LayerKind mixer_of(const std::string& word, std::string_view field) const {
    if (word == "M" || word == "linear_attention" || word == "mamba") return {Attention::Mamba, Mlp::None};
    if (word == "*" || word == "full_attention" || word == "attention") return {Attention::Grouped, Mlp::None};
    if (word == "-" || word == "mlp") return {Attention::None, Mlp::Dense};
    if (word == "E" || word == "moe") return {Attention::None, Mlp::Experts};
    fail(ErrorCode::ConfigJson, {}, "config.json: {} has '{}', where M, E, * or - is expected, or their words", field,
         word);
  }

  /// The word of each layer; else a letter; else each `freq`-th from one on.
  void read_indexers() {
    std::vector<std::string> words = config_.texts({"indexer_types", "index_topk_pattern"});
    std::string_view field = config_.spelling({"indexer_types", "index_topk_pattern"});
    for (const char letter : words.empty() ? config_.text({"index_topk_pattern"}) : std::string())
      words.emplace_back(1, letter);
    if (words.empty() && config_.has("index_topk_pattern"))
      fail(ErrorCode::ConfigJson, {}, "config.json: index_topk_pattern is neither a text nor a list of texts");
    if (words.empty()) return read_indexer_steps();
    if (std::ssize(words) != model_.layers)
      fail(ErrorCode::ConfigJson, {}, "config.json: {} has {} entries for {} layers (num_hidden_layers)", field,
           words.size(), model_.layers);
    for (std::size_t layer = 0; layer < words.size(); ++layer) {
      const std::string& word = words[layer];
      const bool own = word == "full" || word == "F";
      if (!own && word != "shared" && word != "S")
        fail(ErrorCode::ConfigJson, {}, "config.json: {} says '{}' of layer {}, where 'full' or 'shared' is expected",
             field, word, layer);
      model_.kinds[layer].indexer = own;
    }
  }

  void read_indexer_steps() {
    constexpr i64 kUsualOffset = 2;
    const i64 freq = std::max<i64>(1, config_.integer({"index_topk_freq"}).value_or(1));
    const i64 offset = config_.integer({"index_skip_topk_offset"}).value_or(kUsualOffset);
    for (i64 layer = 0; layer < model_.layers; ++layer)
      model_.kinds[static_cast<std::size_t>(layer)].indexer = std::max<i64>(layer + 1 - offset, 0) % freq == 0;
  }

  bool is_dense(i64 layer) const {
    if (!family_.has_experts()) return true;
    if (const auto types = config_.texts({"mlp_layer_types"}); std::ssize(types) > layer)
      return is_dense_word(types[static_cast<std::size_t>(layer)], layer);
    if (config_.has("moe_layers")) return !contains(config_.integers({"moe_layers"}), layer);
    if (const auto step = config_.integer({"interleave_moe_layer_step"}); step && *step > 0)
      return layer % *step != *step - 1;
    if (const auto first = config_.integer({"moe_layer_start_index"})) return !is_ernie_expert_layer(layer, *first);
    if (contains(config_.integers({"mlp_only_layers"}), layer)) return true;
    if (const auto step = config_.integer({"decoder_sparse_step"}); step && *step > 0 && (layer + 1) % *step != 0)
      return true;
    return layer < config_.integer({"first_k_dense_replace"}).value_or(0);
  }

  static bool is_dense_word(const std::string& word, i64 layer) {
    if (word != "dense" && word != "sparse")
      fail(ErrorCode::ConfigJson, {},
           "config.json: mlp_layer_types says '{}' of layer {}, where 'dense' or 'sparse' is expected", word, layer);
    return word == "dense";
  }

  bool is_ernie_expert_layer(i64 layer, i64 first) const {
    const i64 last = config_.integer({"moe_layer_end_index"}).value_or(-1);
    const i64 interval = std::max<i64>(1, config_.integer({"moe_layer_interval"}).value_or(1));
    return layer >= first && layer <= (last < 0 ? model_.layers - 1 : last) && (layer + 1) % interval == 0;
  }

  bool is_delta(i64 layer) const {
    if (model_.delta_key_heads == 0) return false;
    if (const auto types = config_.texts({"layer_types"}); std::ssize(types) > layer)
      return types[static_cast<std::size_t>(layer)] == "linear_attention";
    constexpr i64 kUsualInterval = 4;
    const i64 interval = config_.integer({"full_attention_interval"}).value_or(kUsualInterval);
    return interval > 0 && (layer + 1) % interval != 0;
  }

  static bool contains(const std::vector<i64>& list, i64 value) { return std::ranges::find(list, value) != list.end(); }

  const ConfigFields& config_;
  const Family& family_;
  Architecture model_;
};

}  // namespace

LayerKind Architecture::kind_of(std::string_view stack, i64 layer) const {
  if (stack != "mtp") return kinds.at(static_cast<std::size_t>(layer));
  if (!mtp_kinds.empty()) {
    const i64 inside = layer % mtp_depth();
    LayerKind kind = mtp_kinds[static_cast<std::size_t>(inside)];
    kind.mtp_first = inside == 0;
    kind.mtp_last = inside + 1 == mtp_depth();
    return kind;
  }
  LayerKind kind = kinds.back();
  if (kind.attention == Attention::Delta) kind.attention = Attention::Grouped;
  kind.indexer = family->sparse_attention;
  return kind;
}

std::string_view fields_of(Dim dim) {
  switch (dim) {
    case Dim::One: return "1";
    case Dim::Hidden: return "hidden_size";
    case Dim::TwiceHidden: return "2 x hidden_size";
    case Dim::Vocab: return "vocab_size";
    case Dim::Heads: return "num_attention_heads";
    case Dim::HeadDim: return "head_dim";
    case Dim::QRows: return "num_attention_heads x head_dim";
    case Dim::KvRows: return "num_key_value_heads x head_dim";
    case Dim::AttentionOutCols: return "num_attention_heads x the width of a head's values";
    case Dim::LatentQRows: return "num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim)";
    case Dim::QLora: return "q_lora_rank";
    case Dim::KvLora: return "kv_lora_rank";
    case Dim::KvDownRows: return "kv_lora_rank + qk_rope_head_dim";
    case Dim::KvUpRows: return "num_attention_heads x (qk_nope_head_dim + v_head_dim)";
    case Dim::IndexerRows: return "index_n_heads x index_head_dim";
    case Dim::IndexerDim: return "index_head_dim";
    case Dim::IndexerHeads: return "index_n_heads";
    case Dim::DenseWidth: return "the width of dense layers (intermediate_size)";
    case Dim::Experts: return "the number of experts";
    case Dim::DeltaKeyRows: return "linear_num_key_heads x linear_key_head_dim";
    case Dim::DeltaValueRows: return "linear_num_value_heads x linear_value_head_dim";
    case Dim::DeltaValueHeads: return "linear_num_value_heads";
    case Dim::DeltaValueDim: return "linear_value_head_dim";
    case Dim::ConvKernel: return "linear_conv_kernel_dim";
    case Dim::MambaRows: return "mamba_num_heads x mamba_head_dim";
    case Dim::MambaStateRows: return "n_groups x ssm_state_size";
    case Dim::MambaHeads: return "mamba_num_heads";
    case Dim::MambaKernel: return "conv_kernel";
    case Dim::ExpertLatent: return "moe_latent_size";
  }
  return {};
}

std::shared_ptr<const Architecture> read_architecture(const std::string& config) {
  return config.empty() ? nullptr : read_architecture(ConfigFields(config));
}

std::shared_ptr<const Architecture> read_architecture(const ConfigFields& fields) {
  // text_config's model_type has replaced the wrapper's.
  const std::string model_type = fields.text({"model_type"});
  const Family* const family = find_family(model_type);
  if (family == nullptr) return nullptr;
  return std::make_shared<const Architecture>(ArchitectureReader(fields, *family, model_type).read());
}

}  // namespace glu_ckpt
