/// The oracle of splits_to_offsets_multi against examples worked by hand, and all of its contract that needs no device.

#include "glu_ckpt/ops/offsets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernels/grouped_gemm/splits_to_offsets.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxI64 = std::numeric_limits<i64>::max();
constexpr i64 kMinI64 = std::numeric_limits<i64>::min();

template <typename T>
constexpr Dtype kDtypeOf = sizeof(T) == 4 ? Dtype::I32 : Dtype::I64;

template <typename Split>
SplitSizes view(const std::vector<Split>& splits) {
  return {splits.data(), kDtypeOf<Split>, std::ssize(splits)};
}

template <typename T>
OffsetOutput into(std::vector<T>& out, i64 stride, bool leading_zero) {
  return {{stride, leading_zero, kDtypeOf<T>}, out.data(), std::ssize(out)};
}

/// One output of the oracle and its flags.
template <typename T>
struct Outcome {
  std::vector<T> offsets;
  u32 flags = 0;
};

template <typename T, typename Split>
Outcome<T> run(const std::vector<Split>& splits, i64 stride, bool leading_zero) {
  Outcome<T> outcome{std::vector<T>(static_cast<std::size_t>(offsets_length(std::ssize(splits), leading_zero)), -9),
                     0xffffffffU};
  const OffsetOutput output = into(outcome.offsets, stride, leading_zero);
  splits_to_offsets_multi_ref(view(splits), {&output, 1}, &outcome.flags);
  return outcome;
}

template <typename T, typename Split>
void expect_exact(const std::vector<Split>& splits, i64 stride, bool leading_zero, const std::vector<T>& offsets) {
  const auto outcome = run<T>(splits, stride, leading_zero);
  EXPECT_EQ(outcome.offsets, offsets);
  EXPECT_EQ(outcome.flags, 0u);
}

using V32 = std::vector<std::int32_t>;
using V64 = std::vector<i64>;

TEST(OffsetsOracle, WorkedByHand) {
  expect_exact(V64{3, 4, 5, 2}, 1, false, V32{3, 7, 12, 14});
  expect_exact(V64{3, 4, 5, 2}, 1, true, V64{0, 3, 7, 12, 14});
  expect_exact(V32{3, 4, 5, 2}, 7, true, V64{0, 21, 49, 84, 98});
  expect_exact(V32{3, 4, 5, 2}, 24, false, V32{72, 168, 288, 336});
  expect_exact(V64{3, 4, 5, 2}, 0, true, V32{0, 0, 0, 0, 0});
  expect_exact(V64{3, 4, 5, 2}, -7, true, V64{0, -21, -49, -84, -98});
  expect_exact(V64{3, 0, 5, 2}, 7, true, V64{0, 21, 21, 56, 70});
  expect_exact(V32{0, 3, 5, 0}, 11, false, V64{0, 33, 88, 88});
  expect_exact(V32{1}, 17, true, V32{0, 17});
  expect_exact(V64{1}, 17, false, V64{17});
  expect_exact(V64{1, 2, 3, 4, 5, 6, 7, 8}, 13, false, V64{13, 39, 78, 130, 195, 273, 364, 468});
}

TEST(OffsetsOracle, BeyondInt32InInt64) {
  const V64 splits = {12345, 0, 8192, 1, 65536, 100, 131072, 7};
  const V64 expected = {0, 88488960, 88488960, 147209216, 147216384, 616978432, 617695232, 1557219328, 1557269504};
  expect_exact(splits, 7168, true, expected);
  // 2 * 7168 and 1 * 7168 of the same: 217253 * 14336 = 3114539008 is beyond 2^31 - 1.
  V64 doubled;
  for (const i64 value : expected) doubled.push_back(2 * value);
  expect_exact(splits, 14336, true, doubled);
}

