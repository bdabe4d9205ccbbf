#pragma once
/// Tells the operating system which bytes will be read soon.

#include <span>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Asks for the bytes that bytes [begin, end) of an output tensor are made of, and does not wait for them: a disk that
/// is asked for one worker's task at a time rests while the worker hashes and writes. It asks for nothing where the
/// source does not know the place of its bytes in a file, and nothing that will be read past the page cache: bytes that
/// lie in their pages of the source as they do in the output, whose byte 0 lies at `phase` in its page.
void read_ahead(const Source& source, std::span<const Move> moves, i64 begin, i64 end, i64 phase);

}  // namespace glu_ckpt
