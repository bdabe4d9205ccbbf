/// (Inventory, Recognition, options) -> Plan: which tensors to write, in which shard, from which bytes.

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "arch/dense_order.hpp"
#include "arch/dense_table.hpp"
#include "arch/model_names.hpp"
#include "core/fail.hpp"
#include "core/hash.hpp"
#include "layout/element_grid.hpp"
#include "layout/expert_like_names.hpp"
#include "layout/layout_table.hpp"
#include "layout/optimizer_names.hpp"
#include "layout/unknown_orders.hpp"
#include "plan/draft_outputs.hpp"

namespace glu_ckpt {
namespace {

DraftOutput pass_through(const TensorRef& tensor, std::size_t index) {
  DraftOutput output{tensor.name, tensor.dtype, tensor.shape, tensor.bytes, {}, index};
  if (tensor.bytes > 0) {
    Move move;
    move.src = index;
    move.run_bytes = tensor.bytes;
    output.moves.push_back(move);
  }
  return output;
}

void check_unique(const std::vector<DraftOutput>& outputs) {
  // Hashes are sorted, which is faster than sorting or looking up two hundred thousand names; equal ones are compared.
  std::vector<std::pair<u64, std::string_view>> names;
  names.reserve(outputs.size());
  for (const DraftOutput& output : outputs) names.emplace_back(hash64(output.name), output.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    fail(ErrorCode::NameCollision, {{}, std::string(twice->second)}, "two output tensors would be called '{}'",
         twice->second);
}

/// Returns whether nothing would change but the sharding.
bool is_identity(const std::vector<DraftOutput>& outputs, const Inventory& inventory) {
  return std::ranges::all_of(outputs, [&](const DraftOutput& output) {
    if (output.compute) return false;
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

bool is_fused(const BlockTarget& target) { return target.glu.kind != Glu::Kind::Split && !target.halved; }

/// A form that no program stores is noted; an order that a program would take for another is what foreign_order says.
void note_foreign_form(const ExpertBlock& block, const BlockTarget& target, bool is_named, Plan& plan) {
  if (block.glu.kind == Glu::Kind::None || block.is_optimizer_state()) return;
  const bool fused = is_fused(target);
  const std::string form =
      fmt::format("{} experts as {}, {}", to_string(block.set), to_string(target.experts), to_string(target.glu));
  std::string note;
  if (!is_native(*target.naming, block.set, target.experts, fused)) {
    std::vector<std::string> forms = native_forms(*target.naming);
    // Codes are read as the hub has them, also where other forms of numbers are.
    const bool in_codes = holds_codes({block}) && target.naming->native_indexed_split;
    if (in_codes) forms.resize(1);
    note = fmt::format("{}: software that reads {} does not store {} so; it stores {}", form, target.naming->name,
                       in_codes ? "codes" : "them", fmt::join(forms, " or "));
  } else if (const Glu fixed = fixed_glu(*target.naming);
             fused && fixed.kind != Glu::Kind::Unknown && block.set == ExpertSet::Routed && target.glu != fixed) {
    const std::string text =
        fmt::format("{}: software that reads {} expects {} under these names and cannot see the difference", form,
                    target.naming->name, to_string(fixed));
    if (is_named && plan.foreign_order.empty())
      plan.foreign_order = fmt::format("{}; --glu {} writes what it expects", text, to_string(fixed));
    if (!is_named) note = text;
  }
  if (!note.empty() && std::ranges::find(plan.notes, note) == plan.notes.end()) plan.notes.push_back(std::move(note));
}

void describe_state(const ExpertBlock& block, const BlockTarget& target, LayoutAnswers& to) {
  const bool has_fc1 =
      std::ranges::any_of(block.matrices, [](const Matrix& matrix) { return matrix.role != Role::Down; });
  if (block.set == ExpertSet::Shared || !has_fc1) return;
  if (!to.optimizer_glu || target.glu.kind != Glu::Kind::Split) to.optimizer_glu = target.glu;
}

void describe_target(const ExpertBlock& block, const BlockTarget& target, LayoutAnswers& to) {
  // A checkpoint may mix packed and per-expert layers; the answer is then about the packed ones.
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
  const TensorRef& ref = inventory.tensors[from.unexplained.front()];
  const bool byte_scale = (ref.dtype == Dtype::U8 || ref.dtype == Dtype::F8_E8M0) && ref.name.ends_with("_scale");
  fail(ErrorCode::UnexplainedKey, {{}, ref.name},
       "'{}' looks like part of an expert, but {}; moving the weights would leave it behind. Quantized formats whose "
       "scales this version does not know must be dequantized first{}",
       ref.name,
       from.naming != nullptr ? "naming " + from.layout.naming + " does not explain it" : "no naming explains it",
       byte_scale
           ? fmt::format("; its shape {} is none of MXFP8's, whose scales must not be swizzled", shape_text(ref.shape))
           : "");
}

/// An optimizer's tensors that cannot follow their weights.
void check_nothing_left_behind(const Inventory& inventory, const Recognition& from,
                               const std::vector<DraftOutput>& outputs) {
  if (!from.buckets.empty()) {
    const std::string& name = inventory.tensors[from.buckets.front()].name;
    fail_asking(
        {"--optimizer"}, ErrorCode::OptimizerBuckets, {{}, name},
        "'{}' is optimizer state without its parameters' names: a flat bucket, or a parameter by number. Nothing in "
        "the "
        "checkpoint tells which weights it belongs to, so it cannot follow them into another layout. Leave the "
        "optimizer out with "
        "--optimizer drop, or save once with --dist-ckpt-optim-fully-reshardable and convert that",
        name);
  }
  if (!from.unexplained.empty()) fail_unexplained(inventory, from);
  if (from.bound.empty()) return;
  std::unordered_set<std::string_view> names;
  for (const DraftOutput& output : outputs) names.insert(output.name);
  for (const BoundTensor& bound : from.bound) {
    const std::string& name = inventory.tensors[bound.tensor].name;
    const std::string& weight = inventory.tensors[bound.weight].name;
    if (!names.contains(weight))
      fail_asking(
          {"--optimizer"}, ErrorCode::NotExact, {{}, name},
          "'{}' says something about '{}' alone, which would no longer be a tensor of its own; keep the naming and the "
          "grouping, or leave the optimizer out with --optimizer drop",
          name, weight);
  }
}

bool is_megatron(std::string_view naming) { return naming.starts_with("megatron"); }

/// The spelling of the rest of a model whose experts get naming `to`; null where the family has none.
const DenseNaming* dense_naming_for(const std::string& to, const Architecture& architecture) {
  if (is_megatron(to)) return architecture.family->megatron;
  const Family& family = *architecture.family;
  if (to.starts_with("torchtitan")) return family.torchtitan;
  return spells_experts_of(architecture, to) ? &family.naming : nullptr;
}

[[noreturn]] void fail_no_map(const std::string& to, const std::string& why, bool has_experts) {
  fail(ErrorCode::NoMap, {}, "the model cannot be renamed to {}: {}{}", to, why,
       has_experts ? ". --scope experts renames the experts alone; no program loads the result" : "");
}

/// Says that a naming has no such models, and which it has where those are a few.
std::string no_models_text(const std::string& to, const std::string& type) {
  std::string text = fmt::format("that naming has no models of type '{}'", type);
  if (!to.starts_with("torchtitan")) return text;
  std::set<std::string_view> types;
  for (const Family& family : families())
    if (family.torchtitan != nullptr) types.insert(family.model_type);
  return text + fmt::format("; it has those of {}", fmt::join(types, ", "));
}

/// Returns whether a model that is spelled as transformers holds it in memory is asked for as the hub has it.
bool leaves_memory(const Recognition& from, const TargetAnswers& to) {
  if (!from.in_memory || from.naming == nullptr || !to.naming || to.scope == Scope::Experts) return false;
  const Naming* const asked = find_naming(*to.naming);
  return asked == from.naming ? from.naming->in_memory_of.empty()
                              : std::ranges::any_of(from.naming->in_memory_of, [&](std::string_view type) {
                                  return find_naming("hf:" + std::string(type)) == asked;
                                });
}

/// Says why no spelling explains the rest of the model.
std::string why_no_rest(const Inventory& inventory, const Recognition& from) {
  const std::string& type = from.architecture->model_type;
  const auto is_rest = [&](std::size_t index) { return !is_optimizer_tensor(inventory.tensors[index].name); };
  const auto first = std::ranges::find_if(from.others, is_rest);
  if (first == from.others.end()) return fmt::format("nothing but experts of the '{}' model is there", type);
  if (std::string text = unjoined_ranks_text(inventory); !text.empty()) return text;
  return fmt::format(
      "none of the tensors outside of the experts, such as '{}', has a name that models of type '{}' have",
      inventory.tensors[*first].name, type);
}

/// The spelling that the rest of the model gets; null where it keeps its own.
const DenseNaming* whole_model_naming(const Inventory& inventory, const Recognition& from, const TargetAnswers& to) {
  const bool to_hub = leaves_memory(from, to);
  if (to.scope == Scope::Experts || !to.naming) return nullptr;
  // A naming that is asked for has no wrapper's text in front of its keys.
  const bool unwraps = !from.wrapper.empty() && from.architecture != nullptr && !is_megatron(*to.naming);
  if (find_naming(*to.naming) == from.naming && !to_hub && !unwraps) return nullptr;
  const bool same_software = is_megatron(*to.naming) && is_megatron(from.layout.naming);
  if (same_software || find_naming(*to.naming) == nullptr) return nullptr;
  if (from.architecture == nullptr) {
    if (to_hub) return nullptr;
    const auto is_rest = [&](std::size_t index) { return !is_optimizer_tensor(inventory.tensors[index].name); };
    // Experts alone are a whole thing to rename.
    if (std::ranges::none_of(from.others, is_rest)) return nullptr;
    fail_no_map(*to.naming, from.no_architecture, !from.blocks.empty());
  }
  const DenseNaming* const whole = dense_naming_for(*to.naming, *from.architecture);
  if (whole == nullptr)
    fail_no_map(*to.naming, no_models_text(*to.naming, from.architecture->model_type), !from.blocks.empty());
  if (from.dense_naming == nullptr) fail_no_map(*to.naming, why_no_rest(inventory, from), !from.blocks.empty());
  const bool is_respelled = unwraps || (from.in_memory && whole == &from.architecture->family->naming);
  return whole == from.dense_naming && !is_respelled ? nullptr : whole;
}

/// The rest of the model under its new names, or as it is.
void add_others(const Inventory& inventory, const Recognition& from, const PlanOptions& options,
                const DenseNaming* whole, const FormerModel& former, DraftOutputs& drafts, Plan& plan) {
  if (whole == nullptr) {
    const bool to_hub = leaves_memory(from, options.to);
    // A program that reads the hub's keys looks for them behind no wrapper's text.
    for (DraftOutput& experts : drafts.list)
      if (to_hub && experts.name.starts_with(from.wrapper)) experts.name.erase(0, from.wrapper.size());
    for (const std::size_t index : from.others) {
      drafts.list.push_back(pass_through(inventory.tensors[index], index));
      if (to_hub) drafts.list.back().name = model_name(inventory, from, index);
    }
    if (from.layout.is_dense() && plan.to.glu != from.layout.glu)
      reorder_dense(inventory, from, plan.to.glu, drafts.list);
    return;
  }
  DenseTarget target{whole, former.root, std::nullopt, std::nullopt, options.to.keep_unknown};
  if (from.layout.is_dense()) target.glu = plan.to.glu;
  if (whole == &from.architecture->family->naming) {
    target.copies = former.copies;
    target.computed_dtype = former.computed_dtype;
  }
  add_dense_outputs(inventory, from, target, drafts, plan);
}

void describe_targets(const Recognition& from, const std::vector<BlockTarget>& targets, Plan& plan) {
  const bool weights =
      std::ranges::any_of(from.blocks, [](const ExpertBlock& block) { return !block.is_optimizer_state(); });
  bool reordered = false;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const ExpertBlock& block = from.blocks[i];
    plan.experts.push_back({targets[i].experts, targets[i].bias_experts, targets[i].glu, is_fused(targets[i])});
    if (block.is_optimizer_state()) describe_state(block, targets[i], plan.to);
    if (!block.is_optimizer_state() || !weights) describe_target(block, targets[i], plan.to);
    note_foreign_form(block, targets[i], from.naming_settled || targets[i].naming != from.naming, plan);
    reordered |= block.is_optimizer_state() && block.set == ExpertSet::Routed && targets[i].glu != block.glu;
  }
  if (from.optimizer_glu_assumed && reordered)
    plan.notes.emplace_back(
        "the optimizer's state was taken to be in the same order as the weights. Checkpoints of Megatron-Bridge may "
        "hold contiguous weights beside interleaved state: then say --from-optimizer-glu");
}

std::string layout_text(const LayoutAnswers& layout, bool naming_settled) {
  if (layout.naming == "adapter") return fmt::format("an adapter with {} experts", layout.experts);
  if (layout.is_dense()) return fmt::format("{} {}", layout.naming, to_string(layout.glu));
  return fmt::format("{}{} {} {}", layout.naming, naming_settled ? "" : " (or of another family with the same keys)",
                     layout.experts, to_string(layout.glu));
}

bool asks_for_nothing(const TargetAnswers& to) {
  return !to.naming && !to.experts && !to.bias_experts && !to.glu && !to.shared_glu;
}

/// A single block of gate rows and one of up rows is both orders.
std::string same_rows_text(const Plan& plan) {
  if (plan.from.glu == plan.to.glu) return {};
  return fmt::format(": with so few rows {} and {} are the same bytes", to_string(plan.from.glu),
                     to_string(plan.to.glu));
}

/// A dense model has keys to be renamed, and no experts to be regrouped.
void check_no_experts_asked(const TargetAnswers& to, const Recognition& from) {
  const std::string_view asked = to.scope == Scope::Experts ? "--scope experts"
                                 : to.experts               ? "--experts"
                                 : to.bias_experts          ? "--bias-experts"
                                 : to.shared_glu            ? "--shared-glu"
                                                            : "";
  if (!asked.empty())
    fail(ErrorCode::NoExperts, {}, "{}: a model of type '{}' is dense: none of its {} layers has experts", asked,
         from.architecture->model_type, from.architecture->layers);
}

/// The order of gate and up in a dense model's FC1s: the one asked for, the source's, or all of gate first.
Glu dense_order(const Recognition& from, const TargetAnswers& to, const DenseNaming* whole) {
  const DenseNaming& naming = *(whole != nullptr ? whole : from.dense_naming);
  const bool fused = fuses_dense(naming);
  const Glu native{fused ? Glu::Kind::Contiguous : Glu::Kind::Split, 0};
  const Glu& now = from.layout.glu;
  if (to.glu && (to.glu->kind == Glu::Kind::Split) == fused)
    fail(ErrorCode::NoSpelling, {}, "--glu {}: gate and up of a dense layer are {} in the naming {}",
         to_string(*to.glu), fused ? "one tensor" : "two tensors", naming.name);
  if (now.kind == Glu::Kind::Unknown && (whole != nullptr || to.glu)) {
    UnknownOrders unknown;
    unknown.add("", {"--from-glu"});
    unknown.check();
  }
  return to.glu ? *to.glu : fuses_dense(*from.dense_naming) == fused ? now : native;
}

/// A family with experts is read by them: some of its layers that have none are a model of no family.
void check_dense_layers(const Recognition& from) {
  if (from.architecture == nullptr) return;
  const auto has_experts = [](const LayerKind& kind) { return kind.mlp == Mlp::Experts; };
  if (std::ranges::any_of(from.architecture->kinds, has_experts)) return;
  fail(ErrorCode::NoExperts, {},
       "it has no layer with experts, and a model of type '{}' is known by those: take a layer that has some along",
       from.architecture->model_type);
}

}  // namespace

Plan make_plan(const Inventory& inventory, const Recognition& from, const PlanOptions& options) {
  Plan plan;
  plan.from = from.layout;
  if (from.layout.is_dense() || from.is_adapter) plan.to = from.layout;
  plan.to.naming = options.to.naming.value_or(from.layout.naming);
  plan.to.glu_source = "option";
  const bool asks_layout =
      options.to.naming || options.to.experts || options.to.bias_experts || options.to.glu || options.to.shared_glu;
  const bool only_format = from.is_adapter || (options.new_format && !asks_layout);
  if (from.layout.is_dense()) check_no_experts_asked(options.to, from);
  if (!from.blocks.empty() && find_dense_naming(plan.to.naming) != nullptr)
    fail(ErrorCode::NoMap, {}, "'{}' spells models without experts, and the source has experts", plan.to.naming);
  if (from.blocks.empty() && !from.unexplained.empty() && !only_format) fail_unexplained(inventory, from);
  if (from.blocks.empty() && !from.layout.is_dense() && !only_format) {
    check_dense_layers(from);
    fail(ErrorCode::NoExperts, {}, "no expert tensors were recognized, so there is no layout to change{}",
         foreign_experts_text(inventory, from.architecture == nullptr ? 0 : from.architecture->num_experts));
  }
  const DenseNaming* const whole = whole_model_naming(inventory, from, options.to);
  if (from.layout.is_dense()) plan.to.glu = dense_order(from, options.to, whole);
  const bool to_hf = whole != nullptr && whole == &from.architecture->family->naming;
  FormerModel former;
  former.root.clear();
  if (to_hf) former = options.former;
  former.expert_root = options.former.expert_root;
  const std::vector<BlockTarget> targets = expert_targets(inventory, from, options.to, whole, former);
  DraftOutputs drafts;
  drafts.list.reserve(inventory.tensors.size());
  add_expert_outputs(from.blocks, targets, inventory, drafts);
  describe_targets(from, targets, plan);
  if (const DenseNaming* const rest = whole != nullptr ? whole : from.dense_naming; rest != nullptr)
    plan.rest = rest->name;
  plan.dropped = from.dropped;
  add_others(inventory, from, options, whole, former, drafts, plan);
  if (options.to.stack_layers) stack_drafts(from, whole, drafts.list, plan);
  const bool identity = from.dropped.empty() && is_identity(drafts.list, inventory);
  if (identity && !options.force && !options.new_format)
    fail(ErrorCode::AlreadyInLayout, {}, "the source is {} already{}; {}--force copies it all the same",
         layout_text(plan.to, from.naming_settled), same_rows_text(plan),
         from.is_adapter
             ? "that is what these options ask for, so its files can be used as they are (`glu-ckpt inspect` "
               "says what loads them); "
         : asks_for_nothing(options.to) ? "--to says which program is to load the output, "
                                        : "");
  if (!is_identity(drafts.list, inventory)) check_nothing_left_behind(inventory, from, drafts.list);
  check_unique(drafts.list);
  // PEFT reads one file.
  constexpr i64 kNoLimit = std::numeric_limits<i64>::max() / 2;
  place_outputs(std::move(drafts.list), from.is_adapter ? kNoLimit : options.max_shard_bytes, inventory, plan);
  return plan;
}

}  // namespace glu_ckpt
