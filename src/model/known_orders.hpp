#pragma once
/// Orders of gate and up that calls depend on, and that nothing says.

#include <string>
#include <vector>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// The options, without their prefix, that would say the orders of gate and up that nothing says: "glu", "shared-glu",
/// "optimizer-glu".
std::vector<std::string> missing_answers(const Recognition& recognition);

/// Says of each of them what is unknown, and what to do.
std::vector<std::string> missing_answer_texts(const Recognition& recognition, const std::string& option_prefix);

bool has_unknown_glu(const Recognition& recognition);

/// Throws UnknownGlu where the order of gate and up of any layer is unknown. `option_prefix` is that of the options
/// that would say it (SourceAnswers::option_prefix).
void require_known_glu(const Checkpoint& checkpoint, const std::string& option_prefix);

/// Checks two checkpoints, whose missing answers are asked for together.
void require_known_glu(const Checkpoint& a, const std::string& a_prefix, const Checkpoint& b,
                       const std::string& b_prefix);

/// Checks one layer.
void require_known_glu(const Checkpoint& checkpoint, const ExpertBlock& block, const std::string& option_prefix);

}  // namespace glu_ckpt
