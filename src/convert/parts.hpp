#pragma once
/// Conversions in parts, each by a process of its own that knows of the others by the staging directory alone.

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// Refuses what does not go with ConvertOptions::part. Throws Usage.
void check_parts(const std::filesystem::path& output, const ConvertOptions& options, int ranks);

/// Writes the part of the output that ConvertOptions::part names, or what an earlier run of this part has left of it,
/// and once all parts are done, proves the output and commits it.
Converted run_part(const Conversion& conversion);

}  // namespace glu_ckpt
