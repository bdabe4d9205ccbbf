#include "arch/model_view.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "arch/dense_table.hpp"
#include "core/fail.hpp"
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
  for (const DenseNaming* megatron : {&kMegatronGptNaming, &kMegatronHybridNaming})
    for (const std::string_view root : kMegatronRoots)
      if (named == nullptr || named->megatron == megatron) sets.emplace_back(*megatron, root);
  for (const Family& family : families()) {
    if (named != nullptr && named != &family) continue;
    for (const std::string_view root : roots_of(family)) sets.emplace_back(family.naming, root);
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

constexpr auto kWrapperWords = std::to_array<std::string_view>(
    {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_fpw_module.", "module."});

std::string_view wrapper_word_at(std::string_view text) {
  const auto word = std::ranges::find_if(kWrapperWords, [&](std::string_view one) { return text.starts_with(one); });
  return word == kWrapperWords.end() ? std::string_view() : *word;
}

/// Returns the key without words of wrappers; where `all` is false, without those that are no words of a model.
std::string without_words(std::string_view key, bool all) {
  std::string text;
  while (!key.empty()) {
    const std::string_view word = wrapper_word_at(key);
    const std::size_t end = std::min(key.find('.', word.size()), key.size() - 1) + 1;
    if (!word.empty() && (all || word.front() == '_')) {
      key.remove_prefix(word.size());
      continue;
    }
    text += key.substr(0, word.empty() ? end : word.size());
    key.remove_prefix(word.empty() ? end : word.size());
  }
  return text;
}

/// Megatron-FSDP's own keys have the word: "model.module.decoder.layers.0.mlp...", and behind "optimizer.state." too.
bool is_megatron_fsdp_key(const TensorRef& tensor) {
  return tensor.name.starts_with("model.module.") || tensor.name.starts_with("optimizer.state.module.");
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
  const JsonDocument args(hints.trained.args, kDepth);
  if (args.fault()) return true;
  constexpr auto kSizes = std::to_array<std::string_view>(
      {"tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"});
  return std::ranges::all_of(kSizes,
                             [&](std::string_view name) { return args.root().find<i64>(name).value_or(1) <= 1; });
}

/// Names of tensors that are not an optimizer's.
struct ModelNames {
  explicit ModelNames(const Inventory& inventory) {
    for (const TensorRef& tensor : inventory.tensors)
      if (!is_optimizer_tensor(tensor.name))
        (tensor.name.find("experts") == std::string::npos ? outside : experts).push_back(tensor.name);
  }
  std::vector<std::string_view> outside, experts;
};

/// The part of the text in front of all keys without which most of them are a model's.
struct Cut {
  std::size_t size = 0;
  std::ptrdiff_t explained = 0;
};

Cut best_cut(std::string_view shared, const std::vector<std::string_view>& names, const std::vector<KeySet>& sets) {
  Cut best;
  for (std::size_t cut = 0; cut != shared.npos && cut <= shared.size();
       cut = cut == shared.size() ? shared.npos : shared.find_first_of("./", cut) + 1)
    for (const KeySet& set : sets) {
      const auto explained = std::ranges::count_if(names, [&](auto name) { return set.has(name.substr(cut)); });
      if (explained > best.explained) best = {cut, explained};
    }
  return best;
}

std::string find_wrapper(const Inventory& inventory, const ModelHints& hints) {
  const std::string_view shared = shared_text(inventory);
  if (shared.empty()) return {};
  const ModelNames names(inventory);
  const std::string_view folder = shard_folder(shared);
  if (has_unwrapped_experts(names.experts) || (!folder.empty() && !is_only_rank(folder, hints))) return {};
  return std::string(shared.substr(0, best_cut(shared, names.outside, key_sets(hints)).size));
}

/// The place in a tensor's name of its key in the model, which an optimizer puts words in front of.
std::size_t model_key_begin(std::string_view name, std::string_view shared) {
  std::size_t begin = name.npos, nearest = name.npos;
  for (const StateKey& reading : read_state_key(name)) {
    begin = std::min(begin, reading.before.size());
    if (reading.model_key.starts_with(shared)) nearest = std::min(nearest, reading.before.size());
  }
  return nearest != name.npos ? nearest : begin != name.npos ? begin : 0;
}

/// `stored` are the keys that some tensors have in the files.
void check_apart(const Inventory& inventory, const std::map<std::size_t, std::string>& stored) {
  std::map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i) {
    const auto [found, is_new] = by_name.emplace(inventory.tensors[i].name, i);
    if (is_new) continue;
    const auto key_of = [&](std::size_t index) -> const std::string& {
      const auto key = stored.find(index);
      return key == stored.end() ? inventory.tensors[index].name : key->second;
    };
    const std::string &first = key_of(found->second), &second = key_of(i);
    fail(ErrorCode::RedundantKeys, {{}, second},
         "'{}' and '{}' are one key, '{}', without the words that wrappers put into it, and nothing says which of the "
         "two tensors is the model's: remove the other one",
         first, second, found->first);
  }
}

// ---- what transformers has in memory ------------------------------------------------------------

std::string as_on_hub(std::string name, const std::vector<MemoryWords>& words) {
  const bool is_expert = name.find("experts.") != std::string::npos;
  for (const auto& [types, memory, hub, with_experts] : words) {
    if (is_expert && !with_experts) continue;
    const bool begins = memory.starts_with('^');
    const std::string_view text = memory.substr(begins ? 1 : 0);
    const std::size_t at = begins || !text.ends_with('.') ? (begins ? 0 : name.size() - text.size()) : name.find(text);
    if (at < name.size() && std::string_view(name).substr(at).starts_with(text)) name.replace(at, text.size(), hub);
  }
  return name;
}

/// Gives the tensors their names on the hub. Those of experts mostly are read, and written, by rows of their own.
void spell_as_hub(const std::vector<MemoryWords>& words, const Inventory& inventory, ModelView& view) {
  if (words.empty()) return;
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i) {
    const std::string& name = view.of(inventory).tensors[i].name;
    std::string spelled = as_on_hub(name, words);
    if (spelled == name) continue;
    if (!view.renamed) view.renamed = inventory;
    view.renamed->tensors[i].name = std::move(spelled);
    view.in_memory = true;
  }
}

}  // namespace

