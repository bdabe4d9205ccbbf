#pragma once
/// Whether blocks of the output will be the source's.

#include "cli/session.hpp"
#include "exec/clone_plan.hpp"

namespace glu_ckpt::cli {

/// What --reflink lets a conversion clone: nothing where the output is not safetensors, or where DST's file system
/// cannot share blocks with the source's files, which is tried on a file without a name. Decided before anything of the
/// output is made.
ClonePlan choose_clones(const Options& options, const Source& source, const Plan& plan, Format format);

}  // namespace glu_ckpt::cli
