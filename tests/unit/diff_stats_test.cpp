/// diff_stats on the host, which is also the oracle of the kernel, against values worked by hand.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "glu_ckpt/ops/tensor_diff.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename T>
DiffStats diff(const std::vector<T>& a, const std::vector<T>& b, Dtype dtype) {
  return diff_stats_host(a.data(), b.data(), std::ssize(a), dtype);
}

DiffStats diff_floats(const std::vector<float>& a, const std::vector<float>& b) { return diff(a, b, Dtype::F32); }

using Words = std::vector<std::uint16_t>;

TEST(DiffStats, EqualBuffersDoNotDiffer) {
  const std::vector<float> values = {0.0F, -0.0F, 1.0F, INFINITY, -INFINITY, 1e-40F};
  EXPECT_EQ(diff_floats(values, values), (DiffStats{.elements = 6}));
  EXPECT_EQ(diff_floats({}, {}), DiffStats{});
  EXPECT_EQ(diff_stats_host(nullptr, nullptr, 0, Dtype::BF16), DiffStats{});
}

TEST(DiffStats, CountsAndFindsTheFirst) {
  EXPECT_EQ(diff_floats({1, 2, 4, 8}, {1, 3, 4, 7}),
            (DiffStats{.elements = 4, .differing = 2, .first = 1, .max_abs = 1, .max_rel = 0.5}));
  EXPECT_EQ(diff_floats({8, -2}, {4, -3}),
            (DiffStats{.elements = 2, .differing = 2, .first = 0, .max_abs = 4, .max_rel = 0.5}));
}

TEST(DiffStats, ZerosDifferInBitsAlone) {
  EXPECT_EQ(diff_floats({0.0F}, {-0.0F}), (DiffStats{.elements = 1, .differing = 1, .first = 0}));
  EXPECT_EQ(diff_floats({0.0F}, {0.25F}),
            (DiffStats{.elements = 1, .differing = 1, .first = 0, .max_abs = 0.25, .max_rel = kInf}));
  EXPECT_EQ(diff_floats({0.25F}, {-0.0F}),
            (DiffStats{.elements = 1, .differing = 1, .first = 0, .max_abs = 0.25, .max_rel = 1}));
}

TEST(DiffStats, Infinities) {
  const DiffStats unbounded{.elements = 1, .differing = 1, .first = 0, .max_abs = kInf, .max_rel = kInf};
  EXPECT_EQ(diff_floats({INFINITY}, {-INFINITY}), unbounded);
  EXPECT_EQ(diff_floats({INFINITY}, {1}), unbounded);
  EXPECT_EQ(diff_floats({1}, {-INFINITY}), unbounded);
  EXPECT_EQ(diff_floats({INFINITY}, {INFINITY}), (DiffStats{.elements = 1}));
}

TEST(DiffStats, NansAreBits) {
  const auto quiet = std::bit_cast<float>(0x7fc00000U);
  const auto payload = std::bit_cast<float>(0x7fc00001U);
  EXPECT_EQ(diff_floats({quiet}, {quiet}), (DiffStats{.elements = 1, .nan_in_both = 1}));
  EXPECT_EQ(diff_floats({quiet}, {payload}), (DiffStats{.elements = 1, .differing = 1, .first = 0, .nan_in_both = 1}));
  EXPECT_EQ(diff_floats({1, quiet, 3}, {1, 2, payload}),
            (DiffStats{.elements = 3, .differing = 2, .first = 1, .nan_in_one = 2}));
}

TEST(DiffStats, DifferencesAreTakenInDouble) {
  const float max = std::numeric_limits<float>::max();
  const DiffStats wide = diff_floats({max}, {-max});
  EXPECT_EQ(wide.max_abs, 2.0 * max);
  EXPECT_EQ(wide.max_rel, 2.0);
  const DiffStats small = diff_floats({1e-45F}, {3e-45F});  // the smallest subnormal and twice that
  EXPECT_EQ(small.max_abs, std::ldexp(1.0, -149));
  EXPECT_EQ(small.max_rel, 1.0);
  const double widest = std::numeric_limits<double>::max();
  EXPECT_EQ(diff(std::vector<double>{widest}, {-widest}, Dtype::F64),
            (DiffStats{.elements = 1, .differing = 1, .first = 0, .max_abs = kInf, .max_rel = kInf}));
  EXPECT_EQ(diff(std::vector<double>{3}, {4}, Dtype::F64).max_rel, 1.0 / 3.0);
}