TEST(OffsetsOracle, SeveralOutputsAreFilledAsIfAlone) {
  const V64 splits = {3, 4, 5, 2};
  V32 rows(4);
  V64 with_zero(5), elements(5);
  const OffsetOutput outputs[] = {into(rows, 1, false), into(with_zero, 1, true), into(elements, 7, true)};
  u32 flags[] = {9, 9, 9};
  splits_to_offsets_multi_ref(view(splits), outputs, flags);
  EXPECT_EQ(rows, (V32{3, 7, 12, 14}));
  EXPECT_EQ(with_zero, (V64{0, 3, 7, 12, 14}));
  EXPECT_EQ(elements, (V64{0, 21, 49, 84, 98}));
  EXPECT_EQ(flags[0] | flags[1] | flags[2], 0u);
  splits_to_offsets_multi_ref(view(splits), outputs, nullptr);
}

TEST(OffsetFlags, TheLimitsOfInt32AreExact) {
  EXPECT_EQ(run<std::int32_t>(V64{2147483647}, 1, false).flags, 0u);
  EXPECT_EQ(run<std::int32_t>(V64{2147483648}, -1, false).flags, 0u);
  const auto over = run<std::int32_t>(V64{2147483648}, 1, false);
  EXPECT_EQ(over.flags, kOffsetBeyondInt32);
  EXPECT_EQ(over.offsets, (V32{std::numeric_limits<std::int32_t>::min()}));
  EXPECT_EQ(run<std::int32_t>(V64{2147483649}, -1, false).flags, kOffsetBeyondInt32);
  EXPECT_EQ(run<std::int32_t>(V64{1, i64{1} << 32}, 1, false).offsets, (V32{1, 1}));
  EXPECT_EQ(run<i64>(V64{2147483648}, 1, false).flags, 0u);
}

TEST(OffsetFlags, TheLimitsOfInt64AreExact) {
  EXPECT_EQ(run<i64>(V64{kMaxI64}, 1, false).flags, 0u);
  EXPECT_EQ(run<i64>(V64{i64{1} << 62}, -2, false).flags, 0u);
  const auto product = run<i64>(V64{i64{1} << 62}, 2, true);
  EXPECT_EQ(product.flags, kOffsetBeyondInt64);
  EXPECT_EQ(product.offsets, (V64{0, kMinI64}));
  for (const i64 stride : {2, 4})  // 2^64 has low bits that int32 could hold
    EXPECT_EQ(run<std::int32_t>(V64{i64{1} << 62}, stride, false).flags, kOffsetBeyondInt64 | kOffsetBeyondInt32);
}

TEST(OffsetFlags, ASumBeyondInt64WrapsForEveryOutput) {
  const auto sum = run<i64>(V64{kMaxI64, 2, 5}, 1, true);
  EXPECT_EQ(sum.flags, kOffsetSumBeyondInt64);
  EXPECT_EQ(sum.offsets, (V64{0, kMaxI64, kMinI64 + 1, kMinI64 + 6}));
  EXPECT_EQ(run<i64>(V64{kMaxI64, 2}, 0, true).flags, kOffsetSumBeyondInt64);
  // A negative split that brings the sum back does not hide that it was away.
  EXPECT_EQ(run<i64>(V64{kMaxI64, 2, -5}, 1, true).flags, kOffsetSumBeyondInt64);
  EXPECT_EQ(run<i64>(V64{kMaxI64, -5, 5}, 1, true).flags, 0u);
}

/// What is wrong with it, as the slug and the sentence.
template <typename Action>
std::string complaint(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(slug(error.code())) + ": " + error.what();
  }
  return "none";
}

