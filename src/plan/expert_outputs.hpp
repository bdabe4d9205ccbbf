#pragma once
/// The tensors to write for experts, and where each of their matrices goes.

#include <string>
#include <unordered_map>
#include <vector>

#include "plan/expert_targets.hpp"

namespace glu_ckpt {

/// A tensor to write, before its shard is known.
struct DraftOutput {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
  i64 bytes = 0;
  std::vector<Move> moves;
  /// The source's tensor whose place in the order it has: of a layer's experts the first that lies in the same file, so
  /// that they stay together.
  std::size_t origin = 0;
  /// The computation in place of moves.
  std::optional<Compute> compute = std::nullopt;
  /// Its moves read what others read, too.
  bool repeats = false;
  /// It is zero, and made of nothing.
  bool zeros = false;
};

/// The tensors to write while they grow; the moves' dst is left for the caller.
struct DraftOutputs {
  std::vector<DraftOutput> list;
  /// Tensors that several layers share, by name.
  std::unordered_map<std::string, std::size_t> shared;
};

/// Adds those of all blocks, each as its target says. Throws NoSpelling, NotExact.
void add_expert_outputs(const std::vector<ExpertBlock>& blocks, const std::vector<BlockTarget>& targets,
                        const Inventory& inventory, DraftOutputs& outputs);

}  // namespace glu_ckpt
