#pragma once
/// Optimizer state that is no tensor of a checkpoint: objects of torch_dist, values in the common state, files beside.

#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

struct OptimizerPart {
  enum class Kind { Object, CommonState, File };
  Kind kind = Kind::Object;
  /// The name of the object, or of the file as ExtraFile has it.
  std::string name;
  /// The keys on the way to the first tensor in it; empty where nobody looked.
  std::string keys;
};

/// Looks for tensors of more than one element, also in files that are left behind. States of random generators and
/// param_groups without tensors are none.
/// Throws Io.
std::vector<OptimizerPart> find_optimizer_parts(const CheckpointInfo& info);

/// The torch zip of a common state without the entries of its dictionary that hold such tensors. Throws what reading a
/// torch file throws.
std::string without_optimizer(std::string_view zip, const std::string& file);

}  // namespace glu_ckpt
