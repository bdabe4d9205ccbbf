/// In the place of cuda_backend.cpp, device_padding.cpp and the benches where nvcc is missing.

#include "core/fail.hpp"
#include "exec/backends.hpp"
#include "glu_ckpt/bench.hpp"
#include "glu_ckpt/cuda.hpp"
#include "glu_ckpt/token_padding.hpp"

namespace glu_ckpt {

std::unique_ptr<Backend> make_cuda_backend(const std::vector<int>& devices, const BackendOptions&) {
  fail(ErrorCode::NoDevice, {}, "cuda:{}: {}; use --device cpu", devices.front(), why_no_cuda());
}

GpuRates measure_gpu(int device) { fail(ErrorCode::NoDevice, {}, "cuda:{}: {}", device, why_no_cuda()); }

std::vector<KernelFigure> bench_kernels(const KernelBenchOptions&) {
  fail(ErrorCode::NoDevice, {}, "bench kernels: {}", why_no_cuda());
}

void pad_rows_device(const TokenPadding&, const void*, i64, void*, GpuStream) {
  fail(ErrorCode::NoDevice, {}, "pad_rows_device: {}; pad_rows works without", why_no_cuda());
}
void unpad_rows_device(const TokenPadding&, const void*, i64, void*, GpuStream) {
  fail(ErrorCode::NoDevice, {}, "unpad_rows_device: {}; unpad_rows works without", why_no_cuda());
}

ForwardBench bench_forward(const ForwardBenchOptions&) {
  fail(ErrorCode::NoDevice, {}, "bench forward: {}; --device cpu measures the CPU", why_no_cuda());
}

}  // namespace glu_ckpt
