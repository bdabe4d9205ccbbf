#pragma once
/// Decides whether blocks of the output will be the source's.

#include "convert/conversion.hpp"
#include "exec/clone_plan.hpp"

namespace glu_ckpt {

/// Returns what --reflink lets a conversion clone: nothing where the output is not safetensors, or where DST's file
/// system cannot share blocks with the source's files, which is tried on a file without a name. This is decided before
/// anything of the output is made.
ClonePlan choose_clones(const Conversion& conversion);

}  // namespace glu_ckpt
