#pragma once
/// Finished ranges in the journal of a run.

#include <cstddef>
#include <span>
#include <vector>

#include "core/hash.hpp"
#include "glu_ckpt/execute.hpp"
#include "io/journal.hpp"

namespace glu_ckpt {

/// Thread safe.
void append_done(Journal& journal, const DoneRange& range);

/// Notes the state that the source is read in from now on. Thread safe.
void append_source_state(Journal& journal, const Hash128& state);

/// Returns the ranges that were made of the source in this state, in the order in which they were finished. Entries of
/// another size come from another version and are left out.
std::vector<DoneRange> read_done(const Journal& journal, const Hash128& state);

/// Ranges as bytes, for another process of this run.
std::vector<std::byte> done_bytes(std::span<const DoneRange> ranges);
std::vector<DoneRange> parse_done(std::span<const std::byte> bytes);

}  // namespace glu_ckpt
