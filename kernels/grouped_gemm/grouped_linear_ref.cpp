/// The grouped linear layer on a CPU, from its definition: the oracle of the kernels.

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float_rows.hpp"
#include "core/parallel.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"

namespace glu_ckpt {
namespace {

/// A matrix in memory of which element (r, c) is number r * row_step + c * col_step.
struct View {
  const std::byte* data = nullptr;
  Dtype dtype = Dtype::F32;
  i64 row_step = 0;
  i64 col_step = 0;

  float at(i64 row, i64 col) const {
    return widen_element(data + (row * row_step + col * col_step) * (dtype_bits(dtype) / 8), dtype);
  }
};

/// C[m, n] = sum over k of a[m, k] b[k, n], one expert's.
struct Product {
  View a, b;
  i64 m = 0, n = 0, k = 0;
  std::byte* out = nullptr;
  Dtype out_dtype = Dtype::F32;
  bool accumulate = false;
};

const std::byte* row_at(const void* data, i64 row, i64 cols, Dtype dtype) {
  // No rows may come without an address, to which nothing can be added.
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + row * cols * (dtype_bits(dtype) / 8);
}

Product product_of(const GroupedLinear& linear, const LinearRows& rows, i64 first, i64 count, const void* matrix) {
  const i64 in = linear.in_features, out = linear.out_features;
  const Dtype dtype = linear.dtype;
  const View x = {row_at(rows.x, first, in, dtype), dtype, in, 1};
  const View dy = {row_at(rows.dy, first, out, dtype), dtype, out, 1};
  const View w = {static_cast<const std::byte*>(matrix), dtype, in, 1};
  const View w_transposed = {w.data, dtype, 1, in};
  const View dy_transposed = {dy.data, dtype, 1, out};
  const auto written = [&](i64 cols) { return const_cast<std::byte*>(row_at(rows.out, first, cols, dtype)); };
  switch (linear.product) {
    case LinearProduct::Forward: return {x, w_transposed, count, out, in, written(out), dtype, false};
    case LinearProduct::InputGrad: return {dy, w, count, in, out, written(in), dtype, false};
    case LinearProduct::WeightGrad:
      return {dy_transposed, x, out, in, count, const_cast<std::byte*>(w.data), linear.grad_dtype, linear.accumulate};
  }
  return {};
}

void compute_row(const Product& product, i64 row) {
  std::vector<float> sums(static_cast<std::size_t>(product.n), 0.0F);
  // The inner loop goes from column to column, so that b is read as it lies; each sum still takes its products in
  // order.
  for (i64 k = 0; k < product.k; ++k) {
    const float a = product.a.at(row, k);
    for (i64 n = 0; n < product.n; ++n) {
      float& sum = sums[static_cast<std::size_t>(n)];
      sum = std::fma(a, product.b.at(k, n), sum);
    }
  }
  const i64 bytes = dtype_bits(product.out_dtype) / 8;
  std::byte* const out = product.out + row * product.n * bytes;
  for (i64 n = 0; n < product.n; ++n) {
    float& sum = sums[static_cast<std::size_t>(n)];
    sum += 0.0F;
    if (product.accumulate) sum += widen_element(out + n * bytes, product.out_dtype);
  }
  narrow_row(sums, product.out_dtype, out);
}

}  // namespace

void grouped_linear_host(const GroupedLinear& linear, const LinearRows& rows, std::span<const i64> splits, int jobs) {
  check_linear(linear);
  check_linear_rows(linear, rows);
  check_host_splits(linear, rows.rows, splits);
  const auto matrices = matrix_addresses(linear);
  std::vector<Product> products;
  // The first row of each, counted over all of them.
  std::vector<i64> begins = {0};
  i64 first = 0;
  for (std::size_t e = 0; e < splits.size(); first += splits[e++]) {
    products.push_back(product_of(linear, rows, first, splits[e], matrices[e]));
    // Not even 0 is added, which would turn -0 into 0.
    if (linear.accumulate && splits[e] == 0) products.back().m = 0;
    begins.push_back(begins.back() + products.back().m);
  }
  parallel_for(static_cast<std::size_t>(begins.back()), jobs, [&](std::size_t index, int) {
    const auto row = static_cast<i64>(index);
    const auto next = std::upper_bound(begins.begin(), begins.end(), row);
    const auto expert = static_cast<std::size_t>(next - begins.begin() - 1);
    compute_row(products[expert], row - begins[expert]);
  });
}

}  // namespace glu_ckpt
