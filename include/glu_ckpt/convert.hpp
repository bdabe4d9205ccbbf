#pragma once
/// One call makes a whole, safe conversion: planned and proved, staged beside its final path, resumable, compared with
/// its source, and committed by one rename.

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "glu_ckpt/forward.hpp"
#include "glu_ckpt/plan.hpp"
#include "glu_ckpt/ranks.hpp"
#include "glu_ckpt/run_options.hpp"
#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

/// A proof compares the output with its source before the output gets its name.
enum class ProofMode {
  None,
  /// Compares digests of what was read and of what was written. It misses only a disk that keeps other bytes than it
  /// was given.
  Digest,
  /// Compares digests; the output's is of what is read back from the device.
  Readback,
  /// Compares digests, and what the experts of both compute.
  Forward,
};

/// Reflinks let runs of bytes that stay as they are share the source's blocks, where the file system can do that.
enum class Reflink {
  /// Long runs, where they are at least half of all bytes.
  Auto,
  /// Every run that holds a whole block. Throws where the file system cannot do that.
  Always,
  Never,
};

/// These options are all that decides about the output's bytes, and so about which earlier run may be resumed.
struct ConvertOptions {
  SourceAnswers from;
  TargetAnswers to;
  /// The program that loads the output as it is: "megatron", "torchtitan", "hf" or "hf:<model_type>". It settles what
  /// `to` and `format` leave open.
  std::optional<std::string> target;
  /// Absent: the one that the output's extension names, else the source's.
  std::optional<Format> format;
  /// As in PlanOptions.
  i64 max_shard_bytes = 0;
  ProofMode proof = ProofMode::Digest;
  Reflink reflink = Reflink::Auto;
  /// ProofMode::Forward runs the experts so.
  ExpertCompute compute;
  /// It chooses the tokens, or the rows that stand for cloned ones.
  u64 seed = 0;
  /// Write an order of gate and up that programs take for another under the same names; the record says so.
  bool allow_foreign_order = false;
  /// Write glu_ckpt.sha256 beside the output's files: the SHA-256 of each, as `sha256sum -c` checks it. For
  /// directories.
  bool sha256_manifest = false;
  /// Take the source's tensors as they are where its record has the digest of others: they were changed on purpose.
  bool accept_changes = false;
  /// Convert although the source has that layout already.
  bool force = false;
  /// Replace the output, if it is a checkpoint; the old one goes only when the new one is complete.
  bool overwrite = false;
  /// Go on with what a stopped run left, if there is any.
  bool resume = false;
  /// Remove each of the source's files of tensors once all that the output needs of it is on the disk and was read
  /// again there. What is removed is in `<output>.partial` then, which stays whatever fails.
  bool consume_source = false;
  /// Write one of so many parts of the output, beside other processes that write the others; 0: all of it. The last one
  /// that is done finishes the output. A part that is started again goes on.
  struct Part {
    i64 number = 0;
    i64 of = 0;
  } part = {};
};

/// The answers that were given, by the names of the long options with underscores: what glu_ckpt.json records and a
/// resumed run must repeat.
std::map<std::string, std::string> option_texts(const ConvertOptions& options);

/// The alternatives of Proof, which says how an output was proved to be the same model.
struct NotProved {};
struct ProvedByDigest {
  /// The output was read back from the device.
  bool readback = false;
};
/// Ranges were cloned, so they were not read: rows of both sides were compared instead.
struct ProvedBySample {
  /// Rows of matrices, and blocks of other tensors.
  i64 rows = 0;
  /// The bytes that were read from each side.
  i64 bytes = 0;
};
/// The digests are equal, and the experts of both computed the same.
struct ProvedByForward {};
using Proof = std::variant<NotProved, ProvedByDigest, ProvedBySample, ProvedByForward>;

/// "digest", "readback", "sample", "forward"; empty for NotProved.
std::string_view to_string(const Proof& proof);

struct Converted {
  /// The plan that was carried out; its notes are what the user should know.
  Plan plan = {};
  LoadsIn loads_in = {};
  /// Sentences about what would load and compute something else.
  std::vector<std::string> warnings = {};
  Proof proof;
  /// The model's digest. It is absent with ProofMode::None, and where the order of gate and up is unknown, since it
  /// would depend on the layout.
  std::optional<Digest> digest;
  /// Headers included, without what was cloned.
  i64 bytes_written = 0;
  i64 bytes_cloned = 0;
  /// Says why the output is not there yet, where this was one of several parts; else empty.
  std::string pending = {};
  /// An earlier run had finished; both sides were read for their digests.
  bool was_complete = false;
  /// "cpu", "cuda:0", ...
  std::string device;
};

/// Writes the checkpoint at `source` to `output` in another layout, naming or format. `output` is absent, or complete
/// and proved, at every instant; work in progress lies in `<output>.partial`. Where the call is stopped, or the machine
/// fails, that stays for a call with `resume`; after any other failure nothing stays.
///
/// With `ranks`, all processes of a group make this call together, share the work, and return or throw together; rank
/// 0 makes the output and its result is that of all. The files must be the same ones for each.
///
/// Throws Error: refusals (status 4) before anything is written; errors of the source (3), of the machine (5); and
/// Interrupted (6) where run.stop asked for it.
Converted convert(const std::filesystem::path& source, const std::filesystem::path& output,
                  const ConvertOptions& options, const RunOptions& run = {}, Ranks* ranks = nullptr);

/// A conversion that convert() would make.
struct ConversionPlan {
  Plan plan;
  LoadsIn loads_in = {};
  std::vector<std::string> warnings = {};
  i64 bytes_written = 0;
  i64 bytes_cloned = 0;
  /// Bytes, estimated.
  i64 peak_memory = 0;
  /// The output needs at most so many bytes on its file system, which has so many free and is of this type.
  i64 disk_needed = 0;
  i64 disk_free = 0;
  /// Says what is missing where there is no room for the tensors, so that the conversion would fail; else empty.
  std::string disk_refusal;
  std::string filesystem;
  /// The estimate of a sample of the conversion; absent where none could be taken.
  std::optional<double> estimated_seconds;
  std::string device;
  /// The arguments of a run that loads the output, as megatron_args.txt will have them; empty for other targets.
  std::string megatron_args = {};
};

/// Plans and proves, converts a sample for three quarters of a second into a file without a name, and leaves nothing
/// behind. Throws what convert() throws before it writes.
ConversionPlan plan_conversion(const std::filesystem::path& source, const std::filesystem::path& output,
                               const ConvertOptions& options, const RunOptions& run = {});

}  // namespace glu_ckpt
