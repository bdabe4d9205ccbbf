#include "layout/optimizer_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kStateWords[] = {"optimizer.state.", "optim.state."};

bool is_digit(std::string_view text) { return !text.empty() && text[0] >= '0' && text[0] <= '9'; }

/// Returns where `word` starts a component of `name`, or npos.
std::size_t find_component(std::string_view name, std::string_view word) {
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1))
    if (at == 0 || name[at - 1] == '.' || name[at - 1] == '/') return at;
  return name.npos;
}

struct StateWord {
  std::size_t begin = std::string_view::npos;
  std::size_t end = 0;
};

StateWord find_state(std::string_view name) {
  for (const std::string_view word : kStateWords)
    if (const std::size_t at = find_component(name, word); at != name.npos) return {at, at + word.size()};
  return {};
}

/// Removes "chained_0.", which counts the optimizers where there are several.
std::string_view without_chain(std::string_view name) {
  constexpr std::string_view kChain = "chained_";
  if (!name.starts_with(kChain)) return name;
  const std::size_t end = name.find_first_not_of("0123456789", kChain.size());
  return end == name.npos || end == kChain.size() || name[end] != '.' ? name : name.substr(end + 1);
}

}  // namespace

std::vector<StateKey> read_state_key(std::string_view name) {
  const StateWord found = find_state(name);
  if (found.begin == name.npos) return {};
  const std::string_view scope = name.substr(0, found.begin);
  const std::string_view rest = name.substr(found.end);
  std::vector<StateKey> readings;
  const auto add = [&](std::size_t first, std::size_t last, std::string_view state) {
    // "model" is what the weights themselves are called.
    if (state.empty() || state == "model" || first >= last) return;
    readings.push_back(
        {scope, name.substr(0, found.end + first), rest.substr(first, last - first), rest.substr(last), state});
  };
  if (const std::size_t dot = rest.find('.'); dot != rest.npos) {
    add(dot + 1, rest.size(), rest.substr(0, dot));
    const std::size_t last = rest.rfind('.');
    add(0, last, rest.substr(last + 1));
  }
  return readings;
}

bool is_bucket_key(std::string_view name) {
  for (const std::string_view word : {"dp_group_idx_", "gbuf_idx_", "bucket_idx_"})
    if (const std::size_t at = find_component(name, word); at != name.npos && is_digit(name.substr(at + word.size())))
      return true;
  // distrib_optim.pt: a pair of dtypes is the key of a dictionary.
  const std::size_t dtypes = find_component(name, "(torch.");
  return dtypes != name.npos && name.find(").", dtypes) != name.npos;
}

bool is_unnamed_state_key(std::string_view name) {
  if (!is_optimizer_tensor(name)) return false;
  const auto is_number = [](std::string_view text) {
    return text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const std::vector<StateKey> readings = read_state_key(name);
  return readings.empty() || std::ranges::any_of(readings, [&](const StateKey& key) {
           return is_number(key.state) || is_number(key.model_key);
         });
}

bool is_master_weight(std::string_view state) { return state == "param" || state == "fp32_param"; }

std::string_view shard_folder(std::string_view name) {
  if (!name.starts_with("mp_rank_")) return {};
  const std::size_t slash = name.find('/');
  return slash == name.npos ? std::string_view() : name.substr(0, slash + 1);
}

std::string unjoined_ranks_text(const Inventory& inventory) {
  std::set<std::string_view> folders;
  for (const TensorRef& tensor : inventory.tensors) {
    const std::string_view folder = shard_folder(tensor.name);
    if (folder.empty()) return {};
    folders.insert(folder);
  }
  if (folders.empty()) return {};
  return fmt::format(
      "it is a checkpoint in Megatron's older format, with the tensors of each rank in a directory of its "
      "own ({}{}), and the matrices that ranks have parts of are not joined. Megatron-LM joins them: load "
      "it there once, and save it with --ckpt-format torch_dist",
      *folders.begin(), folders.size() > 1 ? fmt::format(" and {} more", folders.size() - 1) : "");
}

bool is_optimizer_tensor(std::string_view name) {
  if (is_bucket_key(name) || find_state(name).begin != name.npos) return true;
  const std::string_view key = without_chain(name.substr(shard_folder(name).size()));
  return std::ranges::any_of(std::initializer_list<std::string_view>{"optimizer.", "optimizer_state_dict.", "optim."},
                             [&](std::string_view word) { return key.starts_with(word); });
}

}  // namespace glu_ckpt
