#pragma once
/// Quantized weights as numbers: codes of eight or of four bits, a scale for each cell of a grid, and for some formats
/// a second scale for a whole matrix.

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// The way in which the codes of a weight are stored.
enum class Codes {
  /// One byte each: FP8 of 4 and 3, and of 5 and 2 bits, and signed integers.
  E4m3,
  E5m2,
  Int8,
  /// Two in a byte, the first in its lower bits: FP4 of 2 and 1 bits.
  E2m1,
  /// Eight in a word of a row, the first in its lowest bits: numbers 0 to 15 that stand for themselves less 8.
  Int4,
  /// The words of AWQ's and of GPTQ's `qweight`: [in, out / 8], with the columns of a word in the order 0 2 4 6 1 3 5
  /// 7, and [in / 8, out].
  Awq,
  Gptq,
};

/// Matrices [rows, cols] of codes as [out, in], one behind the other, and what they are multiplied by.
struct CodedWeight {
  /// Row-major, but for Awq and Gptq. Where two codes share a byte, `cols` is even; where eight share a word, 8 divides
  /// the rows of Awq, the columns of Gptq, and those of Int4 that has zeros or groups.
  Codes codes = Codes::E4m3;
  i64 matrices = 1;
  i64 rows = 0;
  i64 cols = 0;
  const void* data = nullptr;
  /// One scale is for so many rows and columns of a matrix; the last ones may have fewer. For a whole matrix both are
  /// its extents.
  i64 cell_rows = 1;
  i64 cell_cols = 1;
  /// [matrices, rows / cell_rows, cols / cell_cols], rounded up, of `scale_dtype`: F32, BF16, F16, F8_E4M3, or E8M0 as
  /// F8_E8M0 or U8. Those of Awq and Gptq are [matrices, groups, rows], where groups is cols / cell_cols, rounded up.
  const void* scales = nullptr;
  Dtype scale_dtype = Dtype::F32;
  /// [matrices], by which the scales are multiplied, or divided; null where there are none.
  const float* globals = nullptr;
  bool global_divides = false;
  /// Code 8 of E2m1 is +0, as ModelOpt decodes it; otherwise -0.
  bool positive_zero = false;
  /// Scales are rounded to the dtype of the decoded weight before they multiply.
  bool rounds_scale = false;
  /// Products are rounded to fp16 before they are rounded to the dtype of the decoded weight, as compressed-tensors
  /// decodes codes with F16 scales. Awq, Gptq, and Int4 with zeros or groups always round to the scale's dtype.
  bool rounds_to_f16 = false;
  /// The codes that stand for zero in Awq, Gptq and Int4, eight rows in a word as the format packs them, and what is
  /// added to all eight of a word at once, with carries from one to the next. The shape is [matrices, groups, rows / 8]
  /// for Awq and Gptq, [matrices, rows / 8, groups] for Int4. Without zeros (null) code 8 stands for zero.
  const u32* zeros = nullptr;
  int zero_offset = 0;
  /// The group of each column of Awq, Gptq and Int4, [matrices, cols], where columns were reordered (`g_idx`). Without
  /// it (null) a group is cell_cols columns that lie together.
  const u32* column_groups = nullptr;
};

/// Writes [matrices, rows, cols] of `to`, BF16 or F32: code times scale, rounded to fp32, to fp16 where the weight asks
/// for it, and then to `to`, each to nearest even. Awq, Gptq, and Int4 with zeros or groups become code less zero,
/// times scale, rounded to the scale's dtype (F32, BF16 or F16) and then to `to`. NaNs, of a code or of a scale, are
/// 0x7fc00000 or 0x7fc0. Throws Usage for extents, dtypes and null pointers that fit no weight, and for a column of a
/// group that is not there.
void decode_codes_host(const CodedWeight& weight, Dtype to, void* out);

/// Does the same in device memory, with the same bits: one launch, asynchronous on `stream`, which allocates nothing.
/// It is fast where `data` and `out` are aligned to 16 bytes and columns and cells are multiples of 8. Columns of a
/// group that is not there become NaN. Besides, throws Usage where `scales`, words or `out` are not aligned to their
/// elements, DeviceFailed with the shape.
void decode_codes(const CodedWeight& weight, Dtype to, void* out, GpuStream stream);

}  // namespace glu_ckpt
