#pragma once
/// Says which programs load a checkpoint as it is.

#include <vector>

#include "families/architecture.hpp"

namespace glu_ckpt {

/// The form in which the experts of one kind are stored in a layer.
struct StoredExperts {
  ExpertSet set = ExpertSet::Routed;
  Experts experts = Experts::Indexed;
  /// Absent without biases.
  std::optional<Experts> bias_experts = std::nullopt;
  /// FC1 is one tensor.
  bool fused = false;
  Glu glu = {};
};

StoredExperts stored_as(const ExpertBlock& block);

/// The facts that decide about it.
struct StoredModel {
  LayoutAnswers layout;
  /// One for each layer and kind of experts; the optimizer's states aside.
  std::vector<StoredExperts> experts;
  /// There are tensors outside of the experts, and it is not one shard of several.
  bool has_rest = false;
  /// model_type in config.json, and that of the language model where it has its own.
  std::string model_type;
  std::string text_model_type;
  /// Its names are those that transformers has in memory, which no other program reads.
  bool in_memory = false;
  /// The spelling of what is outside of the experts (DenseNaming::name); empty where nobody knows it.
  std::string rest;
  /// The reason why `rest` is empty.
  std::string why_no_rest = "nothing but experts of the model is there";
  /// "safetensors", "torch", "torch-dist".
  std::string format;
  /// null where the family has no map.
  const Architecture* architecture = nullptr;
  /// The reason why `architecture` is null.
  std::string no_architecture;
  /// A sentence that says why it is not the whole model, under the names that programs read; empty where it is.
  std::string not_whole;
  /// The configuration says how many experts there are.
  bool says_experts = false;
  /// A sentence that says which other program's it is, such as an adapter; empty for models.
  std::string is_other;
  /// config.json lies beside the tensors.
  bool has_config = false;
  /// A trainer's arguments are in it.
  bool is_trained = false;
  /// megatron_args.txt lies beside it.
  bool has_args = false;
  /// Experts are stored as codes and scales.
  bool quantized = false;
  /// A sentence where they are in a form that no program reads.
  std::string_view unread_form;
  /// The method's name in quantization_config; empty where there is none.
  std::string quant_method;
};

/// The programs, or why there is none.
LoadsIn loads_in(const StoredModel& model);

}  // namespace glu_ckpt
