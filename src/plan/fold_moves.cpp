#include "plan/fold_moves.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace glu_ckpt {
namespace {

/// Says whether `outer` only goes on where `inner` ends, on both sides.
bool goes_on(const MoveDim& outer, const MoveDim& inner) {
  return outer.src_step == inner.count * inner.src_step && outer.dst_step == inner.count * inner.dst_step;
}

/// Says whether `outer` belongs around `inner`: the loop that leaps further on both sides does. Where the nearer sides
/// are equal, as for the blocks of an interleave (K rows on one side, 2K on the other) and the loop over gate and up (K
/// rows and F rows), gate and up go inside, so that both sides are walked with two streams and no holes. On an H200 a
/// de-interleave of [128, 5760, 2880] bf16 reaches 0.99 of a copy this way, and 0.96 sorted by target.
bool goes_around(const MoveDim& outer, const MoveDim& inner) {
  const auto reach = [](const MoveDim& dim) {
    const i64 a = std::abs(dim.src_step), b = std::abs(dim.dst_step);
    return std::pair(std::min(a, b), -std::max(a, b));
  };
  return reach(outer) > reach(inner);
}

/// Joins two loops that touch, or a loop whose runs touch with the run. Returns whether it found any.
bool join_any(CopyShape& shape) {
  const auto begin = shape.dims.begin();
  const auto end = begin + shape.num_dims;
  const auto drop = [&](auto dim) {
    std::move(dim + 1, end, dim);
    *(end - 1) = {};
    --shape.num_dims;
  };
  for (auto dim = begin; dim != end; ++dim) {
    if (dim->src_step == shape.run_bytes && dim->dst_step == shape.run_bytes) {
      shape.run_bytes *= dim->count;
      drop(dim);
      return true;
    }
    for (auto inner = begin; inner != end; ++inner)
      if (inner != dim && goes_on(*dim, *inner)) {
        inner->count *= dim->count;
        drop(dim);
        return true;
      }
  }
  return false;
}

/// One spelling for every set of runs: no loop of one, none that another continues, in one order.
void normalize(CopyShape& shape) {
  const auto begin = shape.dims.begin();
  const auto end = std::remove_if(begin, begin + shape.num_dims, [](const MoveDim& dim) { return dim.count == 1; });
  shape.num_dims = static_cast<int>(end - begin);
  std::fill(end, shape.dims.end(), MoveDim{});
  while (join_any(shape)) {
  }
  std::stable_sort(begin, begin + shape.num_dims, goes_around);
}

/// The steps of a loop over two pairs.
MoveDim step_between(const CopyPair& a, const CopyPair& b) { return {2, b.src - a.src, b.dst - a.dst}; }

/// Counts the first pairs that lie at one constant step.
std::size_t progression(std::span<const CopyPair> pairs) {
  std::size_t length = std::min<std::size_t>(pairs.size(), 2);
  while (length < pairs.size() && step_between(pairs[length - 1], pairs[length]) == step_between(pairs[0], pairs[1]))
    ++length;
  return length;
}

/// Says whether all pairs come in groups of `length` at the first group's step.
bool repeats(std::span<const CopyPair> pairs, std::size_t length) {
  const MoveDim step = step_between(pairs[0], pairs[1]);
  for (std::size_t first = 0; first < pairs.size(); first += length)
    for (std::size_t i = first + 1; i < first + length; ++i)
      if (!(step_between(pairs[i - 1], pairs[i]) == step)) return false;
  return true;
}

/// Makes loops out of pairs at regular steps, the innermost first.
void fold_pairs(CopyBatch& batch) {
  while (batch.pairs.size() > 1 && batch.shape.num_dims < kMaxCopyDims) {
    std::vector<CopyPair>& pairs = batch.pairs;
    const std::size_t length = progression(pairs);
    if (pairs.size() % length != 0 || !repeats(pairs, length)) return;
    MoveDim dim = step_between(pairs[0], pairs[1]);
    dim.count = static_cast<i64>(length);
    batch.shape.dims[static_cast<std::size_t>(batch.shape.num_dims++)] = dim;
    for (std::size_t i = 0; i * length < pairs.size(); ++i) pairs[i] = pairs[i * length];
    pairs.resize(pairs.size() / length);
    normalize(batch.shape);
  }
}

}  // namespace

i64 CopyShape::runs() const {
  i64 runs = 1;
  for (int i = 0; i < num_dims; ++i) runs *= dims[static_cast<std::size_t>(i)].count;
  return runs;
}

std::vector<CopyBatch> fold_moves(std::span<const Move> moves, std::span<const std::byte* const> srcs,
                                  std::span<std::byte* const> dsts) {
  std::vector<CopyBatch> batches;
  for (const Move& move : moves) {
    if (move.bytes() == 0) continue;
    CopyShape shape;
    std::copy(move.dims.begin(), move.dims.end(), shape.dims.begin());
    shape.num_dims = static_cast<int>(move.dims.size());
    shape.run_bytes = move.run_bytes;
    normalize(shape);
    // Plans alternate between few shapes, so the batch is among the last ones.
    const auto same =
        std::find_if(batches.rbegin(), batches.rend(), [&](const CopyBatch& batch) { return batch.shape == shape; });
    CopyBatch& batch = same == batches.rend() ? batches.emplace_back(CopyBatch{shape, {}}) : *same;
    batch.pairs.push_back({srcs[move.src] + move.src_offset, dsts[move.dst] + move.dst_offset});
  }
  for (CopyBatch& batch : batches) fold_pairs(batch);
  return batches;
}

int copy_word_bytes(const CopyBatch& batch) {
  u64 bits = static_cast<u64>(batch.shape.run_bytes);
  for (const MoveDim& dim : batch.shape.dims) bits |= static_cast<u64>(dim.src_step) | static_cast<u64>(dim.dst_step);
  for (const CopyPair& pair : batch.pairs)
    bits |= reinterpret_cast<std::uintptr_t>(pair.src) | reinterpret_cast<std::uintptr_t>(pair.dst);
  for (const int word : {16, 8, 4, 2})
    if (bits % static_cast<u64>(word) == 0) return word;
  return 1;
}

}  // namespace glu_ckpt
