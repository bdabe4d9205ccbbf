#pragma once
/// The passes of a conversion, in the order in which convert() takes them, and the sample that tells how fast they
/// would be.

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "convert/consume.hpp"
#include "convert/conversion.hpp"
#include "exec/clone_plan.hpp"
#include "exec/done_log.hpp"
#include "glu_ckpt/execute.hpp"

namespace glu_ckpt {

/// Refuses Reflink::Always, which was asked for, where nothing could be cloned, before anything is written: throws Io
/// where the output's file system cannot share blocks with the source's files, Usage where such an output, or one of so
/// many ranks, never does.
void check_reflink(const Conversion& conversion, int ranks);

/// Returns what --reflink lets a conversion clone: nothing where the output is not safetensors, or where DST's file
/// system cannot share blocks with the source's files, which is tried on a file without a name, unless check_reflink()
/// did so. This is decided before anything of the output is made.
ClonePlan choose_clones(const Conversion& conversion);

/// Has ranges of the output share the source's blocks, and takes out of `clones` what the file system refuses. A
/// resumed run makes all of them again: that costs less than finding out what is there.
void clone_pass(const Conversion& conversion, const Staging& staging, ClonePlan& clones);

/// Returns how many bytes the journal in the staging directory says are written. Whether they are still there is seen
/// when a run goes on with them.
i64 bytes_done_before(const Conversion& conversion, const std::filesystem::path& staging);

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

/// Opens what was staged as any reader would. Throws VerifyFailed where that is another model than is expected.
Checkpoint open_as_planned(const Conversion& conversion, const ExpectedOutput& expected,
                           const std::filesystem::path& staged);

/// Throws RecordContradicts where the source's record says another digest.
void check_recorded(const Conversion& conversion, const Digest& digest);

struct Published {
  Proof proof;
  /// The source's digest; absent where none was made.
  std::optional<Digest> digest;
};

/// Compares the digests of what was read and written, writes the headers, opens the staged files as any reader would,
/// compares them with the source as ConvertOptions::proof says, and renames them to their final path. Rank 0 alone.
Published prove_and_publish(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging,
                            const ClonePlan& clones, const Moved& moved, Consumer* consumer);

struct ProbedRate {
  /// The bytes that were read, hashed and written.
  i64 bytes = 0;
  double seconds = 0;
};

/// Converts ranges spread evenly over the plan, for so many seconds at the most, as execute() would, into a file
/// without a name in `directory`, which is gone afterwards. Nothing where the filesystem has no such file, or no space
/// for one. What is in the page cache counts as it is.
std::optional<ProbedRate> probe_rate(const Plan& plan, const Source& source, const std::filesystem::path& directory,
                                     const Backend& backend, const ExecuteOptions& options, double seconds);

}  // namespace glu_ckpt
