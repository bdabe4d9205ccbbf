#include "forward/dot_products.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "core/float_rows.hpp"

namespace glu_ckpt {
namespace {

/// The documented order, one rounded operation at a time.
float dot_in_order(const float* x, const float* w, i64 cols) {
  volatile float lanes[16] = {};
  for (i64 k = 0; k < cols; ++k) {
    const volatile float product = x[k] * w[k];
    lanes[k % 16] = lanes[k % 16] + product;
  }
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  return lanes[0];
}

/// Whatever registers there are, and however many tokens and rows are left beside whole tiles.
TEST(DotProducts, AreMadeInTheDocumentedOrder) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
    for (const i64 cols : {16, 48, 1024})
      for (const i64 tokens : {1, 2, 3, 4, 5, 6, 7, 9, 13})
        for (const i64 rows : {1, 2, 3, 4, 7, 16}) {
          const i64 x_step = cols + 16;
          std::vector<float> x(static_cast<std::size_t>(tokens * x_step));
          std::vector<float> w(static_cast<std::size_t>(rows * cols));
          for (float& value : x) value = normal(random);
          for (float& value : w) value = round_to(normal(random), dtype);
          std::vector<std::byte> stored(w.size() * static_cast<std::size_t>(dtype_bits(dtype) / 8));
          narrow_row(w, dtype, stored.data());
          std::vector<const std::byte*> row_data;
          for (i64 r = 0; r < rows; ++r) row_data.push_back(stored.data() + r * cols * dtype_bits(dtype) / 8);
          for (auto* const function : {dot_products, dot_products_plain}) {
            std::vector<float> out(static_cast<std::size_t>(tokens * 16), -1);
            function({x.data(), x_step, tokens, row_data.data(), dtype, rows, cols, out.data(), 16});
            for (i64 t = 0; t < tokens; ++t)
              for (i64 r = 0; r < 16; ++r)
                ASSERT_EQ(out[static_cast<std::size_t>(t * 16 + r)],
                          r < rows ? dot_in_order(x.data() + t * x_step, w.data() + r * cols, cols) : -1)
                    << tokens << " tokens, " << rows << " rows, " << cols << " columns: " << t << ", " << r;
          }
        }
}

/// Every element that 16 bits hold, times one: what is left is the element, as widen_row() has it; NaNs are quiet.
TEST(DotProducts, WidenEveryElement) {
  std::vector<float> x(16);
  x[0] = 1;
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16})
    for (u32 bits = 0; bits < 0x1'0000; ++bits) {
      std::uint16_t w[16] = {static_cast<std::uint16_t>(bits)};
      const std::byte* const row = reinterpret_cast<const std::byte*>(w);
      for (auto* const function : {dot_products, dot_products_plain}) {
        float out = -1;
        function({x.data(), 16, 1, &row, dtype, 1, 16, &out, 1});
        // A sum that begins with 0 has no -0.
        const float expected = widen_element(row, dtype) * 1 + 0;
        ASSERT_EQ(std::bit_cast<u32>(out), std::bit_cast<u32>(expected)) << dtype_name(dtype) << " " << bits;
      }
    }
}

TEST(DotProducts, Padding) {
  EXPECT_EQ(padded_cols(1), 16);
  EXPECT_EQ(padded_cols(16), 16);
  EXPECT_EQ(padded_cols(17), 32);
}

}  // namespace
}  // namespace glu_ckpt
