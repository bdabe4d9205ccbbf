#pragma once
/// Decides whether blocks of the output will be the source's.

#include "convert/conversion.hpp"
#include "exec/clone_plan.hpp"

namespace glu_ckpt {

/// Refuses Reflink::Always, which was asked for, where nothing could be cloned, before anything is written: throws Io
/// where the output's file system cannot share blocks with the source's files, Usage where such an output, or one of so
/// many ranks, never does.
void check_reflink(const Conversion& conversion, int ranks);

/// Returns what --reflink lets a conversion clone: nothing where the output is not safetensors, or where DST's file
/// system cannot share blocks with the source's files, which is tried on a file without a name, unless check_reflink()
/// did so. This is decided before anything of the output is made.
ClonePlan choose_clones(const Conversion& conversion);

}  // namespace glu_ckpt
