#include "support/product_cases.hpp"

#include <fmt/format.h>

#include <cmath>

#include "adapters/add_product.hpp"
#include "core/float_rows.hpp"

namespace glu_ckpt::support {
namespace {

/// Numbers of every size and sign, of which neighbours differ in their last bits.
std::vector<float> coded(i64 count, int salt) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int>(i);
    const float unit =
        std::ldexp(1.0F + static_cast<float>((at * 7919 + salt * 104729) % 8388593) * 0x1p-23F, (at + salt) % 11 - 7);
    values[i] = (at * 5 + salt) % 3 == 0 ? -unit : unit;
  }
  return values;
}

ProductCase make_case(Dtype dtype, i64 lines, i64 cols, i64 rank, i64 scales_step, bool rounds) {
  ProductCase one{{0.3F, rounds}, dtype, lines, cols, rank, scales_step, {}, {}, {}, {}};
  std::vector<float> weights = coded(lines * cols, 1);
  // Subnormals, zeros of both signs and sums that overflow are summed as any number is.
  const float odd[] = {0.0F, -0.0F, 0x1p-24F, 0x1p-149F, 65504.0F, -0x1.FEp127F};
  for (std::size_t i = 0; i < std::size(odd) && i * 3 < weights.size(); ++i) weights[i * 3] = odd[i];
  one.weights.resize(weights.size() * static_cast<std::size_t>(dtype_bits(dtype) / 8));
  narrow_row(weights, dtype, one.weights.data());
  one.coefficients = coded(lines * rank, 2);
  one.vectors = coded(rank * cols, 3);
  if (scales_step >= 0) one.scales = coded(scales_step == 0 ? lines : cols, 4);
  return one;
}

}  // namespace

std::string ProductCase::describe() const {
  return fmt::format("{} [{}, {}], rank {}, scales {}, {} rounding", dtype_name(dtype), lines, cols, rank, scales_step,
                     merging.rounds_product ? 2 : 1);
}

std::vector<ProductLine> ProductCase::lines_of(std::vector<std::byte>& stored) const {
  const i64 bytes = cols * dtype_bits(dtype) / 8;
  std::vector<ProductLine> all;
  for (i64 i = 0; i < lines; ++i) {
    all.push_back({coefficients.data() + i * rank, stored.data() + i * bytes, {}});
    if (scales_step >= 0) all.back().scales = {scales.data() + (scales_step == 0 ? i : 0), scales_step};
  }
  return all;
}

std::vector<std::byte> ProductCase::expected() const {
  std::vector<std::byte> made = weights;
  add_product_one_by_one(lines_of(made), product_vectors(), merging, dtype, cols);
  return made;
}

std::vector<ProductCase> product_cases() {
  struct Shape {
    i64 lines, cols, rank;
  };
  std::vector<ProductCase> cases;
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
    for (const auto& [lines, cols, rank] :
         {Shape{1, 1, 1}, Shape{4, 128, 8}, Shape{33, 130, 3}, Shape{32, 127, 16}, Shape{7, 515, 1}, Shape{70, 9, 64}})
      for (const i64 step : {-1, 0, 1})
        for (const bool rounds : {false, true}) cases.push_back(make_case(dtype, lines, cols, rank, step, rounds));
  return cases;
}

}  // namespace glu_ckpt::support
