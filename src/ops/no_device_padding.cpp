/// This file takes the place of device_padding.cpp where nvcc is missing.

#include "core/fail.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/token_padding.hpp"

namespace glu_ckpt {

void pad_rows_device(const TokenPadding&, const void*, i64, void*, GpuStream) {
  fail(ErrorCode::NoDevice, {}, "pad_rows_device: {}; pad_rows works without", why_no_cuda());
}
void unpad_rows_device(const TokenPadding&, const void*, i64, void*, GpuStream) {
  fail(ErrorCode::NoDevice, {}, "unpad_rows_device: {}; unpad_rows works without", why_no_cuda());
}

}  // namespace glu_ckpt
