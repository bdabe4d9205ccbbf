#pragma once
/// The table of how programs spell the tensors of a model outside of its experts. A naming says for each tensor its key
/// and which matrices it holds in which order; what goes from one naming to another follows from the two, so no table
/// is about a pair of them. A family of Hugging Face is a list of such rows.

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "arch/architecture.hpp"

namespace glu_ckpt {

/// The part of a model that a tensor belongs to.
enum class Place : std::uint8_t {
  Model,
  /// A layer of the main stack, or the layer inside one of multi-token prediction.
  Layer,
  /// It stands around the layer of multi-token prediction.
  Mtp,
};

/// A stored tensor is so many groups of rows, and each group has some rows of each of its matrices in turn: q, k and v
/// of Megatron's linear_qkv lie together by key head, gate and up in one group.
enum class Groups : std::uint8_t { One, Heads, KvHeads, DeltaKeyHeads };

enum class Form : std::uint8_t {
  /// [rows, cols]; a bias, and a vector, [rows].
  Plain,
  /// [1, elements], of a vector.
  OneRow,
  /// [rows, 1, cols], of a convolution.
  Conv,
};

/// The layers that have a tensor; a row without a bit of one line is for all of that line.
enum When : std::uint16_t {
  kAlways = 0,
  kGrouped = 1 << 0,
  kLatent = 1 << 1,
  kDelta = 1 << 2,
  kDense = 1 << 3,
  kExperts = 1 << 4,
  kGated = 1 << 5,
  kUngated = 1 << 6,
  kQLora = 1 << 7,
  kNoQLora = 1 << 8,
  kHeadNorms = 1 << 9,
  kWideNorms = 1 << 10,
};

struct DenseRow {
  Place place = Place::Layer;
  /// The key behind the prefix of its place, or behind the root for a tensor of the model; {K} is weight or bias. The
  /// text from '/' on is beside the root.
  std::string_view key;
  std::array<DenseRole, 4> roles{};
  std::size_t num_roles = 1;
  int when = kAlways;
  /// Models of the family may do without, in all layers or in none.
  bool optional = false;
  Groups groups = Groups::One;
  Form form = Form::Plain;
  /// It makes the logical elements from the stored ones.
  ComputeOp op = ComputeOp::None;
  /// It repeats the matrix of its role, which is stored elsewhere, too.
  bool copy = false;

  std::span<const DenseRole> all_roles() const { return {roles.data(), num_roles}; }
  bool has_kinds() const { return key.ends_with("{K}"); }
};

struct DenseNaming {
  std::string_view name;
  std::array<std::span<const DenseRow>, 8> rows{};
  /// The text between the root and the number of a layer.
  std::string_view layers;
  /// The text before the number of a layer of multi-token prediction, and the text between it and the layer inside;
  /// empty where those layers are numbered on from the main stack's.
  std::string_view mtp_layers{};
  std::string_view mtp_inner = ".";
  /// The text in front of what is around the layer inside: "mtp.layers.#.", '#' being its number.
  std::string_view mtp_outer{};
  /// Readers also find the layer inside under this.
  std::string_view mtp_inner_too{};
  /// Layers that are alike may be one tensor with a leading axis, whose key has no number.
  bool stacks_layers = false;
  /// The embedding and the head may have more rows than the vocabulary has words.
  bool pads_vocabulary = false;
};

/// Returns whether a layer of that kind has the row's tensor.
bool applies(const DenseRow& row, LayerKind kind, const Architecture& architecture);

/// A family of Hugging Face: its models' config.json and keys.
struct Family {
  /// Values of model_type.
  std::array<std::string_view, 4> model_types{};
  DenseNaming naming;
  /// The row of the table of layouts that spells its experts, and one that transformers saves them in instead.
  std::string_view expert_naming;
  std::string_view other_expert_naming{};
  /// The spelling of torchtitan, where that has the family.
  const DenseNaming* torchtitan = nullptr;
  Attention attention = Attention::Grouped;
  bool gated_attention = false;
  /// Its norms of q and k span all heads.
  bool wide_qk_norms = false;
  /// Its config's intermediate_size is the width of an expert.
  bool intermediate_is_experts = false;
  /// Its checkpoints have one tensor for all experts of a layer.
  bool packed_experts = false;
  /// All its linear layers, experts included, have biases.
  bool biases_everywhere = false;
  /// Its routers have a correction bias, unless the configuration names another method.
  bool corrected_router = false;
  /// Programs start its correction bias at zero where the checkpoint has none, and Megatron-Core trains none.
  bool zero_correction_bias = false;
  /// A sentence about what Megatron-Core's GPTModel lacks to run it; empty where it runs.
  std::string_view needs{};
};

std::span<const Family> families();
/// nullptr where no family lists that model_type.
const Family* find_family(std::string_view model_type);
/// Returns whether experts of such a model are spelled by that row of the table of layouts.
bool spells_experts_of(const Architecture& architecture, std::string_view naming);
/// The reason why models of this type are not converted, as a sentence; empty where that is not known.
std::string_view refusal_of(std::string_view model_type);

const DenseNaming& megatron_naming();

/// The key of a row's tensor. `root` is the text in front of all keys, such as "model.".
std::string print_key(const DenseNaming& naming, const DenseRow& row, std::string_view root, std::string_view stack,
                      i64 layer, TensorKind kind, i64 num_layers);

/// The row's key behind the prefix of its place, and a key behind its root: from '/' on, beside it.
std::string print_tail(const DenseRow& row, TensorKind kind);
std::string with_root(std::string_view root, std::string_view key);

/// The text in front of the keys of a layer, experts' included: "model.layers.3.".
std::string print_layer_prefix(const DenseNaming& naming, std::string_view root, std::string_view stack, i64 layer,
                               i64 num_layers);

/// Calls use(row) with each of the naming's rows.
template <typename Use>
void for_each_row(const DenseNaming& naming, const Use& use) {
  for (const std::span<const DenseRow> rows : naming.rows)
    for (const DenseRow& row : rows) use(row);
}

}  // namespace glu_ckpt
