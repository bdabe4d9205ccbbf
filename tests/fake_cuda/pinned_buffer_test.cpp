/// Page-locked memory: this process's own pages where they can be locked.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>

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

/// The bytes of addresses that this process has mapped.
i64 mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  i64 pages = 0;
  statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// The bytes between two addresses, each the start of a page, that are in memory. A sanitizer's notes about them lie
/// elsewhere.
i64 resident_bytes(std::uintptr_t first, std::uintptr_t end) {
  const i64 page_bytes = sysconf(_SC_PAGESIZE);
  i64 sum = 0;
  for (std::uintptr_t page = first; page < end; page += static_cast<std::uintptr_t>(page_bytes)) {
    unsigned char state = 0;
    // What is not mapped is an error.
    if (mincore(reinterpret_cast<void*>(page), static_cast<std::size_t>(page_bytes), &state) == 0 && state % 2 == 1)
      sum += page_bytes;
  }
  return sum;
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
    auto buffer = std::make_unique<PinnedBuffer>(bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer->data());
    const auto around = static_cast<std::uintptr_t>(2 * kHugePageBytes);
    const std::uintptr_t first = address - around,
                         end = address + static_cast<std::uintptr_t>(bytes) / 4096 * 4096 + around;
    const i64 with = resident_bytes(first, end);
    buffer.reset();
    const i64 without = resident_bytes(first, end);
    EXPECT_GE(with - without, bytes);
    EXPECT_LT(with - without, bytes + kMiB / 2);
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
      const i64 before = mapped_bytes();
      for (int round = 0; round < kRounds; ++round) make();
      EXPECT_LT(mapped_bytes() - before, kHugePageBytes);
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
