#pragma once
/// Finds which weights of a model the factors of an adapter change.

#include <vector>

#include "adapters/adapter_config.hpp"
#include "adapters/add_product.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// The factors A [rank, in] and B [out, rank] of one matrix, and where they are in tensors of the adapter: of packed
/// experts, row e * rank + j of A's tensor [E * rank, in] and column j * E + e of B's [out, E * rank] (PEFT's two
/// orders).
struct Factors {
  std::size_t a = 0;
  std::size_t b = 0;
  i64 rank = 0;
  i64 expert = 0;
  i64 experts = 1;
  /// PEFT before 0.19 took the axes of packed experts for one another: A's tensor is that of B turned, and B's of A.
  bool is_turned = false;
  /// The row of B for a row of gate or of up, where B is for both: as Placement counts stored rows. Rows for themselves
  /// else.
  i64 first_row = 0;
  i64 block_rows = 0;
  Merging merging = {};

  i64 row_of_b(i64 row) const {
    return block_rows == 0 ? row : first_row + row / block_rows * 2 * block_rows + row % block_rows;
  }
};

struct MergedMatrix {
  Matrix matrix;
  Factors factors;
};

/// Returns the matrices of `model`, which are stored in `base`, with what the adapter adds to them, in order of their
/// tensors. `two_roundings`: PEFT's safe merge. Throws UnknownTensor for factors of what the model does not have,
/// SizeMismatch, ScaleMissing for half of a pair, UnknownGlu, NotSupported for what is no product of two factors, for
/// codes, and for packed experts of which shapes do not tell what they are for.
std::vector<MergedMatrix> find_factors(const Source& base, const Recognition& model, const Source& adapter,
                                       const AdapterConfig& config, bool two_roundings);

}  // namespace glu_ckpt
