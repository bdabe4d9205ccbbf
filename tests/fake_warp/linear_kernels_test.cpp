/// The kernels of the grouped linear layer, run thread by thread on a CPU: all their indices, masks, stages and
/// barriers, against grouped_linear_host(). Products of 16-bit values are exact in fp32 and the fake tensor core adds
/// them in order, so every case is compared bit for bit.

#include <gtest/gtest.h>

#include "fake_warp/fake_block.hpp"
#include "kernels/grouped_gemm/expert_tiles.cuh"
#include "kernels/grouped_gemm/grouped_gemm_fp32.cuh"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/grouped_gemm/sm80_grouped_gemm.cuh"
#include "support/linear_cases.hpp"

namespace glu_ckpt {
namespace {

using support::LinearCase;
using support::LinearData;

constexpr LinearProduct kProducts[] = {LinearProduct::Forward, LinearProduct::InputGrad, LinearProduct::WeightGrad};

struct FakeSchedule {
  std::vector<i64> memory;
  ExpertTiles tiles;

  FakeSchedule(const std::vector<i64>& splits, i64 rows, i32 tile_rows, unsigned threads)
      : memory(static_cast<std::size_t>(expert_tiles_bytes(std::ssize(splits)) / 8 + 1), -1),
        tiles(expert_tiles_at(reinterpret_cast<std::byte*>(memory.data()), std::ssize(splits))) {
    fake_warp::run_block(0, threads, [&] {
      schedule::expert_tiles_kernel(splits.data(), static_cast<i32>(splits.size()), rows, tile_rows, tiles);
    });
  }
};

/// Which kernel, where more than one would do.
struct Variant {
  bool small = false;
  bool wide = false;
  bool late = true;
};

template <typename Element, typename Tile, bool kWide>
void run_mma(LinearProduct product, const LinearOperands& operands, bool fp32) {
  if (product == LinearProduct::Forward)
    linear::sm80_grouped_gemm<Element, Tile, Along::K, Along::K, kWide>(operands, fp32);
  else if (product == LinearProduct::InputGrad)
    linear::sm80_grouped_gemm<Element, Tile, Along::K, Along::Mn, kWide>(operands, fp32);
  else if constexpr (Tile::kRows == LargeMmaTile::kRows)
    linear::sm80_grouped_gemm<Element, Tile, Along::Mn, Along::Mn, kWide>(operands, fp32);
}

template <typename Element>
void run_mma(LinearProduct product, const LinearOperands& operands, bool fp32, const Variant& variant) {
  if (variant.small)
    return variant.wide ? run_mma<Element, SmallMmaTile, true>(product, operands, fp32)
                        : run_mma<Element, SmallMmaTile, false>(product, operands, fp32);
  return variant.wide ? run_mma<Element, LargeMmaTile, true>(product, operands, fp32)
                      : run_mma<Element, LargeMmaTile, false>(product, operands, fp32);
}

void run_simt(LinearProduct product, const LinearOperands& operands) {
  if (product == LinearProduct::Forward) return linear::grouped_gemm_fp32<Along::K, Along::K>(operands, true);
  if (product == LinearProduct::InputGrad) return linear::grouped_gemm_fp32<Along::K, Along::Mn>(operands, true);
  linear::grouped_gemm_fp32<Along::Mn, Along::Mn>(operands, true);
}

void reset_shared(bool late) {
  linear::fake_shared.bytes.fill(std::byte{0xff});  // NaNs
  linear::fake_shared.late = late;
  for (auto& copies : linear::fake_copies) {
    // A block that ends with copies on their way would leave them to the next.
    for (const auto& stage : copies.stages) EXPECT_TRUE(stage.empty());
    copies = {};
  }
}

i64 tiles_of(i64 length, i64 tile) { return (length + tile - 1) / tile; }

std::vector<std::byte> fake_output(const LinearCase& c, const LinearData& data, const Variant& variant,
                                   const std::vector<i64>& splits) {
  std::vector<std::byte> output = data.output;
  std::vector<std::byte> weights = data.weights;
  const bool by_experts = c.product == LinearProduct::WeightGrad;
  const GroupedLinear linear = support::linear_at(c, by_experts ? output.data() : weights.data());
  const LinearRows rows = support::rows_at(c, data.x.data(), data.dy.data(), output.data());
  const auto table = matrix_addresses(linear);
  const bool fp32 = c.dtype == Dtype::F32;
  const i32 tile_rows = fp32 ? kSimtTile : variant.small ? SmallMmaTile::kRows : LargeMmaTile::kRows;
  const FakeSchedule schedule(splits, c.rows(), tile_rows, 64);
  const LinearOperands operands = linear_operands(linear, rows, table.data(), schedule.tiles);
  const i64 m_tiles = by_experts ? c.num_experts() * tiles_of(c.out, tile_rows)
                                 : max_expert_tiles(c.rows(), c.num_experts(), tile_rows);
  const i64 blocks = m_tiles * tiles_of(operands.n, fp32 ? kSimtTile : kMmaCols);
  const unsigned threads = fp32 ? kSimtThreads : variant.small ? SmallMmaTile::kThreads : LargeMmaTile::kThreads;
  for (i64 block = 0; block < blocks; ++block) {
    reset_shared(variant.late);
    fake_warp::run_block(static_cast<unsigned>(block), threads, [&] {
      if (fp32)
        run_simt(c.product, operands);
      else if (c.dtype == Dtype::BF16)
        run_mma<linear::Bf16>(c.product, operands, linear.grad_dtype == Dtype::F32, variant);
      else
        run_mma<linear::Fp16>(c.product, operands, linear.grad_dtype == Dtype::F32, variant);
    });
  }
  reset_shared(variant.late);
  return output;
}

void expect_as_host(const LinearCase& c, const Variant& variant) {
  SCOPED_TRACE(c.describe() + (variant.small ? " small" : "") + (variant.wide ? " wide" : "") +
               (variant.late ? " late" : ""));
  std::mt19937 random(1);
  const LinearData data(c, random);
  EXPECT_TRUE(fake_output(c, data, variant, c.splits) == support::host_output(c, data));
}

/// Of bf16 and fp16, all that a launch could choose.
std::vector<Variant> variants_of(const LinearCase& c) {
  std::vector<Variant> variants;
  for (const bool small : {false, true})
    for (const bool wide : {false, true})
      for (const bool late : {false, true}) {
        if (small && c.product == LinearProduct::WeightGrad) continue;
        if (wide && (c.in % 8 != 0 || c.out % 8 != 0)) continue;
        // Only the wide ones copy while they multiply.
        if (!wide && !late) continue;
        variants.push_back({small, wide, late});
      }
  return variants;
}

TEST(LinearKernels, EveryProductOfOddSizes) {
  for (const LinearProduct product : kProducts)
    for (const auto& [in, out] : {std::pair<i64, i64>{40, 24}, {7, 5}, {72, 136}}) {
      const LinearCase c = {product, Dtype::BF16, in, out, {3, 0, 33}, 2};
      for (const Variant& variant : variants_of(c)) expect_as_host(c, variant);
    }
}

TEST(LinearKernels, MoreStepsThanStages) {
  // 5 steps of 64 and a part of one, for the products over features and for those over rows.
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : {Dtype::BF16, Dtype::F16}) {
      if (dtype == Dtype::F16 && product != LinearProduct::Forward) continue;  // differs in its mma alone
      // One tile that is 328 or 340 deep.
      LinearCase c = {product, dtype, 24, 24, {5}, 1};
      if (product == LinearProduct::Forward) c.in = 328;
      if (product == LinearProduct::InputGrad) c.out = 328;
      if (product == LinearProduct::WeightGrad) c.splits = {340};
      for (const Variant& variant : variants_of(c)) expect_as_host(c, variant);
    }
}

TEST(LinearKernels, SeveralTilesOfRowsAndColumns) {
  // 129 rows are two tiles, 33 and 65 are two and three of the small ones; 264 columns are three.
  for (const LinearProduct product : {LinearProduct::Forward, LinearProduct::InputGrad}) {
    const bool forward = product == LinearProduct::Forward;
    const i64 in = forward ? 24 : 264, out = forward ? 264 : 24;
    expect_as_host({product, Dtype::BF16, in, out, {129, 1, 0}, 3}, {false, true, true});
    expect_as_host({product, Dtype::F16, in, out, {33, 1, 0, 65}, 3}, {true, true, true});
  }
  expect_as_host({LinearProduct::WeightGrad, Dtype::BF16, 264, 264, {129, 1, 0}, 3}, {false, true, true});
}

TEST(LinearKernels, Gradients) {
  for (const bool accumulate : {false, true})
    for (const bool fp32 : {false, true})
      for (const i64 in : {24, 7}) {
        const LinearCase c = {LinearProduct::WeightGrad, Dtype::BF16, in, 40, {3, 0, 65}, 2, accumulate, fp32};
        for (const Variant& variant : variants_of(c)) expect_as_host(c, variant);
      }
}

TEST(LinearKernels, Fp32) {
  for (const LinearProduct product : kProducts) {
    for (const auto& [in, out] : {std::pair<i64, i64>{40, 24}, {7, 5}, {72, 136}, {1, 1}, {16, 64}})
      expect_as_host({product, Dtype::F32, in, out, {3, 0, 65, 1}, 2}, {});
    expect_as_host({product, Dtype::F32, 33, 17, {70, 0, 65}, 2, product == LinearProduct::WeightGrad}, {});
  }
}

TEST(LinearKernels, WrongSplitsWriteNothing) {
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : {Dtype::BF16, Dtype::F32}) {
      const LinearCase c = {product, dtype, 8, 8, {3, 4, 5}, 2};
      std::mt19937 random(1);
      const LinearData data(c, random);
      for (const std::vector<i64>& splits : {std::vector<i64>{3, -1, 5}, {3, 4, 8}, {INT64_MAX, 1, 1}})
        EXPECT_TRUE(fake_output(c, data, {}, splits) == data.output);
    }
}