bool has_wrapper_words(const Inventory& inventory) {
  return std::ranges::any_of(inventory.tensors, [](const TensorRef& tensor) {
    return std::ranges::any_of(kWrapperWords, [&](auto word) { return tensor.name.find(word) != std::string::npos; });
  });
}

std::string take_off_wrapper_words(Inventory& inventory, const ModelHints& hints) {
  std::map<std::size_t, std::string> stored;
  // "module" may be Megatron's own word where keys have no text in common: in directories of several ranks, and where
  // Megatron-FSDP saved weights beside their optimizer's state.
  const bool is_megatron_fsdp = std::ranges::all_of(inventory.tensors, is_megatron_fsdp_key);
  const auto respell = [&](std::string_view shared, std::string_view spelled) {
    for (std::size_t i = 0; i < inventory.tensors.size(); ++i) {
      std::string& name = inventory.tensors[i].name;
      const std::size_t begin = model_key_begin(name, shared);
      const std::string_view key = std::string_view(name).substr(begin);
      const bool all = shard_folder(name).empty() && !is_megatron_fsdp;
      std::string text = name.substr(0, begin);
      if (key.starts_with(shared))
        text.append(spelled).append(without_words(key.substr(shared.size()), all));
      else
        text += without_words(key, all);
      if (text != name) stored.emplace(i, std::exchange(name, std::move(text)));
    }
  };
  // find_wrapper() judges the text that all keys begin with.
  const std::string shared(shared_text(inventory));
  respell(shared, shared);
  // But "model._orig_mod." is in front of all keys also where the model has no head, and they begin with "model.".
  std::string_view front = shared;
  while (!wrapper_word_at(front).empty()) front.remove_prefix(wrapper_word_at(front).size());
  const std::string spelled = shared.substr(0, shared.size() - front.size()) + without_words(front, false);
  if (spelled != shared) {
    const std::vector<KeySet> sets = key_sets(hints);
    const std::vector<std::string_view> names = ModelNames(inventory).outside;
    const auto has = [&](const KeySet& set, std::string_view name) {
      return set.has(spelled + std::string(name.substr(shared.size())));
    };
    const std::ptrdiff_t least = best_cut(shared, names, sets).explained;
    if (std::ranges::any_of(sets, [&](const KeySet& set) {
          return std::ranges::count_if(names, [&](auto name) { return has(set, name); }) >= least;
        }))
      respell(shared, spelled);
  }
  check_apart(inventory, stored);
  return stored.empty() ? std::string() : stored.begin()->second;
}

ModelView view_model(const Inventory& inventory, const ModelHints& hints) {
  ModelView view;
  view.wrapper = find_wrapper(inventory, hints);
  if (!view.wrapper.empty()) {
    view.renamed = inventory;
    for (TensorRef& tensor : view.renamed->tensors)
      if (const std::size_t at = wrapper_begin(tensor.name, view.wrapper); at != tensor.name.npos)
        tensor.name.erase(at, view.wrapper.size());
  }
  spell_as_hub(memory_words_of(hints.model_type, hints.text_model_type), inventory, view);
  return view;
}

std::size_t wrapper_begin(std::string_view name, std::string_view wrapper) {
  if (name.starts_with(wrapper)) return 0;
  for (const StateKey& reading : read_state_key(name))
    if (reading.model_key.starts_with(wrapper)) return reading.before.size();
  return name.npos;
}

}  // namespace glu_ckpt
