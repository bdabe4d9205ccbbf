#pragma once
/// Models whose elements say where they belong, spelled in any layout by the index maps written out.
///
/// Nothing here uses src/layout/placement.cpp or src/plan: a mistake there cannot hide itself. Only the
/// key templates of the table are shared.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"
#include "layout/layout_table.hpp"
#include "support/memory_checkpoint.hpp"

namespace glu_ckpt::support {

/// Scales of blocks of a weight, stored in multiples of rows and columns; what pads them is 0xfe.
struct ScaleSpec {
  i64 rows = 128;
  i64 cols = 128;
  i64 row_multiple = 1;
  i64 col_multiple = 1;
  Dtype dtype = Dtype::F32;
  /// Whether they are called weight_scale, rather than weight_scale_inv.
  bool plain = false;
};

/// One layer's experts.
struct BlockSpec {
  std::string stack = "decoder";
  i64 layer = 0;
  ExpertSet set = ExpertSet::Routed;
  i64 hidden = 4;
  /// F of each expert; as many as there are experts.
  std::vector<i64> widths = {4, 4};
  bool gated = true;
  bool bias = false;
  bool scales = false;
  ScaleSpec scale_spec = {};
  Dtype dtype = Dtype::U64;
  /// Of an optimizer's state: its state, what its keys add in front and behind, and whether it has the weights
  /// of FC1 alone. Its elements must have 8 bytes to differ from the weights'.
  std::string state = "model";
  std::string before = {};
  std::string after = {};
  bool fc1_weights_only = false;
};

struct ModelSpec {
  std::vector<BlockSpec> blocks;
  std::vector<MemoryTensor> others;
  /// In front of the stack prefix.
  std::string scope;
  std::optional<i64> num_hidden_layers;
};

/// A layout to spell a model in.
struct Spelling {
  std::string naming = "megatron";
  Experts experts = Experts::Indexed;
  Experts bias_experts = Experts::Indexed;
  Glu glu = {Glu::Kind::Split, 0};
  Glu shared_glu = {Glu::Kind::Split, 0};
  /// Of the optimizer's states of routed experts, where it is not `glu`.
  std::optional<Glu> optimizer_glu = std::nullopt;
  /// Layers of the main stack share their tensors.
  bool stacked = false;
  std::string describe() const;
};

inline Glu split() { return {Glu::Kind::Split, 0}; }
inline Glu contiguous() { return {Glu::Kind::Contiguous, 0}; }
inline Glu interleaved(i64 block_rows) { return {Glu::Kind::Interleaved, block_rows}; }

/// The optimizer's states of all blocks: Megatron's keys.
void add_states(ModelSpec& model, const std::vector<std::string>& states);

/// The tensors of the model in this layout.
std::vector<MemoryTensor> build(const ModelSpec& model, const Spelling& spelling);

/// As above, with a record that says which layout it is, as every output has.
MemorySource make_source(const ModelSpec& model, const Spelling& spelling);
Record record_of(const ModelSpec& model, const Spelling& spelling);

/// The element that belongs at a logical place. Elements of 8 and of 4 bytes hold all of the place in
/// fields; shorter ones count places, modulo a prime.
u64 element_code(const BlockSpec& block, i64 expert, Role role, TensorKind kind, i64 row, i64 col, i64 element_bytes);

/// Equal names, dtypes, shapes and bytes, in whatever order. A failure says which element stands where.
::testing::AssertionResult same_tensors(const std::vector<MemoryTensor>& expected,
                                        const std::vector<MemoryTensor>& actual);

/// `count` experts of one width.
std::vector<i64> widths(i64 count, i64 width);
/// Tensors that are no experts: several dtypes, a scalar, an empty one, one that starts like an expert's.
std::vector<MemoryTensor> other_tensors();
const Naming& naming_row(const std::string& name);

}  // namespace glu_ckpt::support
