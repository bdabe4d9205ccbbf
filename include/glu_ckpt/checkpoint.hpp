#pragma once
/// A checkpoint opened for reading, and what its files say.

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

class WeightDevice;

/// The format in which a checkpoint is stored.
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
  /// Path relative to the directory that holds the tensors. Of a file beside that directory, which Megatron's tracker
  /// file named, it begins with "../".
  std::string name;
  std::filesystem::path path;
  /// An output gets what this function makes of the file's text; null: it gets the file as it is.
  std::function<std::string(std::string_view text)> edit = nullptr;
};

/// One step into a nested state dict: a key, or an index of a list.
struct PathKey {
  std::string text;
  bool is_index = false;
  bool operator==(const PathKey&) const = default;
};
using KeyPath = std::vector<PathKey>;

/// It keeps the bytes of named objects.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  /// The bytes of the object of this number. Thread safe. Throws Io and the errors of the format.
  virtual std::vector<std::byte> read(std::size_t number) const = 0;
};

/// A named object of a torch-dist checkpoint that is no tensor, e.g. `common_state/shard_0_1`. Its bytes are
/// a torch zip, which nothing here looks into.
struct NamedObject {
  std::string name;
  i64 bytes = 0;
  std::shared_ptr<const ObjectStore> store;
  /// The object's number in `store`.
  std::size_t number = 0;

  std::vector<std::byte> read() const { return store->read(number); }
};

/// The nested objects of one torch file, with a stand-in for each tensor.
struct TorchTree {
  /// Relative to the checkpoint directory: "mp_rank_00/model_optim_rng.pt".
  std::string file;
  /// The text that begins the names of its tensors: "mp_rank_00/", or nothing.
  std::string prefix;
  /// A pickle in which the persistent id ('glu_ckpt', NAME) stands for a tensor.
  std::string pickle;
  /// The part of a file that the pickle was read or made from.
  InputPart from = {};
};

/// The part of a checkpoint that is neither tensors nor files: how its own format nests and wraps them. Another format
/// keeps it in `glu_ckpt.extras`, so that the way back is exact.
struct Structure {
  std::vector<TorchTree> trees;
  std::vector<NamedObject> objects;
  /// The path in the nested state dict of each name of a torch-dist checkpoint, tensor or object, by PyTorch's planner
  /// (`planner_data`).
  std::map<std::string, KeyPath> paths;
  /// Files that are written anew rather than copied: Megatron's metadata.json (its text) and integrity.json.
  std::string metadata_json;
  bool has_integrity = false;
  /// "iter_0000100" and the tracker's text, where the source was opened by the directory above.
  std::string iteration_dir;
  std::string tracker;
};

/// A file of tensors as it was when it was opened.
struct OpenedFile {
  std::filesystem::path path;
  u64 device = 0;
  u64 inode = 0;
  i64 bytes = 0;
  /// Nanoseconds since 1970. The latter, of the file's status, moves with every write, and also with its links and
  /// permissions; no program can set it.
  i64 modified_ns = 0;
  i64 changed_ns = 0;
};

/// All that a checkpoint's headers and side files say. It is complete once the checkpoint is open and does not change.
struct CheckpointInfo {
  Format format = Format::Safetensors;
  /// The path that it was opened by.
  std::filesystem::path path;
  Inventory inventory;
  ModelHints hints;
  /// The record in `__metadata__` of the shards and in glu_ckpt.json; empty when neither has one.
  Record record;
  /// Other `__metadata__` entries of the shards; where shards disagree, the first one counts.
  std::map<std::string, std::string> metadata;
  std::vector<ExtraFile> extra_files;
  /// Names of weight files in the directory that are not part of this checkpoint: other formats, and
  /// safetensors files that neither the index nor `model.safetensors` makes one of its shards.
  std::vector<std::string> left_out;
  /// Names of other files that are symlinks to nowhere, as an interrupted download leaves them.
  std::vector<std::string> dangling;
  /// Sentences about sets of weights of which programs choose different ones.
  std::vector<std::string> warnings;
  /// Keys are not those of the files: words of wrappers are taken off.
  bool respelled = false;
  /// Files that tensors are read from; none where a checkpoint is in memory.
  std::vector<OpenedFile> files;
  /// Small files that decide about the bytes of tensors, besides the checkpoint's own config.json: how codes are
  /// decoded, the scale of an adapter that is merged.
  std::vector<std::filesystem::path> deciding_files;
  Structure structure;
  /// The tensors of the inventory that are quantized weights, shown as what they decode to; sorted.
  std::vector<std::size_t> decoded_weights;
  /// How many tensors are presented re-encoded: weights in other codes or scales than on disk.
  i64 recast_tensors = 0;
  /// How many weights are presented as codes that --encode makes.
  i64 encoded_weights = 0;
  /// The tensors that another checkpoint gave, as --fill-from asked, and where they are from: a phrase for each.
  std::vector<std::string> filled;
  /// The layout in which the files have the model, where it is presented in another one: `naming`, `experts`, `glu` and
  /// `shared_glu` as a record has them.
  Record laid_out_from;
  /// Makes a config.json of the model that is presented from one of the model that is stored; null: they are alike.
  std::function<std::string(std::string_view text)> config_edit = nullptr;

