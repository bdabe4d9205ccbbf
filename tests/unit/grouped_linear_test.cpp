/// The grouped linear layer on a CPU against its definition in double, what all its ways ask of their arguments, and
/// the arithmetic of the kernels' tiles.

#include "glu_ckpt/ops/grouped_linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "glu_ckpt/error.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/grouped_gemm/linear_launch.hpp"
#include "support/linear_cases.hpp"
#include "support/mlp_cases.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using support::LinearCase;
using support::LinearData;

constexpr LinearProduct kProducts[] = {LinearProduct::Forward, LinearProduct::InputGrad, LinearProduct::WeightGrad};
constexpr Dtype kDtypes[] = {Dtype::BF16, Dtype::F16, Dtype::F32};

void expect_right(const LinearCase& c) {
  SCOPED_TRACE(c.describe());
  std::mt19937 random(1);
  const LinearData data(c, random);
  EXPECT_EQ(support::linear_fault(c, data, support::host_output(c, data)), "");
}

TEST(GroupedLinearHost, EveryProductAndDtype) {
  std::mt19937 random(2);
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : kDtypes)
      for (const std::size_t experts : {1, 3, 8})
        for (const auto& [in, out] : {std::pair<i64, i64>{40, 24}, {7, 5}, {1, 1}}) {
          LinearCase c = {product, dtype, in, out, support::uneven_splits(experts, 150, random), 3};
          expect_right(c);
          if (product != LinearProduct::WeightGrad) continue;
          c.fp32_grads = true;
          expect_right(c);
          c.accumulate = true;
          expect_right(c);
          c.fp32_grads = false;
          expect_right(c);
        }
}

