#pragma once
/// Plans what is outside of the experts in another naming: the tensors to write, and what of the source they use.

#include <set>
#include <string>
#include <vector>

#include "arch/dense_table.hpp"
#include "plan/target_block.hpp"

namespace glu_ckpt {

/// The naming and the options with which the rest of a model is written.
struct DenseTarget {
  const DenseNaming* naming = nullptr;
  /// The text in front of its keys.
  std::string root;
  /// Tensors that repeat others are written where a name here says so; absent: all that the naming has.
  std::optional<std::set<std::string>> copies;
  /// The dtype of what is computed; absent: the source's.
  std::optional<Dtype> computed_dtype;
  /// Tensors that no map knows travel under kUnknownPrefix, rather than being refused.
  bool keep_unknown = false;
};

/// Adds the tensors that the target's naming has, each from its matrices; drops copies. Throws PartMissing where the
/// model lacks one, NoSpelling where one has no place, NotExact.
void add_dense_outputs(const Inventory& inventory, const Recognition& from, const DenseTarget& target,
                       DraftOutputs& outputs, Plan& plan);

}  // namespace glu_ckpt
