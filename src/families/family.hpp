#pragma once
/// What the program knows of families of models and of programs, one file each. Generic code reads it by these
/// functions and knows no family by its name.
///
/// Example: qwen3_moe.cpp says under which keys the experts of Qwen3-MoE lie (`experts`), and of which rows the rest of
/// the model is made, with the defaults of its class (`families`).

#include <array>
#include <span>
#include <string_view>

#include "families/dense_rows.hpp"
#include "families/expert_keys.hpp"

namespace glu_ckpt {

struct ArgRow;

enum class Attention : std::uint8_t {
  /// q, k and v, with as many query heads to each key head as the sizes say.
  Grouped,
  /// Multi-head latent attention.
  Latent,
  /// GatedDeltaNet, a linear attention.
  Delta,
  /// Mamba-2, a state space model.
  Mamba,
  None,
};

/// How routers make scores of their logits.
enum class Scores : std::uint8_t {
  /// By a sigmoid where the checkpoint has a correction bias, or config.json's scoring_func says so; else by a softmax.
  AsConfigured,
  Sigmoid,
  Softmax,
};

/// Whether the weights of the chosen experts are divided by their sum.
enum class Renormalised : std::uint8_t { AsConfigured, Always, Never };

/// A linear layer, beside q, k and v, that has a bias where the field of config.json is true.
struct DeclaredBias {
  std::string_view field;
  std::string_view linear;
};

/// The layers that see the last `sliding_window` tokens alone, where config.json has no layer_types.
enum class Window : std::uint8_t {
  None,
  All,
  /// All, if use_sliding_window says so.
  AllIfAsked,
  /// The first, the third, and so on.
  EveryOther,
  /// The layers from max_window_layers on.
  FromLayer,
  /// The same, if use_sliding_window says so.
  FromLayerIfAsked,
  /// use_sliding_window asks for it, and releases of transformers differ in the layers.
  Unclear,
};

/// The spellings of Megatron-Core's GPTModel and HybridModel, and torchtitan's of the models that it has.
extern const DenseNaming kMegatronGptNaming;
extern const DenseNaming kMegatronHybridNaming;
extern const DenseNaming kTitanGroupedNaming;
extern const DenseNaming kTitanPairedNaming;
extern const DenseNaming kTitanLatentNaming;
extern const DenseNaming kTitanDeltaNaming;

inline bool is_megatron(const DenseNaming* naming) { return naming != nullptr && naming->name == "megatron"; }

/// A family's own name of a field, and the one by which generic code asks for it.
struct FieldWord {
  std::string_view usual;
  std::string_view own;
};

/// A tensor of what sees, hears or talks beside a language model, as the hub has it.
struct BesideKey {
  /// Behind the part's own text: {N} numbers layers, {K} is weight and bias.
  std::string_view key;
  /// Extents between commas, each a product of numbers and fields of the part's section ("3*hidden_size"). A '.' in
  /// front makes it a field of the whole config.json, and '?' stands for what no field says. A bias has the first.
  std::string_view shape{};
  /// Fields that count the {N}s, where it is not the part's: a list counts its entries, and '?' stands for none.
  std::string_view counts{};
};

/// One such part of a multimodal model.
struct BesidePart {
  /// The text in front of its keys.
  std::string_view root;
  /// The object of config.json that describes it: "thinker_config.vision_config".
  std::string_view section;
  std::span<const BesideKey> keys;
  /// The field that counts its layers.
  std::string_view count{};
  /// The field of config.json that is false of models without it.
  std::string_view asked_for{};
};

/// A multimodal model, and the text in front of the keys of the language model in it.
struct Wrapper {
  std::string_view model_type;
  std::string_view root;
  /// What sees, hears and talks. Empty: not known.
  std::span<const BesidePart> beside{};
};

/// A family of Hugging Face: its models' config.json and keys.
struct Family {
  std::string_view model_type;
  /// The class in `architectures` of a config.json that is made from a trainer's arguments; empty: none is made.
  std::string_view model_class{};
  /// The same where programs know the language model inside of a multimodal one alone: transformers has this class, and
  /// its AutoModelForCausalLM does not find it.
  std::string_view inner_class{};
  /// Multimodal models whose language model is one of the family's. The tests have a model of each
  /// (tests/interop/test_multimodal.py).
  std::array<Wrapper, 2> wrappers{};
  DenseNaming naming;
  /// The fields of its config.json and Megatron-LM's arguments, in the order of both texts.
  std::array<std::span<const ArgRow>, 14> args{};
  /// The row that spells its experts, and one that transformers saves them in instead. Empty: a dense family, all of
  /// whose layers have the usual MLP.
  std::string_view expert_naming{};
  std::string_view other_expert_naming{};
  /// The spelling of torchtitan, where that has the family.
  const DenseNaming* torchtitan = nullptr;
  /// The spelling of Megatron-Core's model.
  const DenseNaming* megatron = &kMegatronGptNaming;
  Attention attention = Attention::Grouped;
  bool gated_attention = false;
  /// Each layer is one mixer: Mamba, attention, an MLP or experts.
  bool hybrid = false;
  /// Neither its experts nor its MLPs have a gate.
  bool ungated = false;
  /// Its attention sees the tokens alone that indexers choose (DSA).
  bool sparse_attention = false;
  /// Its norms of q and k span all heads.
  bool wide_qk_norms = false;
  Scores scores = Scores::AsConfigured;
  Renormalised renormalised = Renormalised::AsConfigured;
  /// A token is multiplied by its routing weight before FC1, not behind the activation.
  bool weights_on_input = false;
  /// Its own code divides the weights of the chosen experts by their sum or multiplies them by routed_scaling_factor,
  /// never both, and ranks groups of experts by the best of each.
  bool divides_or_scales = false;
  /// Its experts' activation is the clamped quick GeGLU, whatever hidden_act says.
  bool quick_geglu = false;
  Window window = Window::None;
  /// Neighbouring elements of a head are rotated together, not those of its halves.
  bool interleaved_rope = false;
  /// Every fourth layer has no rotary embedding, the others see chunks, and norms of q and k have no weights.
  bool chunked_attention = false;
  /// The fields that say how wide dense layers and the shared expert are, where those are not the usual ones.
  std::string_view dense_width_field = "intermediate_size";
  std::string_view shared_width_field{};
  /// The fields that say how many dimensions of a head are rotated, and the factor of attention's scores; other
  /// families do not read them.
  std::string_view rotated_dims_field{};
  std::string_view softmax_scale_field{};
  /// Other fields that its config.json calls by names of its own.
  std::array<FieldWord, 4> words{};
  /// The text in front of the keys, and another one behind which programs read them.
  std::string_view root = "model.";
  std::string_view other_root = "model.";
  /// Its config's intermediate_size is the width of an expert.
  bool intermediate_is_experts = false;
  /// Its checkpoints have one tensor for all experts of a layer.
  bool packed_experts = false;
  /// Its own files have the experts as MXFP4 with an axis for blocks (`gate_up_proj_blocks`), and nothing else as
  /// codes.
  bool mxfp4_blocks = false;
  /// All its linear layers, experts included, have biases.
  bool biases_everywhere = false;
  std::span<const DeclaredBias> declared_biases{};
  /// Its routers have a correction bias, unless the configuration names another method.
  bool corrected_router = false;
  /// Programs start its correction bias at zero where the checkpoint has none, and Megatron-Core trains none.
  bool zero_correction_bias = false;
  /// A sentence about what Megatron-Core's GPTModel lacks to run it; empty where it runs.
  std::string_view needs{};
  /// The versions of Megatron-Core that take its arguments, where those are not the usual ones.
  std::string_view megatron_versions{};
  /// The fields, as a JSON object, that a config.json may leave out, with what the class of transformers 5.23.0 has for
  /// them. A field that is None there is not here.
  std::string_view defaults = "{}";
  /// transformers 5.24.0 has a class for it, and stops at values that are not of the types of its fields.
  bool has_class = true;
  /// That class takes no null for "as many key heads as there are heads".
  bool counts_key_heads = false;
  /// A field of which it takes what the classes of other families do not: null, or a whole number for a float.
  std::string_view loose_field{};
  /// The tests have a model of the family (tests/interop/tiny_models.py).
  bool tried = true;

