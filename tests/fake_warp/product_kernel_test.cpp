/// The kernel that adds products, run thread by thread on a CPU, against the CPU's own loop.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/float_rows.hpp"
#include "fake_warp/fake_block.hpp"
#include "kernels/quant/add_products.cuh"
#include "support/product_cases.hpp"

namespace glu_ckpt {
namespace {

using support::ProductCase;

constexpr std::byte kPoison{0xa5};

/// Device memory: aligned to 16 bytes, with a guard behind it.
struct Guarded {
  explicit Guarded(i64 bytes) : size(static_cast<std::size_t>(bytes)), words(size / 16 + 4) {
    std::memset(data(), static_cast<int>(kPoison), words.size() * 16);
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(words.data()); }
  float* floats() { return reinterpret_cast<float*>(words.data()); }
  void expect_whole() {
    for (std::size_t at = size; at < words.size() * 16; ++at) EXPECT_EQ(data()[at], kPoison);
  }

  std::size_t size;
  std::vector<uint4> words;
};

void run_blocks(const ProductBatch& batch, const products::ProductArgs& args) {
  for (i64 block = 0; block < products::blocks_of(batch); ++block)
    fake_warp::run_block(static_cast<unsigned>(block), products::kThreads, [&] {
      if (batch.dtype == Dtype::BF16)
        products::add_products<Dtype::BF16>(args);
      else if (batch.dtype == Dtype::F16)
        products::add_products<Dtype::F16>(args);
      else
        products::add_products<Dtype::F32>(args);
    });
}

/// Returns the flag.
u32 run(const ProductCase& one, std::vector<std::byte>& made) {
  const ProductScales scales = one.scales_step < 0    ? ProductScales::None
                               : one.scales_step == 0 ? ProductScales::OfLines
                                                      : ProductScales::OfColumns;
  const ProductBatch batch{one.merging, one.dtype, one.lines, one.cols, one.rank, scales};
  EXPECT_TRUE(takes_products(batch));
  Guarded weights(batch.weight_bytes()), coefficients(batch.coefficient_bytes()), vectors(batch.vector_bytes()),
      numbers(batch.scales_bytes());
  const i64 pitch = batch.pitch(), line_bytes = one.cols * dtype_bits(one.dtype) / 8,
            pitch_bytes = pitch * dtype_bits(one.dtype) / 8;
  for (i64 i = 0; i < one.lines; ++i)
    std::memcpy(weights.data() + i * pitch_bytes, one.weights.data() + i * line_bytes,
                static_cast<std::size_t>(line_bytes));
  std::ranges::copy(one.coefficients, coefficients.floats());
  for (i64 j = 0; j < one.rank; ++j)
    std::copy_n(one.vectors.data() + j * one.cols, one.cols, vectors.floats() + j * pitch);
  std::ranges::copy(one.scales, numbers.floats());
  u32 flag = 0;
  products::ProductArgs args = products::product_args(batch);
  args.buffers = {weights.data(), coefficients.floats(), vectors.floats(), numbers.floats()};
  args.flag = &flag;
  run_blocks(batch, args);
  for (Guarded* const memory : {&weights, &coefficients, &vectors, &numbers}) memory->expect_whole();
  made.clear();
  for (i64 i = 0; i < one.lines; ++i)
    made.insert(made.end(), weights.data() + i * pitch_bytes, weights.data() + i * pitch_bytes + line_bytes);
  return flag;
}

TEST(ProductKernel, HasTheBitsOfTheCpu) {
  for (const ProductCase& one : support::product_cases()) {
    SCOPED_TRACE(one.describe());
    std::vector<std::byte> made;
    EXPECT_EQ(run(one, made), 0U);
    EXPECT_TRUE(made == one.expected());
    EXPECT_FALSE(made == one.weights);
  }
}

TEST(ProductKernel, SaysWhereASumIsNan) {
  ProductCase one = support::product_cases().front();
  ASSERT_EQ(one.lines * one.cols, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  narrow_row({&nan, 1}, one.dtype, one.weights.data());
  std::vector<std::byte> made;
  EXPECT_EQ(run(one, made), 1U);
}

}  // namespace
}  // namespace glu_ckpt
