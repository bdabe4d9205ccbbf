#pragma once
/// What is judged of a conversion before anything is written: what is refused, copies that are none, and what there is
/// to say of it: what it does that nobody asked for, what may go wrong, and what loads the output.

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// Proves the plan (check_plan), and refuses what moves alone do not show: an order of gate and up that the output's
/// programs read as another one, optimizer state left in the old layout, codes that quantization_config contradicts,
/// and computed or joined tensors of which an element would not come back. Reads small tensors of the source.
void check_exact(const Conversion& conversion, const Plan& plan);

/// Compares the source's copies with what they should repeat. Those that do not are tensors of their own, which pass
/// through where the naming stays; throws CopyDiffers where the plan drops one by which more than rounding of codes
/// would be lost. Reads them at rank 0.
void settle_copies(Conversion& conversion, CopyReading reading, Ranks& ranks);

/// Returns the findings as text, for another run that cannot read the copies any more (ConsumedFiles::memo()).
std::string copies_text(const std::vector<UnlikeCopy>& copies);

/// Adds to the plan's notes what the conversion does besides what was asked for.
void add_notes(Conversion& conversion);

/// Does so, finds out which programs load the output, and warns of what may load and compute something else, or of what
/// no program loads though it looks as if one did: Conversion::loads_in and warnings.
void judge_output(Conversion& conversion);

/// Tells the observer the warnings, what loads the output, and the notes.
void tell_findings(const Conversion& conversion);

}  // namespace glu_ckpt
