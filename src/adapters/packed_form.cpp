#include "adapters/packed_form.hpp"

#include <algorithm>

#include "layout/layout_table.hpp"

namespace glu_ckpt {

const Naming* hub_naming(const Recognition& model) {
  const Naming* const own =
      model.architecture == nullptr ? nullptr : find_naming(model.architecture->family->expert_naming);
  return own == nullptr ? model.naming : own;
}

const Naming* packed_naming(const Naming& hub, const Architecture* architecture) {
  if (fixed_glu(hub).kind != Glu::Kind::Unknown || architecture == nullptr) return &hub;
  const std::string& type = architecture->model_type;
  for (const Naming& in_memory : namings())
    if (std::ranges::find(in_memory.in_memory_of, type) != in_memory.in_memory_of.end()) return &in_memory;
  return &hub;
}

AdaptedModel adapted_model(const Naming* hub, const Architecture* architecture) {
  AdaptedModel model;
  model.sizes = [](const std::string&) { return std::nullopt; };
  model.is_linear = [](const std::string&) { return false; };
  if (hub == nullptr) return model;
  model.packed_order = fixed_glu(*packed_naming(*hub, architecture));
  model.axes = hub->axes;
  return model;
}

}  // namespace glu_ckpt
