/// (Inventory, Recognition, options) -> Plan: which tensors to write, in which shard, from which bytes.

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "core/fail.hpp"
#include "core/natural_order.hpp"
#include "plan/target_block.hpp"

namespace glu_ckpt {
namespace {

DraftOutput pass_through(const TensorRef& tensor, std::size_t index) {
  DraftOutput output{tensor.name, tensor.dtype, tensor.shape, tensor.bytes, {}};
  if (tensor.bytes > 0) {
    Move move;
    move.src = index;
    move.run_bytes = tensor.bytes;
    output.moves.push_back(move);
  }
  return output;
}

void check_unique(const std::vector<DraftOutput>& outputs) {
  std::unordered_set<std::string_view> names;
  names.reserve(outputs.size());
  for (const DraftOutput& output : outputs)
    if (!names.insert(output.name).second)
      fail(ErrorCode::NameCollision, {{}, output.name}, "two output tensors would be called '{}'", output.name);
}

/// Whether nothing would change but the sharding.
bool is_identity(const std::vector<DraftOutput>& outputs, const Inventory& inventory) {
  return std::ranges::all_of(outputs, [&](const DraftOutput& output) {
    if (output.moves.empty()) return true;
    i64 copied = 0;
    const std::size_t src = output.moves.front().src;
    for (const Move& move : output.moves) {
      if (move.src != src || move.src_offset != move.dst_offset) return false;
      for (const MoveDim& dim : move.dims)
        if (dim.src_step != dim.dst_step) return false;
      copied += move.bytes();
    }
    const TensorRef& tensor = inventory.tensors[src];
    return tensor.name == output.name && tensor.shape == output.shape && copied == tensor.bytes;
  });
}

/// Greedy in natural order of names, as the hub's writers do, so that a layer stays together; within a
/// shard in the reference writer's order: dtype rank descending, then name.
u32 assign_shards(std::vector<DraftOutput>& drafts, i64 max_shard_bytes, std::vector<u32>& shards) {
  std::sort(drafts.begin(), drafts.end(),
            [](const DraftOutput& a, const DraftOutput& b) { return natural_less(a.name, b.name); });
  shards.resize(drafts.size());
  u32 shard = 0;
  i64 filled = 0;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    if (filled > 0 && drafts[i].bytes > max_shard_bytes - filled) {
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

void place_outputs(std::vector<DraftOutput> drafts, i64 max_shard_bytes, const Inventory& inventory, Plan& plan) {
  std::vector<u32> shards;
  plan.num_shards = assign_shards(drafts, max_shard_bytes, shards);
  std::vector<std::size_t> order(drafts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (shards[a] != shards[b]) return shards[a] < shards[b];
    if (drafts[a].dtype != drafts[b].dtype) return drafts[a].dtype > drafts[b].dtype;
    return drafts[a].name < drafts[b].name;
  });
  i64 offset = 0;
  for (const std::size_t i : order) {
    DraftOutput& draft = drafts[i];
    if (!plan.outputs.empty() && plan.outputs.back().shard != shards[i]) offset = 0;
    plan.first_move.push_back(plan.moves.size());
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

void note_foreign_form(const ExpertBlock& block, const BlockTarget& target, Plan& plan) {
  if (block.glu.kind == Glu::Kind::None) return;
  const bool fused = target.glu.kind != Glu::Kind::Split;
  const std::string form =
      fmt::format("{} experts as {}, {}", to_string(block.set), to_string(target.experts), to_string(target.glu));
  std::string note;
  if (!is_native(*target.naming, block.set, target.experts, fused)) {
    note = fmt::format("{}: software that reads {} does not store them so", form, target.naming->name);
  } else if (const Glu fixed = fixed_glu(*target.naming);
             fused && fixed.kind != Glu::Kind::Unknown && block.set == ExpertSet::Routed && target.glu != fixed) {
    note = fmt::format("{}: software that reads {} expects {} under these names and cannot see the difference", form,
                       target.naming->name, to_string(fixed));
  }
  if (!note.empty() && std::ranges::find(plan.notes, note) == plan.notes.end()) plan.notes.push_back(std::move(note));
}

void describe_target(const ExpertBlock& block, const BlockTarget& target, LayoutAnswers& to) {
  // Where packed and per-expert layers are mixed, the answer is about the packed ones.
  const bool fused = target.glu.kind != Glu::Kind::Split;
  if (block.set == ExpertSet::Shared) {
    if (!to.shared_glu || fused) to.shared_glu = target.glu;
    return;
  }
  const std::string experts(to_string(target.experts));
  if (to.experts.empty()) {
    to.experts = experts;
    to.glu = target.glu;
  } else if (to.experts != experts) {
    to.experts = "mixed";
  }
  if (fused) to.glu = target.glu;
}

[[noreturn]] void fail_unexplained(const Inventory& inventory, const Recognition& from) {
  const std::string& name = inventory.tensors[from.unexplained.front()].name;
  fail(ErrorCode::UnexplainedKey, {{}, name},
       "'{}' looks like part of an expert, but {}; moving the weights would leave it behind. Quantized formats whose "
       "scales this version does not know must be dequantized first",
       name,
       from.naming != nullptr ? "naming " + from.layout.naming + " does not explain it" : "no naming explains it");
}

}  // namespace

Plan make_plan(const Inventory& inventory, const Recognition& from, const PlanOptions& options) {
  Plan plan;
  plan.from = from.layout;
  plan.to.naming = options.to.naming.value_or(from.layout.naming);
  plan.to.glu_source = "option";
  if (from.blocks.empty() && !from.unexplained.empty()) fail_unexplained(inventory, from);
  if (from.blocks.empty())
    fail(ErrorCode::NoExperts, {}, "no expert tensors were recognized, so there is no layout to change");
  std::vector<DraftOutput> drafts;
  drafts.reserve(inventory.tensors.size());
  for (const ExpertBlock& block : from.blocks) {
    const BlockTarget target = make_target(block, from, options.to);
    add_block_outputs(block, target, inventory, drafts);
    describe_target(block, target, plan.to);
    note_foreign_form(block, target, plan);
  }
  for (const std::size_t index : from.others) drafts.push_back(pass_through(inventory.tensors[index], index));
  const bool identity = is_identity(drafts, inventory);
  if (identity && !options.force)
    fail(ErrorCode::AlreadyInLayout, {}, "the source is {} {} {} already; --force copies it all the same",
         plan.to.naming, plan.to.experts, to_string(plan.to.glu));
  if (!identity && !from.unexplained.empty()) fail_unexplained(inventory, from);
  check_unique(drafts);
  place_outputs(std::move(drafts), options.max_shard_bytes, inventory, plan);
  if (plan.to.naming != plan.from.naming)
    plan.notes.push_back("only expert tensors are renamed; everything else keeps its name");
  return plan;
}

}  // namespace glu_ckpt
