#pragma once
/// Rows of codes and their scales as numbers.

#include <cstddef>
#include <optional>
#include <span>

#include "core/simd.hpp"
#include "glu_ckpt/tensor.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// A row of codes that lie one behind the other: not AWQ's or GPTQ's.
struct CodeRow {
  Codes codes = Codes::E4m3;
  const std::byte* data = nullptr;
  i64 count = 0;
  /// One for each code.
  const float* scales = nullptr;
  /// QuantizedTensor::positive_zero.
  bool positive_zero = false;
};

/// Bytes of `count` codes.
constexpr i64 code_bytes(Codes codes, i64 count) {
  const bool halves = codes == Codes::E2m1 || codes == Codes::Int4;
  return halves ? count / 2 : count;
}

/// Writes code times scale, rounded to fp32 and then, where `to` is BF16, to bf16, each to nearest even. NaN becomes
/// the quiet NaN without a sign, as PyTorch casts it. `count` is even where two codes share a byte. Every level of
/// instructions gives the same bits.
void decode_row(const CodeRow& row, Dtype to, std::byte* out, SimdLevel level = simd_levels().front());

/// Returns whether a code of the row is NaN or infinite.
bool has_special_code(const CodeRow& row, SimdLevel level = simd_levels().front());

/// Decodes by another road, for checks: a table of all codes, made from the definition of the format, and one number
/// after the other.
void decode_row_by_table(const CodeRow& row, Dtype to, std::byte* out);

/// A scale as fp32: of F32, BF16, F16, of E8M0, which U8 stands for, too, and of E4M3. NaN for code 255 of E8M0.
float scale_value(Dtype dtype, const std::byte* data);

/// The steps from a cell's scale to what multiplies the codes.
struct CombinedScale {
  /// The second scale, of the whole matrix.
  std::optional<float> global;
  bool divides = false;
  /// QuantizedTensor::rounds_scale.
  bool rounds = false;

  float of(float scale, Dtype to) const;
};

/// Writes `value` as an element of `to`, rounded as decode_row() rounds.
void put_decoded(float value, Dtype to, std::byte* out);

}  // namespace glu_ckpt
