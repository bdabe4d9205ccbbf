/// All that the files of this folder know, in the order of meson.build, which also makes the list of them.

#include <algorithm>
#include <map>
#include <string>

#include "families/family.hpp"
#include "families/knowledge_list.hpp"

namespace glu_ckpt {

KNOWLEDGE_DECLARATIONS

namespace {

constexpr const Knowledge* kKnowledge[] = {KNOWLEDGE_ENTRIES};

/// The items of all files, one after the other.
template <typename Item>
std::vector<Item> all_of(std::span<const Item> Knowledge::*part) {
  std::vector<Item> all;
  for (const Knowledge* knowledge : kKnowledge)
    all.insert(all.end(), (knowledge->*part).begin(), (knowledge->*part).end());
  return all;
}

}  // namespace

std::span<const Naming> namings() {
  static const std::vector<Naming> all = all_of(&Knowledge::experts);
  return all;
}

std::span<const Family> families() {
  static const std::vector<Family> all = all_of(&Knowledge::families);
  return all;
}

const Naming* find_dense_naming(std::string_view name) {
  static const std::map<std::string, Naming, std::less<>> all = [] {
    std::map<std::string, Naming, std::less<>> namings;
    for (const Family& family : families()) {
      if (family.has_experts()) continue;
      const auto added = namings.emplace("hf:" + std::string(family.model_type), Naming()).first;
      added->second.name = added->first;
    }
    return namings;
  }();
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

std::vector<std::string_view> types_spelled_as(const Naming& naming) {
  std::vector<std::string_view> types;
  const auto add = [&](std::string_view type) {
    if (!type.empty() && naming.name != "hf:" + std::string(type) && std::ranges::find(types, type) == types.end())
      types.push_back(type);
  };
  for (const Family& family : families()) {
    if (family.expert_naming != naming.name && family.other_expert_naming != naming.name) continue;
    add(family.model_type);
    for (const Wrapper& wrapper : family.wrappers) add(wrapper.model_type);
  }
  for (const Knowledge* knowledge : kKnowledge)
    for (const SpelledLike& like : knowledge->spelled_like)
      if (like.naming == naming.name && find_family(like.model_type) == nullptr) add(like.model_type);
  return types;
}

const Family* find_family(std::string_view model_type) {
  if (model_type.empty()) return nullptr;
  const auto found = std::ranges::find(families(), model_type, &Family::model_type);
  return found == families().end() ? nullptr : &*found;
}

std::vector<MemoryWords> memory_words_of(std::string_view model_type, std::string_view text_type) {
  std::vector<MemoryWords> words = all_of(&Knowledge::memory_words);
  std::erase_if(words, [&](const MemoryWords& each) {
    return std::ranges::none_of(each.model_types, [&](std::string_view type) {
      return !type.empty() && (type == model_type || type == text_type);
    });
  });
  return words;
}

std::string_view refusal_of(std::string_view model_type) {
  for (const Knowledge* knowledge : kKnowledge)
    for (const Refusal& refusal : knowledge->refusals)
      if (refusal.model_type == model_type) return refusal.reason;
  return {};
}

}  // namespace glu_ckpt
