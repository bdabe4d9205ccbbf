/// diff_stats on the device against diff_stats_host: equal to the last bit, over random bit patterns, which are NaNs,
/// infinities and subnormals often enough.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "glu_ckpt/ops/tensor_diff.hpp"
#include "gpu/guarded_array.hpp"
#include "gpu/odd_elements.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr Dtype kDtypes[] = {Dtype::F16,     Dtype::BF16, Dtype::F32, Dtype::F64, Dtype::F8_E4M3, Dtype::F8_E5M2,
                             Dtype::F8_E8M0, Dtype::BOOL, Dtype::U8,  Dtype::I8,  Dtype::I16,     Dtype::U16,
                             Dtype::I32,     Dtype::U32,  Dtype::I64, Dtype::U64, Dtype::C64};

std::string text(const DiffStats& s) {
  return std::to_string(s.elements) + " elements, " + std::to_string(s.differing) + " differ, first " +
         std::to_string(s.first) + ", abs " + std::to_string(s.max_abs) + ", rel " + std::to_string(s.max_rel) +
         ", NaN in one " + std::to_string(s.nan_in_one) + ", in both " + std::to_string(s.nan_in_both);
}

/// The guards of the two differ, so an element read past the end would count as a difference.
DiffStats on_device(const Bytes& a, const Bytes& b, i64 count, Dtype dtype, i64 shift_a, i64 shift_b) {
  const CudaStream stream;
  const GuardedArray of_a(a, shift_a, 0x11);
  const GuardedArray of_b(b, shift_b, 0x22);
  const DiffStats stats = diff_stats(of_a.data(), of_b.data(), count, dtype, stream.get());
  EXPECT_TRUE(of_a.download() == a && of_a.guards_intact());
  EXPECT_TRUE(of_b.download() == b && of_b.guards_intact());
  return stats;
}

void expect_as_host(const Bytes& a, const Bytes& b, Dtype dtype) {
  const i64 size = element_bytes(dtype);
  const i64 count = std::ssize(a) / size;
  const DiffStats host = diff_stats_host(a.data(), b.data(), count, dtype);
  for (const auto& [shift_a, shift_b] : {std::pair<i64, i64>{0, 0}, {size, 0}, {0, size}, {size, size}, {16, 32}}) {
    const DiffStats device = on_device(a, b, count, dtype, shift_a, shift_b);
    EXPECT_TRUE(device == host) << dtype_name(dtype) << " shifted by " << shift_a << " and " << shift_b << "\n  device "
                                << text(device) << "\n  host   " << text(host);
  }
}

TEST(DiffStatsOnDevice, AgreesWithTheHost) {
  std::mt19937_64 random(1);
  for (const Dtype dtype : kDtypes)
    for (const i64 count : {1, 2, 3, 7, 8, 9, 15, 16, 17, 255, 256, 257, 4096, 20011}) {
      const Bytes a = random_bytes(count, dtype, random);
      expect_as_host(a, altered(a, dtype, 1, random), dtype);
      expect_as_host(a, altered(a, dtype, 50, random), dtype);
    }
}

/// Every thread takes many steps. Element i holds bits that follow from i.
TEST(DiffStatsOnDevice, AgreesWithTheHostOnManyMillions) {
  for (const i64 every : {1, 1000, 1'000'000}) {
    std::vector<std::uint16_t> a(70'000'019);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::uint16_t>(i * 2654435761U >> 16);
    std::vector<std::uint16_t> b = a;
    for (std::size_t i = 0; i < b.size(); i += static_cast<std::size_t>(every))
      b[i] = static_cast<std::uint16_t>(b[i] ^ 1U << (i / 7 % 16));
    const GuardedArray of_a(a), of_b(b);
    const DiffStats device = diff_stats(of_a.data(), of_b.data(), std::ssize(a), Dtype::BF16, nullptr);
    const DiffStats host = diff_stats_host(a.data(), b.data(), std::ssize(a), Dtype::BF16);
    EXPECT_TRUE(device == host) << every << "\n  device " << text(device) << "\n  host   " << text(host);
  }
}