TEST(DiffStats, HalfValues) {
  const auto from_zero = [](std::uint16_t bits) { return diff(Words{0}, Words{bits}, Dtype::F16).max_abs; };
  EXPECT_EQ(from_zero(0x3c00), 1.0);
  EXPECT_EQ(from_zero(0xc000), 2.0);
  EXPECT_EQ(from_zero(0x3555), 0.333251953125);
  EXPECT_EQ(from_zero(0x7bff), 65504.0);
  EXPECT_EQ(from_zero(0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(from_zero(0x03ff), std::ldexp(1023.0, -24));
  EXPECT_EQ(from_zero(0x0400), std::ldexp(1.0, -14));
  EXPECT_EQ(from_zero(0xfc00), kInf);
  EXPECT_EQ(diff(Words{0}, Words{0x7c01}, Dtype::F16).nan_in_one, 1);
  EXPECT_EQ(diff(Words{0xfe00}, Words{0x7c01}, Dtype::F16).nan_in_both, 1);
}

TEST(DiffStats, BFloatValues) {
  const auto from_zero = [](std::uint16_t bits) { return diff(Words{0}, Words{bits}, Dtype::BF16).max_abs; };
  EXPECT_EQ(from_zero(0x3f80), 1.0);
  EXPECT_EQ(from_zero(0xc000), 2.0);
  EXPECT_EQ(from_zero(0x3eab), 0.333984375);
  EXPECT_EQ(from_zero(0x0001), std::ldexp(1.0, -133));
  EXPECT_EQ(from_zero(0x7f80), kInf);
  EXPECT_EQ(diff(Words{0}, Words{0x7f81}, Dtype::BF16).nan_in_one, 1);
}

/// The same bits, in every dtype that reads them as bits alone.
TEST(DiffStats, OtherDtypesAreBits) {
  const std::vector<std::byte> a(64, std::byte{0x7f}), b(64, std::byte{0xff});
  for (int code = 0; code <= static_cast<int>(Dtype::U64); ++code) {
    const auto dtype = static_cast<Dtype>(code);
    const bool is_float = dtype == Dtype::F16 || dtype == Dtype::BF16 || dtype == Dtype::F32 || dtype == Dtype::F64;
    if (is_float || dtype_bits(dtype) < 8) continue;
    const i64 count = 64 * 8 / dtype_bits(dtype);
    EXPECT_EQ(diff_stats_host(a.data(), b.data(), count, dtype),
              (DiffStats{.elements = count, .differing = count, .first = 0}))
        << dtype_name(dtype);
  }
}

TEST(DiffStats, PiecesAddUp) {
  const std::vector<float> a = {1, 2, 3, 4, NAN, 6, INFINITY, 8}, b = {1, 2, 3, 5, NAN, NAN, 7, -8};
  const DiffStats whole = diff_floats(a, b);
  for (std::size_t cut = 0; cut <= a.size(); ++cut) {
    const auto at = static_cast<std::ptrdiff_t>(cut);
    DiffStats total = diff_floats({a.begin(), a.begin() + at}, {b.begin(), b.begin() + at});
    append(total, diff_floats({a.begin() + at, a.end()}, {b.begin() + at, b.end()}));
    EXPECT_EQ(total, whole) << cut;
  }
}

TEST(DiffStats, RefusesWhatItCannotCompare) {
  const std::vector<double> values(2);
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  const auto with = [&](const void* a, const void* b, i64 count, Dtype dtype) {
    const std::string slug = slug_of([&] { diff_stats_host(a, b, count, dtype); });
    EXPECT_EQ(slug_of([&] { diff_stats(a, b, count, dtype, nullptr); }), built_with_cuda() ? slug : "no-device");
    return slug;
  };
  EXPECT_EQ(with(bytes, nullptr, 1, Dtype::F64), "usage");
  EXPECT_EQ(with(nullptr, bytes, 1, Dtype::U8), "usage");
  EXPECT_EQ(with(bytes + 4, bytes, 1, Dtype::F64), "usage");
  EXPECT_EQ(with(bytes, bytes + 1, 1, Dtype::BF16), "usage");
  EXPECT_EQ(with(bytes, bytes, -1, Dtype::F32), "usage");
  EXPECT_EQ(with(bytes, bytes, 1, Dtype::F4), "not-supported");
  EXPECT_EQ(with(bytes, bytes, 1, Dtype::F6_E2M3), "not-supported");
  EXPECT_EQ(with(bytes, bytes, std::numeric_limits<i64>::max(), Dtype::U8), "shape-overflow");
}

TEST(DiffStats, WithoutADeviceThatIsSaid) {
  if (cuda_device_count() > 0) return;  // the gpu suite compares on it
  const std::vector<float> values(2);
  EXPECT_EQ(slug_of([&] { diff_stats(values.data(), values.data(), 2, Dtype::F32, nullptr); }), "no-device");
}

}  // namespace
}  // namespace glu_ckpt
