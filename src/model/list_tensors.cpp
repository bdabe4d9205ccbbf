/// Lists what the tensors and the layers of an inspected checkpoint hold, in words and in bytes.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "arch/model_names.hpp"
#include "core/compare_names.hpp"
#include "families/architecture.hpp"
#include "glu_ckpt/model.hpp"
#include "layout/neighbour_layers.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

/// The words of one tensor's matrices: each list holds a word once, in the order of the model.
struct HeldMatrices {
  std::string state;
  std::vector<std::string> layers;
  std::vector<i64> experts;
  std::vector<std::string> roles;
  std::string set;
  std::string kind;
};

template <typename Word>
void add_once(std::vector<Word>& words, const Word& word) {
  if (std::ranges::find(words, word) == words.end()) words.push_back(word);
}

/// "3", "0-63" or "0, 2, 5".
std::string numbers_text(std::vector<i64> numbers) {
  std::ranges::sort(numbers);
  if (numbers.size() == 1) return fmt::format("{}", numbers.front());
  if (numbers.back() - numbers.front() + 1 == std::ssize(numbers))
    return fmt::format("{}-{}", numbers.front(), numbers.back());
  return fmt::format("{}", fmt::join(numbers, ", "));
}

std::string layers_text(const std::vector<std::string>& layers) {
  if (layers.empty()) return {};
  if (layers.size() == 1) return layers.front().empty() ? "" : fmt::format("layer {} ", layers.front());
  return fmt::format("layers {}-{} ", layers.front(), layers.back());
}

std::string held_text(const HeldMatrices& held) {
  std::string text = held.state == "model" ? "" : held.state + " of ";
  text += layers_text(held.layers);
  if (held.set == "routed")
    text += fmt::format("routed expert{} {} ", held.experts.size() == 1 ? "" : "s", numbers_text(held.experts));
  if (held.set == "shared") text += "shared expert ";
  const std::string_view between = held.set.empty() ? ", " : " and ";
  return text + fmt::format("{} {}", fmt::join(held.roles, between), held.kind);
}

std::map<std::size_t, HeldMatrices> held_by_tensor(const Recognition& recognition) {
  std::map<std::size_t, HeldMatrices> by_tensor;
  const auto add = [&](std::size_t tensor, const std::string& layer, std::string_view role, TensorKind kind) {
    HeldMatrices& held = by_tensor[tensor];
    add_once(held.layers, layer);
    add_once(held.roles, role == "gate_up" ? "gate and up" : std::string(role));
    held.kind = to_string(kind);
    return &held;
  };
  for (const ExpertBlock& block : recognition.blocks) {
    const std::string layer = layer_label(block);
    for (const Matrix& matrix : block.matrices)
      for_each_stored_part(matrix, [&](std::size_t tensor, const Placement&, i64, i64) {
        HeldMatrices* const held = add(tensor, layer, to_string(matrix.role), matrix.kind);
        held->state = block.state;
        held->set = to_string(block.set);
        add_once(held->experts, matrix.expert);
      });
  }
  for (const DenseMatrix& dense : recognition.dense) {
    HeldMatrices* const held = add(dense.matrix.tensor, layer_label(dense), to_string(dense.role), dense.matrix.kind);
    held->state = "model";
  }
  return by_tensor;
}

/// "vision" of what sees beside a language model; empty for other tensors.
std::string beside_word(const Recognition& recognition, std::string_view name) {
  if (recognition.architecture == nullptr) return {};
  const BesidePart* const part = beside_part(*recognition.architecture->family, own_name(name));
  if (part == nullptr) return {};
  const std::string_view section = part->section.substr(part->section.rfind('.') + 1);
  return std::string(section.substr(0, section.find("_config")));
}

i64 bytes_of_matrix(const Matrix& matrix) { return matrix.rows * matrix.cols * matrix.element_bytes; }

}  // namespace

std::vector<ListedTensor> list_tensors(const Inspection& inspection, const std::string& pattern) {
  const auto& tensors = inspection.source->inventory().tensors;
  std::vector<ListedTensor> listed(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) listed[i].tensor = i;
  if (inspection.recognition) {
    for (const auto& [tensor, held] : held_by_tensor(*inspection.recognition))
      listed.at(tensor).matrix = held_text(held);
    for (const TensorCopy& copy : inspection.recognition->copies)
      listed.at(copy.tensor).matrix = fmt::format("copy of {}", to_string(copy.of));
    for (const std::size_t other : inspection.recognition->others)
      if (std::string& matrix = listed.at(other).matrix; matrix.empty())
        matrix = beside_word(*inspection.recognition, tensors[other].name);
  }
  if (!pattern.empty())
    std::erase_if(listed, [&](const ListedTensor& one) {
      return !fits_glob(pattern, tensors[one.tensor].name) && !fits_glob(pattern, one.matrix);
    });
  return listed;
}

std::vector<LayerContent> layer_contents(const Inspection& inspection) {
  if (!inspection.recognition) return {};
  std::vector<LayerContent> layers;
  std::map<std::string, std::size_t> index;
  const auto layer_of = [&](const std::string& label) -> LayerContent& {
    const auto [at, is_new] = index.emplace(label, layers.size());
    if (is_new) layers.push_back({.layer = label});
    return layers[at->second];
  };
  const Recognition& recognition = *inspection.recognition;
  for (const ExpertBlock& block : recognition.blocks) {
    if (block.is_optimizer_state()) continue;
    LayerContent& layer = layer_of(layer_label(block));
    const bool routed = block.set == ExpertSet::Routed;
    if (routed) layer.num_experts += block.num_experts;
    for (const Matrix& matrix : block.matrices)
      (routed ? layer.expert_bytes : layer.shared_bytes) += bytes_of_matrix(matrix);
  }
  const auto& tensors = inspection.source->inventory().tensors;
  std::set<std::size_t> dense_tensors;
  for (const DenseMatrix& dense : recognition.dense) {
    layer_of(layer_label(dense)).other_bytes += bytes_of_matrix(dense.matrix);
    dense_tensors.insert(dense.matrix.tensor);
  }
  // Codes and scales outside of the experts, and an adapter's factors, are in the layer of what lies beside them.
  const NeighbourLayers neighbours(inspection.source->inventory(), recognition);
  for (const std::size_t other : recognition.others) {
    const TensorRef& tensor = tensors[other];
    if (dense_tensors.contains(other) || is_optimizer_tensor(tensor.name)) continue;
    LayerContent& layer = layer_of(neighbours.of(tensor.name));
    const bool is_routed = recognition.is_adapter && tensor.name.find(".experts.") != tensor.name.npos;
    (is_routed ? layer.expert_bytes : layer.other_bytes) += tensor.bytes;
    if (const std::string part = beside_word(recognition, tensor.name); !part.empty())
      layer.beside_bytes[part] += tensor.bytes;
  }
  std::stable_sort(layers.begin(), layers.end(), [](const LayerContent& a, const LayerContent& b) {
    if (a.layer.empty() != b.layer.empty()) return b.layer.empty();
    return natural_key(a.layer) < natural_key(b.layer);
  });
  return layers;
}

}  // namespace glu_ckpt
