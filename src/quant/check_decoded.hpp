#pragma once
/// Looks at what codes decode to, before they are written.

#include <cstddef>
#include <span>

#include "glu_ckpt/tensor.hpp"
#include "quant/encode_row.hpp"

namespace glu_ckpt {

/// Columns [begin, end) of a row of a weight.
struct RowPart {
  i64 row = 0;
  i64 begin = 0;
  i64 end = 0;
};

/// Throws NotExact where a code of the part, times its scale, is more than the weight's dtype has. `stored` and `codes`
/// are the whole row's.
void check_decoded(const Encoder& encoder, const TensorRef& weight, const RowPart& part, const std::byte* stored,
                   std::span<const std::byte> codes, float scale);

}  // namespace glu_ckpt
