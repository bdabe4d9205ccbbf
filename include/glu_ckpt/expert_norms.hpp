#pragma once
/// Computes the norm of each expert's weights.

#include <filesystem>
#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// The routed experts of one layer.
struct LayerNorms {
  /// "3", "mtp.0".
  std::string layer;
  /// The norm of each expert: the root of the sum of the squares of all elements of its weights, biases and scales not
  /// included. NaN where they are no numbers (F64, F32, F16 and BF16 are); elements that are a NaN count as 0.
  std::vector<double> norms;
};

/// Reads the routed experts' weights, in whatever layout they are; the result is the same in each. Throws errors of the
/// files, Interrupted.
std::vector<LayerNorms> expert_norms(const std::filesystem::path& path, const SourceAnswers& answers = {},
                                     const RunOptions& run = {});

}  // namespace glu_ckpt
