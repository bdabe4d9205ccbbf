/// BesideCaptures lets a thread make calls that CUDA forbids while a graph is captured.

#include <cuda_runtime_api.h>

#include "glu_ckpt/ops/cuda.hpp"
#include "kernels/common/cuda_check.hpp"

namespace glu_ckpt {

u64 capture_number(GpuStream stream) {
  // CUDA's default stream cannot be captured, and is not to be asked while another one is.
  if (stream == nullptr) return 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long number = 0;
  CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &number));
  return status == cudaStreamCaptureStatusActive ? number : 0;
}

BesideCaptures::BesideCaptures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  former_mode_ = mode;
  if (const cudaError_t status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); status != cudaSuccess) {
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    CUDA_CHECK(status);
  }
}

// Failures cannot be acted upon; the next checked call reports them.
BesideCaptures::~BesideCaptures() {
  (void)cudaStreamDestroy(stream_);
  auto mode = static_cast<cudaStreamCaptureMode>(former_mode_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace glu_ckpt
