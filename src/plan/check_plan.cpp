/// Proves a plan without enumerating its bytes.
///
/// The bytes that a move touches in one tensor are a lattice of runs: an offset, loops of (count, step)
/// and a run length. Two rules rewrite a set of lattices into an equal set of bytes: a loop whose step
/// is the run length folds into a longer run, and lattices of equal loops whose runs are adjacent
/// become one. If a tensor's lattices end as one run that covers it, every byte is touched; as the byte
/// counts of the moves add up to the tensor's size, each is touched exactly once.

#include <algorithm>
#include <numeric>

#include "core/fail.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {
namespace {

struct Loop {
  i64 count = 1;
  i64 step = 0;
  auto operator<=>(const Loop&) const = default;
};

struct Lattice {
  std::array<Loop, 4> loops{};
  i64 offset = 0;
  i64 run = 0;

  /// Folds loops into the run and into each other, outermost first.
  void fold() {
    for (bool changed = true; changed;) {
      changed = false;
      std::sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) { return a.step > b.step; });
      for (std::size_t i = 0; i < loops.size(); ++i) {
        Loop& loop = loops[i];
        if (loop.count == 1) {
          loop.step = 0;
        } else if (loop.step == run) {
          run *= loop.count;
          loop = {};
          changed = true;
        } else if (i + 1 < loops.size() && loops[i + 1].count > 1 &&
                   loop.step == loops[i + 1].count * loops[i + 1].step) {
          loops[i + 1].count *= loop.count;
          loop = {};
          changed = true;
        }
      }
    }
    std::sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) { return a.step > b.step; });
  }
};

/// Merges adjacent lattices of equal loops; returns whether any merged.
bool merge_adjacent(std::vector<Lattice>& set) {
  std::sort(set.begin(), set.end(), [](const Lattice& a, const Lattice& b) {
    return a.loops != b.loops ? a.loops < b.loops : a.offset < b.offset;
  });
  std::vector<Lattice> merged;
  for (const Lattice& lattice : set) {
    const bool adjacent = !merged.empty() && merged.back().loops == lattice.loops &&
                          merged.back().offset + merged.back().run == lattice.offset;
    if (adjacent)
      merged.back().run += lattice.run;
    else
      merged.push_back(lattice);
  }
  const bool any = merged.size() < set.size();
  set = std::move(merged);
  return any;
}

/// Whether the lattices tile [0, bytes).
bool tiles(std::vector<Lattice> set, i64 bytes) {
  do {
    for (Lattice& lattice : set) lattice.fold();
  } while (merge_adjacent(set));
  for (Lattice& lattice : set) lattice.fold();
  if (set.empty()) return bytes == 0;
  return set.size() == 1 && set.front().offset == 0 && set.front().run == bytes &&
         set.front().loops == std::array<Loop, 4>{};
}

Lattice side(const Move& move, bool destination) {
  Lattice lattice;
  lattice.offset = destination ? move.dst_offset : move.src_offset;
  lattice.run = move.run_bytes;
  for (std::size_t i = 0; i < move.dims.size(); ++i)
    lattice.loops[i] = {move.dims[i].count, destination ? move.dims[i].dst_step : move.dims[i].src_step};
  return lattice;
}

void check_tensor(const std::vector<const Move*>& moves, bool destination, const std::string& name, i64 bytes) {
  i64 total = 0;
  std::vector<Lattice> set;
  set.reserve(moves.size());
  for (const Move* move : moves) {
    total += move->bytes();
    set.push_back(side(*move, destination));
  }
  if (total == bytes && tiles(std::move(set), bytes)) return;
  fail(ErrorCode::PlanUnproved, {{}, name},
       "'{}': {} moves of {} bytes do not {} each of its {} bytes exactly once; nothing was written. Please report "
       "this layout",
       name, moves.size(), total, destination ? "write" : "read", bytes);
}

void check_unread(const std::vector<const Move*>& moves, const std::string& name) {
  if (moves.empty()) return;
  fail(ErrorCode::PlanUnproved, {{}, name}, "'{}' is to be left out, but {} moves read it; nothing was written", name,
       moves.size());
}

}  // namespace

void check_plan(const Inventory& inventory, const Plan& plan) {
  std::vector<const Move*> of_tensor;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    of_tensor.clear();
    for (std::size_t m = plan.first_move[t]; m < plan.first_move[t + 1]; ++m) of_tensor.push_back(&plan.moves[m]);
    check_tensor(of_tensor, true, plan.outputs[t].name, plan.outputs[t].bytes);
  }
  std::vector<const Move*> by_source(plan.moves.size());
  for (std::size_t m = 0; m < plan.moves.size(); ++m) by_source[m] = &plan.moves[m];
  std::stable_sort(by_source.begin(), by_source.end(), [](const Move* a, const Move* b) { return a->src < b->src; });
  auto next = by_source.begin();
  for (std::size_t s = 0; s < inventory.tensors.size(); ++s) {
    of_tensor.clear();
    while (next != by_source.end() && (*next)->src == s) of_tensor.push_back(*next++);
    if (std::ranges::binary_search(plan.dropped, s)) {
      check_unread(of_tensor, inventory.tensors[s].name);
      continue;
    }
    check_tensor(of_tensor, false, inventory.tensors[s].name, inventory.tensors[s].bytes);
  }
}

}  // namespace glu_ckpt
