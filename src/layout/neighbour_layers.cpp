#include "layout/neighbour_layers.hpp"

#include <algorithm>

namespace glu_ckpt {
namespace {

/// The text of a key up to its first number: "model.layers.3.", which all keys of a layer begin with; empty where there
/// is none.
std::string_view layer_prefix(std::string_view key) {
  for (std::size_t begin = 0; begin < key.size();) {
    const std::size_t end = std::min(key.find('.', begin), key.size());
    const std::string_view word = key.substr(begin, end - begin);
    if (!word.empty() && word.find_first_not_of("0123456789") == word.npos && end < key.size())
      return key.substr(0, end + 1);
    begin = end + 1;
  }
  return {};
}

}  // namespace

NeighbourLayers::NeighbourLayers(const Inventory& inventory, const Recognition& recognition) {
  const auto add = [&](std::size_t tensor, const std::string& label) {
    const std::string_view prefix = layer_prefix(inventory.tensors[tensor].name);
    if (!label.empty() && !prefix.empty()) labels_.emplace(prefix, label);
  };
  for (const DenseMatrix& dense : recognition.dense) add(dense.matrix.tensor, layer_label(dense));
  if (!recognition.is_adapter) return;
  // An adapter's factors are tensors of their own, in the layers that their names number.
  for (const TensorRef& tensor : inventory.tensors)
    if (const std::string_view prefix = layer_prefix(tensor.name); !prefix.empty()) {
      const std::string_view front = prefix.substr(0, prefix.size() - 1);
      labels_.emplace(prefix, front.substr(front.rfind('.') + 1));
    }
}

std::string NeighbourLayers::of(std::string_view name) const {
  const auto label = labels_.find(layer_prefix(name));
  return label == labels_.end() ? std::string() : label->second;
}

}  // namespace glu_ckpt
