#pragma once
/// Telling the system what will be read soon.

#include <span>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Asks for the bytes that bytes [begin, end) of an output tensor are made of, and does not wait for them: a disk that
/// is asked for one worker's task at a time rests while the worker hashes and writes. Nothing where the source cannot
/// say where its bytes lie, or will read them past the page cache since they lie in their pages as in those of the
/// output, whose byte 0 is to lie at `phase` in its page.
void read_ahead(const Source& source, std::span<const Move> moves, i64 begin, i64 end, i64 phase);

}  // namespace glu_ckpt
