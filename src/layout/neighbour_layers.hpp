#pragma once
/// The layers of tensors that no table knows by a role, such as the scales of attention.

#include <map>
#include <string>
#include <string_view>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Tensors whose names begin alike up to the number of the layer are in one layer. Points into the inventory.
class NeighbourLayers {
 public:
  NeighbourLayers(const Inventory& inventory, const Recognition& recognition);

  /// The layer of the known tensors beside this one: "3", "mtp.0"; empty where there is none.
  std::string of(std::string_view name) const;

 private:
  /// By the text of a key up to its first number: "model.layers.3.".
  std::map<std::string_view, std::string> labels_;
};

}  // namespace glu_ckpt
