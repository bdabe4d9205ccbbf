#include "kernels/grouped_gemm/linear_args.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "kernels/grouped_gemm/linear_launch.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kWideBytes = 16;

i64 element_bytes(Dtype dtype) { return dtype_bits(dtype) / 8; }

/// Bytes of [rows, cols].
i64 matrix_bytes(std::string_view name, i64 rows, i64 cols, Dtype dtype) {
  const i64 extents[] = {rows, cols, element_bytes(dtype)};
  const auto bytes = checked_product(extents);
  if (!bytes)
    fail(ErrorCode::ShapeOverflow, {}, "{} [{}, {}] of {} has more than 2^63 bytes", name, rows, cols,
         dtype_name(dtype));
  return *bytes;
}

void check_address(std::string_view name, const void* data, Dtype dtype) {
  if (data == nullptr) fail(ErrorCode::Usage, {}, "{}: the pointer is null", name);
  if (!is_aligned(data, element_bytes(dtype)))
    fail(ErrorCode::Usage, {}, "{} at {} is not aligned to {}", name, data, dtype_name(dtype));
}

template <typename Void>
void check_matrices(const GroupedLinear& linear, const ExpertMatrices<Void>& matrices, std::string_view name,
                    Dtype dtype, bool written) {
  const i64 bytes = matrix_bytes(name, linear.out_features, linear.in_features, dtype);
  if (!matrices.each.empty()) {
    if (matrices.first != nullptr)
      fail(ErrorCode::Usage, {}, "{}: both {} addresses and one of all experts", name, matrices.each.size());
    if (std::ssize(matrices.each) != linear.num_experts)
      fail(ErrorCode::Usage, {}, "{}: {} addresses for {} experts", name, matrices.each.size(), linear.num_experts);
    for (std::size_t e = 0; e < matrices.each.size(); ++e)
      check_address(fmt::format("{} of expert {}", name, e), matrices.each[e], dtype);
    return;
  }
  check_address(name, matrices.first, dtype);
  if (linear.num_experts == 1) return;
  if (matrices.step_bytes < 0 || matrices.step_bytes % element_bytes(dtype) != 0 ||
      (written && matrices.step_bytes < bytes))
    fail(ErrorCode::Usage, {}, "{}: {} bytes from one expert to the next, of {} bytes of {} each", name,
         matrices.step_bytes, bytes, dtype_name(dtype));
  if (!checked_mul(matrices.step_bytes, linear.num_experts))
    fail(ErrorCode::ShapeOverflow, {}, "{}: {} experts at steps of {} bytes", name, linear.num_experts,
         matrices.step_bytes);
}

}  // namespace

void check_linear(const GroupedLinear& linear) {
  // Tiles are counted in 32 bits on the device.
  constexpr i64 kMostExperts = i64{1} << 24;
  if (linear.num_experts < 1 || linear.num_experts > kMostExperts)
    fail(ErrorCode::Usage, {}, "{} experts; 1 to {} can be", linear.num_experts, kMostExperts);
  if (linear.in_features < 1 || linear.out_features < 1)
    fail(ErrorCode::Usage, {}, "weights are [{}, {}]", linear.out_features, linear.in_features);
  if (!is_float(linear.dtype))
    fail(ErrorCode::NotSupported, {}, "{}; only BF16, F16 and F32 can be computed with", dtype_name(linear.dtype));
  if (linear.product != LinearProduct::WeightGrad) {
    if (linear.accumulate) fail(ErrorCode::Usage, {}, "only weight gradients can be accumulated");
    return check_matrices(linear, linear.weights, "weights", linear.dtype, false);
  }
  if (linear.grad_dtype != linear.dtype && linear.grad_dtype != Dtype::F32)
    fail(ErrorCode::NotSupported, {}, "weight gradients in {} of rows in {}; they can be {} or F32",
         dtype_name(linear.grad_dtype), dtype_name(linear.dtype), dtype_name(linear.dtype));
  check_matrices(linear, linear.grads, "weight gradients", linear.grad_dtype, true);
}

void check_linear_rows(const GroupedLinear& linear, const LinearRows& rows) {
  if (rows.rows < 0) fail(ErrorCode::Usage, {}, "{} rows", rows.rows);
  matrix_bytes("x", rows.rows, linear.in_features, linear.dtype);
  matrix_bytes("dy", rows.rows, linear.out_features, linear.dtype);
  if (rows.rows == 0) return;
  if (linear.product != LinearProduct::InputGrad) check_address("x", rows.x, linear.dtype);
  if (linear.product != LinearProduct::Forward) check_address("dy", rows.dy, linear.dtype);
  if (linear.product != LinearProduct::WeightGrad) check_address("out", rows.out, linear.dtype);
}

