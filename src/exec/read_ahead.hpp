#pragma once
/// Telling the system what will be read soon.

#include <span>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Asks for the bytes that bytes [begin, end) of an output tensor are made of, and does not wait for them: a disk that
/// is asked for one worker's task at a time rests while the worker hashes and writes. Nothing where the source cannot
/// say where its bytes lie.
void read_ahead(const Source& source, std::span<const Move> moves, i64 begin, i64 end);

}  // namespace glu_ckpt
