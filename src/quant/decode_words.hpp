#pragma once
/// Codes of four bits, eight in a word, with zero points or groups of their own, as numbers: AWQ's, GPTQ's, and
/// compressed-tensors'.

#include <vector>

#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// A weight [rows, cols] as [out, in], and the bytes of its tensors.
struct WordMatrix {
  /// Awq, Gptq, or Int4.
  Codes codes = Codes::Awq;
  i64 rows = 0;
  i64 cols = 0;
  const std::byte* words = nullptr;
  /// [groups, rows] of `scale_dtype`; of Int4 [rows, groups].
  const std::byte* scales = nullptr;
  Dtype scale_dtype = Dtype::F16;
  /// Words of eight rows, for each group: [groups, rows / 8]; of Int4 [rows / 8, groups]. Null: 8 stands for zero
  /// everywhere.
  const std::byte* zeros = nullptr;
  /// QuantizedTensor::zero_offset.
  int zero_offset = 0;
  i64 groups = 1;
  /// The group of each column.
  std::vector<i64> group_of;
};

/// Writes rows [begin, end) as elements of `to`, BF16 or F32: code less zero, times scale, in the scales' dtype, as the
/// software that wrote them computes it, and then rounded to `to`. A table of the sixteen numbers of a row and group is
/// made once.
void decode_words(const WordMatrix& matrix, i64 begin, i64 end, Dtype to, std::byte* out);

/// Does the same for checks, one number after the other.
void decode_words_one_by_one(const WordMatrix& matrix, i64 begin, i64 end, Dtype to, std::byte* out);

}  // namespace glu_ckpt
