#pragma once
/// The config.json of a model that Megatron-LM trained, made from the arguments that it saved.

#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

struct TrainedConfig {
  /// The text of config.json; empty where it could not be made.
  std::string text;
  /// The end of a sentence that says why not, and the options that would say what is missing.
  std::string why_none;
  std::vector<std::string> options;
};

/// Says whether those arguments have the size of the vocabulary; without, the embedding's rows stand for it.
bool has_vocabulary(const std::string& args);

/// The config.json of each family that the arguments fit and say all of; none where the embedding is missing.
std::vector<std::string> fitting_configs(const std::string& args, const Inventory& tensors);

/// `args` is a ModelHints::trained.args, `tensors` what lies beside them. `model_type` names the family; empty: the one
/// that fits. What the arguments do not say is asked for, and nothing that Megatron-LM does not compute is written.
TrainedConfig make_trained_config(const std::string& args, const Inventory& tensors, const std::string& model_type);

/// Names the arguments that the fields in a text about such a config.json were made of: "num_experts_per_tok is
/// moe_router_topk". Those that have the field's own name are left out.
std::string arguments_of_fields(const std::string& model_type, std::string_view text);

/// Names the arguments of the family that say which tensors a model has: "num_layers, moe_layer_freq".
std::string arguments_of_tensors(const std::string& model_type);

}  // namespace glu_ckpt
