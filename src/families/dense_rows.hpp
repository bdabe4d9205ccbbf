#pragma once
/// How programs spell the tensors of a model outside of its experts: the form of a row, and the rows that several
/// families share. A naming says for each tensor its key and which matrices it holds in which order; what goes from one
/// naming to another follows from the two, so no row is about a pair of them.

#include <array>
#include <span>
#include <string_view>

#include "glu_ckpt/layout.hpp"

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
/// of Megatron's linear_qkv lie together by key head. Gate and up of a fused FC1 lie in one group, or in as many as
/// their order has blocks.
enum class Groups : std::uint8_t { One, Heads, KvHeads, DeltaKeyHeads, GluBlocks };

enum class Form : std::uint8_t {
  /// [rows, cols]; a bias, and a vector, [rows].
  Plain,
  /// [1, elements], of a vector.
  OneRow,
  /// [rows, 1, cols], of a convolution.
  Conv,
};

/// The layers that have a tensor; a row without a bit of one line is for all of that line.
enum When : std::uint32_t {
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
  kSparse = 1 << 11,
  kNotSparse = 1 << 12,
  kIndexer = 1 << 13,
  kMamba = 1 << 14,
  kExpertLatent = 1 << 15,
  kMtpFirst = 1 << 16,
  kMtpLast = 1 << 17,
};

struct DenseRow {
  Place place = Place::Layer;
  /// The key behind the prefix of its place, or behind the root for a tensor of the model; {K} is weight or bias. The
  /// text from '/' on is beside the root.
  std::string_view key;
  std::array<DenseRole, 5> roles{};
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
  /// Older versions or other modules of the program spell it so: it is read, and another row is written.
  bool former = false;
  /// Neighbouring rows of a head are rotated together: the second half of its rows lies between those of the first.
  bool paired = false;
  /// Its bias is there wherever its weight is.
  bool biased = false;
  /// The program asks every model for it, and is told zeros where the family has no such matrix.
  bool zero_if_unknown = false;

  std::span<const DenseRole> all_roles() const { return {roles.data(), num_roles}; }
  bool has_kinds() const { return key.find("{K}") != key.npos; }
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
  /// Multi-token prediction has a stack of layers inside, numbered behind `mtp_inner`. Where it is false, such layers
  /// are numbered through all stacks.
  bool mtp_nests = false;
  /// Readers also find the layer inside under this.
  std::string_view mtp_inner_too{};
  /// Layers that are alike may be one tensor with a leading axis, whose key has no number.
  bool stacks_layers = false;
  /// The embedding and the head may have more rows than the vocabulary has words.
  bool pads_vocabulary = false;
};

/// TransformerEngine's fused dense MLP, which Megatron-Core runs with these two arguments, reads no other size.
inline constexpr i64 kFusedDenseRows = 32;
inline constexpr std::string_view kFusedDenseArgs[] = {"use_transformer_engine_op_fuser",
                                                       "use_grouped_gemm_for_dense_mlp"};

}  // namespace glu_ckpt
