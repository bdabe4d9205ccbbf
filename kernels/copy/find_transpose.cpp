#include <cstdint>

#include "kernels/copy/transpose_copy.hpp"

namespace glu_ckpt {
namespace {

/// Shorter axes leave most of a tile empty.
constexpr i64 kShortestAxis = 8;

/// Places on an axis and tiles are numbered in 32 bits, and a grid has at most 2^31 - 1 blocks in a row.
constexpr i64 kMostNumbers = (i64{1} << 31) - 1;

bool is_element(i64 bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8; }

/// Index of the loop that steps by `step` on one side, leaving out `taken`; -1 if there is none.
int find_loop(const CopyShape& shape, i64 MoveDim::*side, i64 step, int taken) {
  for (int d = 0; d < shape.num_dims; ++d)
    if (d != taken && shape.dims[static_cast<std::size_t>(d)].*side == step) return d;
  return -1;
}

bool can_be_numbered(const TransposeShape& shape) {
  if (shape.across.count() > kMostNumbers || shape.down.count() > kMostNumbers) return false;
  const auto tiles = [](const TransposeAxis& axis) {
    return (axis.count() + kLeastTransposeTile - 1) / kLeastTransposeTile;
  };
  return shape.outer.runs() <= kMostNumbers / tiles(shape.down) / tiles(shape.across);
}

}  // namespace

std::optional<TransposeShape> find_transpose(const CopyShape& shape) {
  const i64 element = shape.run_bytes;
  if (!is_element(element) || shape.num_dims < 2) return std::nullopt;
  const auto dim = [&](int d) { return shape.dims[static_cast<std::size_t>(d)]; };
  const int across_low = find_loop(shape, &MoveDim::src_step, element, -1);
  const int down_low = find_loop(shape, &MoveDim::dst_step, element, across_low);
  if (across_low < 0 || down_low < 0) return std::nullopt;
  // The loop over F continues the pairs of gate and up on one side and the rows on the other; the shorter axis
  // needs it more.
  int across_high = find_loop(shape, &MoveDim::src_step, element * dim(across_low).count, down_low);
  int down_high = find_loop(shape, &MoveDim::dst_step, element * dim(down_low).count, across_low);
  if (across_high >= 0 && across_high == down_high)
    (dim(across_low).count <= dim(down_low).count ? down_high : across_high) = -1;

  TransposeShape result;
  result.element_bytes = element;
  result.across = {dim(across_low).count, 1, dim(across_low).dst_step, 0};
  result.down = {dim(down_low).count, 1, dim(down_low).src_step, 0};
  if (across_high >= 0) {
    result.across.high_count = dim(across_high).count;
    result.across.high_step = dim(across_high).dst_step;
  }
  if (down_high >= 0) {
    result.down.high_count = dim(down_high).count;
    result.down.high_step = dim(down_high).src_step;
  }
  if (result.across.count() < kShortestAxis || result.down.count() < kShortestAxis) return std::nullopt;
  result.outer.run_bytes = element;
  for (int d = 0; d < shape.num_dims; ++d)
    if (d != across_low && d != across_high && d != down_low && d != down_high)
      result.outer.dims[static_cast<std::size_t>(result.outer.num_dims++)] = dim(d);
  if (!can_be_numbered(result)) return std::nullopt;
  return result;
}

bool transposes_in_vectors(const TransposeShape& shape, std::span<const CopyPair> pairs) {
  const i64 per_vector = 16 / shape.element_bytes;
  if (shape.across.count() % per_vector != 0 || shape.down.count() % per_vector != 0) return false;
  u64 bits = static_cast<u64>(shape.across.low_step) | static_cast<u64>(shape.across.high_step) |
             static_cast<u64>(shape.down.low_step) | static_cast<u64>(shape.down.high_step);
  for (const MoveDim& dim : shape.outer.dims) bits |= static_cast<u64>(dim.src_step) | static_cast<u64>(dim.dst_step);
  for (const CopyPair& pair : pairs)
    bits |= reinterpret_cast<std::uintptr_t>(pair.src) | reinterpret_cast<std::uintptr_t>(pair.dst);
  return bits % 16 == 0;
}

}  // namespace glu_ckpt
