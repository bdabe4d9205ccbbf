#pragma once
/// Copies in the source of what another tensor holds, compared before one of both is dropped.

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// Compares the source's copies with what they should repeat. Those that do not are tensors of their own, which pass
/// through where the naming stays; throws CopyDiffers where the plan drops one by which more than rounding of codes
/// would be lost. Reads them at rank 0.
void settle_copies(Conversion& conversion, CopyReading reading, Ranks& ranks);

/// Returns the findings as text, for another run that cannot read the copies any more (ConsumedFiles::memo()).
std::string copies_text(const std::vector<UnlikeCopy>& copies);

}  // namespace glu_ckpt
