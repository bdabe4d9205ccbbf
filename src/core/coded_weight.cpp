#include "core/coded_weight.hpp"

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

bool misaligned(const void* data, Dtype dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(dtype_bits(dtype) / 8) != 0;
}

}  // namespace

i64 check_coded_weight(const char* call, const CodedWeight& weight, Dtype to, const void* out) {
  const auto refuse = [&](const std::string& what) {
    fail(ErrorCode::Usage, {}, "{} of {} matrices [{}, {}]: {}", call, weight.matrices, weight.rows, weight.cols, what);
  };
  if (weight.matrices < 0 || weight.rows < 0 || weight.cols < 0) refuse("extents are not negative");
  if (weight.codes == Codes::Awq || weight.codes == Codes::Gptq)
    refuse("the words of AWQ and GPTQ are not decoded here");
  if ((weight.codes == Codes::E2m1 || weight.codes == Codes::Int4) && weight.cols % 2 != 0)
    refuse("two codes share a byte, so the columns must be even");
  if (weight.cell_rows < 1 || weight.cell_cols < 1)
    refuse(fmt::format("cells of {} x {}; both must be at least 1", weight.cell_rows, weight.cell_cols));
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
  return *count;
}

}  // namespace glu_ckpt
