#pragma once
/// Tells adapters from models by the names of their tensors.

#include <algorithm>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Returns whether the tensors are those of an adapter (LoRA) without the model that it is for.
inline bool is_adapter(const Inventory& inventory) {
  const auto is_factor = [](const TensorRef& tensor) {
    return tensor.name.find(".lora_") != tensor.name.npos || tensor.name.find(".adapter.linear_") != tensor.name.npos;
  };
  const auto may_be = [&](const TensorRef& tensor) {
    // PEFT saves whole modules, too; the weight that factors are for is the model's.
    const bool is_base = tensor.name.find(".base_layer.") != tensor.name.npos;
    return is_factor(tensor) || (tensor.name.starts_with("base_model.model.") && !is_base);
  };
  return std::ranges::any_of(inventory.tensors, is_factor) && std::ranges::all_of(inventory.tensors, may_be);
}

/// Returns whether the names are Megatron-Bridge's.
inline bool is_megatron_adapter(const Inventory& inventory) {
  return std::ranges::any_of(inventory.tensors, [](const TensorRef& tensor) {
    return tensor.name.find(".adapter.linear_") != tensor.name.npos;
  });
}

/// Returns how the adapter's factors of routed experts are stored: "grouped" for all in one tensor, "indexed" for
/// tensors of each, "no" where it has none.
inline std::string_view adapter_experts(const Inventory& inventory) {
  const auto has = [&](std::string_view text) {
    return std::ranges::any_of(inventory.tensors,
                               [&](const TensorRef& tensor) { return tensor.name.find(text) != tensor.name.npos; });
  };
  if (is_megatron_adapter(inventory) || has(".experts.lora_") || has(".experts.base_layer.lora_")) return "grouped";
  return has(".experts.") ? "indexed" : "no";
}

/// Ends the name of the tensor that has a module's scale, where an adapter is read in no file's layout.
constexpr std::string_view kScaleName = ".lora_scale";

}  // namespace glu_ckpt
