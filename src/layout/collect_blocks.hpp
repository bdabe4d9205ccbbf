#pragma once
/// Lists all expert blocks that a naming finds: the weights', then the optimizer's states of them.

#include <optional>
#include <vector>

#include "layout/key_groups.hpp"

namespace glu_ckpt {

struct CollectedBlocks {
  /// The weights' first.
  std::vector<BlockShape> shapes;
  std::size_t num_weight_blocks = 0;
  std::vector<BoundTensor> bound;
  /// An optimizer's tensors of shapes that are not the weights'.
  std::vector<std::size_t> misfits;
};

/// `num_experts` and `num_hidden_layers` as config.json says. Throws the expert errors.
CollectedBlocks collect_blocks(const KeyGroups& keys, const Naming& naming, std::optional<i64> num_experts,
                               std::optional<i64> num_hidden_layers, i64 scale_rows);

}  // namespace glu_ckpt
