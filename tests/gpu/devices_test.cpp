#include <gtest/gtest.h>

#include "bench/bench.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "kernels/common/device_buffer.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

TEST(Devices, AreDescribed) {
  for (int i = 0; i < cuda_device_count(); ++i) {
    const CudaDevice device = cuda_device(i);
    EXPECT_EQ(device.index, i);
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.compute_capability, 80);
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GT(device.memory_bytes, 0);
    EXPECT_LE(device.free_bytes, device.memory_bytes);
  }
  EXPECT_TRUE(why_no_cuda().empty());
}

TEST(Devices, OneTooManyIsRefused) {
  EXPECT_EQ(slug_of([] { cuda_device(cuda_device_count()); }), "no-device");
  EXPECT_EQ(slug_of([] { cuda_device(-1); }), "no-device");
}

/// Not one expert of the largest model would fit.
TEST(Devices, TooLittleMemoryForABenchIsRefused) {
  for (const i64 bytes : {i64{1}, i64{300} << 20, i64{700} << 20}) {
    KernelBenchOptions options;
    options.memory_bytes = bytes;
    EXPECT_EQ(slug_of([&] { bench_kernels(options); }), "no-memory") << bytes;
  }
}

/// A caller that catches an error and goes on must not meet it again.
TEST(Devices, AnErrorIsReportedOnce) {
  EXPECT_EQ(slug_of([] { CUDA_CHECK(cudaSetDevice(cuda_device_count())); }), "no-device");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(slug_of([] { const DeviceBuffer too_large(i64{1} << 60); }), "no-memory");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(slug_of([] { const PinnedBuffer too_large(i64{1} << 60); }), "no-memory");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace glu_ckpt
