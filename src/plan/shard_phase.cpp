#include "plan/shard_phase.hpp"

#include <algorithm>

#include "plan/clone_parts.hpp"
#include "plan/join_moves.hpp"
#include "plan/run_phase.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kPhaseStep = 8;
constexpr std::size_t kNumPhases = kDataPhaseBytes / kPhaseStep;

/// The bytes that one phase would let the file system share.
struct PhaseScore {
  i64 in_long_runs = 0;
  i64 in_all_runs = 0;
  auto operator<=>(const PhaseScore&) const = default;
};

using PhaseScores = std::array<PhaseScore, kNumPhases>;

/// The bytes of whole blocks in one run: those of the first run where all runs lie alike in their blocks, else the
/// least that any run has.
i64 shareable_bytes(const Move& move, i64 src_at) {
  const bool alike =
      std::ranges::all_of(move.dims, [](const MoveDim& dim) { return dim.src_step % kDataPhaseBytes == 0; });
  if (alike) return whole_blocks(src_at + move.src_offset, move.run_bytes, kDataPhaseBytes).bytes();
  return std::max<i64>(0, (move.run_bytes + 1) / kDataPhaseBytes - 1) * kDataPhaseBytes;
}

void add_score(const Move& move, i64 src_at, i64 dst_at, PhaseScores& scores) {
  if (move.run_bytes < kDataPhaseBytes) return;
  const auto phase = run_phase(move, src_at, dst_at, kDataPhaseBytes);
  if (!phase || *phase % kPhaseStep != 0) return;
  PhaseScore& score = scores[static_cast<std::size_t>(*phase / kPhaseStep)];
  const i64 bytes = shareable_bytes(move, src_at);
  if (CloneLimits{}.accept(bytes, move.run_bytes)) score.in_long_runs += bytes * move.runs();
  score.in_all_runs += bytes * move.runs();
}

}  // namespace

std::vector<i64> choose_data_phases(const Inventory& inventory, const Plan& plan) {
  if (!inventory.dense) return std::vector<i64>(plan.num_shards, 0);
  std::vector<i64> phases;
  phases.reserve(plan.num_shards);
  std::size_t t = 0;
  for (u32 shard = 0; shard < plan.num_shards; ++shard) {
    PhaseScores scores{};
    for (; t < plan.outputs.size() && plan.outputs[t].shard == shard; ++t) {
      const auto moves = std::span(plan.moves).subspan(plan.first_move[t], plan.first_move[t + 1] - plan.first_move[t]);
      for (const Move& move : join_moves(moves))
        add_score(move, inventory.tensors[move.src].offset, plan.outputs[t].offset, scores);
    }
    // The first phase is taken of equal scores.
    phases.push_back(kPhaseStep * (std::ranges::max_element(scores) - scores.begin()));
  }
  return phases;
}

}  // namespace glu_ckpt
