#pragma once
/// The staging directory of a conversion: what identifies its output, who may work in it, and what becomes of it when a
/// pass fails.

#include <memory>
#include <string>

#include "convert/conversion.hpp"
#include "convert/expected_output.hpp"
#include "exec/clone_plan.hpp"
#include "format/staged_output.hpp"
#include "format/structure.hpp"
#include "io/filesystem.hpp"

namespace glu_ckpt {

/// The options of an output: format, files and record. The run that writes it adds the rest, such as its progress.
OutputOptions output_options(const Conversion& conversion, Record record);

/// The facts that a run is compared with before it goes on with an output.
struct OutputIdentity {
  /// A line about what config.json holds, or nothing where there is none: the plan was made by it. The other files
  /// beside the tensors are copied as they are, and may be logs that grow.
  std::string config;
  /// Everything that decides about the output's bytes, as a text: a run is resumed only as itself.
  std::string fingerprint;
};

/// Bytes that will be cloned count since their output may have no digest, so that its headers are others. Throws Io,
/// NotFound.
OutputIdentity identify_output(const Conversion& conversion, i64 bytes_to_clone);

/// OutputIdentity::config as it is now.
std::string config_line(const Source& source);

/// The output being written beside its final path. Rank 0 makes it, and then the others join it.
class Staging {
 public:
  Staging(const Conversion& conversion, const ExpectedOutput& expected, const ClonePlan& clones, Ranks& ranks);
  /// The same, in a mode that the options do not say.
  Staging(const Conversion& conversion, const ExpectedOutput& expected, const ClonePlan& clones, Ranks& ranks,
          OutputMode mode);

  /// Throws the error of a pass again; only inside a catch. Where the run can be resumed, what is done stays and the
  /// error says how to go on; after any other failure the directory is removed.
  [[noreturn]] void end_failed_pass();

  /// Throws SourceChanged where the source is no longer what it was when the run began.
  void check_source_unchanged() const;

  StagedOutput& sink() const { return *sink_; }
  const std::string& fingerprint() const { return identity_.fingerprint; }
  /// Closes this process's part of it: its journal can then be removed by rank 0 on a network file system, too.
  void close() { sink_.reset(); }

 private:
  void open(OutputMode mode, const ExpectedOutput& expected, const ClonePlan& clones);

  const Conversion& conversion_;
  Ranks& ranks_;
  /// The sentence about the room when the run began.
  std::string room_;
  /// As it was when the run began.
  OutputIdentity identity_;
  std::unique_ptr<StagedOutput> sink_;
};

/// The bytes of an output that are not its tensors'.
struct SmallParts {
  /// The bytes around tensors in their files: headers, and what a zip has around each entry.
  i64 headers = 0;
  /// The other files, each with what its last block may have left.
  i64 beside = 0;
  /// Tensors, or pieces of them, that have something around each.
  i64 wrapped = 0;
};

/// How the format's own files beside those of tensors are counted, such as .metadata: as their texts, made for it, are
/// long, or by the tensors. Those of a large model are tens of MB.
enum class SideFileSizes { Exact, Estimated };

/// Headers are counted to the byte.
SmallParts small_parts(const Conversion& conversion, const FilesystemInfo& filesystem, SideFileSizes sizes);

struct DiskRoom {
  /// Bytes of tensors, headers and the source's other files, at the most.
  i64 needed = 0;
  FilesystemInfo filesystem;
  /// The part of `needed` that is certain. The rest, for other files, is an estimate.
  i64 least = needed;

  bool is_enough() const { return least <= filesystem.free_bytes; }
};

/// Looks at the output's file system as it is now. Throws Io, NotFound.
DiskRoom disk_room(const Conversion& conversion, i64 bytes_written);

/// Says what the output needs, what is free and what is missing.
std::string to_text(const DiskRoom& room);

}  // namespace glu_ckpt
