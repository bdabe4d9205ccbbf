#include "adapters/add_product.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/float_rows.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace glu_ckpt {
namespace {

/// Elements of a line that are summed before they are added: as many as stay in the nearest cache.
constexpr i64 kBatch = 512;
/// Lines whose sums share the registers: a vector is read once for all of them.
constexpr std::size_t kLinesOfTile = 4;

/// The sums of a batch of lines, a row each.
using LineSums = std::array<std::array<float, kBatch>, kLinesOfTile>;

void sum_line(const float* coefficients, const ProductVectors& vectors, float* sums, i64 count) {
  std::fill_n(sums, count, 0.0F);
  for (i64 j = 0; j < vectors.rank; ++j) {
    const float* const vector = vectors.values + j * vectors.stride;
    for (i64 c = 0; c < count; ++c) sums[c] = __builtin_fmaf(coefficients[j], vector[c], sums[c]);
  }
}

#if defined(__x86_64__)
/// Sums 64 columns of four lines in sixteen registers.
__attribute__((target("avx512f,fma"))) void sum_tile_avx512(std::span<const ProductLine, kLinesOfTile> lines,
                                                            const ProductVectors& vectors, i64 first, LineSums& sums) {
  constexpr std::size_t kRegisters = 4, kLanes = 16;
  __m512 of_line[kLinesOfTile][kRegisters];
  for (auto& line : of_line)
    for (__m512& some : line) some = _mm512_setzero_ps();
  for (i64 j = 0; j < vectors.rank; ++j) {
    const float* const vector = vectors.values + j * vectors.stride + first;
    __m512 values[kRegisters];
    for (std::size_t i = 0; i < kRegisters; ++i) values[i] = _mm512_loadu_ps(vector + i * kLanes);
    for (std::size_t line = 0; line < kLinesOfTile; ++line) {
      const __m512 coefficient = _mm512_set1_ps(lines[line].coefficients[j]);
      for (std::size_t i = 0; i < kRegisters; ++i)
        of_line[line][i] = _mm512_fmadd_ps(coefficient, values[i], of_line[line][i]);
    }
  }
  for (std::size_t line = 0; line < kLinesOfTile; ++line)
    for (std::size_t i = 0; i < kRegisters; ++i)
      _mm512_storeu_ps(sums[line].data() + first + static_cast<i64>(i * kLanes), of_line[line][i]);
}

/// Sums 16 columns of four lines in eight registers. It repeats sum_tile_avx512() with other types, for a template
/// cannot give its instances different targets.
__attribute__((target("avx2,fma"))) void sum_tile_avx2(std::span<const ProductLine, kLinesOfTile> lines,
                                                       const ProductVectors& vectors, i64 first, LineSums& sums) {
  constexpr std::size_t kRegisters = 2, kLanes = 8;
  __m256 of_line[kLinesOfTile][kRegisters];
  for (auto& line : of_line)
    for (__m256& some : line) some = _mm256_setzero_ps();
  for (i64 j = 0; j < vectors.rank; ++j) {
    const float* const vector = vectors.values + j * vectors.stride + first;
    __m256 values[kRegisters];
    for (std::size_t i = 0; i < kRegisters; ++i) values[i] = _mm256_loadu_ps(vector + i * kLanes);
    for (std::size_t line = 0; line < kLinesOfTile; ++line) {
      const __m256 coefficient = _mm256_set1_ps(lines[line].coefficients[j]);
      for (std::size_t i = 0; i < kRegisters; ++i)
        of_line[line][i] = _mm256_fmadd_ps(coefficient, values[i], of_line[line][i]);
    }
  }
  for (std::size_t line = 0; line < kLinesOfTile; ++line)
    for (std::size_t i = 0; i < kRegisters; ++i)
      _mm256_storeu_ps(sums[line].data() + first + static_cast<i64>(i * kLanes), of_line[line][i]);
}

/// The same sums where fewer lines or columns are left.
__attribute__((target("avx512f,fma"))) void sum_line_avx512(const float* coefficients, const ProductVectors& vectors,
                                                            float* sums, i64 count) {
  sum_line(coefficients, vectors, sums, count);
}
__attribute__((target("avx2,fma"))) void sum_line_avx2(const float* coefficients, const ProductVectors& vectors,
                                                       float* sums, i64 count) {
  sum_line(coefficients, vectors, sums, count);
}
#endif

struct SumFunctions {
  void (*tile)(std::span<const ProductLine, kLinesOfTile>, const ProductVectors&, i64, LineSums&) = nullptr;
  i64 tile_columns = 1;
  void (*line)(const float*, const ProductVectors&, float*, i64) = sum_line;
};

SumFunctions sum_functions(SimdLevel level) {
#if defined(__x86_64__)
  static const bool has_fma = __builtin_cpu_supports("fma") != 0;
  if (has_fma && level == SimdLevel::Avx512) return {sum_tile_avx512, 64, sum_line_avx512};
  if (has_fma && level == SimdLevel::Avx2) return {sum_tile_avx2, 16, sum_line_avx2};
#else
  (void)level;
#endif
  return {};
}

void sum_batch(const SumFunctions& functions, std::span<const ProductLine> lines, const ProductVectors& vectors,
               LineSums& sums, i64 count) {
  i64 tiled = 0;
  if (functions.tile != nullptr && lines.size() == kLinesOfTile)
    for (; tiled + functions.tile_columns <= count; tiled += functions.tile_columns)
      functions.tile(lines.first<kLinesOfTile>(), vectors, tiled, sums);
  if (tiled == count) return;
  const ProductVectors rest{vectors.values + tiled, vectors.rank, vectors.stride};
  for (std::size_t line = 0; line < lines.size(); ++line)
    functions.line(lines[line].coefficients, rest, sums[line].data() + tiled, count - tiled);
}

/// Adds the products of columns [first, first + products.size()) to a line.
void add_to_line(const ProductLine& line, i64 first, std::span<float> products, const Merging& merging, Dtype dtype) {
  std::array<float, kBatch> weights;
  const std::span<float> stored = std::span(weights).first(products.size());
  std::byte* const data = line.data + first * (dtype_bits(dtype) / 8);
  for (float& product : products) product *= merging.scale;
  if (merging.rounds_product) round_row(products, dtype);
  widen_row(data, dtype, stored);
  for (std::size_t c = 0; c < stored.size(); ++c) stored[c] += products[c];
  if (line.scales.values != nullptr)
    for (std::size_t c = 0; c < stored.size(); ++c)
      stored[c] *= line.scales.values[(first + static_cast<i64>(c)) * line.scales.step];
  narrow_row(stored, dtype, data);
}

}  // namespace

