#include "kernels/mx/mx_arguments.hpp"

#include <cstdint>

#include "core/fail.hpp"

namespace glu_ckpt {

void check_mx_call(const char* call, const MxFormat& format, std::optional<Dtype> values, bool with_f16, i64 scale_step,
                   std::initializer_list<MxPointer> pointers) {
  const bool known = values == Dtype::F32 || values == Dtype::BF16 || (with_f16 && values == Dtype::F16);
  if (values && !known)
    fail(ErrorCode::Usage, {}, "{}: values of {}; use BF16{} or F32", call, dtype_name(*values),
         with_f16 ? ", F16" : "");
  if (const i64 cols = mx_scale_extents(format).cols; scale_step < cols)
    fail(ErrorCode::Usage, {}, "{} of [{}, {}]: {} scales a row do not fit in steps of {}", call, format.rows,
         format.cols, cols, scale_step);
  for (const MxPointer& pointer : pointers)
    if (pointer.data == nullptr || reinterpret_cast<std::uintptr_t>(pointer.data) % static_cast<u64>(pointer.alignment))
      fail(ErrorCode::Usage, {}, "{} of [{}, {}]: {} is {}", call, format.rows, format.cols, pointer.name,
           pointer.data == nullptr ? "null" : fmt::format("no multiple of {} bytes", pointer.alignment));
}

}  // namespace glu_ckpt
