#pragma once
/// The two ends that do I/O: Source reads a checkpoint, Sink writes one beside its final place.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/record.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// How a checkpoint is stored.
enum class Format {
  Safetensors,
  /// torch.save: zip files, `pytorch_model.bin`, Megatron's `mp_rank_XX/model_optim_rng.pt`.
  Torch,
  /// torch.distributed.checkpoint and Megatron's `torch_dist`: `.metadata` and `__R_I.distcp`.
  TorchDist,
};
/// "safetensors", "torch", "torch-dist".
std::string_view to_string(Format format);

/// A file of the checkpoint directory that holds no tensors, e.g. config.json.
struct ExtraFile {
  /// Path relative to the checkpoint directory.
  std::string name;
  std::filesystem::path path;
};

/// One step into a nested state dict: a key, or an index of a list.
struct PathKey {
  std::string text;
  bool is_index = false;
  bool operator==(const PathKey&) const = default;
};
using KeyPath = std::vector<PathKey>;

/// A named object of a torch-dist checkpoint that is no tensor, e.g. `common_state/shard_0_1`. Its bytes are
/// a torch zip, which nothing here looks into.
struct NamedObject {
  std::string name;
  i64 bytes = 0;
};

/// The nested objects of one torch file, with a stand-in for each tensor.
struct TorchTree {
  /// Relative to the checkpoint directory: "mp_rank_00/model_optim_rng.pt".
  std::string file;
  /// What the names of its tensors begin with: "mp_rank_00/", or nothing.
  std::string prefix;
  /// A pickle in which the persistent id ('glu_ckpt', NAME) stands for a tensor.
  std::string pickle;
  /// What the pickle was read or made from.
  InputPart from = {};
};

/// What a checkpoint holds besides tensors and files: how its own format nests and wraps them. Another
/// format keeps it in `glu_ckpt.extras`, so that the way back is exact.
struct Structure {
  std::vector<TorchTree> trees;
  std::vector<NamedObject> objects;
  /// Where PyTorch's planner says a name of a torch-dist checkpoint comes from (`planner_data`), for tensors
  /// and objects.
  std::map<std::string, KeyPath> paths;
  /// Files that are written anew rather than copied: Megatron's metadata.json (its text) and integrity.json.
  std::string metadata_json;
  bool has_integrity = false;
  /// "iter_0000100" and the tracker's text, where the source was opened by the directory above.
  std::string iteration_dir;
  std::string tracker;
};

/// An open file (src/io/file.hpp).
class File;

/// Where bytes lie, one after the other, in a file; nowhere where `file` is null.
struct FilePlace {
  const File* file = nullptr;
  i64 offset = 0;
};

/// A checkpoint opened for reading. Headers are read and checked on opening; tensor bytes only by
/// read(). Files are opened read-only.
class Source {
 public:
  virtual ~Source() = default;
  virtual Format format() const { return Format::Safetensors; }
  virtual const Inventory& inventory() const = 0;
  virtual const ModelHints& hints() const = 0;
  /// From `__metadata__` of the shards and from glu_ckpt.json; empty when neither has one.
  virtual const Record& record() const = 0;
  /// Other `__metadata__` entries of the shards, first shard first where they disagree.
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  virtual const std::vector<ExtraFile>& extra_files() const = 0;
  /// Names of weight files in the directory that are not part of this checkpoint: other formats, and
  /// safetensors files that neither the index nor `model.safetensors` makes one of its shards.
  virtual std::vector<std::string> left_out() const { return {}; }
  /// The path it was opened by.
  virtual const std::filesystem::path& path() const = 0;
  /// Bytes of all tensor files, headers included.
  virtual i64 file_bytes() const = 0;
  /// Fills `out` from byte `offset` of tensor `tensor` (an index into inventory().tensors).
  /// Thread safe. Throws Io, FileTruncated.
  virtual void read(std::size_t tensor, i64 offset, std::span<std::byte> out) const = 0;
  /// The same into several places, one after the other.
  virtual void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> outs) const;
  /// Where byte 0 of the tensor lies if its bytes are one range of one file as read() gives them; else nowhere. The
  /// file is the Source's own and open for reading only.
  virtual FilePlace place(std::size_t /*tensor*/) const { return {}; }
  /// Whether what read() finds outside of the page cache is read past it, where it lies in its pages of the file as in
  /// its pages of memory.
  virtual bool reads_past_cache(std::size_t /*tensor*/) const { return false; }
  /// All of it will be read again soon, so from here on nothing is read past the page cache.
  virtual void keep_in_cache() const {}
  virtual const Structure& structure() const;
  /// The bytes of structure().objects[object]. Thread safe.
  virtual std::vector<std::byte> read_object(std::size_t object) const;
  /// Reads what opening left unread and checks it: the items of a torch-dist checkpoint, the checksums that
  /// the files themselves hold. Throws the errors of the format. `on_progress` gets bytes read.
  virtual void check_contents(int jobs, const std::function<void(i64)>& on_progress) const;
  /// Bytes that check_contents() will read.
  virtual i64 checked_bytes() const { return 0; }
  /// Throws SourceChanged where a file is no longer what it was when it was opened: written to, cut, or replaced.
  virtual void check_unchanged() const {}
  /// Its files, a line each: path, inode, bytes, and when it was last written.
  virtual std::string identity() const { return {}; }
};

