#pragma once
/// The arguments that a run of Megatron-LM needs to load a converted model and compute what the original does.

#include <string>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

struct MegatronArgs {
  /// One argument a line, with its value; words hold no spaces, so `$(cat FILE)` splits them right.
  std::string text;
  /// What no argument can say, as sentences: the model would load and compute something else.
  std::vector<std::string> warnings;
};

/// `config` is the text of config.json; `to` the layout that the experts get. Requires Recognition::architecture.
MegatronArgs megatron_args(const std::string& config, const Recognition& model, const TargetAnswers& to);

}  // namespace glu_ckpt
