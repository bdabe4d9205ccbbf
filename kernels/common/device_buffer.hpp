#pragma once
/// Owned device and pinned memory, streams and events. Each belongs to the device that is current when it is made.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "kernels/common/cuda_check.hpp"

namespace glu_ckpt {

/// Device memory, aligned to 256 bytes by cudaMalloc. The object frees it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(i64 bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (const cudaError_t status = cudaMalloc(&data_, static_cast<std::size_t>(bytes)); status != cudaSuccess)
      device_memory_fail(status, bytes);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  // A failure to free cannot be acted upon; the next checked call reports it.
  ~DeviceBuffer() { (void)cudaFree(data_); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  i64 bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  i64 bytes_ = 0;
};

/// Page-locked host memory, which a device copies from and to without a detour. Throws NoMemory, DeviceFailed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(i64 bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        mapped_(std::exchange(other.mapped_, false)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  i64 bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  i64 bytes_ = 0;
  /// The pages are this process's own, and CUDA only locked them.
  bool mapped_ = false;
};

/// A stream that does not wait for the default one.
class CudaStream {
 public:
  CudaStream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() { (void)cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  explicit CudaEvent(unsigned flags = cudaEventDefault) { CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags)); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() { (void)cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace glu_ckpt
