/// Page-locked memory: this process's own pages where they can be locked.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "fake_cuda/fake_runtime.hpp"
#include "kernels/common/device_buffer.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMiB = i64{1} << 20;
constexpr i64 kHugePageBytes = 2 * kMiB;
constexpr i64 kSizes[] = {
    1,        4095,         4096,          4097, kHugePageBytes - 1, kHugePageBytes, kHugePageBytes + 1,
    5 * kMiB, 6 * kMiB - 1, 6 * kMiB + 123};

/// Bytes of this process: mapped, or in memory.
i64 process_bytes(bool resident) {
  std::ifstream statm("/proc/self/statm");
  i64 mapped_pages = 0, resident_pages = 0;
  statm >> mapped_pages >> resident_pages;
  return (resident ? resident_pages : mapped_pages) * sysconf(_SC_PAGESIZE);
}

TEST(PinnedBuffer, EveryByteIsThere) {
  for (const i64 bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const PinnedBuffer buffer(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(fake_cuda::pinned_usage().bytes, bytes);
    std::fill_n(buffer.data(), bytes, std::byte{1});
    EXPECT_EQ(std::count(buffer.data(), buffer.data() + bytes, std::byte{1}), bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
    EXPECT_TRUE(bytes < kHugePageBytes || address % static_cast<std::uintptr_t>(kHugePageBytes) == 0);
  }
  EXPECT_EQ(fake_cuda::pinned_usage().bytes, 0);
}

/// A huge page more than is needed would be half of a buffer that --max-memory makes small.
TEST(PinnedBuffer, TakesNoMoreThanWasAskedFor) {
  for (const i64 bytes : {kHugePageBytes, kHugePageBytes + 1, 3 * kHugePageBytes - 1}) {
    const i64 before = process_bytes(true);
    const PinnedBuffer buffer(bytes);
    EXPECT_LT(process_bytes(true) - before, bytes + kMiB / 2);
  }
}

/// Of the buffers that are mapped; the fake allocates the others, and a sanitizer keeps what was freed.
TEST(PinnedBuffer, GivesEverythingBack) {
  constexpr int kRounds = 64;
  for (const i64 most : {kMiB * 64, i64{0}})
    for (const i64 bytes : kSizes) {
      if (bytes < kHugePageBytes) continue;
      SCOPED_TRACE(bytes);
      fake_cuda::limit_pinned(most);
      const auto make = [&] { return slug_of([&] { const PinnedBuffer buffer(bytes); }); };
      EXPECT_EQ(make(), most > 0 ? "none" : "no-memory");
      const i64 before = process_bytes(false);
      for (int round = 0; round < kRounds; ++round) make();
      EXPECT_LT(process_bytes(false) - before, kHugePageBytes);
    }
}

TEST(PinnedBuffer, MovesWithWhatItHolds) {
  for (const i64 bytes : {i64{1000}, 3 * kMiB}) {
    PinnedBuffer first(bytes);
    const std::byte* const data = first.data();
    PinnedBuffer second(std::move(first));
    PinnedBuffer third;
    third = std::move(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.bytes(), bytes);
    EXPECT_EQ(fake_cuda::live_objects(), 1);
  }
  EXPECT_EQ(fake_cuda::live_objects(), 0);
}

/// Small buffers come in thousands, and CUDA has pages for them.
TEST(PinnedBuffer, OnlyLargeOnesAreRegistered) {
  fake_cuda::fail_call("cudaHostRegister", 1, cudaErrorNotSupported);
  { const PinnedBuffer small(kHugePageBytes - 1); }
  EXPECT_FALSE(fake_cuda::call_failed());
  // What cannot be registered is asked of CUDA.
  const PinnedBuffer large(kHugePageBytes);
  EXPECT_TRUE(fake_cuda::call_failed());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(fake_cuda::pinned_usage().bytes, kHugePageBytes);
}

TEST(PinnedBuffer, MoreThanTheAddressSpace) {
  EXPECT_EQ(fake_cuda::live_objects(), 0);
  fake_cuda::limit_pinned(kMiB);
  EXPECT_EQ(slug_of([] { const PinnedBuffer too_large(i64{1} << 60); }), "no-memory");
  EXPECT_EQ(slug_of([] { const PinnedBuffer too_large(2 * kMiB); }), "no-memory");
  EXPECT_EQ(slug_of([] { const PinnedBuffer enough(kMiB); }), "none");
}

}  // namespace
}  // namespace glu_ckpt