/// Many blocks, and a second pass over their partial results.
TEST(DiffStatsOnDevice, AgreesWithTheHostOnMillions) {
  std::mt19937_64 random(2);
  for (const Dtype dtype : {Dtype::BF16, Dtype::F64, Dtype::U8}) {
    const Bytes a = random_bytes(3'000'017, dtype, random);
    expect_as_host(a, altered(a, dtype, 100'000, random), dtype);
  }
}

/// Differences that lie close together: subnormal ones, those beside 1, and those that overflow a float. Almost every
/// element could be the largest, and the largest is known to double's last bit.
TEST(DiffStatsOnDevice, TheLargestOfManySimilarDifferences) {
  struct Window {
    Dtype dtype;
    u64 first;
  };
  constexpr Window kWindows[] = {{Dtype::F16, 0},
                                 {Dtype::F16, 0x3c00},
                                 {Dtype::F16, 0x7bc0},
                                 {Dtype::BF16, 0},
                                 {Dtype::BF16, 0x3f80},
                                 {Dtype::BF16, 0x7f40},
                                 {Dtype::F32, 0},
                                 {Dtype::F32, 0x3f800000},
                                 {Dtype::F32, 0x7f7fffc0},
                                 {Dtype::F64, u64{0}},
                                 {Dtype::F64, u64{0x3ff0} << 48},
                                 {Dtype::F64, 0x7fefffffffffffc0}};
  std::mt19937_64 random(6);
  for (const auto& [dtype, first] : kWindows)
    for (const bool signs : {false, true}) {
      const auto size = static_cast<std::size_t>(element_bytes(dtype));
      Bytes a(300'001 * size), b(a.size());
      for (Bytes* const side : {&a, &b})
        for (std::size_t at = 0; at < side->size(); at += size) {
          const u64 sign = signs && random() % 2 == 0 ? u64{1} << (size * 8 - 1) : 0;
          const u64 bits = (first + random() % 64) | sign;
          std::memcpy(side->data() + at, &bits, size);
        }
      expect_as_host(a, b, dtype);
    }
}

TEST(DiffStatsOnDevice, EqualBuffersDoNotDiffer) {
  std::mt19937_64 random(3);
  for (const Dtype dtype : kDtypes) {
    const Bytes a = random_bytes(5000, dtype, random);
    expect_as_host(a, a, dtype);
    EXPECT_EQ(on_device(a, a, 5000, dtype, 0, 0).differing, 0);
    EXPECT_EQ(on_device(a, a, 5000, dtype, 0, 0).first, -1);
  }
}

TEST(DiffStatsOnDevice, OneFlippedBitIsFoundWhereverItIs) {
  for (const i64 at : {0, 1, 7, 8, 9, 127, 128, 1000, 65535, 65536, 70000, 70001, 70002}) {
    std::vector<std::uint16_t> words(70003, 0x3f80), flipped = words;
    flipped[static_cast<std::size_t>(at)] ^= 1;
    const GuardedArray a(words), b(flipped);
    const DiffStats stats = diff_stats(a.data(), b.data(), 70003, Dtype::BF16, nullptr);
    EXPECT_EQ(stats, (DiffStats{.elements = 70003, .differing = 1, .first = at, .max_abs = 0x1p-7, .max_rel = 0x1p-7}));
  }
}

/// Every value of the 16-bit dtypes against zero, one and itself with another sign.
TEST(DiffStatsOnDevice, Every16BitValue) {
  for (const Dtype dtype : {Dtype::F16, Dtype::BF16})
    for (const u32 flip : {0x8000U, 0x0001U, 0x0400U})
      for (u32 begin = 0; begin < 0x10000U; begin += 0x400U) {
        std::vector<std::uint16_t> a, b;
        for (u32 bits = begin; bits < begin + 0x400U; ++bits) {
          a.push_back(static_cast<std::uint16_t>(bits));
          b.push_back(static_cast<std::uint16_t>(bits ^ flip));
        }
        const GuardedArray of_a(a), of_b(b);
        const DiffStats device = diff_stats(of_a.data(), of_b.data(), 0x400, dtype, nullptr);
        const DiffStats host = diff_stats_host(a.data(), b.data(), 0x400, dtype);
        EXPECT_TRUE(device == host) << begin << "\n  device " << text(device) << "\n  host   " << text(host);
      }
}

TEST(DiffStatsOnDevice, IndicesAre64Bits) {
  const i64 count = (i64{1} << 31) + 17;
  const DeviceBuffer a(count), b(count);
  CUDA_CHECK(cudaMemset(a.data(), 0, static_cast<std::size_t>(count)));
  CUDA_CHECK(cudaMemset(b.data(), 0, static_cast<std::size_t>(count)));
  CUDA_CHECK(cudaMemset(b.data() + count - 2, 1, 2));
  CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_EQ(diff_stats(a.data(), b.data(), count, Dtype::U8, nullptr),
            (DiffStats{.elements = count, .differing = 2, .first = count - 2}));
}

TEST(DiffStatsOnDevice, ComesAfterWorkOnItsStream) {
  const CudaStream stream;
  const GuardedArray a(i64{1} << 22), b(i64{1} << 22);
  CUDA_CHECK(cudaMemsetAsync(b.data(), 0x5a, std::size_t{1} << 22, stream.get()));
  EXPECT_EQ(diff_stats(a.data(), b.data(), i64{1} << 22, Dtype::U8, stream.get()).differing, i64{1} << 22);
}

TEST(DiffStatsOnDevice, NothingToCompare) {
  EXPECT_EQ(diff_stats(nullptr, nullptr, 0, Dtype::F32, nullptr), DiffStats{});
}

/// It waits for its stream, which cannot be done while that is captured: an error from inside Thrust.
TEST(DiffStatsOnDevice, AFailureNamesTheShape) {
  const CudaStream stream;
  const GuardedArray a(4000), b(4000);
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  try {
    diff_stats(a.data(), b.data(), 1000, Dtype::F32, stream.get());
    ADD_FAILURE() << "compared while the stream was captured";
  } catch (const Error& error) {
    EXPECT_EQ(slug(error.code()), "device-failed");
    EXPECT_NE(std::string(error.what()).find("1000 elements of F32"), std::string::npos) << error.what();
  }
  EXPECT_NE(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  (void)cudaGetLastError();
  EXPECT_EQ(diff_stats(a.data(), b.data(), 1000, Dtype::F32, stream.get()), (DiffStats{.elements = 1000}));
}

}  // namespace
}  // namespace glu_ckpt
