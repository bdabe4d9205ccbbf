#include "glu_ckpt/ops/glu_order.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "core/stream_copy.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

/// Experts of rows whose bytes say where they are.
struct Fc1 {
  Fc1(i64 count, i64 two_f, i64 columns) : experts(count), rows(two_f), cols(columns) {
    values.resize(static_cast<std::size_t>(experts * rows * cols));
    std::iota(values.begin(), values.end(), 1U);
  }

  TensorView view() {
    return {reinterpret_cast<std::byte*>(values.data()), Dtype::U32, {experts, rows, cols}, {}, "cpu", false};
  }

  /// By the definition of the order: docs/architecture.md, "Interleaving".
  std::vector<u32> interleaved(i64 k) const {
    std::vector<u32> made(values.size());
    for (i64 e = 0; e < experts; ++e)
      for (i64 p = 0; p < rows; ++p) {
        const i64 b = p / (2 * k), h = p / k % 2, o = p % k;
        for (i64 c = 0; c < cols; ++c)
          made[static_cast<std::size_t>((e * rows + p) * cols + c)] =
              values[static_cast<std::size_t>((e * rows + h * (rows / 2) + b * k + o) * cols + c)];
      }
    return made;
  }

  i64 experts;
  i64 rows;
  i64 cols;
  std::vector<u32> values;
};

TEST(GluOrder, IsItsDefinitionThereAndBack) {
  for (const auto& [experts, rows, cols] : {std::array<i64, 3>{3, 24, 5}, {1, 96, 1}, {2, 16, 3000}, {4, 2, 7}})
    for (i64 k = 1; k <= rows / 2; ++k) {
      if (rows / 2 % k != 0) continue;
      for (const int jobs : {1, 4}) {
        SCOPED_TRACE("2F = " + std::to_string(rows) + ", K = " + std::to_string(k) + ", jobs " + std::to_string(jobs));
        Fc1 fc1(experts, rows, cols), out(experts, rows, cols);
        const auto content = fc1.values, want = fc1.interleaved(k);
        change_glu_order(fc1.view(), out.view(), {k, true, {}}, {jobs, nullptr});
        EXPECT_EQ(out.values, want);
        change_glu_order(out.view(), fc1.view(), {k, false, {}}, {jobs, nullptr});
        EXPECT_EQ(fc1.values, content);
        change_glu_order_in_place(fc1.view(), {k, true, {}}, {jobs, nullptr});
        EXPECT_EQ(fc1.values, want);
        change_glu_order_in_place(fc1.view(), {k, false, {}}, {jobs, nullptr});
        EXPECT_EQ(fc1.values, content);
      }
    }
}

TEST(GluOrder, WhatIsWrongIsRefusedAndNothingIsWritten) {
  Fc1 fc1(2, 24, 4), out(2, 24, 4);
  const auto before = out.values;
  const auto slug_for = [&](TensorView in, TensorView to, GluChange change) {
    return slug_of([&] { change_glu_order(in, to, change, {}); });
  };
  TensorView short_out = out.view(), turned = fc1.view(), elsewhere = out.view(), flat = fc1.view();
  short_out.shape = {2, 24, 3};
  turned.strides = {96, 1, 24};
  elsewhere.device = "cuda:0";
  flat.shape = {2, 2, 12, 4};
  EXPECT_EQ(slug_for(fc1.view(), out.view(), {5, true, {}}), "not-divisible");
  EXPECT_EQ(slug_for(fc1.view(), out.view(), {i64{1} << 62, true, {}}), "not-divisible");
  EXPECT_EQ(slug_for(fc1.view(), out.view(), {0, true, {}}), "usage");
  EXPECT_EQ(slug_for(fc1.view(), out.view(), {2, true, 3}), "usage");
  EXPECT_EQ(slug_for(fc1.view(), short_out, {2, true, {}}), "usage");
  EXPECT_EQ(slug_for(turned, out.view(), {2, true, {}}), "usage");
  EXPECT_EQ(slug_for(fc1.view(), elsewhere, {2, true, {}}), "usage");
  EXPECT_EQ(slug_for(flat, out.view(), {2, true, {}}), "usage");
  EXPECT_EQ(slug_for(out.view(), out.view(), {2, true, {}}), "usage");
  EXPECT_EQ(out.values, before);
}

TEST(StreamCopy, CopiesFromAndToAnyAddress) {
  std::vector<std::byte> from(100'000), to(100'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
  for (const std::size_t bytes : {0U, 1U, 63U, 64U, 16384U, 16500U, 80'001U})
    for (const std::size_t shift : {0U, 1U, 16U, 63U}) {
      std::ranges::fill(to, std::byte{255});
      stream_copy(to.data() + shift, from.data() + 3, bytes);
      EXPECT_EQ(std::memcmp(to.data() + shift, from.data() + 3, bytes), 0);
      EXPECT_EQ(to[shift + bytes], std::byte{255});
      if (shift > 0) {
        EXPECT_EQ(to[shift - 1], std::byte{255});
      }
    }
}

}  // namespace
}  // namespace glu_ckpt
