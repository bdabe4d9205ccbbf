#include <algorithm>
#include <span>
#include <tuple>

#include "core/compare_names.hpp"
#include "plan/clone_parts.hpp"
#include "plan/draft_outputs.hpp"
#include "plan/join_moves.hpp"

namespace glu_ckpt {
namespace {

/// An output's place in the source.
struct Origin {
  u32 file = 0;
  std::size_t tensor = 0;
  // clang-tidy 14 takes a zero that the compiler makes here for a null pointer.
  auto operator<=>(const Origin&) const = default;  // NOLINT(modernize-use-nullptr)
};

Origin origin_of(const DraftOutput& draft, const Inventory& inventory) {
  if (!inventory.dense || inventory.tensors.empty()) return {};
  return {inventory.tensors[draft.origin].file, draft.origin};
}

/// All that a draft's place depends on. It is read once, since sorting compares each of two hundred thousand drafts
/// many times.
struct DraftPlace {
  Origin origin;
  u32 shard = 0;
  /// Larger dtypes come first.
  int dtype_rank = 0;
  std::size_t draft = 0;
};

/// Sorts drafts of one origin, such as the experts of a layer, by their names as people count.
void sort_naturally(std::span<DraftPlace> places, const std::vector<DraftOutput>& drafts) {
  struct Named {
    std::string key;
    DraftPlace place;
  };
  std::vector<Named> named;
  named.reserve(places.size());
  for (const DraftPlace& place : places) named.push_back({natural_key(drafts[place.draft].name), place});
  std::ranges::sort(named, {}, [&](const Named& one) { return std::tie(one.key, drafts[one.place.draft].name); });
  std::ranges::transform(named, places.begin(), &Named::place);
}

/// The drafts in the source's order.
std::vector<DraftPlace> places_of(const std::vector<DraftOutput>& drafts, const Inventory& inventory) {
  std::vector<DraftPlace> places;
  places.reserve(drafts.size());
  for (std::size_t i = 0; i < drafts.size(); ++i)
    places.push_back({origin_of(drafts[i], inventory), 0, -static_cast<int>(drafts[i].dtype), i});
  std::ranges::sort(places, {}, &DraftPlace::origin);
  for (auto first = places.begin(); first != places.end();) {
    const auto last = std::ranges::find_if(first, places.end(),
                                           [&](const DraftPlace& place) { return place.origin != first->origin; });
    if (last - first > 1) sort_naturally({first, last}, drafts);
    first = last;
  }
  return places;
}

/// Gives each place its shard. Returns how many shards there are.
u32 assign_shards(const std::vector<DraftOutput>& drafts, i64 max_shard_bytes, const Inventory& inventory,
                  std::vector<DraftPlace>& places) {
  std::vector<i64> bytes_of_file(std::max<std::size_t>(1, inventory.files.size()));
  for (const DraftPlace& place : places) bytes_of_file.at(place.origin.file) += drafts[place.draft].bytes;
  u32 shard = 0;
  i64 filled = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const u32 file = places[i].origin.file;
    const i64 bytes = drafts[places[i].draft].bytes;
    const bool begins_file = i == 0 || places[i - 1].origin.file != file;
    if (filled > 0 && (begins_file ? bytes_of_file[file] : bytes) > max_shard_bytes - filled) {
      ++shard;
      filled = 0;
    }
    filled += bytes;
    places[i].shard = shard;
  }
  return shard + 1;
}

const std::string& first_source(const DraftOutput& draft, const Inventory& inventory) {
  if (draft.compute) return inventory.tensors[draft.compute->src].name;
  return draft.moves.empty() ? draft.name : inventory.tensors[draft.moves.front().src].name;
}

constexpr i64 kPhaseStep = 8;
constexpr std::size_t kNumPhases = kDataPhaseBytes / kPhaseStep;

/// The bytes that one phase would let the file system share.
struct PhaseScore {
  i64 in_long_runs = 0;
  i64 in_all_runs = 0;
  // clang-tidy 14 takes a zero that the compiler makes here for a null pointer.
  auto operator<=>(const PhaseScore&) const = default;  // NOLINT(modernize-use-nullptr)
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

i64 usual_shard_bytes(i64 output_bytes) {
  constexpr i64 kGigabyte = 1'000'000'000, kFiles = 16;
  return output_bytes <= 5 * kGigabyte ? 5 * kGigabyte : std::clamp(output_bytes / kFiles, kGigabyte, 5 * kGigabyte);
}

void place_outputs(std::vector<DraftOutput> drafts, i64 max_shard_bytes, const Inventory& inventory, Plan& plan) {
  std::vector<DraftPlace> places = places_of(drafts, inventory);
  i64 output_bytes = 0;
  for (const DraftOutput& draft : drafts) output_bytes += draft.bytes;
  const i64 shard_bytes = max_shard_bytes > 0 ? max_shard_bytes : usual_shard_bytes(output_bytes);
  plan.num_shards = assign_shards(drafts, shard_bytes, inventory, places);
  std::ranges::sort(places, {}, [&](const DraftPlace& place) {
    return std::tie(place.shard, place.dtype_rank, place.origin, drafts[place.draft].name);
  });
  std::size_t moves = 0;
  for (const DraftOutput& draft : drafts) moves += draft.moves.size();
  plan.moves.reserve(moves);
  plan.outputs.reserve(drafts.size());
  i64 offset = 0;
  for (const DraftPlace& place : places) {
    DraftOutput& draft = drafts[place.draft];
    if (!plan.outputs.empty() && plan.outputs.back().shard != place.shard) offset = 0;
    plan.first_move.push_back(plan.moves.size());
    if (!std::ranges::is_sorted(draft.moves, {}, &Move::dst_offset))
      std::ranges::stable_sort(draft.moves, {}, &Move::dst_offset);
    for (Move& move : draft.moves) {
      move.dst = plan.outputs.size();
      plan.moves.push_back(move);
    }
    if (draft.compute) plan.computes.push_back({draft.compute->src, plan.outputs.size(), draft.compute->op});
    if (draft.repeats) plan.repeats.push_back(plan.outputs.size());
    if (draft.zeros) plan.zeros.push_back(plan.outputs.size());
    std::string from = first_source(draft, inventory);
    std::vector<Move>().swap(draft.moves);
    plan.outputs.push_back({std::move(draft.name), draft.dtype, std::move(draft.shape), draft.bytes, place.shard,
                            offset, std::move(from)});
    offset += draft.bytes;
    plan.bytes += draft.bytes;
  }
  plan.first_move.push_back(plan.moves.size());
}

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
