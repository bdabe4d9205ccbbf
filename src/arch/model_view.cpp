#include "arch/model_view.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "arch/dense_table.hpp"
#include "core/json.hpp"
#include "layout/key_pattern.hpp"
#include "layout/optimizer_names.hpp"

namespace glu_ckpt {
namespace {

// ---- what stands in front of all keys -----------------------------------------------------------

/// Keys outside of the experts, as one naming spells them behind one root, whatever the sizes of the model.
class KeySet {
 public:
  KeySet(const DenseNaming& naming, std::string_view root) : layers_(with_root(root, naming.layers)) {
    for_each_row(naming, [&](const DenseRow& row) {
      for (const TensorKind kind : {TensorKind::Weight, TensorKind::Bias}) {
        const std::string tail = print_tail(row, kind);
        if (row.place == Place::Model)
          keys_.insert(with_root(root, tail));
        else
          tails_.insert(tail);
      }
    });
  }

  bool has(std::string_view name) const {
    if (keys_.contains(name)) return true;
    if (!name.starts_with(layers_)) return false;
    name.remove_prefix(layers_.size());
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits > 0 && !name.substr(digits).starts_with('.')) return false;
    return tails_.contains(digits > 0 ? name.substr(digits + 1) : name);
  }

 private:
  std::string layers_;
  std::set<std::string, std::less<>> keys_;
  std::set<std::string, std::less<>> tails_;
};

/// The spellings that a model of this type may have; of any type where it has no map.
std::vector<KeySet> key_sets(const ModelHints& hints) {
  const Family* const named = find_family(hints.text_model_type.empty() ? hints.model_type : hints.text_model_type);
  std::vector<KeySet> sets;
  for (const std::string_view root : kMegatronRoots) sets.emplace_back(megatron_naming(), root);
  for (const Family& family : families()) {
    if (named != nullptr && named != &family) continue;
    for (const std::string_view root : kHfRoots) sets.emplace_back(family.naming, root);
    if (family.torchtitan != nullptr) sets.emplace_back(*family.torchtitan, "");
  }
  return sets;
}

/// The text, up to the end of a component, with which the names of all tensors begin but the optimizer's.
std::string_view shared_text(const Inventory& inventory) {
  std::optional<std::string_view> shared;
  for (const TensorRef& tensor : inventory.tensors) {
    const std::string_view name = tensor.name;
    if (shared && name.starts_with(*shared)) continue;
    if (is_optimizer_tensor(name)) continue;
    const std::string_view text = shared.value_or(name);
    const auto unlike = std::mismatch(text.begin(), text.end(), name.begin(), name.end()).first;
    shared = text.substr(0, static_cast<std::size_t>(unlike - text.begin()));
    shared = shared->substr(0, shared->find_last_of("./") + 1);
    if (shared->empty()) break;
  }
  return shared.value_or(std::string_view());
}

/// Returns whether keys of experts begin as they stand with the layers of some naming.
bool has_unwrapped_experts(const std::vector<std::string_view>& names) {
  KeySkeleton skeleton;
  for (const std::string_view name : names) {
    skeletonize(name, skeleton);
    const auto patterns = match_patterns(skeleton);
    if (patterns.empty()) continue;
    return std::ranges::any_of(
        patterns, [&](const KeyPattern* pattern) { return parse_key(name, skeleton, *pattern).scope.empty(); });
  }
  return false;
}

/// Returns whether a directory of one rank holds the whole model: it is the first one, and the saved arguments, where
/// there are some, cut the model among no others.
bool is_only_rank(std::string_view folder, const ModelHints& hints) {
  if (folder.find_first_of("123456789") != folder.npos) return false;
  constexpr std::size_t kDepth = 8;
  const JsonDocument args(hints.trained_args, kDepth);
  if (args.fault()) return true;
  constexpr auto kSizes = std::to_array<std::string_view>(
      {"tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"});
  return std::ranges::all_of(kSizes,
                             [&](std::string_view name) { return args.root().find<i64>(name).value_or(1) <= 1; });
}

std::string find_wrapper(const Inventory& inventory, const ModelHints& hints) {
  const std::string_view shared = shared_text(inventory);
  if (shared.empty()) return {};
  std::vector<std::string_view> outside, experts;
  for (const TensorRef& tensor : inventory.tensors)
    if (!is_optimizer_tensor(tensor.name))
      (tensor.name.find("experts") == std::string::npos ? outside : experts).push_back(tensor.name);
  const std::string_view folder = shard_folder(shared);
  if (has_unwrapped_experts(experts) || (!folder.empty() && !is_only_rank(folder, hints))) return {};
  const std::vector<KeySet> sets = key_sets(hints);
  std::string_view best;
  std::ptrdiff_t most = 0;
  for (std::size_t cut = 0; cut != shared.npos && cut <= shared.size();
       cut = cut == shared.size() ? shared.npos : shared.find_first_of("./", cut) + 1)
    for (const KeySet& set : sets) {
      const auto explained = std::ranges::count_if(outside, [&](auto name) { return set.has(name.substr(cut)); });
      if (explained <= most) continue;
      most = explained;
      best = shared.substr(0, cut);
    }
  return std::string(best);
}

// ---- what transformers has in memory ------------------------------------------------------------

/// Gives the tensors their names on the hub.
void spell_as_hub(const std::vector<MemoryWords>& words, const Inventory& inventory, ModelView& view) {
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i)
    for (const MemoryWords& word : words) {
      const std::string& name = view.of(inventory).tensors[i].name;
      if (!name.ends_with(word.memory)) continue;
      if (!view.renamed) view.renamed = inventory;
      std::string& renamed = view.renamed->tensors[i].name;
      renamed.replace(renamed.size() - word.memory.size(), word.memory.size(), word.hub);
      view.in_memory = true;
      break;
    }
}

}  // namespace

ModelView view_model(const Inventory& inventory, const ModelHints& hints) {
  ModelView view;
  view.wrapper = find_wrapper(inventory, hints);
  if (!view.wrapper.empty()) {
    view.renamed = inventory;
    for (TensorRef& tensor : view.renamed->tensors)
      if (const std::size_t at = wrapper_begin(tensor.name, view.wrapper); at != tensor.name.npos)
        tensor.name.erase(at, view.wrapper.size());
  }
  const std::string& type = hints.text_model_type.empty() ? hints.model_type : hints.text_model_type;
  spell_as_hub(memory_words_of(type), inventory, view);
  return view;
}

std::size_t wrapper_begin(std::string_view name, std::string_view wrapper) {
  if (name.starts_with(wrapper)) return 0;
  for (const StateKey& reading : read_state_key(name))
    if (reading.model_key.starts_with(wrapper)) return reading.before.size();
  return name.npos;
}

}  // namespace glu_ckpt
