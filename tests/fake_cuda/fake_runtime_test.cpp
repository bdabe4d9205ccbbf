/// That the fake sees what it is there to see: each test makes one mistake.

#include "fake_cuda/fake_runtime.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/common/device_buffer.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kBytes = 1000;

/// A stream, and pinned and device memory.
struct Bench {
  CudaStream stream;
  PinnedBuffer host{kBytes};
  DeviceBuffer device{kBytes};

  void fill(int value) { std::fill_n(host.data(), kBytes, static_cast<std::byte>(value)); }
  bool holds(int value) const {
    return std::all_of(host.data(), host.data() + kBytes,
                       [&](std::byte b) { return b == static_cast<std::byte>(value); });
  }
  void upload() const {
    CUDA_CHECK(cudaMemcpyAsync(device.data(), host.data(), kBytes, cudaMemcpyHostToDevice, stream.get()));
  }
  void download() const {
    CUDA_CHECK(cudaMemcpyAsync(host.data(), device.data(), kBytes, cudaMemcpyDeviceToHost, stream.get()));
  }
  void wait() const { CUDA_CHECK(cudaStreamSynchronize(stream.get())); }
};

TEST(FakeRuntime, CopiesWhenWaitedFor) {
  Bench bench;
  bench.fill(1);
  bench.upload();
  bench.wait();
  bench.fill(2);
  bench.download();
  bench.wait();
  EXPECT_TRUE(bench.holds(1));
}

TEST(FakeRuntime, AnUploadTakesWhatIsThereWhenItIsWaitedFor) {
  Bench bench;
  bench.fill(1);
  bench.upload();
  bench.fill(2);
  bench.wait();
  bench.download();
  bench.wait();
  EXPECT_TRUE(bench.holds(2));
}

TEST(FakeRuntime, ADownloadIntoWhatIsBeingUploadedComesAfterIt) {
  Bench bench;
  bench.fill(1);
  bench.upload();
  bench.download();
  bench.wait();
  EXPECT_TRUE(bench.holds(1));
}

TEST(FakeRuntime, ADownloadIsNotThereBeforeItIsWaitedFor) {
  Bench bench;
  bench.fill(1);
  bench.upload();
  bench.wait();
  bench.download();
  EXPECT_TRUE(bench.holds(0xDB));
  bench.wait();
}

TEST(FakeRuntime, AnEventIsWaitedForUpToWhereItWasRecorded) {
  Bench bench;
  const CudaEvent event;
  bench.fill(1);
  bench.upload();
  CUDA_CHECK(cudaEventSynchronize(event.get()));
  bench.fill(2);
  CUDA_CHECK(cudaEventRecord(event.get(), bench.stream.get()));
  const Bench other;
  CUDA_CHECK(
      cudaMemcpyAsync(other.host.data(), bench.device.data(), kBytes, cudaMemcpyDeviceToHost, bench.stream.get()));
  CUDA_CHECK(cudaEventSynchronize(event.get()));
  EXPECT_TRUE(other.holds(0xDB));
  bench.wait();
  EXPECT_TRUE(other.holds(2));
}

TEST(FakeRuntime, MemoryInUseIsNotFreed) {
  Bench bench;
  bench.upload();
  bench.device = {};
  EXPECT_EQ(fake_cuda::take_offences(), std::vector<std::string>{"1000 bytes are freed that queued work uses"});
  bench.device = DeviceBuffer(kBytes);
  bench.upload();
  bench.host = {};
  EXPECT_EQ(fake_cuda::take_offences(), std::vector<std::string>{"1000 bytes are freed that queued work uses"});
}

TEST(FakeRuntime, AStreamInUseIsNotDestroyed) {
  const PinnedBuffer host(kBytes);
  const DeviceBuffer device(kBytes);
  {
    const CudaStream stream;
    CUDA_CHECK(cudaMemcpyAsync(device.data(), host.data(), kBytes, cudaMemcpyHostToDevice, stream.get()));
  }
  EXPECT_EQ(fake_cuda::take_offences(), std::vector<std::string>{"a stream with queued work is destroyed"});
}

TEST(FakeRuntime, CopiesStayWithinTheirMemory) {
  Bench bench;
  const auto copy = [&](std::byte* to, const std::byte* from, std::size_t bytes) {
    return slug_of([&] { CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, bench.stream.get())); });
  };
  std::byte local{};
  EXPECT_EQ(copy(bench.device.data(), bench.host.data(), kBytes + 1), "device-failed");
  EXPECT_EQ(copy(bench.device.data() + 1, bench.host.data(), kBytes), "device-failed");
  EXPECT_EQ(copy(bench.host.data(), bench.device.data(), kBytes), "device-failed");
  EXPECT_EQ(copy(bench.device.data(), &local, 1), "device-failed");
  EXPECT_EQ(fake_cuda::take_offences().size(), 4U);
}

TEST(FakeRuntime, WorkStaysOnItsDevice) {
  Bench bench;
  const std::vector<fake_cuda::Range> used{{bench.device.data(), kBytes}};
  CUDA_CHECK(cudaSetDevice(1));
  EXPECT_EQ(fake_cuda::launch("kernel", bench.stream.get(), used, [] {}), cudaErrorInvalidResourceHandle);
  bench.device = {};
  EXPECT_EQ(fake_cuda::take_offences().size(), 1U);
  {
    const CudaStream other;
    EXPECT_EQ(fake_cuda::launch("kernel", other.get(), {{bench.host.data(), 1}}, [] {}), cudaErrorInvalidValue);
    EXPECT_EQ(cudaDeviceReset(), cudaErrorInvalidValue);
  }
  EXPECT_EQ(fake_cuda::take_offences().size(), 2U);
  CUDA_CHECK(cudaSetDevice(0));
}

TEST(FakeRuntime, CountsWhatIsUsed) {
  {
    const DeviceBuffer first(100);
    const PinnedBuffer second(200);
    EXPECT_EQ(fake_cuda::device_usage(0).bytes, 100);
    EXPECT_EQ(fake_cuda::pinned_usage().bytes, 200);
    EXPECT_EQ(fake_cuda::live_objects(), 2);
  }
  EXPECT_EQ(fake_cuda::device_usage(0).bytes, 0);
  EXPECT_EQ(fake_cuda::device_usage(0).peak_bytes, 100);
  EXPECT_EQ(fake_cuda::device_usage(1).peak_bytes, 0);
  EXPECT_EQ(fake_cuda::pinned_usage().peak_bytes, 200);
}

TEST(FakeRuntime, FailsWhenAsked) {
  fake_cuda::fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  EXPECT_EQ(slug_of([] { DeviceBuffer(1); }), "none");
  EXPECT_FALSE(fake_cuda::call_failed());
  EXPECT_EQ(slug_of([] { DeviceBuffer(1); }), "no-memory");
  EXPECT_TRUE(fake_cuda::call_failed());
  EXPECT_EQ(slug_of([] { DeviceBuffer(1); }), "none");
  EXPECT_EQ(slug_of([] { DeviceBuffer(fake_cuda::kDeviceBytes + 1); }), "no-memory");
}

}  // namespace
}  // namespace glu_ckpt