/// W[o, i] = 10 o + i + 1 and rows that are 0 but for one 1 say which element of W comes where.
TEST(GroupedLinearHost, WorkedByHand) {
  std::vector<float> w, grads(12, 9.0F);
  for (int e = 0; e < 2; ++e)
    for (int o = 0; o < 2; ++o)
      for (int i = 0; i < 3; ++i) w.push_back(static_cast<float>(100 * e + 10 * o + i + 1));
  const std::vector<float> x = {0, 1, 0, 1, 0, 0}, dy = {0, 1, 1, 0};
  std::vector<float> y(4), dx(6);
  GroupedLinear linear;
  linear.dtype = linear.grad_dtype = Dtype::F32;
  linear.num_experts = 2;
  linear.in_features = 3;
  linear.out_features = 2;
  linear.weights = {{}, w.data(), 24};
  linear.grads = {{}, grads.data(), 24};
  const std::vector<i64> splits = {1, 1};
  grouped_linear_host(linear, {2, x.data(), nullptr, y.data()}, splits, 1);
  EXPECT_EQ(y, (std::vector<float>{2, 12, 101, 111}));
  linear.product = LinearProduct::InputGrad;
  grouped_linear_host(linear, {2, nullptr, dy.data(), dx.data()}, splits, 1);
  EXPECT_EQ(dx, (std::vector<float>{11, 12, 13, 101, 102, 103}));
  linear.product = LinearProduct::WeightGrad;
  grouped_linear_host(linear, {2, x.data(), dy.data(), nullptr}, std::vector<i64>{2, 0}, 1);
  EXPECT_EQ(grads, (std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(GroupedLinearHost, ThreadsDoNotChangeBits) {
  std::mt19937 random(3);
  for (const LinearProduct product : kProducts) {
    const LinearCase c = {product, Dtype::F32, 33, 20, {40, 0, 7}, 2};
    const LinearData data(c, random);
    const auto once = support::host_output(c, data);
    EXPECT_TRUE(support::host_output(c, data, 8) == once);
    EXPECT_TRUE(support::host_output(c, data, 3) == once);
  }
}

TEST(GroupedLinearHost, MatricesOfTheirOwnGiveTheSameBits) {
  std::mt19937 random(4);
  for (const LinearProduct product : kProducts) {
    const LinearCase c = {product, Dtype::BF16, 24, 16, {4, 0, 7}, 2};
    const LinearData data(c, random);
    auto weights = data.weights, output = data.output;
    const bool grads = product == LinearProduct::WeightGrad;
    const auto addresses = support::addresses_at(c, grads ? output.data() : weights.data());
    const std::vector<const void*> weight_addresses(addresses.begin(), addresses.end());
    GroupedLinear linear = support::linear_at(c, nullptr);
    if (grads) {
      linear.grads = {addresses};
    } else {
      linear.weights = {weight_addresses};
    }
    grouped_linear_host(linear, support::rows_at(c, data.x.data(), data.dy.data(), output.data()), c.splits, 1);
    EXPECT_TRUE(output == support::host_output(c, data));
  }
}

TEST(GroupedLinearHost, AnExpertWithoutRowsKeepsWhatItAccumulated) {
  // -0 and a NaN's payload would not survive an addition of 0.
  std::vector<float> grads = {-0.0F, std::bit_cast<float>(0xffc12345U), 3.0F, -0.0F};
  const std::vector<float> x = {1, 1}, dy = {0, 0};
  GroupedLinear linear;
  linear.product = LinearProduct::WeightGrad;
  linear.dtype = linear.grad_dtype = Dtype::F32;
  linear.num_experts = 2;
  linear.in_features = 2;
  linear.out_features = 1;
  linear.accumulate = true;
  linear.grads = {{}, grads.data(), 8};
  grouped_linear_host(linear, {1, x.data(), dy.data(), nullptr}, std::vector<i64>{0, 1}, 1);
  EXPECT_EQ(std::bit_cast<u32>(grads[0]), 0x80000000U);
  EXPECT_EQ(std::bit_cast<u32>(grads[1]), 0xffc12345U);
  EXPECT_EQ(grads[2], 3.0F);
}

TEST(GroupedLinearHost, NaNAndInfinityStayInTheirRows) {
  std::vector<float> w = {1, 1}, x = {std::numeric_limits<float>::quiet_NaN(), 1, 2, 3};
  std::vector<float> y(2);
  GroupedLinear linear;
  linear.dtype = Dtype::F32;
  linear.num_experts = 1;
  linear.in_features = 2;
  linear.out_features = 1;
  linear.weights = {{}, w.data(), 0};
  grouped_linear_host(linear, {2, x.data(), nullptr, y.data()}, std::vector<i64>{2}, 1);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 5.0F);
}

/// What the oracle makes of a fault planted into a right answer.
TEST(LinearFault, SeesWhatIsWrong) {
  std::mt19937 random(5);
  const LinearCase c = {LinearProduct::Forward, Dtype::F32, 40, 24, {3, 0, 5}, 2};
  const LinearData data(c, random);
  const auto right = support::host_output(c, data);
  auto values = support::to_doubles(right, Dtype::F32);
  const auto fault = [&](std::size_t at, double value) {
    auto changed = values;
    changed[at] = value;
    return support::linear_fault(c, data, support::to_bytes(changed, Dtype::F32));
  };
  EXPECT_NE(fault(7, values[7] + 0.001), "");
  EXPECT_NE(fault(7, std::numeric_limits<double>::quiet_NaN()), "");
  EXPECT_NE(fault(8 * 24, 0), "");  // the first row behind the last split
  EXPECT_EQ(support::linear_fault(c, data, right), "");
}

/// A layer that nothing is wrong with, to which each test does one thing.
class LinearArguments : public testing::Test {
 protected:
  LinearArguments() {
    linear.num_experts = 2;
    linear.in_features = 4;
    linear.out_features = 3;
    linear.weights = {{}, memory.data(), 24};
    linear.grads = {{}, memory.data(), 24};
    rows = {5, memory.data(), memory.data(), memory.data()};
  }

  std::string complaint() const {
    try {
      check_linear(linear);
      check_linear_rows(linear, rows);
      check_host_splits(linear, rows.rows, splits);
    } catch (const Error& error) {
      return std::string(slug(error.code())) + ": " + error.what();
    }
    return "none";
  }

  std::vector<i64> memory = std::vector<i64>(64);
  GroupedLinear linear;
  LinearRows rows;
  std::vector<i64> splits = {2, 3};
};

TEST_F(LinearArguments, Right) {
  for (const LinearProduct product : kProducts) {
    linear.product = product;
    EXPECT_EQ(complaint(), "none");
  }
}

TEST_F(LinearArguments, Shapes) {
  linear.num_experts = 0;
  EXPECT_EQ(complaint(), "usage: 0 experts; 1 to 16777216 can be");
  linear.num_experts = 2;
  linear.in_features = 0;
  EXPECT_EQ(complaint(), "usage: weights are [3, 0]");
  linear.in_features = i64{1} << 40;
  linear.out_features = i64{1} << 40;
  EXPECT_EQ(complaint(), "shape-overflow: weights [1099511627776, 1099511627776] of BF16 has more than 2^63 bytes");
  linear.out_features = 1;
  rows.rows = i64{1} << 40;
  EXPECT_EQ(complaint(), "shape-overflow: x [1099511627776, 1099511627776] of BF16 has more than 2^63 bytes");
  rows.rows = -1;
  EXPECT_EQ(complaint(), "usage: -1 rows");
}

TEST_F(LinearArguments, Dtypes) {
  linear.dtype = Dtype::F64;
  EXPECT_EQ(complaint(), "not-supported: F64; only BF16, F16 and F32 can be computed with");
  linear.dtype = Dtype::F16;
  EXPECT_EQ(complaint(), "none");  // BF16 is of gradients, which there are none of
  linear.product = LinearProduct::WeightGrad;
  EXPECT_EQ(complaint(), "not-supported: weight gradients in BF16 of rows in F16; they can be F16 or F32");
  linear.grad_dtype = Dtype::F32;
  linear.grads.step_bytes = 48;
  EXPECT_EQ(complaint(), "none");
}

TEST_F(LinearArguments, OnlyGradientsAccumulate) {
  linear.accumulate = true;
  EXPECT_EQ(complaint(), "usage: only weight gradients can be accumulated");
  linear.product = LinearProduct::WeightGrad;
  EXPECT_EQ(complaint(), "none");
}

TEST_F(LinearArguments, Matrices) {
  linear.weights = {};
  EXPECT_EQ(complaint(), "usage: weights: the pointer is null");
  auto* const odd = reinterpret_cast<std::byte*>(memory.data()) + 1;
  linear.weights = {{}, odd, 24};
  EXPECT_TRUE(complaint().starts_with("usage: weights at 0x")) << complaint();
  linear.weights = {{}, odd + 1, 24};
  EXPECT_EQ(complaint(), "none");
  linear.weights.step_bytes = 23;
  EXPECT_EQ(complaint(), "usage: weights: 23 bytes from one expert to the next, of 24 bytes of BF16 each");
  linear.weights.step_bytes = -24;
  EXPECT_EQ(complaint(), "usage: weights: -24 bytes from one expert to the next, of 24 bytes of BF16 each");
  linear.weights.step_bytes = 0;
  EXPECT_EQ(complaint(), "none");  // all experts read one matrix
  linear.product = LinearProduct::WeightGrad;
  linear.grads.step_bytes = 22;
  EXPECT_EQ(complaint(), "usage: weight gradients: 22 bytes from one expert to the next, of 24 bytes of BF16 each");
}

TEST_F(LinearArguments, MatricesOfTheirOwn) {
  const std::vector<const void*> two = {memory.data(), memory.data() + 1}, with_null = {memory.data(), nullptr};
  linear.weights = {two};
  EXPECT_EQ(complaint(), "none");
  linear.weights = {two, memory.data()};
  EXPECT_EQ(complaint(), "usage: weights: both 2 addresses and one of all experts");
  linear.weights = {with_null};
  EXPECT_EQ(complaint(), "usage: weights of expert 1: the pointer is null");
  linear.num_experts = 3;
  EXPECT_EQ(complaint(), "usage: weights: 2 addresses for 3 experts");
}

TEST_F(LinearArguments, Rows) {
  rows.x = nullptr;
  EXPECT_EQ(complaint(), "usage: x: the pointer is null");
  linear.product = LinearProduct::InputGrad;
  EXPECT_EQ(complaint(), "none");
  rows.dy = reinterpret_cast<const std::byte*>(memory.data()) + 1;
  EXPECT_TRUE(complaint().starts_with("usage: dy at 0x")) << complaint();
  rows = {0, nullptr, nullptr, nullptr};
  splits = {0, 0};
  EXPECT_EQ(complaint(), "none");
}

TEST_F(LinearArguments, Splits) {
  splits = {2};
  EXPECT_EQ(complaint(), "usage: 1 splits for 2 experts");
  splits = {2, 4};
  EXPECT_EQ(complaint(), "usage: splits up to number 1 take 2 + 4 rows; there are 5");
  splits = {-1, 4};
  EXPECT_EQ(complaint(), "usage: split 0 is -1");
  splits = {0, 0};
  EXPECT_EQ(complaint(), "none");
}

TEST_F(LinearArguments, NothingIsWrittenBeforeTheyAreChecked) {
  std::vector<i64> out(64, -1);
  rows.out = out.data();
  splits = {2, 4};
  EXPECT_EQ(slug_of([&] { grouped_linear_host(linear, rows, splits, 1); }), "usage");
  EXPECT_EQ(out, std::vector<i64>(64, -1));
}

/// With CUDA compiled in arguments are checked before a device is looked for; without, there is nothing to check for.
TEST_F(LinearArguments, AreCheckedBeforeADeviceIsLookedFor) {
  linear.in_features = 0;
  const std::string expected = built_with_cuda() ? "usage" : "no-device";
  EXPECT_EQ(slug_of([&] { DeviceGroupedLinear(linear, nullptr); }), expected);
  EXPECT_EQ(slug_of([&] { GroupedLinearHostSplits(linear, LinearEngine::Auto, nullptr); }), expected);
  if (cuda_device_count() > 0) return;
  linear.in_features = 4;
  EXPECT_EQ(slug_of([&] { DeviceGroupedLinear(linear, nullptr); }), "no-device");
  EXPECT_EQ(slug_of([&] { GroupedLinearHostSplits(linear, LinearEngine::Cublas, nullptr); }), "no-device");
  EXPECT_EQ(why_no_cublas(), why_no_cuda());
}

TEST_F(LinearArguments, WideRowsAreThoseThatEachBeginAt16Bytes) {
  alignas(16) std::byte aligned[256] = {};
  linear.in_features = 8;
  linear.out_features = 16;
  const auto wide = [&](i64 x, i64 dy, i64 out, i64 matrix) {
    const void* const matrices[] = {aligned, aligned + matrix};
    return is_wide(linear, {4, aligned + x, aligned + dy, aligned + out}, matrices);
  };
  EXPECT_TRUE(wide(16, 2, 32, 16));
  EXPECT_FALSE(wide(2, 0, 0, 0));
  EXPECT_FALSE(wide(0, 0, 8, 0));
  EXPECT_FALSE(wide(0, 0, 0, 8));
  linear.product = LinearProduct::InputGrad;
  EXPECT_TRUE(wide(2, 16, 32, 16));
  EXPECT_FALSE(wide(0, 2, 0, 0));
  linear.product = LinearProduct::WeightGrad;
  EXPECT_TRUE(wide(16, 16, 2, 16));
  EXPECT_FALSE(wide(16, 16, 2, 8));
  linear.in_features = 12;
  EXPECT_FALSE(wide(0, 0, 0, 0));
  linear.dtype = Dtype::F32;
  EXPECT_TRUE(wide(0, 0, 0, 0));
}

TEST_F(LinearArguments, MoreTilesThanALaunchNumbersAreRefused) {
  linear.in_features = linear.out_features = i64{1} << 24;
  const LinearOperands operands = linear_operands(linear, rows, nullptr, {});
  // 2^17 columns of tiles.
  EXPECT_EQ(linear_blocks(Dtype::BF16, operands, 128 * 2045), i64{2047} << 17);
  EXPECT_EQ(slug_of([&] { linear_blocks(Dtype::BF16, operands, 128 * 2046); }), "shape-overflow");
}

TEST(LinearTiles, EveryTileOfAnExpertIsTakenOnce) {
  for (const i32 m_tiles : {1, 2, 7, 8, 9, 20})
    for (const i32 n_tiles : {1, 2, 5}) {
      std::set<std::pair<i32, i32>> seen;
      for (i32 index = 0; index < m_tiles * n_tiles; ++index) {
        const TilePlace place = place_in_expert(4, index, m_tiles, n_tiles);
        EXPECT_EQ(place.expert, 4);
        EXPECT_TRUE(place.m >= 0 && place.m < m_tiles && place.n >= 0 && place.n < n_tiles);
        EXPECT_TRUE(seen.emplace(place.m, place.n).second);
      }
    }
}

TEST(LinearTiles, BlocksByRowsAreTheTilesOfAllExpertsAndThenNone) {
  const std::vector<i32> first_tile = {0, 3, 3, 4, 15, 15};
  std::set<std::tuple<i32, i32, i32>> seen;
  for (i32 block = 0; block < 15 * 3; ++block) {
    const TilePlace place = place_by_rows(first_tile.data(), 5, 3, block);
    EXPECT_LT(place.m, first_tile[static_cast<std::size_t>(place.expert) + 1] -
                           first_tile[static_cast<std::size_t>(place.expert)]);
    EXPECT_TRUE(seen.emplace(place.expert, place.m, place.n).second);
  }
  for (i32 block = 15 * 3; block < 60; ++block) EXPECT_EQ(place_by_rows(first_tile.data(), 5, 3, block), TilePlace{});
  EXPECT_EQ(place_by_rows(std::vector<i32>(6, 0).data(), 5, 3, 0), TilePlace{});
}

/// Pieces of a tile do not meet, and the 8 rows that a matrix is read from lie in 8 different banks of 16 bytes.
TEST(LinearTiles, PiecesLieApartAndInDifferentBanks) {
  for (const i32 pieces : {8, 16}) {
    std::set<i32> places;
    for (i32 row = 0; row < 64; ++row)
      for (i32 piece = 0; piece < pieces; ++piece) {
        const i32 place = piece_place(row, piece, pieces);
        EXPECT_TRUE(place >= row * pieces && place < (row + 1) * pieces);
        EXPECT_TRUE(places.insert(place).second);
      }
    for (i32 row = 0; row < 64; row += 8)
      for (i32 piece = 0; piece < pieces; ++piece) {
        std::set<i32> banks;
        for (i32 r = 0; r < 8; ++r) banks.insert(piece_place(row + r, piece, pieces) % 8);
        EXPECT_EQ(banks.size(), 8U);
      }
  }
}

TEST(LinearTiles, TwoBlocksOfEitherKindFitAHopper) {
  for (const i32 bytes : {LargeMmaTile::kSharedBytes, SmallMmaTile::kSharedBytes}) {
    EXPECT_LE(2 * (bytes + 1024), 228 * 1024);
    EXPECT_LE(bytes, 99 * 1024);  // of one block on the smallest GPUs of compute capability 8
  }
}

}  // namespace
}  // namespace glu_ckpt
