#pragma once
/// Device memory for tests, in which an element that was not written and one written too far are both seen.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/common/device_buffer.hpp"

namespace glu_ckpt {

/// `bytes` of device memory between two guards; all of it holds `poison` to begin with. Nothing here is asynchronous:
/// each function waits for the whole device before it returns, streams of their own included.
class GuardedArray {
 public:
  /// Begins `shift` bytes behind a multiple of 256.
  explicit GuardedArray(i64 bytes, i64 shift = 0, int poison = 0xa5)
      : buffer_(kGuard + shift + bytes + kGuard), bytes_(bytes), shift_(shift), poison_(poison) {
    CUDA_CHECK(cudaMemset(buffer_.data(), poison, static_cast<std::size_t>(buffer_.bytes())));
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  template <typename T>
  explicit GuardedArray(const std::vector<T>& values, i64 shift = 0, int poison = 0xa5)
      : GuardedArray(std::ssize(values) * static_cast<i64>(sizeof(T)), shift, poison) {
    upload(values);
  }

  std::byte* data() const { return buffer_.data() + kGuard + shift_; }
  i64 bytes() const { return bytes_; }

  template <typename T>
  void upload(const std::vector<T>& values) {
    CUDA_CHECK(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  std::vector<std::byte> download() const {
    const auto all = whole();
    return {all.begin() + kGuard + shift_, all.begin() + kGuard + shift_ + bytes_};
  }

  bool guards_intact() const {
    const auto all = whole();
    const auto poisoned = [this](std::byte value) { return value == static_cast<std::byte>(poison_); };
    return std::all_of(all.begin(), all.begin() + kGuard + shift_, poisoned) &&
           std::all_of(all.end() - kGuard, all.end(), poisoned);
  }

 private:
  static constexpr i64 kGuard = 256;

  std::vector<std::byte> whole() const {
    CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<std::byte> all(static_cast<std::size_t>(buffer_.bytes()));
    CUDA_CHECK(cudaMemcpy(all.data(), buffer_.data(), all.size(), cudaMemcpyDeviceToHost));
    return all;
  }

  DeviceBuffer buffer_;
  i64 bytes_;
  i64 shift_;
  int poison_;
};

}  // namespace glu_ckpt
