/// Moves in host memory: folded as for a GPU, then transposed in tiles or copied run by run.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "exec/backends.hpp"
#include "exec/host_transpose.hpp"
#include "kernels/copy/transpose_copy.hpp"
#include "plan/fold_moves.hpp"

namespace glu_ckpt {
namespace {

/// Calls `use` with where every iteration of dims [first, num_dims) begins, `src` and `dst` being that of the first.
template <typename Use>
void for_each_place(const CopyShape& shape, int first, const std::byte* src, std::byte* dst, const Use& use) {
  if (first >= shape.num_dims) return use(src, dst);
  const MoveDim& dim = shape.dims[static_cast<std::size_t>(first)];
  for (i64 i = 0; i < dim.count; ++i)
    for_each_place(shape, first + 1, src + i * dim.src_step, dst + i * dim.dst_step, use);
}

/// A transpose and the loops around it.
struct LoopedTranspose {
  HostTranspose transpose;
  CopyShape outer;
};

std::vector<i64> row_offsets(const TransposeAxis& axis) {
  std::vector<i64> offsets;
  offsets.reserve(static_cast<std::size_t>(axis.count()));
  for (i64 high = 0; high < axis.high_count; ++high)
    for (i64 low = 0; low < axis.low_count; ++low) offsets.push_back(high * axis.high_step + low * axis.low_step);
  return offsets;
}

/// Elements with gaps between them on either side, such as gate alone out of both in turn: the two loops with the
/// shortest steps, one on each side.
std::optional<LoopedTranspose> transpose_with_gaps(const CopyShape& shape) {
  const auto begin = shape.dims.begin();
  const auto end = begin + shape.num_dims;
  const auto shortest = [&](i64 MoveDim::*side) {
    return std::min_element(
        begin, end, [side](const MoveDim& a, const MoveDim& b) { return std::abs(a.*side) < std::abs(b.*side); });
  };
  const auto across = shortest(&MoveDim::src_step), down = shortest(&MoveDim::dst_step);
  if (across == down) return std::nullopt;
  LoopedTranspose found{{shape.run_bytes, row_offsets({down->count, 1, down->src_step, 0}),
                         row_offsets({across->count, 1, across->dst_step, 0}), across->src_step, down->dst_step},
                        {}};
  for (auto dim = begin; dim != end; ++dim)
    if (dim != across && dim != down) found.outer.dims[static_cast<std::size_t>(found.outer.num_dims++)] = *dim;
  return found;
}

std::optional<LoopedTranspose> find_looped_transpose(const CopyShape& shape) {
  const i64 element = shape.run_bytes;
  if ((element != 1 && element != 2 && element != 4 && element != 8) || shape.num_dims < 2) return std::nullopt;
  if (const auto dense = find_transpose(shape))
    return LoopedTranspose{{element, row_offsets(dense->down), row_offsets(dense->across), element, element},
                           dense->outer};
  return transpose_with_gaps(shape);
}

/// The innermost loop of a shape that is no transpose, with a length that the compiler knows where `kBytes` is not 0.
template <i64 kBytes>
void copy_runs(const CopyShape& shape, const CopyPair& pair) {
  CopyShape outer = shape;
  const MoveDim inner = shape.num_dims == 0 ? MoveDim{} : outer.dims[static_cast<std::size_t>(--outer.num_dims)];
  const auto bytes = static_cast<std::size_t>(kBytes > 0 ? kBytes : shape.run_bytes);
  for_each_place(outer, 0, pair.src, pair.dst, [&](const std::byte* src, std::byte* dst) {
    for (i64 i = 0; i < inner.count; ++i) std::memcpy(dst + i * inner.dst_step, src + i * inner.src_step, bytes);
  });
}

void copy_pair(const CopyShape& shape, const CopyPair& pair) {
  switch (shape.run_bytes) {
    case 1: return copy_runs<1>(shape, pair);
    case 2: return copy_runs<2>(shape, pair);
    case 4: return copy_runs<4>(shape, pair);
    case 8: return copy_runs<8>(shape, pair);
    default: return copy_runs<0>(shape, pair);
  }
}

}  // namespace

void copy_in_host(std::span<const Move> moves, const std::byte* src, std::byte* dst) {
  // The moves are taken in the order of the target, in which gate and up of one expert follow each other: then they
  // become one loop.
  std::vector<Move> sorted(moves.begin(), moves.end());
  for (Move& move : sorted) move.src = move.dst = 0;
  std::ranges::stable_sort(sorted, {}, &Move::dst_offset);
  for (const CopyBatch& batch : fold_moves(sorted, std::span(&src, 1), std::span(&dst, 1))) {
    const auto looped = find_looped_transpose(batch.shape);
    for (const CopyPair& pair : batch.pairs)
      if (looped)
        for_each_place(looped->outer, 0, pair.src, pair.dst, [&](const std::byte* from, std::byte* to) {
          transpose_in_host(looped->transpose, from, to, simd_levels().front());
        });
      else
        copy_pair(batch.shape, pair);
  }
}

}  // namespace glu_ckpt
