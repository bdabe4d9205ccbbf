#include "quant/group_finder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

namespace glu_ckpt {
namespace {

/// The class of every module that is quantized.
constexpr std::string_view kClass = "Linear";
/// No model has more experts in a layer; each is asked for.
constexpr i64 kMostExperts = 4096;

struct Modules {
  std::vector<std::string> names;
  /// They are other modules than the one of the weight's name.
  bool were_moved = false;
  /// They are linear layers, which a target of the class means.
  bool are_layers = true;
};

bool is_number(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The matrices of one expert that are stored under this name; none where it is not known.
std::vector<std::string_view> parts_of(std::string_view word) {
  if (word == "gate_up_proj") return {"gate_proj", "up_proj"};
  if (word == "w13") return {"w1", "w3"};
  for (const std::string_view one : {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
    if (word == one) return {one};
  return {};
}

/// The linear layers of which a weight of this name was made.
Modules modules_of(std::string_view name, i64 experts) {
  constexpr std::string_view kExperts = "experts";
  const std::size_t dot = name.rfind('.');
  const std::string_view parent = dot == std::string_view::npos ? "" : name.substr(0, dot);
  const std::string_view word = name.substr(dot + 1);
  const std::string_view above = parent.substr(parent.rfind('.') + 1);
  const std::vector<std::string_view> parts = parts_of(word);
  // Megatron's names and numbers of experts behind a matrix are no modules of the model that was quantized.
  const bool is_foreign = word.starts_with("linear_fc") || is_number(word);
  Modules made{{std::string(name)}, false, experts == 0 && !is_foreign};
  const bool is_grouped = above == kExperts && !is_number(word);
  const bool is_fused = parts.size() > 1 && (is_number(above) || above.starts_with("share"));
  if (!is_grouped && !is_fused) return made;
  made.were_moved = true;
  made.are_layers = !parts.empty() && is_grouped == (experts > 0) && experts <= kMostExperts;
  if (!made.are_layers) return made;
  made.names.clear();
  for (const std::string_view part : parts)
    if (!is_grouped)
      made.names.push_back(fmt::format("{}.{}", parent, part));
    else
      for (i64 i = 0; i < experts; ++i) made.names.push_back(fmt::format("{}.{}.{}", parent, i, part));
  return made;
}

/// Names go before patterns and those before classes.
int rank_of(std::string_view target) {
  if (target == kClass) return 2;
  return target.find("re:") != std::string_view::npos ? 1 : 0;
}

}  // namespace

GroupFinder::GroupFinder(const QuantConfig& config) {
  // The last group of a target has it.
  std::map<std::pair<int, std::string_view>, const QuantConfig*> groups;
  for (const QuantConfig& group : config.groups)
    for (const std::string& target : group.targets) groups[{rank_of(target), target}] = &group;
  for (const auto& [key, group] : groups) entries_.push_back({key.first, ModuleTarget(key.second), group});
}

GroupFinder::Answer GroupFinder::ask(std::string_view module) const {
  for (const Entry& entry : entries_) {
    if (entry.rank == 2) return {entry.group, true, true};
    const std::optional<bool> names = entry.target.names(module);
    if (!names) return {nullptr, false, false};
    if (*names) return {entry.group, false, true};
  }
  return {};
}

const QuantConfig* GroupFinder::of_weight(std::string_view name, i64 experts) const {
  const Modules modules = modules_of(name, experts);
  const QuantConfig* found = nullptr;
  bool any_by_class = false;
  for (const std::string& module : modules.names) {
    const Answer answer = ask(module);
    if (answer.group == nullptr || (answer.by_class && !modules.are_layers)) return nullptr;
    if (found != nullptr && found != answer.group) return nullptr;
    found = answer.group;
    any_by_class = any_by_class || answer.by_class;
  }
  if (!any_by_class || !modules.were_moved) return found;
  // Targets may have been written for the name as it is; then the class says nothing.
  const Answer own = ask(name);
  return !own.is_read || (own.group != found && !own.by_class) ? nullptr : found;
}

}  // namespace glu_ckpt
