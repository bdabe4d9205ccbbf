#include "plan/expert_targets.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "arch/dense_table.hpp"
#include "core/fail.hpp"
#include "layout/expert_block.hpp"
#include "layout/key_pattern.hpp"
#include "layout/unknown_orders.hpp"

namespace glu_ckpt {
namespace {

// ---- one block --------------------------------------------------------------------------------

std::string_view option_for(const ExpertBlock& block) {
  if (block.set == ExpertSet::Shared) return "--from-shared-glu";
  return block.is_optimizer_state() ? "--from-optimizer-glu" : "--from-glu";
}

void check_glu_change(const ExpertBlock& block, const Glu& asked) {
  if (block.glu.kind == Glu::Kind::None)
    fail(ErrorCode::NotGated, {}, "{} have no gate (FC1 and FC2 are of one width), so there is nothing to make {}",
         block_text(block), to_string(asked));
  if (block.glu.kind == Glu::Kind::Unknown)
    throw Error(ErrorCode::UnknownGlu, block_text(block) + ": nothing says in which order FC1 holds gate and up")
        .with_missing_options({std::string(option_for(block))});
}

/// The answers for one layer: those for all, or the form that it once had.
TargetAnswers answers_for(const ExpertBlock& block, const TargetAnswers& to, const ExpertForms& forms) {
  const auto form = block.set == ExpertSet::Routed ? forms.find(layer_label(block)) : forms.end();
  if (form == forms.end()) return to;
  TargetAnswers own = to;
  own.experts = form->second.experts;
  own.glu = form->second.glu;
  return own;
}

/// Decides all but the key prefix and whether layers share tensors.
BlockTarget make_target(const ExpertBlock& block, const Recognition& from, const TargetAnswers& for_all,
                        const ExpertForms& forms) {
  const TargetAnswers to = answers_for(block, for_all, forms);
  BlockTarget target;
  const Naming* asked = to.naming ? find_naming(*to.naming) : from.naming;
  if (asked == nullptr)
    fail(ErrorCode::UnknownNaming, {}, "'{}' is not a naming; `glu-ckpt layouts` lists them", *to.naming);
  target.naming = asked;
  if (asked == from.naming) target.scale_word = block.scale_word;
  target.axes = block.set == ExpertSet::Shared ? Axes::OutIn : asked->axes;
  target.experts = to.experts.value_or(block.experts);
  target.bias_experts = to.bias_experts.value_or(to.experts.value_or(block.bias_experts));
  const auto& glu = block.set == ExpertSet::Shared ? to.shared_glu : to.glu;
  target.glu = glu.value_or(block.glu);
  const bool same_form = asked == from.naming && target.experts == block.experts;
  target.halved = block.halved && !glu && asked->halves_by_position &&
                  (same_form || is_native(*asked, block.set, target.experts, false));
  if (glu && *glu != block.glu) check_glu_change(block, *glu);
  // FC1 of unknown order may be regrouped or moved between namings that fix no order; anything else
  // would claim one.
  const bool claims =
      is_native(*asked, block.set, target.experts, true) && fixed_glu(*asked).kind != Glu::Kind::Unknown;
  // One block of all rows is halves, which is what names that fix those call it.
  const bool is_halves = target.glu == Glu{Glu::Kind::Interleaved, block.intermediate_size};
  if (is_halves && claims && fixed_glu(*asked).kind == Glu::Kind::Contiguous) target.glu = fixed_glu(*asked);
  if (block.glu.kind == Glu::Kind::Unknown && (claims || target.axes != block.axes))
    check_glu_change(block, fixed_glu(*asked));
  if (block.intermediate_size < 0 && target.experts == Experts::Grouped)
    fail(ErrorCode::RaggedExperts, {},
         "{} differ in width, so they cannot be one grouped tensor; use --experts indexed", block_text(block));
  return target;
}

// ---- layers that share tensors ----------------------------------------------------------------

constexpr std::string_view kMainLayers = "decoder.layers.";

/// The way in which the checkpoint numbers its layers, as the keys beside the experts show it.
struct OtherLayers {
  /// L of tensors with a layer axis; 0 where there are none, -1 where they disagree.
  i64 stacked = 0;
  /// The first of those.
  std::string example;
  bool numbered = false;
};

bool starts_component(std::string_view name, std::size_t at) {
  return at == 0 || name[at - 1] == '.' || name[at - 1] == '/';
}

OtherLayers look_at_others(const Inventory& inventory, const Recognition& from) {
  constexpr std::string_view kLayers = "layers.";
  OtherLayers seen;
  for (const std::size_t index : from.others) {
    const TensorRef& ref = inventory.tensors[index];
    const std::string_view name = ref.name;
    const std::size_t at = name.find(kLayers);
    if (at == name.npos || !starts_component(name, at) || at + kLayers.size() >= name.size()) continue;
    const char next = name[at + kLayers.size()];
    const bool is_number = next >= '0' && next <= '9';
    // Layers of multi-token prediction are always numbered.
    if (is_number && !name.substr(0, at).ends_with("mtp.")) seen.numbered = true;
    if (is_number || !name.substr(0, at + kLayers.size()).ends_with(kMainLayers) || ref.shape.empty()) continue;
    if (seen.stacked == 0) seen.example = ref.name;
    if (seen.stacked == 0) seen.stacked = ref.shape[0];
    if (seen.stacked != ref.shape[0]) seen.stacked = -1;
  }
  return seen;
}

/// The blocks that would share tensors: one set of experts of one state and scope.
struct Group {
  std::vector<std::size_t> blocks;
};

/// Lists the extents that must be equal in all layers.
auto extents(const ExpertBlock& block) {
  return std::tuple(block.num_experts, block.hidden_size, block.intermediate_size, block.glu.kind, block.glu.block_rows,
                    block.matrices.size());
}

bool same_matrices(const ExpertBlock& a, const ExpertBlock& b) {
  return extents(a) == extents(b) && std::ranges::equal(a.matrices, b.matrices, [](const Matrix& x, const Matrix& y) {
           return std::tie(x.role, x.kind, x.expert, x.dtype, x.rows, x.cols) ==
                  std::tie(y.role, y.kind, y.expert, y.dtype, y.rows, y.cols);
         });
}

class LayerStacker {
 public:
  LayerStacker(const OtherLayers& others, const Recognition& from, std::vector<BlockTarget>& targets)
      : from_(from), targets_(targets), others_(others) {}

