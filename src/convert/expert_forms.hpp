#pragma once
/// The form of each layer's experts as one entry of a record: "0-2/grouped/contiguous mtp.0/indexed/split".

#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Prints the forms of the routed experts; layers that follow one another and are alike share a word. Empty where all
/// layers are alike, for then one answer for the whole model says it.
std::string print_expert_forms(const std::vector<ExpertBlock>& blocks);

/// Throws RecordInvalid for what print_expert_forms does not print.
ExpertForms parse_expert_forms(std::string_view text);

}  // namespace glu_ckpt