void add_product(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging, Dtype dtype,
                 i64 count, SimdLevel level) {
  const SumFunctions functions = sum_functions(level);
  LineSums sums;
  for (i64 done = 0; done < count; done += kBatch) {
    const i64 batch = std::min(kBatch, count - done);
    // This part of the vectors stays in the second cache for all lines.
    const ProductVectors part{vectors.values + done, vectors.rank, vectors.stride};
    for (std::size_t first = 0; first < lines.size(); first += kLinesOfTile) {
      const auto some = lines.subspan(first, std::min(kLinesOfTile, lines.size() - first));
      sum_batch(functions, some, part, sums, batch);
      for (std::size_t line = 0; line < some.size(); ++line)
        add_to_line(some[line], done, std::span(sums[line]).first(static_cast<std::size_t>(batch)), merging, dtype);
    }
  }
}

void add_product_one_by_one(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging,
                            Dtype dtype, i64 count) {
  const i64 size = dtype_bits(dtype) / 8;
  for (const ProductLine& line : lines)
    for (i64 c = 0; c < count; ++c) {
      float product = 0;
      for (i64 j = 0; j < vectors.rank; ++j)
        product = std::fma(line.coefficients[j], vectors.values[j * vectors.stride + c], product);
      product *= merging.scale;
      if (merging.rounds_product) product = round_to(product, dtype);
      float weight = widen_element(line.data + c * size, dtype) + product;
      if (line.scales.values != nullptr) weight *= line.scales.values[c * line.scales.step];
      narrow_row({&weight, 1}, dtype, line.data + c * size);
    }
}

}  // namespace glu_ckpt
