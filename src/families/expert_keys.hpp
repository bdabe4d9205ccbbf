#pragma once
/// How programs spell the keys of experts. {L} is a layer, {E} an
/// expert.

#include <span>
#include <string_view>
#include <vector>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// The spelling of one stack of layers: `before`, the layer number, `after`.
struct StackPrefix {
  std::string_view stack;
  std::string_view before;
  std::string_view after = ".";
  /// True for prefixes so short that they end others: then nothing may stand in front of them.
  bool anchored = false;
  /// A second stack stands in each layer: `before`, the outer number, `after`, the inner number, ".". Its
  /// layers are called "<stack>.<outer>.<inner>".
  bool nested = false;
};

/// Key templates after the stack prefix; an empty one does not exist. {E} expert index; {K} the word
/// weight, bias, weight_scale_inv or weight_scale; {_K} the suffix "", _bias, _scale_inv or _scale
/// (tensor_kinds.hpp has all).
struct PartNames {
  std::string_view gate_up;
  std::string_view gate;
  std::string_view up;
  std::string_view down;
};

/// A naming: one row of the table. Every row can print every combination of indexed or grouped,
/// split or fused, so that any layout can be written in any naming; the forms that software other
/// than this tool reads and writes are the native ones.
struct Naming {
  std::string_view name;
  /// Models of these types are spelled so in memory by transformers, and otherwise on the hub. Such a row counts where
  /// one of them is named, or no other row explains the keys.
  std::span<const std::string_view> in_memory_of{};
  std::span<const StackPrefix> stacks;
  PartNames indexed{};
  PartNames grouped{};
  /// The names of the shared expert's parts, always [out, in]; the templates are empty where the family has none.
  PartNames shared{};
  /// The axes of routed experts.
  Axes axes = Axes::OutIn;
  /// The order that the family's own software stores under a native fused key; Unknown where it may be either.
  Glu::Kind fused_glu = Glu::Kind::Unknown;
  i64 fused_block_rows = 0;
  bool native_indexed_split = false;
  bool native_indexed_fused = false;
  bool native_grouped_split = false;
  bool native_grouped_fused = false;
  bool native_shared_fused = false;
  /// FC1 without a gate is spelled like the fused one (Megatron) or like up (Hugging Face).
  bool plain_fc1_is_fused = false;
  /// MTP layers are numbered on from the main stack's, rather than in a stack of their own.
  bool mtp_follows_decoder = false;
  /// Gate and up as two tensors are FC1 cut in the middle, whatever the order of its rows.
  bool halves_by_position = false;
  /// If all layers of the main stack are alike, grouped and shared experts are stored with a leading layer axis, and
  /// the keys have no layer number.
  bool stacks_layers = false;
  /// The family's own word for scales of blocks that are powers of two (F8_E8M0), where it is not weight_scale_inv.
  std::string_view scale_word{};
  /// Its keys count experts and layers within one process, so from 0 on each expert-parallel rank and pipeline stage.
  bool counts_in_process = false;
  /// Its software also reads grouped weights and biases as flat buffers of all experts.
  bool reads_flat = false;
  /// The key of [E, H], which gives E and H where nothing else does.
  std::string_view router{};
};

/// All rows that spell experts. Where several explain the keys equally well, the first is reported.
std::span<const Naming> namings();
/// The spelling of models without experts: a name alone, "hf:qwen3". nullptr where no dense family has it.
const Naming* find_dense_naming(std::string_view name);
/// The values of model_type whose experts are spelled as in that row, beside the one that it is named after.
std::vector<std::string_view> types_spelled_as(const Naming& naming);

}  // namespace glu_ckpt
