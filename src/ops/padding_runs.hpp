#pragma once
/// The places of each expert's rows, with and without padding.

#include <vector>

#include "glu_ckpt/ops/token_padding.hpp"

namespace glu_ckpt {

/// The rows of one expert that has some. All in bytes.
struct PaddingRun {
  i64 at = 0;
  i64 padded_at = 0;
  i64 bytes = 0;
  /// The bytes of padding behind them.
  i64 added_bytes = 0;
};

/// Throws Usage, ShapeOverflow.
std::vector<PaddingRun> padding_runs(const TokenPadding& padding, i64 row_bytes);

}  // namespace glu_ckpt
