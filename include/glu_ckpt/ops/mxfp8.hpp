#pragma once
/// MXFP8: blocks of 32 elements in fp8 with one power of two each, as TransformerEngine makes them.
///
/// In a block, m is the largest magnitude, its scale byte is e = e8m0_round_up(m * (1 / fp8's largest value)) and its
/// elements are x * 2^(127 - e), rounded to fp8 to nearest, ties to even. They are worth q * 2^(e - 127). As e is
/// rounded up, no finite element is too large for fp8. A NaN stays a NaN, as code 0x7f, and does not count for m; so it
/// harms no other element of its block, and no block is given the scale byte 0xff (NaN). Beside an infinite element,
/// which stays infinite through a scale of 2^127, the finite ones of a block become zero or next to it.

#include <cstdint>
#include <optional>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// Elements that share a scale.
inline constexpr i64 kMxBlock = 32;

/// The scale byte (E8M0: 2^(e - 127)) of a ratio r >= 0, rounded up to a power of two: 0xff for NaN, 0xfe for infinity
/// and for what is above 2^127, 0x00 for 0 and up to 2^-127.
std::uint8_t e8m0_round_up(float r);
/// 2^(e - 127); NaN for 0xff.
float e8m0_value(std::uint8_t e);
/// 2^(127 - e), by which elements are multiplied before they are rounded; NaN for 0xff.
float e8m0_inverse(std::uint8_t e);

/// Rounds to nearest, ties to even. Values above the largest finite one, infinity included, become that one; every NaN
/// becomes 0x7f. `element` is F8_E4M3 or F8_E5M2, here and below.
std::uint8_t round_to_fp8(float value, Dtype element);
/// E4M3 has no infinity, and NaN is 0x7f and 0xff. E5M2 is the upper half of fp16.
float fp8_value(std::uint8_t code, Dtype element);

/// Blocks lie along a row (1 x 32, "rowwise") or along a column (32 x 1, "columnwise"). Either way the elements are
/// stored like those of the matrix itself, nothing is transposed.
enum class MxAxis { Row, Column };

/// A matrix [rows, cols], row-major. The extent that the blocks lie along is a multiple of 32.
struct MxFormat {
  i64 rows = 0;
  i64 cols = 0;
  MxAxis axis = MxAxis::Row;
  Dtype element = Dtype::F8_E4M3;
};

struct MxExtents {
  i64 rows = 0;
  i64 cols = 0;
  bool operator==(const MxExtents&) const = default;
};

/// The extents of the scales: [rows, cols / 32] or [rows / 32, cols]. Throws Usage where blocks do not fit, for
/// negative extents and other dtypes than fp8; so do all functions that take an MxFormat.
MxExtents mx_scale_extents(const MxFormat& format);
/// Returns the extents of scales as TransformerEngine keeps them, padded to 128 along the axis without blocks and to 4
/// along the other. What the padding holds means nothing.
MxExtents mx_compact_extents(const MxFormat& format);

// These functions run on the host. Scales are stored `scale_step` bytes a row, which is at least their extent; padding
// is left as it is.

/// `from` is BF16, F16 or F32: the dtype of `values`.
void mx_quantize_host(const MxFormat& format, const void* values, Dtype from, std::uint8_t* data, std::uint8_t* scales,
                      i64 scale_step);
/// `to` is F32 or BF16. Returns the index of the first element whose value that dtype does not hold, if there is one:
/// it is rounded to nearest, ties to even, to infinity where it is too large. For E4M3 all values are exact in bf16
/// where 3 <= e <= 246 and in fp32 where e <= 246, for E5M2 where 10 <= e <= 239 and e <= 239. NaNs are 0x7fc00000 or
/// 0x7fc0.
std::optional<i64> mx_dequantize_host(const MxFormat& format, const std::uint8_t* data, const std::uint8_t* scales,
                                      i64 scale_step, void* values, Dtype to);

/// Reorders compact scales, padded, for cuBLAS, which reads as many bytes in tiles of 128 x 4, the axis without blocks
/// first, of 512 bytes. Padding becomes 0 in both directions.
void mx_swizzle_host(const MxFormat& format, const std::uint8_t* compact, std::uint8_t* swizzled);
void mx_unswizzle_host(const MxFormat& format, const std::uint8_t* swizzled, std::uint8_t* compact);

// These do the same in device memory, with the same bits: one launch each, asynchronous on `stream`. They are fast
// where addresses, extents and `scale_step` are multiples of 16; others give the same bits more slowly. Sources and
// destinations must not overlap. Besides, throw Usage for null pointers and dtypes, DeviceFailed with the shape.

void mx_quantize(const MxFormat& format, const void* values, Dtype from, std::uint8_t* data, std::uint8_t* scales,
                 i64 scale_step, GpuStream stream);
/// Does not tell whether all values are exact.
void mx_dequantize(const MxFormat& format, const std::uint8_t* data, const std::uint8_t* scales, i64 scale_step,
                   void* values, Dtype to, GpuStream stream);
void mx_swizzle(const MxFormat& format, const std::uint8_t* compact, std::uint8_t* swizzled, GpuStream stream);
void mx_unswizzle(const MxFormat& format, const std::uint8_t* swizzled, std::uint8_t* compact, GpuStream stream);

}  // namespace glu_ckpt
