#include "arch/model_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace glu_ckpt {
namespace {

constexpr std::string_view kHub = "hf";
/// Words of namings whose tensors may travel with a model in another one.
constexpr auto kTrainers = std::to_array<std::string_view>({"megatron", "torchtitan"});

/// Splits off the last component: {"a.b", "c"} of "a.b.c".
std::pair<std::string_view, std::string_view> split_last(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos) return {{}, name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

struct Traveller {
  /// The naming that it is from.
  std::string_view from;
  std::string_view name;
};

/// Reads a name behind kUnknownPrefix.
Traveller read_traveller(std::string_view behind) {
  for (const std::string_view trainer : kTrainers)
    if (behind.starts_with(trainer) && behind.substr(trainer.size()).starts_with('.'))
      return {trainer, behind.substr(trainer.size() + 1)};
  return {kHub, behind};
}

}  // namespace

bool is_made_anew(std::string_view name) {
  constexpr std::string_view kExtraState = "_extra_state";
  const auto [module, last] = split_last(name);
  if (last == "inv_freq") return split_last(module).second.find("rotary") != std::string_view::npos;
  // An object of torch_dist: "..._extra_state/shard_0_1"; a value in a dict that a module returned:
  // "..._extra_state.a".
  const std::size_t at = name.find(kExtraState);
  if (at == name.npos || (at > 0 && name[at - 1] != '.')) return false;
  const std::string_view behind =
      name.substr(std::min(name.find_first_not_of("0123456789", at + kExtraState.size()), name.size()));
  return behind.empty() || behind.front() == '/' || behind.front() == '.';
}

bool is_router_bias(std::string_view name) {
  constexpr auto kWords = std::to_array<std::string_view>({"expert_bias", "expert_bias_E", "e_score_correction_bias"});
  return std::ranges::find(kWords, split_last(name).second) != kWords.end();
}

const std::string& model_name(const Inventory& inventory, const Recognition& recognition, std::size_t tensor) {
  const auto found = recognition.model_names.find(tensor);
  return found == recognition.model_names.end() ? inventory.tensors[tensor].name : found->second;
}

std::string travelling_name(std::string_view name, std::string_view from, std::string_view to) {
  Traveller traveller{from, name};
  if (name.starts_with(kUnknownPrefix)) {
    const Traveller read = read_traveller(name.substr(kUnknownPrefix.size()));
    // In the model's own form the prefix is a part of a name like any other.
    if (from != kHub || read.from != kHub) traveller = read;
  }
  if (traveller.from == to) return std::string(traveller.name);
  if (traveller.from == kHub) return fmt::format("{}{}", kUnknownPrefix, traveller.name);
  return fmt::format("{}{}.{}", kUnknownPrefix, traveller.from, traveller.name);
}

std::string_view own_name(std::string_view name) {
  while (name.starts_with(kUnknownPrefix)) name = read_traveller(name.substr(kUnknownPrefix.size())).name;
  return name;
}

const BesidePart* beside_part(const Family& family, std::string_view own_name) {
  for (const Wrapper& wrapper : family.wrappers)
    for (const BesidePart& part : wrapper.beside)
      if (own_name.starts_with(part.root)) return &part;
  return nullptr;
}

}  // namespace glu_ckpt
