/// This file takes the place of cuda_backend.cpp and decode_on_gpu.cpp where nvcc is missing.

#include "core/fail.hpp"
#include "exec/backends.hpp"
#include "exec/decode_on_gpu.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

std::unique_ptr<Backend> make_cuda_backend(const std::vector<int>& devices, const BackendOptions&) {
  fail(ErrorCode::NoDevice, {}, "cuda:{}: {}; use --device cpu", devices.front(), why_no_cuda());
}

std::vector<int> devices_of(const Backend&) { return {}; }

void copy_off_gpu(int device, const std::byte*, std::span<std::byte>) {
  fail(ErrorCode::NoDevice, {}, "cuda:{}: {}", device, why_no_cuda());
}
void copy_onto_gpu(int device, std::span<const std::byte>, std::byte*) {
  fail(ErrorCode::NoDevice, {}, "cuda:{}: {}", device, why_no_cuda());
}

std::vector<std::byte> bytes_off_gpu(std::span<const TensorView>, const std::string& device, GpuStream) {
  fail(ErrorCode::NoDevice, {}, "{}: {}", device, why_no_cuda());
}

void decode_and_move(const Plan&, std::span<const MoveInput>, Dtype, std::span<const TensorView>,
                     const std::string& device, GpuStream) {
  fail(ErrorCode::NoDevice, {}, "{}: {}", device, why_no_cuda());
}

GpuRates measure_gpu(int device) { fail(ErrorCode::NoDevice, {}, "cuda:{}: {}", device, why_no_cuda()); }

}  // namespace glu_ckpt
