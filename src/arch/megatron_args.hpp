#pragma once
/// The arguments that a run of Megatron-LM needs to load a converted model and compute what the original does.

#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

struct MegatronArgs {
  /// One argument a line, with its value; words hold no spaces, so `$(cat FILE)` splits them right.
  std::string text;
  /// A sentence about each thing that no argument can say, so that the model would load and compute something else.
  std::vector<std::string> warnings;
};

/// The order of gate and up in the output.
struct GluOrders {
  std::optional<Glu> routed;
  std::optional<Glu> shared;
};

/// `config` is the text of config.json. Requires Recognition::architecture.
MegatronArgs megatron_args(const std::string& config, const Recognition& model, const GluOrders& to);

}  // namespace glu_ckpt
