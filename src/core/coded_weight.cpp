#include "core/coded_weight.hpp"

#include <algorithm>
#include <cstdint>

#include "core/checked_math.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

bool is_scale(Dtype dtype) {
  switch (dtype) {
    case Dtype::F32:
    case Dtype::BF16:
    case Dtype::F16:
    case Dtype::F8_E4M3:
    case Dtype::F8_E8M0:
    case Dtype::U8: return true;
    default: return false;
  }
}

/// Empty where there is none.
std::string mistake_in_words(const CodedWeight& weight) {
  const bool of_rows = weight.codes == Codes::Awq, of_cols = weight.codes == Codes::Gptq || weight.codes == Codes::Int4;
  if (!of_rows && !of_cols) return "zeros and groups of columns belong to AWQ, GPTQ and INT4";
  if (of_cols && weight.cols % 8 != 0) return "eight columns share a word, so 8 must divide them";
  if ((of_rows || weight.zeros != nullptr) && weight.rows % 8 != 0)
    return "eight rows share a word, so 8 must divide them";
  if (std::max(weight.rows, weight.cols) > INT32_MAX) return "more rows or columns than 2^31 - 1";
  if (weight.cell_rows != 1) return fmt::format("blocks of {} rows; a scale is for one row", weight.cell_rows);
  if (weight.scale_dtype != Dtype::F32 && weight.scale_dtype != Dtype::BF16 && weight.scale_dtype != Dtype::F16)
    return fmt::format("scales of {}; use F32, BF16 or F16", dtype_name(weight.scale_dtype));
  if (weight.globals != nullptr) return "there are no second scales";
  return {};
}

bool misaligned(const void* data, Dtype dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(dtype_bits(dtype) / 8) != 0;
}

}  // namespace

i64 check_coded_weight(const char* call, const CodedWeight& weight, Dtype to, const void* out) {
  const auto refuse = [&](const std::string& what) {
    fail(ErrorCode::Usage, {}, "{} of {} matrices [{}, {}]: {}", call, weight.matrices, weight.rows, weight.cols, what);
  };
  if (weight.matrices < 0 || weight.rows < 0 || weight.cols < 0) refuse("extents are not negative");
  if (in_words(weight)) {
    const std::string what = mistake_in_words(weight);
    if (!what.empty()) refuse(what);
  }
  if ((weight.codes == Codes::E2m1 || weight.codes == Codes::Int4) && weight.cols % 2 != 0)
    refuse("two codes share a byte, so the columns must be even");
  if (weight.cell_rows < 1 || weight.cell_cols < 1)
    refuse(fmt::format("blocks of {} x {} weights with one scale; both must be at least 1", weight.cell_rows,
                       weight.cell_cols));
  if (!is_scale(weight.scale_dtype))
    refuse(fmt::format("scales of {}; use F32, BF16, F16, F8_E4M3, F8_E8M0 or U8", dtype_name(weight.scale_dtype)));
  if (to != Dtype::BF16 && to != Dtype::F32) refuse(fmt::format("decoded to {}; use BF16 or F32", dtype_name(to)));
  const i64 extents[] = {weight.matrices, weight.rows, weight.cols};
  const std::optional<i64> count = checked_product(extents);
  if (!count) refuse("more elements than 2^63 - 1");
  if (*count == 0) return 0;
  if (weight.data == nullptr || weight.scales == nullptr || out == nullptr) refuse("data, scales or output are null");
  if (misaligned(weight.scales, weight.scale_dtype) || misaligned(out, to) || misaligned(weight.globals, Dtype::F32))
    refuse("scales, second scales or output are not aligned to their elements");
  if (misaligned(weight.zeros, Dtype::U32) || misaligned(weight.column_groups, Dtype::U32) ||
      (in_words(weight) && misaligned(weight.data, Dtype::U32)))
    refuse("words are not aligned to 4 bytes");
  return *count;
}

}  // namespace glu_ckpt