  /// Bytes of all tensor files, headers included.
  i64 file_bytes() const;
};

/// Throws SourceChanged where a file of tensors is no longer what it was when it was opened: it was written to, cut, or
/// replaced.
void check_unchanged(const CheckpointInfo& info);

/// Returns false where the status of a file of tensors is another one than when it was opened: its links or permissions
/// changed, or it was written to by somebody who put its date back (cp -p).
bool has_status_as_opened(const CheckpointInfo& info);

/// Checks that need all bytes of a checkpoint: the items of torch-dist, and the checksums that files hold of
/// themselves.
class ContentCheck {
 public:
  virtual ~ContentCheck() = default;
  /// Bytes that run() checks.
  virtual i64 bytes() const = 0;
  /// From here to the next run(), bytes that somebody reads through the Source are checked as they pass. The read that
  /// completes a damaged record throws. No thread reads meanwhile.
  virtual void watch() const = 0;
  /// Checks all, but reads again only what did not pass, each byte once, since watch(). Throws the errors of the
  /// format. `on_progress`, where there is one, gets the bytes that were checked since its last call, from any thread.
  virtual void run(int jobs, const std::function<void(i64)>& on_progress) const = 0;
};

/// Says how the tensors of an open checkpoint are stored in files (src/io/file_backed.hpp).
class FileBacked;

/// A checkpoint opened for reading. Headers are read and checked on opening; tensor bytes only by
/// read(). Files are opened read-only.
class Source {
 public:
  virtual ~Source() = default;
  virtual const CheckpointInfo& info() const = 0;
  /// Fills the pieces, one after the other, from byte `offset` of the tensor that info().inventory.tensors[tensor]
  /// describes. Thread safe. Throws Io, SourceChanged.
  virtual void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const = 0;
  /// Returns whether some of what was read, by any thread, may be NaN or infinite. Only a source that decodes or
  /// encodes knows better.
  virtual bool may_have_read_nan_or_infinity() const { return true; }
  /// Returns whether a part of a tensor costs no more than its share of the whole. Not where a matrix is turned once it
  /// is decoded: any part of it takes all of its codes.
  virtual bool is_cheap_in_parts() const { return true; }
  /// Returns null where the format has nothing to check.
  virtual const ContentCheck* content_check() const = 0;
  /// Returns null where tensors are in no files, or in pieces of them.
  virtual const FileBacked* file_backed() const = 0;
  /// Numbers of the files, among info().files, that hold bytes of the tensor, or of those that it is made of. None
  /// where that is not known, or where the tensor does not give back what they hold.
  virtual std::vector<u32> files_of(std::size_t /*tensor*/) const { return {}; }
  /// Computes on the device from now on, as does the source that this one reads, while the device is there: with the
  /// same bits. Only a source that encodes or merges computes.
  virtual void compute_on(const std::weak_ptr<WeightDevice>& /*device*/) {}

  void read(std::size_t tensor, i64 offset, std::span<std::byte> out) const {
    read_scattered(tensor, offset, {&out, 1});
  }
  const Inventory& inventory() const { return info().inventory; }

  Format format() const { return info().format; }
  const ModelHints& hints() const { return info().hints; }
  const Record& record() const { return info().record; }
  const std::map<std::string, std::string>& metadata() const { return info().metadata; }
  const std::vector<ExtraFile>& extra_files() const { return info().extra_files; }
  const std::vector<std::string>& left_out() const { return info().left_out; }
  const std::filesystem::path& path() const { return info().path; }
  i64 file_bytes() const { return info().file_bytes(); }
  const Structure& structure() const { return info().structure; }
};

/// Source::files_of() of all of these tensors, sorted. None where it is none for one of them.
std::vector<u32> files_of_all(const Source& source, const std::vector<std::size_t>& tensors);

/// Opens a .safetensors, .pt, .pth or .bin file, a directory with shards (with or without an index), a
/// Hugging Face snapshot of symlinks, a torch.distributed.checkpoint directory, or a Megatron `iter_*`
/// directory of either kind or the one above it (then the tracker file picks). Throws NotFound, NotSupported
/// and the errors of the format.
std::unique_ptr<Source> open_source(const std::filesystem::path& path);

/// Adds `record` to a checkpoint in place: `__metadata__` of a single file is rewritten through a
/// temporary file and a rename, a directory gets glu_ckpt.json only. Tensor bytes stay untouched.
void write_record(const std::filesystem::path& path, const Record& record);

/// Takes those entries out. A glu_ckpt.json that has no other is removed.
void remove_from_record(const std::filesystem::path& path, const std::vector<std::string>& keys);

/// The file that both write: the checkpoint, or the glu_ckpt.json of a directory.
std::filesystem::path record_file_of(const std::filesystem::path& path);

}  // namespace glu_ckpt