  void run() {
    std::map<std::tuple<bool, std::string, std::string, ExpertSet>, Group> groups;
    for (std::size_t i = 0; i < from_.blocks.size(); ++i) {
      const ExpertBlock& block = from_.blocks[i];
      if (block.stack == "decoder" && targets_[i].naming->stacks_layers)
        groups[{block.is_optimizer_state(), block.state, block.scope, block.set}].blocks.push_back(i);
    }
    // Weights come first, and the optimizer's states follow them.
    for (const auto& [id, group] : groups) decide(group);
  }

 private:
  const ExpertBlock& block(std::size_t i) const { return from_.blocks[i]; }

  void decide(const Group& group) {
    const ExpertBlock& first = block(group.blocks.front());
    bool stacked = is_uniform(group) && is_wanted(group);
    const auto layers = static_cast<i64>(group.blocks.size());
    if (const auto weights = decided_.find(first.set); first.is_optimizer_state() && weights != decided_.end())
      stacked = is_uniform(group) && weights->second == layers;
    if (!first.is_optimizer_state()) decided_[first.set] = stacked ? layers : 0;
    if (!stacked) return;
    for (const std::size_t i : group.blocks) {
      targets_[i].stacked_layers = layers;
      targets_[i].layer_slot = block(i).layer;
    }
  }

  /// Returns whether all layers from 0 on are there and alike, and none has a tensor for each expert.
  bool is_uniform(const Group& group) const {
    const std::size_t count = group.blocks.size();
    const std::size_t first = group.blocks.front();
    std::vector<bool> seen(count);
    for (const std::size_t i : group.blocks) {
      const i64 layer = block(i).layer;
      if (layer < 0 || layer >= static_cast<i64>(count) || block(i).intermediate_size < 0) return false;
      seen[static_cast<std::size_t>(layer)] = true;
      if (has_indexed(i)) return false;
      if (targets_[i].glu != targets_[first].glu || !same_matrices(block(i), block(first))) return false;
    }
    return std::ranges::find(seen, false) == seen.end();
  }

  /// Returns whether some of its tensors are to hold one expert each.
  bool has_indexed(std::size_t i) const {
    if (block(i).set == ExpertSet::Shared) return false;
    return std::ranges::any_of(block(i).matrices, [&](const Matrix& matrix) {
      const bool bias = matrix.kind == TensorKind::Bias;
      return (bias ? targets_[i].bias_experts : targets_[i].experts) == Experts::Indexed;
    });
  }

  bool is_wanted(const Group& group) const {
    const std::size_t first = group.blocks.front();
    const ExpertBlock& example = block(first);
    if (example.stacked_layers > 0) return true;
    const auto layers = static_cast<i64>(group.blocks.size());
    // Keys of one model are numbered all or none.
    if (const auto routed = decided_.find(ExpertSet::Routed); routed != decided_.end()) return routed->second == layers;
    // Tensors whose layout is kept stay numbered.
    const bool grouped = example.set == ExpertSet::Shared || example.experts == Experts::Grouped;
    if (targets_[first].naming == from_.naming && grouped) return false;
    if (from_.num_hidden_layers.value_or(layers) != layers) return false;
    if (others_.stacked != 0) return others_.stacked == layers;
    return !others_.numbered;
  }

