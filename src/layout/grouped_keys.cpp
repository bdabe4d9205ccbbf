/// Model side: what Megatron-LM's load hook and TransformerEngine's own remap make of a module's keys.

#include <algorithm>

#include "core/fail.hpp"
#include "glu_ckpt/megatron.hpp"
#include "layout/state_dict.hpp"

namespace glu_ckpt {
namespace {

enum class Name { Weight, Bias };

/// One of a module's two names, and which form the module wants.
struct Target {
  Name name = Name::Weight;
  /// prefix + "weight" or "bias".
  std::string key;
  i64 num_experts = 1;
};

/// Positions of a target's keys.
struct Found {
  std::optional<std::size_t> grouped;
  std::vector<std::optional<std::size_t>> indexed;

  bool any() const {
    return std::any_of(indexed.begin(), indexed.end(), [](const auto& place) { return place.has_value(); });
  }
  bool all() const {
    return std::all_of(indexed.begin(), indexed.end(), [](const auto& place) { return place.has_value(); });
  }
  std::vector<std::size_t> indexed_places() const {
    std::vector<std::size_t> places;
    for (const auto& place : indexed)
      if (place) places.push_back(*place);
    return places;
  }
};

Found find_keys(const StateDict& dict, const Target& target) {
  Found found;
  found.indexed.resize(static_cast<std::size_t>(target.num_experts));
  const auto take = [&](std::optional<std::size_t>& place, std::size_t position) {
    if (place) fail(ErrorCode::DuplicateKey, at(dict[position].key), "'{}' is there twice", dict[position].key);
    place = position;
  };
  for (std::size_t i = 0; i < dict.size(); ++i) {
    if (dict[i].key == target.key)
      take(found.grouped, i);
    else if (const auto index = index_after(dict[i].key, target.key, target.num_experts))
      take(found.indexed[static_cast<std::size_t>(*index)], i);
  }
  return found;
}

StateDict fold(StateDict dict, const Target& target, const Found& found) {
  const std::vector<std::size_t> members = found.indexed_places();
  StateEntry grouped{target.key, stack(dict, members)};
  return rekey(std::move(dict), members, {std::move(grouped)});
}

StateDict split(StateDict dict, const Target& target, const Found& found, std::vector<StateTensor> members) {
  std::vector<StateEntry> added;
  for (StateTensor& member : members) added.push_back({target.key + std::to_string(added.size()), std::move(member)});
  return rekey(std::move(dict), {*found.grouped}, std::move(added));
}

// ---- Megatron-LM ----------------------------------------------------------------------------------

StateDict leave_to_grouped(StateDict dict, const Target& target, const Found& found) {
  if (found.grouped || !found.all()) return dict;
  return fold(std::move(dict), target, found);
}

StateDict leave_to_indexed(StateDict dict, const Target& target, const Found& found) {
  if (found.any() || !found.grouped) return dict;
  auto members = split_grouped(dict[*found.grouped].tensor, target.key, target.num_experts);
  return split(std::move(dict), target, found, std::move(members));
}

// ---- TransformerEngine ----------------------------------------------------------------------------

/// A bias saved as [E, 1, out] is read as [E, out].
void squeeze_bias(StateTensor& bias) {
  if (bias.shape.size() == 3 && bias.shape[1] == 1) bias.shape.erase(bias.shape.begin() + 1);
}

StateDict clean_to_grouped(StateDict dict, const Target& target, const Found& found) {
  if (!found.grouped && found.all()) return fold(std::move(dict), target, found);
  if (!found.grouped) return dict;
  if (target.name == Name::Bias) squeeze_bias(dict[*found.grouped].tensor);
  return rekey(std::move(dict), found.indexed_places(), {});
}

/// Axis 0 unbound and nothing else: packed [E*out, in] is not understood.
std::vector<StateTensor> unbind_members(const StateTensor& tensor, const Target& target) {
  if (!tensor.num_members && (tensor.shape.empty() || tensor.shape[0] != target.num_experts))
    fail(ErrorCode::ExpertShape, at(target.key),
         "'{}' is {}: cleaning up splits only tensors whose axis 0 is the {} experts", target.key,
         shape_text(tensor.shape), target.num_experts);
  return split_grouped(tensor, target.key, target.num_experts);
}

StateDict clean_to_indexed(StateDict dict, const Target& target, const Found& found) {
  if (!found.grouped) return dict;
  if (found.all()) return rekey(std::move(dict), {*found.grouped}, {});
  auto members = unbind_members(dict[*found.grouped].tensor, target);
  for (StateTensor& member : members) {
    if (target.name == Name::Bias && member.shape.size() > 1) member.shape = {element_count(member, target.key)};
    if (target.name == Name::Weight && member.storage == Storage::Quantized) member.storage = Storage::Dequantized;
  }
  return split(std::move(dict), target, found, std::move(members));
}

using Rule = StateDict (*)(StateDict, const Target&, const Found&);

Rule rule_of(RedundantKeys policy, bool single_grouped) {
  if (policy == RedundantKeys::Leave) return single_grouped ? leave_to_grouped : leave_to_indexed;
  return single_grouped ? clean_to_grouped : clean_to_indexed;
}

StateDict apply(StateDict dict, const Target& target, Rule rule) {
  const Found found = find_keys(dict, target);
  return rule(std::move(dict), target, found);
}

}  // namespace

GroupedModule gate_single_params(GroupedModule module, bool single_param_enabled) {
  module.single_grouped_weight = module.single_grouped_weight && single_param_enabled;
  module.single_grouped_bias = module.single_grouped_bias && single_param_enabled;
  return module;
}

std::string_view to_string(RedundantKeys policy) { return policy == RedundantKeys::Leave ? "leave" : "clean-up"; }

RedundantKeys parse_redundant_keys(std::string_view text) {
  for (const RedundantKeys policy : {RedundantKeys::Leave, RedundantKeys::CleanUp})
    if (text == to_string(policy)) return policy;
  fail(ErrorCode::Usage, {}, "'{}' is no way to treat redundant keys; known: leave, clean-up", text);
}

std::vector<StateTensor> split_grouped(const StateTensor& tensor, std::string_view key, i64 num_experts) {
  check_num_experts(num_experts);
  element_count(tensor, key);
  if (tensor.num_members) {
    auto members = grouped_members(tensor, key);
    if (static_cast<i64>(members.size()) != num_experts)
      fail(ErrorCode::ExpertShape, at(key), "grouped tensor '{}' has {} groups, expected {}", key, members.size(),
           num_experts);
    return members;
  }
  const bool divides = !tensor.shape.empty() && tensor.shape[0] % num_experts == 0;
  if (!divides)
    fail(ErrorCode::ExpertShape, at(key), "cannot split tensor '{}' with shape {} among {} experts", key,
         shape_text(tensor.shape), num_experts);
  std::vector<i64> shape = tensor.shape;
  if (shape[0] == num_experts)
    shape.erase(shape.begin());
  else
    shape[0] /= num_experts;
  auto members = cut(tensor, key, num_experts, shape);
  for (StateTensor& member : members)
    if (member.storage == Storage::Quantized) member.storage = Storage::Dequantized;
  return members;
}

StateDict fold_or_split(StateDict dict, std::string_view prefix, const GroupedModule& module, RedundantKeys policy) {
  check_num_experts(module.num_experts);
  const Target weight{Name::Weight, std::string(prefix) + "weight", module.num_experts};
  dict = apply(std::move(dict), weight, rule_of(policy, module.single_grouped_weight));
  if (!module.use_bias) return dict;
  const Target bias{Name::Bias, std::string(prefix) + "bias", module.num_experts};
  return apply(std::move(dict), bias, rule_of(policy, module.single_grouped_bias));
}

}  // namespace glu_ckpt
