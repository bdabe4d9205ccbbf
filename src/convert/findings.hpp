#pragma once
/// What there is to say of a conversion that is decided: what it does that nobody asked for, what may go wrong, and
/// what loads the output.

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// Adds to the plan's notes what the conversion does besides what was asked for.
void add_notes(Conversion& conversion);

/// Does so, finds out which programs load the output, and warns of what may load and compute something else, or of what
/// no program loads though it looks as if one did: Conversion::loads_in and warnings.
void judge_output(Conversion& conversion);

/// Tells the observer the warnings, what loads the output, and the notes.
void tell_findings(const Conversion& conversion);

}  // namespace glu_ckpt
