#pragma once
/// Conversions in parts, each by a process of its own that knows of the others by the staging directory alone.

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// Refuses what cannot be made in parts, where ConvertOptions::part asks for it. Throws Usage.
void check_parts(const Conversion& conversion, int ranks);

/// Writes the part of the output that ConvertOptions::part names, or what an earlier run of this part has left of it,
/// and once all parts are done, proves the output and commits it.
Converted run_part(const Conversion& conversion);

}  // namespace glu_ckpt
