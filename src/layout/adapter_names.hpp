#pragma once
/// Tells adapters from models by the names of their tensors.

#include <algorithm>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The file that says by how much factors are multiplied.
inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

/// The end of the name of DoRA's magnitudes, a number for each row.
inline constexpr std::string_view kMagnitudes = ".lora_magnitude_vector";

/// Megatron-Bridge's names: "linear_fc1.adapter.linear_in", "linear_fc1.adapter.adapter_gate.linear_in".
inline bool is_megatron_factor(std::string_view name) {
  return name.find(".adapter.linear_") != name.npos || name.find(".adapter.adapter_") != name.npos;
}

/// Returns whether a factor's name has experts without the number of one: "experts.gate_up_proj.lora_A".
inline bool is_stacked_factor(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  if (at == name.npos || name.find(".lora_") == name.npos) return false;
  const char next = name.substr(at + kExperts.size())[0];
  return (next < '0' || next > '9') && !name.substr(at).starts_with(".experts.lora_") &&
         !name.substr(at).starts_with(".experts.base_layer.");
}

/// Returns whether the tensors are those of an adapter (LoRA) without the model that it is for.
inline bool is_adapter(const Inventory& inventory) {
  const auto is_factor = [](const TensorRef& tensor) {
    return tensor.name.find(".lora_") != tensor.name.npos || is_megatron_factor(tensor.name);
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
  return std::ranges::any_of(inventory.tensors,
                             [](const TensorRef& tensor) { return is_megatron_factor(tensor.name); });
}

/// Returns how the adapter's factors of routed experts are stored: "grouped" for all in one tensor, "indexed" for
/// tensors of each, "no" where it has none.
inline std::string_view adapter_experts(const Inventory& inventory) {
  const auto has = [&](std::string_view text) {
    return std::ranges::any_of(inventory.tensors,
                               [&](const TensorRef& tensor) { return tensor.name.find(text) != tensor.name.npos; });
  };
  const auto is_stacked = [](const TensorRef& tensor) { return is_stacked_factor(tensor.name); };
  if (is_megatron_adapter(inventory) || has(".experts.lora_") || has(".experts.base_layer.lora_") ||
      std::ranges::any_of(inventory.tensors, is_stacked))
    return "grouped";
  return has(".experts.") ? "indexed" : "no";
}

/// Behind the program in SourceAnswers::adapter_layout, in this order: factors of each expert apart or of all packed,
/// pairs for gate and for up, and one factor for all experts.
constexpr std::string_view kIndexedFactors = ":indexed", kGroupedFactors = ":grouped", kSplitFactors = ":split",
                           kSharedFactors = ":shared";

/// Ends the name of the tensor that has a module's scale, where an adapter is read in no file's layout.
constexpr std::string_view kScaleName = ".lora_scale";

}  // namespace glu_ckpt
