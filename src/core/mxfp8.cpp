#include "glu_ckpt/ops/mxfp8.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/mxfp8_bits.hpp"

namespace glu_ckpt {
namespace {

/// The sides of a tile of scales: along the axis without blocks, and along the other.
constexpr i64 kTileOuter = 128;
constexpr i64 kTileBlocks = 4;

const Fp8Format& format_of(Dtype element) {
  if (element == Dtype::F8_E4M3) return kE4m3;
  if (element == Dtype::F8_E5M2) return kE5m2;
  fail(ErrorCode::Usage, {}, "mxfp8: elements of {}; use F8_E4M3 or F8_E5M2", dtype_name(element));
}

void check_dtype(std::string_view what, Dtype dtype, bool with_f16) {
  if (dtype == Dtype::F32 || dtype == Dtype::BF16 || (with_f16 && dtype == Dtype::F16)) return;
  fail(ErrorCode::Usage, {}, "mxfp8: {} of {}; use BF16{} or F32", what, dtype_name(dtype), with_f16 ? ", F16" : "");
}

i64 value_bytes(Dtype dtype) { return dtype_bits(dtype) / 8; }

using DecodeTable = std::array<float, 256>;

/// The values of all codes.
const DecodeTable& decode_table(Dtype element) {
  const auto make = [](const Fp8Format& format) {
    DecodeTable table{};
    for (std::size_t code = 0; code < table.size(); ++code)
      table[code] = fp8_decoded(static_cast<std::uint8_t>(code), format);
    return table;
  };
  static const DecodeTable e4m3 = make(kE4m3);
  static const DecodeTable e5m2 = make(kE5m2);
  return element == Dtype::F8_E5M2 ? e5m2 : e4m3;
}

/// A NaN does not count: every comparison with it is false.
void take_magnitude(float value, float& most) {
  if (std::fabs(value) > most) most = std::fabs(value);
}

/// 32 rows, or as many as one scale row covers: scales of a run of blocks in one pass over the values.
class Quantizer {
 public:
  Quantizer(const MxFormat& format, Dtype from)
      : format_(format),
        fp8_(format_of(format.element)),
        from_(from),
        scales_(mx_scale_extents(format)),
        row_(static_cast<std::size_t>(format.cols)),
        most_(static_cast<std::size_t>(scales_.cols)),
        inverse_(most_.size()) {}

  void run(const std::byte* values, std::uint8_t* data, std::uint8_t* scales, i64 scale_step) {
    const i64 group = format_.axis == MxAxis::Row ? 1 : kMxBlock;
    const i64 row_bytes = format_.cols * value_bytes(from_);
    for (i64 s = 0; s < scales_.rows; ++s) {
      std::ranges::fill(most_, 0.0F);
      for (i64 r = s * group; r < (s + 1) * group; ++r) add_row(values + r * row_bytes);
      for (std::size_t c = 0; c < most_.size(); ++c) {
        const std::uint8_t e = e8m0_bits(most_[c] * fp8_.inverse_max);
        scales[s * scale_step + static_cast<i64>(c)] = e;
        inverse_[c] = std::bit_cast<float>(e8m0_inverse_bits(e));
      }
      for (i64 r = s * group; r < (s + 1) * group; ++r) write_row(values + r * row_bytes, data + r * format_.cols);
    }
  }

 private:
  std::size_t scale_of(std::size_t col) const { return format_.axis == MxAxis::Row ? col / kMxBlock : col; }

  void add_row(const std::byte* values) {
    widen_row(values, from_, row_);
    for (std::size_t c = 0; c < row_.size(); ++c) take_magnitude(row_[c], most_[scale_of(c)]);
  }

  void write_row(const std::byte* values, std::uint8_t* data) {
    widen_row(values, from_, row_);
    for (std::size_t c = 0; c < row_.size(); ++c) data[c] = fp8_code(row_[c] * inverse_[scale_of(c)], fp8_);
  }

