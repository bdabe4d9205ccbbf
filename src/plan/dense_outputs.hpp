#pragma once
/// Plans what is outside of the experts in another naming: the tensors to write, and what of the source they use.

#include <set>
#include <string>
#include <vector>

#include "arch/dense_table.hpp"
#include "plan/expert_outputs.hpp"

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
  /// The order of gate and up in the FC1s of a dense model.
  Glu glu = {};
};

/// Adds the tensors that the target's naming has, each from its matrices; drops copies. Throws PartMissing where the
/// model lacks one, NoSpelling where one has no place, NotExact.
void add_dense_outputs(const Inventory& inventory, const Recognition& from, const DenseTarget& target,
                       DraftOutputs& outputs, Plan& plan);

/// Writes the FC1s of a dense model, which are among the drafts as they are, in another order under the names that they
/// have. Throws NotDivisible, and NoSpelling beside an optimizer's state.
void reorder_dense(const Inventory& inventory, const Recognition& from, const Glu& glu,
                   std::vector<DraftOutput>& drafts);

}  // namespace glu_ckpt
