#pragma once
/// A conversion: what is decided before a byte moves, and the passes that follow.

#include "convert/target.hpp"
#include "glu_ckpt/convert.hpp"
#include "model/open_checkpoint.hpp"
#include "model/settle_copies.hpp"
#include "model/stage.hpp"

namespace glu_ckpt {

class ConsumedFiles;

/// Everything that is decided before a byte moves. Nothing in it changes afterwards.
struct Conversion {
  /// The paths as they were given.
  std::filesystem::path input;
  std::filesystem::path output;
  ConvertOptions options;
  RunOptions run;
  /// Stands for files of the source that are removed, or were by an earlier run; null where none ever is.
  ConsumedFiles* consumed = nullptr;
  std::unique_ptr<Backend> backend = nullptr;
  Checkpoint source = {};
  /// An adapter as it is digested, with factors and a scale for each matrix; no source where none is converted.
  Checkpoint adapter = {};
  Target target = {};
  /// Rows of the blocks that FP8 weights are given scales for, where the target would cut those that they have, and how
  /// much that adds; 0: as they are stored.
  struct {
    i64 rows = 0;
    i64 added_bytes = 0;
  } finer_scales = {};
  /// NVFP4's second scales of gate and up, where the target has both in one tensor: in how many experts two became one,
  /// or why none did.
  SharedScales second_scales = {};
  Plan plan = {};
  /// The source's tensors that should repeat others and do not; those are moved as their own.
  std::vector<UnlikeCopy> unlike_copies = {};
  LoadsIn loads_in = {};
  std::vector<std::string> warnings = {};
};

/// Opens, recognizes, plans and proves the plan: what cannot be exact is refused here. Rank 0 plans for all, and reads
/// copies of what other tensors hold.
Conversion prepare(const std::filesystem::path& input, const std::filesystem::path& output,
                   const ConvertOptions& options, const RunOptions& run, CopyReading reading, Ranks& ranks,
                   ConsumedFiles* consumed);

/// Does the same for a checkpoint that is in memory and gets no files: no device is opened. Without values, what needs
/// elements is taken to be as it should: copies repeat their originals, masters fit their weights.
Conversion prepare_in_memory(const SourceOpener& open, const ConvertOptions& options, const RunOptions& run,
                             bool has_values);

/// Returns, for ConvertOptions::resume, what an earlier run wrote, if it had finished before it was stopped, so that
/// the output is there; nothing where it is not, or is to be replaced. Throws OutputExists where the output is not what
/// this run would write: other tensors, another layout, or another source's; ResumeMismatch, OutputBusy where the
/// staging directory is another run's. Reads all of both.
std::optional<Converted> find_complete(const Conversion& conversion);

/// Returns whether an output is there that find_complete() would compare with the source, by what is read without its
/// tensors. Throws OutputExists as that does.
bool may_be_complete(const Conversion& conversion);

/// Does what find_complete() does where nothing of the source is left to compare the output with, for it was removed on
/// the way: the output has the digest and the options that it records, and what is left of the source contradicts
/// neither. A plan reads no tensors of it.
std::optional<Converted> find_consumed(const std::filesystem::path& input, const std::filesystem::path& output,
                                       const ConvertOptions& options, const RunOptions& run, bool reads_tensors);

/// Writes the output, or goes on with what an earlier run wrote, proves it and commits it. The result is without its
/// plan, which the conversion keeps.
Converted run_conversion(const Conversion& conversion, Ranks& ranks);

}  // namespace glu_ckpt