TEST(OffsetArguments, EachMistakeNamesTheOutput) {
  V64 splits = {3, 4, 5, 2};
  V64 fine(4), other(5);
  const auto with = [&](const OffsetOutput& output) {
    const OffsetOutput outputs[] = {into(fine, 1, false), output};
    return complaint([&] { check_offset_arguments(view(splits), outputs, nullptr); });
  };
  EXPECT_EQ(with(into(other, 3, true)), "none");
  EXPECT_EQ(with(into(other, 3, false)), "usage: output 1 has 5 elements; 4 splits without a leading zero need 4");
  EXPECT_EQ(with(into(fine, 3, true)), "usage: output 1 has 4 elements; 4 splits with a leading zero need 5");
  EXPECT_EQ(with({{1, true, Dtype::I64}, nullptr, 5}), "usage: output 1: the pointer is null");
  EXPECT_EQ(with({{1, true, Dtype::U32}, other.data(), 5}), "usage: output 1 is U32; it must be I32 or I64");
  auto* const off = reinterpret_cast<std::byte*>(other.data()) + 4;
  EXPECT_EQ(with({{1, true, Dtype::I32}, off, 5}), "none");
  EXPECT_TRUE(with({{1, true, Dtype::I64}, off, 5}).starts_with("usage: output 1 at "));
  EXPECT_TRUE(with({{1, true, Dtype::I32}, off - 2, 5}).starts_with("usage: output 1 at "));
}

TEST(OffsetArguments, SplitsAndFlags) {
  V64 splits = {3, 4, 5, 2};
  V64 out(4);
  const OffsetOutput output = into(out, 1, false);
  const auto with = [&](const SplitSizes& sizes, const void* flags = nullptr) {
    return slug_of([&] { check_offset_arguments(sizes, {&output, 1}, static_cast<const u32*>(flags)); });
  };
  EXPECT_EQ(with(view(splits)), "none");
  EXPECT_EQ(with({nullptr, Dtype::I64, 4}), "usage");
  EXPECT_EQ(with({splits.data(), Dtype::F32, 4}), "usage");
  EXPECT_EQ(with({splits.data(), Dtype::I64, 0}), "usage");
  EXPECT_EQ(with({splits.data(), Dtype::I64, -4}), "usage");
  EXPECT_EQ(with({reinterpret_cast<std::byte*>(splits.data()) + 4, Dtype::I64, 4}), "usage");
  EXPECT_EQ(with(view(splits), reinterpret_cast<std::byte*>(splits.data()) + 2), "usage");
}

TEST(OffsetArguments, WithoutOutputsNothingIsLookedAt) {
  EXPECT_EQ(slug_of([] { splits_to_offsets_multi_ref({nullptr, Dtype::BOOL, -1}, {}, nullptr); }), "none");
  if (built_with_cuda()) {
    EXPECT_EQ(slug_of([] { splits_to_offsets_multi({nullptr, Dtype::BOOL, -1}, {}, nullptr, nullptr); }), "none");
    EXPECT_EQ(slug_of([] { check_offset_flags({}, nullptr, nullptr); }), "none");
  }
}

/// With CUDA compiled in the launcher checks before it looks for a device; without, it has nothing to check for.
TEST(OffsetArguments, TheLauncherChecksFirst) {
  V64 splits = {1};
  V64 out(3);
  const OffsetOutput output = into(out, 1, false);
  EXPECT_EQ(slug_of([&] {
              splits_to_offsets_multi(view(splits), {&output, 1}, nullptr, nullptr);
            }),
            built_with_cuda() ? "usage" : "no-device");
  EXPECT_EQ(slug_of([&] {
              check_offset_flags({&output, 1}, nullptr, nullptr);
            }),
            built_with_cuda() ? "usage" : "no-device");
}

TEST(OffsetFlags, TheCheckNamesTheOutputAndTheWayOut) {
  const OffsetOutput outputs[] = {{{1, true, Dtype::I64}, nullptr, 5}, {{7168, false, Dtype::I32}, nullptr, 4}};
  const auto with = [&](const std::vector<u32>& flags) {
    return complaint([&] { check_offset_flags(outputs, flags); });
  };
  EXPECT_EQ(with({0, 0}), "none");
  EXPECT_EQ(with({0, kOffsetBeyondInt32}),
            "not-exact: output 1 (I32, stride 7168): an offset is beyond int32; ask for I64");
  EXPECT_EQ(with({kOffsetBeyondInt64, kOffsetBeyondInt32}),
            "not-exact: output 0 (I64, stride 1): an offset is beyond int64");
  EXPECT_EQ(with({0, kOffsetBeyondInt64 | kOffsetBeyondInt32}),
            "not-exact: output 1 (I32, stride 7168): an offset is beyond int64");
  EXPECT_EQ(with({kOffsetSumBeyondInt64, kOffsetSumBeyondInt64}),
            "not-exact: output 0 (I64, stride 1): the splits add up to more than int64 holds");
  EXPECT_EQ(with({0}), "usage: 1 flags for 2 outputs");
}