  const Recognition& from_;
  std::vector<BlockTarget>& targets_;
  const OtherLayers& others_;
  /// Layers that share tensors, or 0, by set of the weights.
  std::map<ExpertSet, i64> decided_;
};

/// Tensors beside the experts that all layers share keep their keys, so experts must not get a key for each layer.
void check_rest_follows(const OtherLayers& others, const Recognition& from, const std::vector<BlockTarget>& targets) {
  if (others.stacked == 0) return;
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i].naming != from.naming && from.blocks[i].stacked_layers > 0 && targets[i].stacked_layers == 0)
      fail(ErrorCode::NoMap, {},
           "the model cannot be renamed to {}: there the experts of each layer have keys of their own, but '{}' and "
           "others would stay one tensor for all layers. --scope experts renames the experts alone; no program loads "
           "the "
           "result",
           targets[i].naming->name, others.example);
}

// ---- keys ------------------------------------------------------------------------------------

/// Spells `stack` as a row that has it does; empty for other rows.
std::string spell_stack(const StackPrefix& prefix, const std::string& stack, i64 layer, bool stacked) {
  if (stacked) return std::string(stack == prefix.stack ? prefix.before : "");
  const std::string number = fmt::format("{}", layer);
  const std::string outer = std::string(prefix.stack) + ".";
  if (prefix.nested && stack.starts_with(outer)) return print_stack(prefix, number, stack.substr(outer.size()));
  return !prefix.nested && stack == prefix.stack ? print_stack(prefix, number, "") : "";
}

/// The keys' text up to the expert part, in the spelling of `naming`: behind `root`, where layers may stand there.
std::string renamed_prefix(const ExpertBlock& block, const Recognition& from, const Naming& naming,
                           const std::optional<std::string>& root, bool stacked) {
  if (const DenseNaming* const rest = from.dense_naming; rest != nullptr && rest->mtp_nests && block.stack == "mtp")
    return print_layer_prefix(*rest, from.dense_root, block.stack, block.layer, *from.architecture);
  const std::string layers = root ? *root + "layers." : std::string();
  const auto print = [&](const std::string& stack, i64 layer) -> std::string {
    std::string found;
    for (const StackPrefix& prefix : naming.stacks)
      if (block.key_scope.empty() || block.key_scope.ends_with('/') || !prefix.anchored)
        if (const std::string text = spell_stack(prefix, stack, layer, stacked); !text.empty())
          if (found.empty() || prefix.before == layers) found = block.key_scope + text;
    return found;
  };
  const bool appended = naming.mtp_follows_decoder && block.stack == "mtp" && from.num_hidden_layers;
  std::string text =
      appended ? print("decoder", block.layer + *from.num_hidden_layers) : print(block.stack, block.layer);
  if (text.empty())
    fail(ErrorCode::NoSpelling, {}, "{}: naming {} has no place for layers of stack '{}{}'{}", block_text(block),
         naming.name, block.key_scope, block.stack,
         naming.mtp_follows_decoder ? "; config.json with num_hidden_layers would say where they go" : "");
  return text;
}

/// Decides the key prefix, once naming and stacked_layers are settled.
void set_key_prefix(const ExpertBlock& block, const Recognition& from, const DenseNaming* whole,
                    const FormerModel& former, BlockTarget& target) {
  if (whole != nullptr) {
    target.key_prefix = print_layer_prefix(*whole, former.root, block.stack, block.layer, *from.architecture);
    return;
  }
  const bool stacked = target.stacked_layers > 0;
  // Layers are called in memory as on the hub.
  const bool same_layers = target.naming == from.naming || (!from.naming->in_memory_of.empty() &&
                                                            target.naming->stacks.data() == from.naming->stacks.data());
  const bool kept = same_layers && stacked == (block.stacked_layers > 0);
  target.key_prefix =
      kept ? block.key_prefix : renamed_prefix(block, from, *target.naming, former.expert_root, stacked);
}

}  // namespace

std::string block_text(const ExpertBlock& block) {
  return fmt::format("{}layer {} {} experts", block.is_optimizer_state() ? block.state + " of " : "",
                     layer_label(block), to_string(block.set));
}

std::vector<BlockTarget> expert_targets(const Inventory& inventory, const Recognition& from, const TargetAnswers& to,
                                        const DenseNaming* whole, const FormerModel& former) {
  std::vector<BlockTarget> targets;
  targets.reserve(from.blocks.size());
  // All answers that are missing are asked for at once.
  UnknownOrders unknown;
  for (const ExpertBlock& block : from.blocks) try {
      targets.push_back(make_target(block, from, to, former.forms));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::UnknownGlu) throw;
      unknown.add("", error.missing_options());
    }
  unknown.check();
  // A whole model's keys always have their layer's number: those load into any GPTModel.
  if (whole == nullptr) {
    const OtherLayers others = look_at_others(inventory, from);
    LayerStacker(others, from, targets).run();
    if (to.scope == Scope::Model) check_rest_follows(others, from, targets);
  }
  for (std::size_t i = 0; i < targets.size(); ++i) set_key_prefix(from.blocks[i], from, whole, former, targets[i]);
  return targets;
}

}  // namespace glu_ckpt