  const MxFormat& format_;
  const Fp8Format& fp8_;
  Dtype from_;
  MxExtents scales_;
  std::vector<float> row_;
  std::vector<float> most_;
  std::vector<float> inverse_;
};

/// Returns whether `dtype` holds the value that q * 2^(e - 127) is worth.
bool holds(float q, float scale, float product, float stored) {
  if (std::isnan(q) || std::isnan(scale) || std::isinf(q)) return true;
  return product == stored && !std::isinf(product);
}

/// Calls `visit` with (i, j) in swizzled order for each scale and the padding: i along the axis without blocks.
template <typename Visit>
void for_each_scale(const MxFormat& format, const Visit& visit) {
  const MxExtents compact = mx_compact_extents(format);
  const MxExtents stored = mx_scale_extents(format);
  for (i64 row = 0; row < compact.rows; ++row)
    for (i64 col = 0; col < compact.cols; ++col) {
      const bool by_row = format.axis == MxAxis::Row;
      const i64 tiles = (by_row ? compact.cols : compact.rows) / kTileBlocks;
      const i64 at = by_row ? mx_swizzled_offset(row, col, tiles) : mx_swizzled_offset(col, row, tiles);
      visit(row * compact.cols + col, at, row < stored.rows && col < stored.cols);
    }
}

}  // namespace

std::uint8_t e8m0_round_up(float r) { return e8m0_bits(r); }
float e8m0_value(std::uint8_t e) { return std::bit_cast<float>(e8m0_value_bits(e)); }
float e8m0_inverse(std::uint8_t e) { return std::bit_cast<float>(e8m0_inverse_bits(e)); }
std::uint8_t round_to_fp8(float value, Dtype element) { return fp8_code(value, format_of(element)); }
float fp8_value(std::uint8_t code, Dtype element) { return fp8_decoded(code, format_of(element)); }

MxExtents mx_scale_extents(const MxFormat& format) {
  format_of(format.element);
  if (format.rows < 0 || format.cols < 0)
    fail(ErrorCode::Usage, {}, "mxfp8: a matrix of [{}, {}]", format.rows, format.cols);
  if (!checked_mul(format.rows, format.cols))
    fail(ErrorCode::ShapeOverflow, {}, "mxfp8: a matrix of [{}, {}] has too many elements", format.rows, format.cols);
  const bool by_row = format.axis == MxAxis::Row;
  if ((by_row ? format.cols : format.rows) % kMxBlock != 0)
    fail(ErrorCode::Usage, {}, "mxfp8: [{}, {}] in blocks of {} x {}: the {} must be a multiple of {}", format.rows,
         format.cols, by_row ? 1 : kMxBlock, by_row ? kMxBlock : 1, by_row ? "columns" : "rows", kMxBlock);
  return by_row ? MxExtents{format.rows, format.cols / kMxBlock} : MxExtents{format.rows / kMxBlock, format.cols};
}

MxExtents mx_compact_extents(const MxFormat& format) {
  const MxExtents scales = mx_scale_extents(format);
  const bool by_row = format.axis == MxAxis::Row;
  return {round_up(scales.rows, by_row ? kTileOuter : kTileBlocks),
          round_up(scales.cols, by_row ? kTileBlocks : kTileOuter)};
}

void mx_quantize_host(const MxFormat& format, const void* values, Dtype from, std::uint8_t* data, std::uint8_t* scales,
                      i64 scale_step) {
  check_dtype("values", from, true);
  Quantizer(format, from).run(static_cast<const std::byte*>(values), data, scales, scale_step);
}

std::optional<i64> mx_dequantize_host(const MxFormat& format, const std::uint8_t* data, const std::uint8_t* scales,
                                      i64 scale_step, void* values, Dtype to) {
  check_dtype("values", to, false);
  mx_scale_extents(format);
  const DecodeTable& decoded = decode_table(format.element);
  std::vector<float> row(static_cast<std::size_t>(format.cols));
  std::optional<i64> inexact;
  for (i64 r = 0; r < format.rows; ++r) {
    for (i64 c = 0; c < format.cols; ++c) {
      const bool by_row = format.axis == MxAxis::Row;
      const float q = decoded[data[r * format.cols + c]];
      const std::uint8_t e = by_row ? scales[r * scale_step + c / kMxBlock] : scales[r / kMxBlock * scale_step + c];
      const float scale = std::bit_cast<float>(e8m0_value_bits(e));
      // NaNs differ by processor once they are multiplied.
      const float product = std::isnan(q) || std::isnan(scale) ? std::bit_cast<float>(kF32Nan) : q * scale;
      if (!inexact && !holds(q, scale, product, round_to(product, to))) inexact = r * format.cols + c;
      row[static_cast<std::size_t>(c)] = product;
    }
    narrow_row(row, to, static_cast<std::byte*>(values) + r * format.cols * value_bytes(to));
  }
  return inexact;
}

void mx_swizzle_host(const MxFormat& format, const std::uint8_t* compact, std::uint8_t* swizzled) {
  for_each_scale(format, [&](i64 at, i64 to, bool scale) { swizzled[to] = scale ? compact[at] : std::uint8_t{0}; });
}

void mx_unswizzle_host(const MxFormat& format, const std::uint8_t* swizzled, std::uint8_t* compact) {
  for_each_scale(format, [&](i64 at, i64 from, bool scale) { compact[at] = scale ? swizzled[from] : std::uint8_t{0}; });
}

}  // namespace glu_ckpt
