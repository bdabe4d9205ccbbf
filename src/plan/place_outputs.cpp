#include "plan/place_outputs.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/natural_order.hpp"

namespace glu_ckpt {
namespace {

/// An output's place in the source.
struct Origin {
  u32 file = 0;
  std::size_t tensor = 0;
  auto operator<=>(const Origin&) const = default;
};

Origin origin_of(const DraftOutput& draft, const Inventory& inventory) {
  if (!inventory.dense || inventory.tensors.empty()) return {};
  return {inventory.tensors[draft.origin].file, draft.origin};
}

/// Sorts the drafts as they follow each other and gives each its shard. Returns how many shards there are.
u32 assign_shards(std::vector<DraftOutput>& drafts, i64 max_shard_bytes, const Inventory& inventory,
                  std::vector<u32>& shards) {
  std::sort(drafts.begin(), drafts.end(), [&](const DraftOutput& a, const DraftOutput& b) {
    const Origin from_a = origin_of(a, inventory), from_b = origin_of(b, inventory);
    return from_a != from_b ? from_a < from_b : natural_less(a.name, b.name);
  });
  std::vector<i64> bytes_of_file(std::max<std::size_t>(1, inventory.files.size()));
  for (const DraftOutput& draft : drafts) bytes_of_file.at(origin_of(draft, inventory).file) += draft.bytes;
  shards.resize(drafts.size());
  u32 shard = 0;
  i64 filled = 0;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const u32 file = origin_of(drafts[i], inventory).file;
    const bool begins_file = i == 0 || origin_of(drafts[i - 1], inventory).file != file;
    if (filled > 0 && (begins_file ? bytes_of_file[file] : drafts[i].bytes) > max_shard_bytes - filled) {
      ++shard;
      filled = 0;
    }
    filled += drafts[i].bytes;
    shards[i] = shard;
  }
  return shard + 1;
}

const std::string& first_source(const DraftOutput& draft, const Inventory& inventory) {
  return draft.moves.empty() ? draft.name : inventory.tensors[draft.moves.front().src].name;
}

}  // namespace

void place_outputs(std::vector<DraftOutput> drafts, i64 max_shard_bytes, const Inventory& inventory, Plan& plan) {
  std::vector<u32> shards;
  plan.num_shards = assign_shards(drafts, max_shard_bytes, inventory, shards);
  std::vector<std::size_t> order(drafts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto place = [&](std::size_t i) {
    return std::tuple(shards[i], -static_cast<int>(drafts[i].dtype), origin_of(drafts[i], inventory),
                      std::string_view(drafts[i].name));
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  std::size_t moves = 0;
  for (const DraftOutput& draft : drafts) moves += draft.moves.size();
  plan.moves.reserve(moves);
  plan.outputs.reserve(drafts.size());
  i64 offset = 0;
  for (const std::size_t i : order) {
    DraftOutput& draft = drafts[i];
    if (!plan.outputs.empty() && plan.outputs.back().shard != shards[i]) offset = 0;
    plan.first_move.push_back(plan.moves.size());
    std::ranges::stable_sort(draft.moves, {}, &Move::dst_offset);
    for (Move& move : draft.moves) {
      move.dst = plan.outputs.size();
      plan.moves.push_back(move);
    }
    std::string from = first_source(draft, inventory);
    plan.outputs.push_back(
        {std::move(draft.name), draft.dtype, std::move(draft.shape), draft.bytes, shards[i], offset, std::move(from)});
    offset += draft.bytes;
    plan.bytes += draft.bytes;
  }
  plan.first_move.push_back(plan.moves.size());
}

}  // namespace glu_ckpt
