#include "plan/join_moves.hpp"

#include <algorithm>
#include <tuple>

namespace glu_ckpt {
namespace {

/// Equal for moves whose runs follow each other all through the loops, if the first ones do.
auto loops_of(const Move& move) {
  std::array<std::tuple<i64, i64, i64>, 4> loops;
  for (std::size_t l = 0; l < loops.size(); ++l)
    loops[l] = {move.dims[l].count, move.dims[l].src_step, move.dims[l].dst_step};
  return std::tuple(move.dst, move.src, loops);
}

/// Puts the longest dst_step first and loops of one iteration last. It sorts by insertion, since a library's stable
/// sort allocates memory even for four loops.
void sort_loops(std::array<MoveDim, 4>& dims) {
  const auto before = [](const MoveDim& a, const MoveDim& b) {
    if ((a.count == 1) != (b.count == 1)) return b.count == 1;
    return a.dst_step > b.dst_step;
  };
  for (std::size_t i = 1; i < dims.size(); ++i)
    for (std::size_t j = i; j > 0 && before(dims[j], dims[j - 1]); --j) std::swap(dims[j], dims[j - 1]);
}

bool continues(const Move& move, const Move& next) {
  return next.src_offset == move.src_offset + move.run_bytes && next.dst_offset == move.dst_offset + move.run_bytes &&
         loops_of(move) == loops_of(next);
}

}  // namespace

void fold_loops(Move& move) {
  auto& dims = move.dims;
  for (bool changed = true; changed;) {
    changed = false;
    sort_loops(dims);
    for (MoveDim& dim : dims)
      if (dim.count > 1 && dim.src_step == move.run_bytes && dim.dst_step == move.run_bytes) {
        move.run_bytes *= dim.count;
        dim = {};
        changed = true;
      }
    for (std::size_t i = 0; i + 1 < dims.size(); ++i) {
      MoveDim& outer = dims[i];
      MoveDim& inner = dims[i + 1];
      if (inner.count == 1 || outer.src_step != inner.count * inner.src_step ||
          outer.dst_step != inner.count * inner.dst_step)
        continue;
      inner.count *= outer.count;
      outer = {};
      changed = true;
    }
  }
  for (MoveDim& dim : dims)
    if (dim.count == 1) dim = {};
}

std::vector<Move> join_moves(std::span<const Move> moves) {
  std::vector<Move> joined(moves.begin(), moves.end());
  for (Move& move : joined) fold_loops(move);
  for (std::size_t before = joined.size() + 1; joined.size() < before;) {
    before = joined.size();
    std::ranges::sort(joined, {}, [](const Move& move) { return std::tuple(loops_of(move), move.dst_offset); });
    std::size_t last = 0;
    for (std::size_t i = 1; i < joined.size(); ++i)
      if (continues(joined[last], joined[i]))
        joined[last].run_bytes += joined[i].run_bytes;
      else
        joined[++last] = joined[i];
    joined.resize(std::min(joined.size(), last + 1));
    if (joined.size() < before)
      for (Move& move : joined) fold_loops(move);
  }
  std::ranges::sort(joined, {}, [](const Move& move) { return std::tuple(move.src, move.dst_offset); });
  return joined;
}

}  // namespace glu_ckpt
