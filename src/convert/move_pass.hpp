#pragma once
/// The passes that make every byte of the output: clones, what an earlier run wrote, and what this run moves.

#include <map>
#include <string>

#include "convert/consume.hpp"
#include "exec/done_log.hpp"

namespace glu_ckpt {

/// Has ranges of the output share the source's blocks, and takes out of `clones` what the file system refuses. A
/// resumed run makes all of them again: that costs less than finding out what is there.
void clone_pass(const Conversion& conversion, const Staging& staging, ClonePlan& clones);

/// Says how many weights of the output are NaN or infinite, since their codes are or since their scales make them so.
/// Empty where none is.
std::string nans_text(const Plan& plan, const std::map<std::size_t, i64>& nans);

/// Writes every other byte of the output that an earlier run has not written. All ranks call it together. `consumer` is
/// null where the source stays; `elsewhere` are ranges that other processes write, whatever becomes of this one.
Moved move_pass(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging,
                const ClonePlan& clones, Consumer* consumer, Ranks& ranks,
                const std::vector<DoneRange>& elsewhere = {});

/// Brings to rank 0 of several what the others know of the bytes that they wrote; they close their part of the staging
/// directory.
Moved gather_pass(const Moved& mine, Staging& staging, Ranks& ranks);

}  // namespace glu_ckpt