  /// The name of a field in its config.json.
  std::string_view own_word(std::string_view usual) const {
    for (const FieldWord& word : words)
      if (word.usual == usual && !usual.empty()) return word.own;
    return usual;
  }
  std::string_view usual_word(std::string_view own) const {
    for (const FieldWord& word : words)
      if (word.own == own && !own.empty()) return word.usual;
    return own;
  }

  bool has_experts() const { return !expert_naming.empty(); }
  /// The class that a config.json made from a trainer's arguments names; empty: none is made.
  std::string_view made_class() const { return model_class.empty() ? inner_class : model_class; }
};

/// A model_type of which no more is known than that its experts are spelled as in that row.
struct SpelledLike {
  std::string_view model_type;
  std::string_view naming;
};

/// A model_type that is not converted whole, and the reason, as a sentence.
struct Refusal {
  std::string_view model_type;
  std::string_view reason;
};

/// A text in keys outside of the experts as transformers has it in memory, and the hub's for it: where they begin,
/// after a '^'; anywhere, where '.' ends it; else where they end. A key may have several, one after the other.
struct MemoryWords {
  std::array<std::string_view, 3> model_types{};
  std::string_view memory;
  std::string_view hub;
  /// It is in the keys of experts, too.
  bool with_experts = false;
};

/// What one file of this folder knows.
struct Knowledge {
  std::span<const Naming> experts{};
  std::span<const Family> families{};
  std::span<const SpelledLike> spelled_like{};
  std::span<const Refusal> refusals{};
  std::span<const MemoryWords> memory_words{};
};

std::span<const Family> families();
/// nullptr where no family has that model_type.
const Family* find_family(std::string_view model_type);
/// The words that models of this type have in memory; `text_type` is that of the language model inside, if there is
/// one.
std::vector<MemoryWords> memory_words_of(std::string_view model_type, std::string_view text_type);
/// The reason why models of this type are not converted, as a sentence; empty where that is not known.
std::string_view refusal_of(std::string_view model_type);

}  // namespace glu_ckpt