void check_host_splits(const GroupedLinear& linear, i64 rows, std::span<const i64> splits) {
  if (std::ssize(splits) != linear.num_experts)
    fail(ErrorCode::Usage, {}, "{} splits for {} experts", splits.size(), linear.num_experts);
  check_split_status(split_status(splits, rows));
}

std::vector<const void*> matrix_addresses(const GroupedLinear& linear) {
  std::vector<const void*> addresses;
  const auto collect = [&](const auto& matrices) {
    if (!matrices.each.empty()) {
      addresses.assign(matrices.each.begin(), matrices.each.end());
      return;
    }
    const auto* const first = static_cast<const std::byte*>(matrices.first);
    for (i64 e = 0; e < linear.num_experts; ++e) addresses.push_back(first + e * matrices.step_bytes);
  };
  if (linear.product == LinearProduct::WeightGrad) {
    collect(linear.grads);
  } else {
    collect(linear.weights);
  }
  return addresses;
}

i32 linear_tile_rows(Dtype dtype, i64 rows, i64 num_experts) {
  if (dtype == Dtype::F32) return kSimtTile;
  return takes_small_tile(rows, num_experts) ? SmallMmaTile::kRows : LargeMmaTile::kRows;
}

i64 linear_blocks(Dtype dtype, const LinearOperands& operands, i64 rows) {
  const bool fp32 = dtype == Dtype::F32;
  const auto tiles = [](i64 length, i64 tile) { return length / tile + (length % tile != 0 ? 1 : 0); };
  const i64 n_tiles = tiles(operands.n, fp32 ? kSimtTile : kMmaCols);
  // Products by experts take the large tile, whatever the rows are.
  const i64 m_tiles = operands.m > 0 ? tiles(operands.m, fp32 ? kSimtTile : LargeMmaTile::kRows) : 1;
  const i64 groups = operands.m > 0 ? operands.num_experts
                                    : max_expert_tiles(rows, operands.num_experts,
                                                       linear_tile_rows(dtype, rows, operands.num_experts));
  const i64 extents[] = {groups, m_tiles, n_tiles};
  const auto blocks = checked_product(extents);
  if (!blocks || *blocks > kMostLinearBlocks)
    fail(ErrorCode::ShapeOverflow, {}, "{} rows of {} experts: {} by {} by {} tiles; {} can be numbered", rows,
         operands.num_experts, groups, m_tiles, n_tiles, kMostLinearBlocks);
  return *blocks;
}

LinearOperands linear_operands(const GroupedLinear& linear, const LinearRows& rows, const void* const* table,
                               const ExpertTiles& tiles) {
  LinearOperands operands;
  operands.matrices = table;
  operands.tiles = tiles;
  operands.num_experts = static_cast<i32>(linear.num_experts);
  operands.accumulate = linear.accumulate;
  operands.b_along_k = linear.product == LinearProduct::Forward;
  switch (linear.product) {
    case LinearProduct::Forward:
      operands.a = rows.x;
      operands.c = rows.out;
      operands.n = linear.out_features;
      operands.k = linear.in_features;
      break;
    case LinearProduct::InputGrad:
      operands.a = rows.dy;
      operands.c = rows.out;
      operands.n = linear.in_features;
      operands.k = linear.out_features;
      break;
    case LinearProduct::WeightGrad:
      operands.a = rows.dy;
      operands.b = rows.x;
      operands.m = linear.out_features;
      operands.n = linear.in_features;
      break;
  }
  return operands;
}

bool is_wide(const GroupedLinear& linear, const LinearRows& rows, std::span<const void* const> matrices) {
  const i64 bytes = element_bytes(linear.dtype);
  const auto wide = [](const void* data) { return is_aligned(data, kWideBytes); };
  if (linear.in_features * bytes % kWideBytes != 0 || linear.out_features * bytes % kWideBytes != 0) return false;
  if (linear.product != LinearProduct::InputGrad && !wide(rows.x)) return false;
  if (linear.product != LinearProduct::Forward && !wide(rows.dy)) return false;
  if (linear.product != LinearProduct::WeightGrad && !wide(rows.out)) return false;
  return std::all_of(matrices.begin(), matrices.end(), wide);
}

}  // namespace glu_ckpt