TEST(OffsetsBlock, HasAThreadForEachSplitUpToItsLimit) {
  for (i64 count = 1; count <= 5000; ++count) {
    const int threads = offsets_block_threads(count);
    EXPECT_EQ(threads % 32, 0);
    EXPECT_GE(threads, std::min<i64>(count, 1024));
    EXPECT_LT(threads, std::min<i64>(count, 993) + 32);
  }
  EXPECT_EQ(offsets_block_threads(kMaxI64), 1024);
}

TEST(OffsetArraysLayout, IsAlignedAndDisjoint) {
  const OffsetSpec specs[] = {
      {1, false, Dtype::I32}, {1, true, Dtype::I64}, {5, true, Dtype::I32}, {0, false, Dtype::I64}};
  for (const i64 count : {1, 2, 3, 4, 7, 8, 64, 255, 256, 257, 100000}) {
    const OffsetArraysLayout layout = offset_arrays_layout(count, specs);
    ASSERT_EQ(layout.starts.size(), std::size(specs));
    i64 end = 0;
    for (std::size_t i = 0; i < std::size(specs); ++i) {
      EXPECT_EQ(layout.starts[i] % 16, 0);
      EXPECT_GE(layout.starts[i], end);
      EXPECT_LT(layout.starts[i], end + 16);
      end = layout.starts[i] + offsets_length(count, specs[i].leading_zero) * (specs[i].dtype == Dtype::I32 ? 4 : 8);
    }
    EXPECT_EQ(layout.flags_start % 16, 0);
    EXPECT_GE(layout.flags_start, end);
    EXPECT_LT(layout.flags_start, end + 16);
    EXPECT_EQ(layout.bytes, layout.flags_start + 4 * std::ssize(specs));
  }
}

TEST(OffsetArraysLayout, WorkedByHand) {
  const OffsetSpec specs[] = {{1, false, Dtype::I32}, {1, true, Dtype::I64}, {7, true, Dtype::I64}};
  const OffsetArraysLayout layout = offset_arrays_layout(5, specs);
  EXPECT_EQ(layout.starts, (std::vector<i64>{0, 32, 80}));  // 20 bytes, then 48 and 48
  EXPECT_EQ(layout.flags_start, 128);
  EXPECT_EQ(layout.bytes, 140);
  EXPECT_EQ(offset_arrays_layout(5, {}).bytes, 0);
}

TEST(OffsetArraysLayout, Refuses) {
  const OffsetSpec fine[] = {{1, true, Dtype::I64}, {1, true, Dtype::I64}};
  const OffsetSpec wrong[] = {{1, true, Dtype::I64}, {1, true, Dtype::BF16}};
  EXPECT_EQ(complaint([&] { offset_arrays_layout(5, wrong); }), "usage: output 1 is BF16; it must be I32 or I64");
  EXPECT_EQ(slug_of([&] { offset_arrays_layout(0, fine); }), "usage");
  EXPECT_EQ(slug_of([&] { offset_arrays_layout(-1, fine); }), "usage");
  for (const i64 count : {kMaxI64, kMaxI64 - 1, kMaxI64 / 8, kMaxI64 / 16})
    EXPECT_EQ(slug_of([&] { offset_arrays_layout(count, fine); }), "shape-overflow") << count;
}

TEST(OffsetArrays, NeedADevice) {
  const OffsetSpec specs[] = {{1, true, Dtype::I64}};
  EXPECT_EQ(slug_of([&] { OffsetArrays(5, specs); }), cuda_device_count() > 0 ? "none" : "no-device");
}

}  // namespace
}  // namespace glu_ckpt
