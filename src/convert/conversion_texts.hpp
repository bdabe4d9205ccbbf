#pragma once
/// Sentences about a conversion that was decided: what it does that nobody asked for, and what may go wrong.

#include <string>
#include <vector>

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// The notes of the plan. `stale` is stale_quantization().
std::vector<std::string> notes_of(const Conversion& conversion, const std::string& stale);

/// Lists what may load and compute something else, or what no program loads though it looks as if one did.
/// `keeps_prefix`: keys that begin with a text that programs do not read stay as they are.
std::vector<std::string> warnings_of(const Conversion& conversion, bool keeps_prefix);

/// Says which programs load the output, or why none does.
std::string loads_in_sentence(const LoadsIn& found);

/// Says what --from-glu was taken for; empty where nobody gave it.
std::string covered_text(const Conversion& conversion);

}  // namespace glu_ckpt
