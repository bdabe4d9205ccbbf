#include "quant/check_decoded.hpp"

#include <cmath>
#include <vector>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "quant/decode_row.hpp"

namespace glu_ckpt {

void check_decoded(const Encoder& encoder, const TensorRef& weight, const RowPart& part, const std::byte* stored,
                   std::span<const std::byte> codes, float scale) {
  const i64 size = dtype_bits(weight.dtype) / 8;
  const std::vector<float> scales(static_cast<std::size_t>(part.end), scale);
  std::vector<std::byte> decoded(scales.size() * static_cast<std::size_t>(size));
  decode_row({encoder.codes, codes.data(), part.end, scales.data()}, weight.dtype, decoded.data());
  for (i64 col = part.begin; col < part.end; ++col)
    if (!std::isfinite(widen_element(decoded.data() + col * size, weight.dtype)))
      fail(ErrorCode::NotExact, {{}, weight.name},
           "'{}': element [{}, {}] is {}, and decodes to infinity as {} encodes it to {}: its code times the scale {} "
           "is more than {} has; find out what wrote such a weight, or take --encode fp8:128x128 or another "
           "--encode-as",
           weight.name, part.row, col, widen_element(stored + col * size, weight.dtype), encoder.row.program,
           encoder.row.word, scale, dtype_name(weight.dtype));
}

}  // namespace glu_ckpt
