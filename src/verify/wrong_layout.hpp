#pragma once
/// Experts taken for what they are not: the negative control of verify_forward().

#include <vector>

#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {

/// The expert's weights, read in layouts that are not theirs, the likeliest mistake first. An interleaved FC1 is taken
/// for a contiguous one, a contiguous one for an interleaved one, in blocks of 32 rows or as many as F allows; and gate
/// and up are exchanged. Without a gate, rows of up, or of down where up has one row, are shifted by one. Each reads
/// the same bytes.
std::vector<ExpertWeights> wrong_layouts(const ExpertWeights& expert);

}  // namespace glu_ckpt
