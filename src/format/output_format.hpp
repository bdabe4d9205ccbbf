#pragma once
/// Says what an output is to be, and what its format decides about it: which files there are, where in them the bytes
/// of tensors go, and what stands around those. StagedOutput (format/staged_output.hpp) does the rest for all formats.

#include <deque>
#include <limits>

#include "format/piecewise_crc.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "io/output_file.hpp"

namespace glu_ckpt {

/// Create: a new output. Resume: what an earlier run with the same fingerprint left in the staging directory, else a
/// new output. Join: the staging directory of another process of this run, which alone finishes and commits it.
/// Part and Lead are StagedMode's. Rehearse: a new output whose tensors nobody writes, to see that it can be finished.
enum class OutputMode { Create, Resume, Join, Part, Lead, Rehearse };

/// A small file beside the tensors.
struct SideFile {
  std::string name;
  std::string text;
};

struct OutputOptions {
  /// A name ending in .safetensors, .pt, .pth or .bin makes one file; anything else a directory.
  std::filesystem::path path;
  /// `__metadata__` entries carried over from the source.
  std::map<std::string, std::string> metadata;
  std::vector<ExtraFile> extra_files;
  /// Replace what is at `path`; the old one goes only when the new one is complete.
  bool overwrite = false;
  /// A record of the same keys and lengths as the final one; it fixes the size of the headers.
  Record record;
  /// The command line options that made this output, for glu_ckpt.json.
  std::map<std::string, std::string> options;
  Format format = Format::Safetensors;
  /// The part of the source besides tensors and files that the output keeps.
  Structure structure = {};
  /// The format of the source that `structure` is of; none where there is no source.
  std::optional<Format> source_format = std::nullopt;
  /// The offset of each shard's data section in its file, modulo kDataPhaseBytes; multiples of 8. Shards behind the
  /// last one listed, and formats other than safetensors, begin where their headers end.
  std::vector<i64> data_phases{};
  /// Shards into which bytes will be cloned, sorted. Space is reserved for what is written to them alone, and their
  /// data get no checksum. Safetensors only.
  std::vector<u32> cloned_shards{};
  OutputMode mode = OutputMode::Create;
  /// The options and inputs of the run as a text. With one there is a journal, and the staging directory can be kept
  /// and resumed.
  std::string fingerprint = {};
  /// Files of the source go while the output grows, so no space is reserved before it is free.
  bool consumes_source = false;
  /// The rank of a process that joins; each has a journal of its own.
  int rank = 0;
  /// Files beside the tensors that are made rather than copied, named like those.
  std::vector<SideFile> made_files{};
  /// The name of the file of tensors, where there is one and it has another name than a model's.
  std::string only_file = {};
};

/// The part of the metadata that glu_ckpt.json keeps where files have no place for it.
std::map<std::string, std::string> recorded_metadata(const OutputOptions& options);

/// Returns true where the path names one file rather than a directory.
bool names_single_file(const std::filesystem::path& path);

/// A file that holds tensors.
struct TensorFile {
  /// Relative to the checkpoint.
  std::string name;
  i64 bytes = 0;
  /// Bytes before the data, which are written as a whole by OutputFile::write_header().
  i64 header_bytes = 0;
  Space space = Space::All;
};

inline constexpr std::size_t kNoCrc = std::numeric_limits<std::size_t>::max();

/// The place that a tensor's bytes go to, from one byte on.
struct TensorPlace {
  /// Index into OutputFormat::files().
  std::size_t file = 0;
  i64 position = 0;
  /// The bytes of the tensor that follow one another there.
  i64 bytes = 0;
  /// The number of their checksum, below OutputFormat::num_crcs(), and the byte of it at which they begin.
  std::size_t crc = kNoCrc;
  i64 crc_offset = 0;
};

/// The bytes that a checksum is of.
struct CrcRange {
  std::size_t tensor = 0;
  i64 bytes = 0;
};

class OutputFormat {
 public:
  virtual ~OutputFormat() = default;
  /// The directory inside the output that holds everything, e.g. "iter_0000100"; mostly empty.
  virtual std::string directory() const = 0;
  virtual std::vector<TensorFile> files() const = 0;
  /// The place of byte `offset` of a tensor. Thread safe.
  virtual TensorPlace place(std::size_t tensor, i64 offset) const = 0;
  /// Returns how many checksums the files hold of tensors' bytes.
  virtual std::size_t num_crcs() const = 0;
  virtual CrcRange crc_range(std::size_t crc) const = 0;
  /// Writes what stands around the bytes of checksum number `crc` and depends on nothing else. Called once for each,
  /// when its bytes are there: beside them, so that the file's own hash need not read them again. Returns the bytes
  /// that it wrote. Thread safe.
  virtual i64 write_around(std::size_t crc, u32 value, std::deque<OutputFile>& files) const = 0;
  /// Writes what neither tensors' bytes nor write_around() wrote, when all of those are there; `files` and `crcs` are
  /// those of files() and num_crcs(). Returns the bytes that it wrote.
  virtual i64 write_headers(const Record& record, std::deque<OutputFile>& files,
                            const std::deque<PiecewiseCrc>& crcs) = 0;
  /// The files beside those that hold tensors, which the format itself asks for. Only where the output is a directory.
  virtual std::vector<SideFile> side_files() const = 0;
};

/// Threads that write, flush or hash files: enough to keep a fast disk busy.
inline constexpr int kFileThreads = 8;

/// `tensors` are grouped by shard and sorted by offset; every shard's data section is tiled. They keep references to
/// both arguments. Throws Usage where the path does not suit the format, NotExact where torch has no dtype for a
/// tensor.
std::unique_ptr<OutputFormat> make_safetensors_format(const OutputOptions& options,
                                                      const std::vector<OutputTensor>& tensors);
std::unique_ptr<OutputFormat> make_torch_format(const OutputOptions& options, const std::vector<OutputTensor>& tensors);
std::unique_ptr<OutputFormat> make_torch_dist_format(const OutputOptions& options,
                                                     const std::vector<OutputTensor>& tensors);
/// The one of OutputOptions::format.
std::unique_ptr<OutputFormat> make_output_format(const OutputOptions& options,
                                                 const std::vector<OutputTensor>& tensors);

/// "model.safetensors" where there is one shard, else "model-00001-of-00042.safetensors"; `shard` is 0-based.
std::string shard_name(u32 shard, u32 num_shards);

/// The elements of all tensors: an index's total_parameters.
i64 count_parameters(const std::vector<OutputTensor>& tensors);

}  // namespace glu_ckpt
