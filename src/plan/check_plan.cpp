/// Proves a plan without enumerating its bytes.
///
/// The bytes that a move touches in one tensor are a lattice of runs: an offset, loops of (count, step)
/// and a run length. Two rules rewrite a set of lattices into an equal set of bytes: a loop whose step
/// is the run length folds into a longer run, and lattices of equal loops whose runs are adjacent
/// become one. If a tensor's lattices end as one run that covers it, every byte is touched; as the byte
/// counts of the moves add up to the tensor's size, each is touched exactly once.

#include <algorithm>
#include <numeric>
#include <span>

#include "core/fail.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {
namespace {

struct Loop {
  i64 count = 1;
  i64 step = 0;
  auto operator<=>(const Loop&) const = default;  // NOLINT(modernize-use-nullptr)
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
  if (set.size() < 2) return false;
  std::sort(set.begin(), set.end(), [](const Lattice& a, const Lattice& b) {
    return a.loops != b.loops ? a.loops < b.loops : a.offset < b.offset;
  });
  std::size_t last = 0;
  for (std::size_t i = 1; i < set.size(); ++i)
    if (set[last].loops == set[i].loops && set[last].offset + set[last].run == set[i].offset)
      set[last].run += set[i].run;
    else
      set[++last] = set[i];
  const bool any = last + 1 < set.size();
  set.resize(last + 1);
  return any;
}

/// Returns whether the lattices tile [0, bytes), and rewrites them.
bool tiles(std::vector<Lattice>& set, i64 bytes) {
  do {
    for (Lattice& lattice : set) lattice.fold();
  } while (merge_adjacent(set));
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

/// Checks one tensor after the other, with memory that it uses again for each.
class TensorChecker {
 public:
  explicit TensorChecker(bool destination) : destination_(destination) {}

  void add(const Move& move) {
    total_ += move.bytes();
    ++moves_;
    set_.push_back(side(move, destination_));
  }

  /// Checks the moves that were added since the last call. Throws PlanUnproved.
  void check(const std::string& name, i64 bytes) {
    if (total_ != bytes || !tiles(set_, bytes))
      fail(ErrorCode::PlanUnproved, {{}, name},
           "'{}': {} moves of {} bytes do not {} each of its {} bytes exactly once; nothing was written. Please report "
           "this layout",
           name, moves_, total_, destination_ ? "write" : "read", bytes);
    set_.clear();
    total_ = moves_ = 0;
  }

 private:
  bool destination_;
  std::vector<Lattice> set_;
  i64 total_ = 0;
  i64 moves_ = 0;
};

void check_unread(std::span<const u32> moves, const std::string& name) {
  if (moves.empty()) return;
  fail(ErrorCode::PlanUnproved, {{}, name}, "'{}' is to be left out, but {} moves read it; nothing was written", name,
       moves.size());
}

/// A computed output has no moves, and as many elements as what it is computed from.
void check_compute(const Inventory& inventory, const Plan& plan, const Compute& compute) {
  const OutputTensor& output = plan.outputs.at(compute.dst);
  const TensorRef& source = inventory.tensors.at(compute.src);
  const bool moved = plan.first_move[compute.dst] != plan.first_move[compute.dst + 1];
  if (moved || output.bytes / dtype_bits(output.dtype) != source.bytes / dtype_bits(source.dtype))
    fail(ErrorCode::PlanUnproved, {{}, output.name},
         "'{}' of {} bytes cannot be computed from '{}' of {} bytes; nothing was written", output.name, output.bytes,
         source.name, source.bytes);
}

void check_of_nothing(const Plan& plan, std::size_t output) {
  const std::size_t moves = plan.first_move[output + 1] - plan.first_move[output];
  if (moves == 0) return;
  const std::string& name = plan.outputs[output].name;
  fail(ErrorCode::PlanUnproved, {{}, name}, "'{}' is to be zero, but {} moves write to it; nothing was written", name,
       moves);
}

/// The moves of a plan by the tensor that they read.
class MovesBySource {
 public:
  MovesBySource(const Plan& plan, std::size_t tensors) : first_(tensors + 1), moves_(plan.moves.size()) {
    for (const Move& move : plan.moves) {
      if (move.src >= tensors)
        fail(ErrorCode::PlanUnproved, {}, "a move reads tensor {} of {}; nothing was written", move.src, tensors);
      ++first_[move.src + 1];
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    std::vector<u32> next(first_.begin(), first_.end() - 1);
    for (std::size_t m = 0; m < plan.moves.size(); ++m) moves_[next[plan.moves[m].src]++] = static_cast<u32>(m);
  }

  std::span<const u32> of(std::size_t tensor) const {
    return std::span(moves_).subspan(first_[tensor], first_[tensor + 1] - first_[tensor]);
  }

 private:
  std::vector<u32> first_;
  std::vector<u32> moves_;
};

}  // namespace

void check_plan(const Inventory& inventory, const Plan& plan) {
  TensorChecker written(true);
  std::vector<std::size_t> computed, computed_from;
  for (const Compute& compute : plan.computes) {
    check_compute(inventory, plan, compute);
    computed.push_back(compute.dst);
    computed_from.push_back(compute.src);
  }
  std::ranges::sort(computed_from);
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    if (std::ranges::binary_search(computed, t)) continue;
    if (std::ranges::binary_search(plan.zeros, t)) {
      check_of_nothing(plan, t);
      continue;
    }
    for (std::size_t m = plan.first_move[t]; m < plan.first_move[t + 1]; ++m) written.add(plan.moves[m]);
    written.check(plan.outputs[t].name, plan.outputs[t].bytes);
  }
  const MovesBySource by_source(plan, inventory.tensors.size());
  TensorChecker read(false);
  for (std::size_t s = 0; s < inventory.tensors.size(); ++s) {
    const std::string& name = inventory.tensors[s].name;
    if (std::ranges::binary_search(plan.dropped, s)) {
      check_unread(by_source.of(s), name);
      continue;
    }
    if (std::ranges::binary_search(computed_from, s)) {
      check_unread(by_source.of(s), name);
      continue;
    }
    for (const u32 m : by_source.of(s))
      if (!std::ranges::binary_search(plan.repeats, plan.moves[m].dst)) read.add(plan.moves[m]);
    const auto cut = std::ranges::lower_bound(plan.cuts, s, {}, &CutTensor::tensor);
    const bool is_cut = cut != plan.cuts.end() && cut->tensor == s;
    read.check(name, is_cut ? cut->bytes : inventory.tensors[s].bytes);
  }
}

}  // namespace glu_ckpt
