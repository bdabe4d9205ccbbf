/// Optimizer side: the keys of the weights from which Megatron-LM reloads its master parameters.

#include <algorithm>
#include <map>

#include "core/fail.hpp"
#include "glu_ckpt/megatron.hpp"
#include "layout/state_dict.hpp"

namespace glu_ckpt {
namespace {

/// Entries whose keys end with a module's parameter name.
struct Matches {
  std::vector<std::size_t> grouped;
  /// Entries by index; only those that exactly one key ends with.
  std::map<i64, std::size_t> indexed;
};

Matches find_matches(const StateDict& dict, std::string_view suffix, i64 num_experts) {
  Matches matches;
  std::map<i64, std::vector<std::size_t>> candidates;
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const std::string_view key = dict[i].key;
    // The name ends in a letter, so all digits at the end of a key belong to the index.
    const std::size_t name_end = key.find_last_not_of("0123456789") + 1;
    if (!key.substr(0, name_end).ends_with(suffix)) continue;
    if (name_end == key.size())
      matches.grouped.push_back(i);
    else if (const auto index = index_after(key.substr(name_end - suffix.size()), suffix, num_experts))
      candidates[*index].push_back(i);
  }
  for (const auto& [index, places] : candidates)
    if (places.size() == 1) matches.indexed.emplace(index, places.front());
  return matches;
}

StateDict fold(StateDict dict, std::string_view suffix, const Matches& matches) {
  std::vector<std::size_t> members;
  for (const auto& [index, place] : matches.indexed) members.push_back(place);
  const std::string& first_key = dict[members.front()].key;
  // "0" is what the key of index 0 has after the name.
  StateEntry grouped{first_key.substr(0, first_key.size() - suffix.size() - 1) + std::string(suffix),
                     stack(dict, members)};
  return rekey(std::move(dict), members, {std::move(grouped)});
}

StateDict split(StateDict dict, std::size_t place, i64 num_experts) {
  const StateEntry& grouped = dict[place];
  std::vector<StateEntry> added;
  for (StateTensor& member : split_grouped(grouped.tensor, grouped.key, num_experts))
    added.push_back({grouped.key + std::to_string(added.size()), std::move(member)});
  return rekey(std::move(dict), {place}, std::move(added));
}

StateDict normalize(StateDict dict, std::string_view suffix, i64 num_experts, bool single_grouped) {
  const Matches matches = find_matches(dict, suffix, num_experts);
  if (single_grouped) {
    const bool complete = static_cast<i64>(matches.indexed.size()) == num_experts;
    if (!matches.grouped.empty() || !complete) return dict;
    return fold(std::move(dict), suffix, matches);
  }
  if (!matches.indexed.empty() || matches.grouped.size() != 1) return dict;
  return split(std::move(dict), matches.grouped.front(), num_experts);
}

std::string reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

bool contains(std::span<const std::string> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

std::string_view strip_module_prefixes(std::string_view name) {
  constexpr std::string_view kWrapper = "module.";
  while (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  return name;
}

StateDict normalize_for_grouped_params(StateDict dict, std::span<const NamedModule> modules) {
  check_unique_keys(dict);
  for (const NamedModule& named : modules) {
    if (!named.grouped) continue;
    const GroupedModule& module = *named.grouped;
    check_num_experts(module.num_experts);
    std::string base(strip_module_prefixes(named.path));
    if (!base.empty()) base += '.';
    dict = normalize(std::move(dict), base + "weight", module.num_experts, module.single_grouped_weight);
    if (module.use_bias)
      dict = normalize(std::move(dict), base + "bias", module.num_experts, module.single_grouped_bias);
  }
  return dict;
}

std::vector<std::string> model_dict_names(std::span<const std::string> keys, std::size_t num_chunks) {
  for (const std::string stem : {"model", "model_"}) {
    if (!contains(keys, stem + "0")) continue;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < num_chunks; ++i) {
      names.push_back(stem + std::to_string(i));
      if (!contains(keys, names.back()))
        fail(ErrorCode::PartMissing, at(names.back()), "'{}' is missing: the model has {} chunks", names.back(),
             num_chunks);
    }
    return names;
  }
  if (num_chunks != 1)
    fail(ErrorCode::PartMissing, at("model0"), "the model has {} chunks, the checkpoint holds one model", num_chunks);
  return {contains(keys, "model") ? "model" : ""};
}

std::vector<std::size_t> match_parameters(const StateDict& dict, std::span<const NamedParameter> parameters) {
  check_unique_keys(dict);
  // Read backwards, the keys that end with a name stand side by side.
  std::map<std::string, std::size_t> untaken;
  for (std::size_t i = 0; i < dict.size(); ++i) untaken.emplace(reversed(dict[i].key), i);
  std::vector<std::size_t> entries;
  for (const NamedParameter& parameter : parameters) {
    const std::string name(strip_module_prefixes(parameter.name));
    const std::string ending = reversed(name);
    const auto match = untaken.lower_bound(ending);
    if (match == untaken.end() || !match->first.starts_with(ending))
      fail(ErrorCode::PartMissing, at(name), "no key ends with '{}', or an earlier parameter took it", name);
    const StateEntry& entry = dict[match->second];
    if (const auto next = std::next(match); next != untaken.end() && next->first.starts_with(ending))
      fail(ErrorCode::RedundantKeys, at(name), "parameter '{}' could be '{}' or '{}'", name, entry.key,
           dict[next->second].key);
    if (entry.tensor.shape != parameter.shape)
      fail(ErrorCode::ExpertShape, at(entry.key), "'{}' is {}, parameter '{}' is {}", entry.key,
           shape_text(entry.tensor.shape), name, shape_text(parameter.shape));
    entries.push_back(match->second);
    untaken.erase(match);
  }
  return entries;
}

}  // namespace glu_ckpt
