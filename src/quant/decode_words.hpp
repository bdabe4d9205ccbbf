#pragma once
/// AWQ's and GPTQ's codes of four bits, eight in a word, as numbers.

#include <vector>

#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// A weight [rows, cols] as [out, in], and the bytes of its tensors.
struct WordMatrix {
  /// Awq or Gptq.
  Codes codes = Codes::Awq;
  i64 rows = 0;
  i64 cols = 0;
  const std::byte* words = nullptr;
  /// [groups, rows] of `scale_dtype`.
  const std::byte* scales = nullptr;
  Dtype scale_dtype = Dtype::F16;
  /// Null: 8 stands for zero everywhere.
  const std::byte* zeros = nullptr;
  /// QuantizedTensor::zero_offset.
  int zero_offset = 0;
  i64 groups = 1;
  /// The group of each column.
  std::vector<i64> group_of;
};

/// Writes rows [begin, end) as elements of `to`, BF16 or F32: code less zero, times scale, in the scales' dtype, as the
/// kernels of AWQ and GPTQ compute it, and then rounded to `to`. A table of the sixteen numbers of a row and group is
/// made once.
void decode_words(const WordMatrix& matrix, i64 begin, i64 end, Dtype to, std::byte* out);

/// The same for checks, one number after the other.
void decode_words_one_by_one(const WordMatrix& matrix, i64 begin, i64 end, Dtype to, std::byte* out);

}  // namespace glu_ckpt
