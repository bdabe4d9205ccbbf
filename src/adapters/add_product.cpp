#include <algorithm>
#include <array>
#include <cmath>

#include "adapters/find_factors.hpp"
#include "core/float_rows.hpp"

namespace glu_ckpt {
namespace {

/// Elements that are summed in registers and the nearest cache.
constexpr i64 kBatch = 512;

[[gnu::always_inline]] inline void sum_batch(std::span<const float> coefficients, const float* vectors, i64 stride,
                                             float* sums, i64 count) {
  for (const float coefficient : coefficients) {
    for (i64 c = 0; c < count; ++c) sums[c] = __builtin_fmaf(coefficient, vectors[c], sums[c]);
    vectors += stride;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) void sum_avx512(std::span<const float> coefficients, const float* vectors,
                                                       i64 stride, float* sums, i64 count) {
  sum_batch(coefficients, vectors, stride, sums, count);
}
__attribute__((target("avx2,fma"))) void sum_avx2(std::span<const float> coefficients, const float* vectors, i64 stride,
                                                  float* sums, i64 count) {
  sum_batch(coefficients, vectors, stride, sums, count);
}
#endif

void sum(std::span<const float> coefficients, const float* vectors, i64 stride, float* sums, i64 count,
         SimdLevel level) {
#if defined(__x86_64__)
  static const bool has_fma = __builtin_cpu_supports("fma") != 0;
  if (has_fma && level == SimdLevel::Avx512) return sum_avx512(coefficients, vectors, stride, sums, count);
  if (has_fma && level == SimdLevel::Avx2) return sum_avx2(coefficients, vectors, stride, sums, count);
#else
  (void)level;
#endif
  sum_batch(coefficients, vectors, stride, sums, count);
}

}  // namespace

void add_product(std::span<const float> coefficients, const float* vectors, i64 stride, const Merging& merging,
                 Dtype dtype, std::byte* data, i64 count, const RowScales& scales, SimdLevel level) {
  std::array<float, kBatch> sums, weights;
  const i64 size = dtype_bits(dtype) / 8;
  for (i64 done = 0; done < count; done += kBatch) {
    const i64 batch = std::min(kBatch, count - done);
    const std::span<float> products = std::span(sums).first(static_cast<std::size_t>(batch));
    const std::span<float> stored = std::span(weights).first(static_cast<std::size_t>(batch));
    std::ranges::fill(products, 0.0F);
    sum(coefficients, vectors + done, stride, products.data(), batch, level);
    for (float& product : products) product *= merging.scale;
    if (merging.rounds_product) round_row(products, dtype);
    widen_row(data + done * size, dtype, stored);
    for (std::size_t c = 0; c < stored.size(); ++c) stored[c] += products[c];
    if (scales.values != nullptr)
      for (i64 c = 0; c < batch; ++c) stored[static_cast<std::size_t>(c)] *= scales.values[(done + c) * scales.step];
    narrow_row(stored, dtype, data + done * size);
  }
}

void add_product_one_by_one(std::span<const float> coefficients, const float* vectors, i64 stride,
                            const Merging& merging, Dtype dtype, std::byte* data, i64 count, const RowScales& scales) {
  const i64 size = dtype_bits(dtype) / 8;
  for (i64 c = 0; c < count; ++c) {
    float product = 0;
    for (std::size_t j = 0; j < coefficients.size(); ++j)
      product = std::fma(coefficients[j], vectors[static_cast<i64>(j) * stride + c], product);
    product *= merging.scale;
    if (merging.rounds_product) product = round_to(product, dtype);
    float weight = widen_element(data + c * size, dtype) + product;
    if (scales.values != nullptr) weight *= scales.values[c * scales.step];
    narrow_row({&weight, 1}, dtype, data + c * size);
  }
}

}  // namespace glu_ckpt
