#pragma once
/// The sizes of a whole model and the kinds of its layers, as its configuration says them.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "families/family.hpp"

namespace glu_ckpt {

class ConfigFields;

/// More layers than any model has; a config.json that says more is not believed.
inline constexpr i64 kMaxLayers = 100'000;

enum class Mlp : std::uint8_t { Dense, Experts, None };

struct LayerKind {
  Attention attention = Attention::Grouped;
  Mlp mlp = Mlp::Experts;
  /// It has an indexer of its own; the other layers of sparse attention take the tokens that an earlier one chose.
  bool indexer = false;
  /// It is the first, or the last, of the layers inside one step of multi-token prediction.
  bool mtp_first = false;
  bool mtp_last = false;
  bool operator==(const LayerKind&) const = default;
};

/// The extents that roles are made of. Each is a field of the configuration, or a product of some.
enum class Dim : std::uint8_t {
  One,
  Hidden,
  TwiceHidden,
  Vocab,
  Heads,
  HeadDim,
  QRows,
  KvRows,
  AttentionOutCols,
  LatentQRows,
  QLora,
  KvLora,
  KvDownRows,
  KvUpRows,
  IndexerRows,
  IndexerDim,
  IndexerHeads,
  DenseWidth,
  Experts,
  DeltaKeyRows,
  DeltaValueRows,
  DeltaValueHeads,
  DeltaValueDim,
  ConvKernel,
  MambaRows,
  MambaStateRows,
  MambaHeads,
  MambaKernel,
  /// The width of the input and output of routed experts, where those are not the hidden state's.
  ExpertLatent,
};
inline constexpr std::size_t kDims = static_cast<std::size_t>(Dim::ExpertLatent) + 1;

struct Architecture {
  const Family* family = nullptr;
  std::string model_type;
  i64 layers = 0;
  i64 heads = 0;
  i64 kv_heads = 0;
  i64 delta_key_heads = 0;
  i64 num_experts = 0;
  /// Width of one expert, and of the shared one; 0 where there is none.
  i64 expert_width = 0;
  i64 shared_width = 0;
  /// Rows that the routed experts map to as many, and the field that says so.
  i64 expert_hidden = 0;
  std::string_view expert_hidden_field = "hidden_size";
  /// q_proj of a head has its rows of q, then as many of the gate of the attention's output.
  bool gated_attention = false;
  /// The head is the embedding.
  bool tied = false;
  /// q, k and v have biases: the field `attention_bias_field` says so, or the family's class where that is empty.
  bool attention_bias = false;
  std::string_view attention_bias_field;
  /// The field says that heads of q and k have norms, or that they have none; absent: the tensors say it.
  std::optional<bool> qk_norms;
  /// The biases of Family::declared_biases whose field in config.json is true.
  std::vector<DeclaredBias> declared_biases;
  /// Routers of its MoE layers have a correction bias.
  bool corrected_router = false;
  /// The fields that say which layers are dense, and how wide experts are, for messages.
  std::string dense_layers_fields;
  std::string expert_width_field;
  std::string shared_width_field;
  /// The configuration has that field; without it a shared expert is as wide as it is.
  bool says_shared_width = false;
  /// MTP layers that the configuration promises, and the field that does; the files decide.
  i64 mtp_layers = 0;
  std::string_view mtp_field;
  bool says_mtp_layers = false;
  /// How often one stored step of multi-token prediction is taken; 0 where each step has layers of its own.
  i64 mtp_repeats = 0;
  std::vector<LayerKind> kinds;
  /// The layers inside each step of multi-token prediction; empty where it has one, like the last of the main stack.
  std::vector<LayerKind> mtp_kinds;
  /// Pairs of fields by which config.json contradicts itself, a sentence each.
  std::vector<std::string> contradictions;
  /// The extent of each Dim; 0 where the configuration does not say it.
  std::array<i64, kDims> extents{};

  i64 extent(Dim dim) const { return extents[static_cast<std::size_t>(dim)]; }
  /// Returns the kind of a layer of the main stack, or of MTP, whose layers are like the last one with full attention.
  LayerKind kind_of(std::string_view stack, i64 layer) const;
  /// Returns whether Megatron-Core builds its layers from the specification of an experimental attention variant.
  /// Layers inside of one step of multi-token prediction. They are numbered through all steps.
  i64 mtp_depth() const { return std::max<i64>(1, std::ssize(mtp_kinds)); }
  bool has_attention_variant() const { return delta_key_heads > 0 || family->sparse_attention; }
};

/// The fields that an extent is made of: "num_attention_heads x head_dim".
std::string_view fields_of(Dim dim);

/// Reads `config`, the text of a config.json; null where its family has no map, or there is no text. Throws ConfigJson
/// where a field that the family needs is missing or impossible.
std::shared_ptr<const Architecture> read_architecture(const std::string& config);
std::shared_ptr<const Architecture> read_architecture(const ConfigFields& config);

}  // namespace glu_ckpt
