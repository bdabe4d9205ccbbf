#pragma once
/// A small model of every family, its names and shapes written out as transformers saves them, so that a mistake in
/// this project's tables cannot hide itself.

#include <string>
#include <vector>

#include "support/memory_checkpoint.hpp"

namespace glu_ckpt::support {

using Shape = std::vector<i64>;

constexpr i64 kWrittenExperts = 3, kWrittenHead = 10;

/// The layers that have a tensor.
enum class In { Every, Dense, Experts, Delta, Full, Mamba };

struct Line {
  /// Behind "model.layers.N."; {E} is the number of an expert.
  std::string name;
  Shape shape;
  In in = In::Every;
};
using Lines = std::vector<Line>;

struct Written {
  std::string type;
  /// What its config.json says beside the common fields.
  std::string fields;
  Lines lines;
  i64 layers = 3;
  i64 dense_layers = 0;
  /// Every fourth layer is a usual one, the others have linear attention.
  bool has_delta = false;
  /// The last norm of its one layer of MTP, which is numbered on from the last layer, as DeepSeek's; empty where it has
  /// none.
  std::string mtp_norm{};
  std::string embedding = "embed_tokens.weight", final_norm = "norm.weight", root = "model.";
  /// Its layers are one of Mamba, one of experts, one of attention and one dense one.
  bool is_hybrid = false;
};

/// One of each family, but for those whose keys are never without what stands in front of them.
std::vector<Written> all_families();

/// The text of its config.json.
std::string config_of(const Written& model);
std::vector<MemoryTensor> tensors_of(const Written& model);

/// "model.layers.3."
std::string layer_prefix(const Written& model, i64 layer);

/// Returns whether the layer is one of those.
bool is_in(const Written& model, i64 layer, In in);

}  // namespace glu_ckpt::support