TEST(LinearKernels, NothingToDo) {
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : {Dtype::F16, Dtype::F32}) expect_as_host({product, dtype, 8, 8, {0, 0}, 0}, {});
}

/// make_expert_tiles' own kernel, with few threads so that splits come in many chunks.
TEST(ExpertTilesKernel, AsTheOracle) {
  std::mt19937 random(1);
  for (const unsigned threads : {32U, 64U, 128U})
    for (const std::size_t count : {1, 31, 32, 33, 64, 130, 300})
      for (int fault = 0; fault < 4; ++fault) {
        auto splits = support::uneven_splits(count, 300, random);
        i64 rows = static_cast<i64>(random() % 5);
        for (const i64 split : splits) rows += split;
        if (fault == 1) splits[random() % count] = -1;
        if (fault == 2) splits[random() % count] = INT64_MAX;
        if (fault == 3) rows -= 10;
        if (rows < 0) continue;
        std::vector<i64> memory(static_cast<std::size_t>(expert_tiles_bytes(std::ssize(splits)) / 8 + 1), -1);
        make_expert_tiles_ref(splits, rows, 128,
                              expert_tiles_at(reinterpret_cast<std::byte*>(memory.data()), std::ssize(splits)));
        EXPECT_EQ(FakeSchedule(splits, rows, 128, threads).memory, memory) << count << " splits, fault " << fault;
      }
}

}  // namespace
}  // namespace glu_ckpt