/// Opens a .safetensors, .pt, .pth or .bin file, a directory with shards (with or without an index), a
/// Hugging Face snapshot of symlinks, a torch.distributed.checkpoint directory, or a Megatron `iter_*`
/// directory of either kind or the one above it (then the tracker file picks). Throws NotFound, NotSupported
/// and the errors of the format.
std::unique_ptr<Source> open_source(const std::filesystem::path& path);

/// A run's own log of what it has written (src/io/journal.hpp).
class Journal;

/// Create: a new output. Resume: what an earlier run with the same fingerprint left in the staging directory, else a
/// new output. Join: the staging directory of another process of this run, which alone finishes and commits it.
enum class SinkMode { Create, Resume, Join };

struct SinkOptions {
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
  /// Whose structure() the output keeps; may be null.
  const Source* source = nullptr;
  /// Where the data section of each shard begins in its file, modulo kDataPhaseBytes; multiples of 8. Shards behind the
  /// last one listed, and formats other than safetensors, begin where their headers end.
  std::vector<i64> data_phases{};
  /// Shards into which bytes will be cloned, sorted. Space is reserved for what is written to them alone, and their
  /// files get no hash. Safetensors only.
  std::vector<u32> cloned_shards{};
  SinkMode mode = SinkMode::Create;
  /// What the run was asked, as a text. With one there is a journal, and the staging directory can be kept and resumed.
  std::string fingerprint = {};
  /// Of a process that joins; each has a journal of its own.
  int rank = 0;
};

/// A checkpoint being written into `<path>.partial`. Destroying it without commit() or keep() removes the staging
/// directory, if this run made it, and leaves `path` as it was; one that has joined leaves both.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Writes at the tensor's final place. Thread safe; every byte must be written once, in any order.
  virtual void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) = 0;
  /// Has `bytes` bytes from `offset` of the tensor on share the blocks of a file that holds them already. Thread safe.
  /// False, with nothing done, where the file system does not allow it for these places; then they are to be written.
  /// Only in SinkOptions::cloned_shards. Throws NoSpace, Io.
  virtual bool clone(std::size_t /*tensor*/, i64 /*offset*/, const FilePlace& /*from*/, i64 /*bytes*/) { return false; }
  /// The other way round: bytes that were written, by this run or the one that is resumed. Thread safe. Throws Io.
  virtual void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const = 0;
  /// Counts as write() of bytes that are known to be in place already. Thread safe.
  virtual void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) = 0;
  /// Where byte 0 of the tensor lies in its file; -1 where it is cut into pieces that do not follow one another. Memory
  /// at the same position of its page is written without another copy.
  virtual i64 file_offset(std::size_t tensor) const = 0;
  /// Only where SinkOptions::fingerprint is not empty.
  virtual bool has_journal() const { return false; }
  /// Throws Io where there is none.
  virtual Journal& journal() = 0;
  /// Whether an earlier run's files and journal were taken over.
  virtual bool resumed() const { return false; }
  /// Leaves the staging directory in place for a later run to resume, as is done without it where an earlier run's was
  /// taken over.
  virtual void keep() {}
  /// Has the staging directory removed, whoever made it.
  virtual void discard() {}
  /// What finish() has to know of the bytes that this process wrote, for a process that joined the run; the files are
  /// flushed. Empty where there is nothing to know. Called once, after all writes.
  virtual std::vector<std::byte> export_sums() { return {}; }
  /// Takes what another process exported; its bytes are not read from an older cache. Throws Io where it is damaged.
  virtual void import_sums(std::span<const std::byte> /*sums*/) {}
  /// Writes the headers with the final record, flushes the shards to the disk, then writes the index,
  /// the other files and glu_ckpt.json. Throws Io in a process that joined.
  virtual void finish(const Record& record) = 0;
  /// Where a finished but not committed checkpoint can be opened.
  virtual std::filesystem::path staged_path() const = 0;
  /// Flushes the directory and renames it to its final path.
  virtual void commit() = 0;
  /// Bytes of all files written so far, headers included, and without those that were cloned.
  virtual i64 bytes_written() const = 0;
};

/// `tensors` are grouped by shard and sorted by offset; every shard's data section is tiled.
/// Throws OutputExists, OutputBusy, ResumeMismatch, Io, NoSpace.
std::unique_ptr<Sink> create_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors);

/// Makes later reads of a flushed checkpoint come from the device rather than from the page cache.
void drop_page_cache(const std::filesystem::path& path);

/// Adds `record` to a checkpoint in place: `__metadata__` of a single file is rewritten through a
/// temporary file and a rename, a directory gets glu_ckpt.json only. Tensor bytes stay untouched.
void write_record(const std::filesystem::path& path, const Record& record);

}  // namespace glu_ckpt
