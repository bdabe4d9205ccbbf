#pragma once
/// Reads adapter_config.json of PEFT: by how much factors are multiplied.

#include <string>
#include <utility>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

struct AdapterConfig {
  i64 rank = 0;
  double alpha = 0;
  /// Divide alpha by the square root of the rank.
  bool rank_stabilized = false;
  /// Ranks and alphas of some modules: a pattern of the end of their names, and a value; the first that matches counts.
  std::vector<std::pair<std::string, double>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  /// The class of the model that was adapted, and its name or path; empty where PEFT did not write it.
  std::string base_class;
  std::string base_name;
  /// DoRA: rows are scaled to magnitudes of their own.
  bool is_dora = false;
  /// Unsloth wrote the configuration.
  bool is_by_unsloth = false;
  /// Parameters of three axes whose factors are packed: "mlp.experts.gate_up_proj".
  std::vector<std::string> target_parameters;
  /// Modules that are adapted: the ends of their names, or one pattern of whole names; neither where it is not said.
  std::vector<std::string> target_modules;
  std::string target_pattern;
  /// Modules that are left out although those name them.
  std::vector<std::string> excluded_modules;
  std::string excluded_pattern;
  /// The only layers whose modules are adapted, of all where it is empty, and the names of the lists that number them:
  /// "layers"; where none is given, whatever is before the first number behind two words.
  std::vector<i64> only_layers;
  std::vector<std::string> layer_lists;

  /// Both throw NotSupported for a pattern that is not read here.
  i64 rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  /// Returns the number by which the product of the factors is multiplied, as PyTorch multiplies fp32 tensors by it.
  float scale_of(const std::string& module) const;
  /// Returns the alpha that gives the scale of a module of that rank.
  double alpha_for_scale(float scale, i64 of_rank) const;
};

/// Says of an adapter's modules, by their names, which of them target_modules does not name, exclude_modules does, or
/// layers_to_transform leaves out, and which of its names no module has: PEFT leaves the factors of the former out, and
/// starts the latter anew.
std::vector<std::string> target_contradictions(const AdapterConfig& config, const std::vector<std::string>& modules);

/// Throws ConfigJson for what is no such file, NotSupported for an adapter that is more than products of factors that
/// are added to the model's own weights: biases, whole modules, another start than the model.
AdapterConfig read_adapter_config(const std::string& text, const std::string& file);

}  // namespace glu_ckpt
