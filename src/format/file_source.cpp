#include "format/file_source.hpp"

#include <algorithm>
#include <limits>

#include "core/fail.hpp"
#include "format/model_config.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// Where the index lists the entry. Reads the index again, whose text is not kept.
WhereAt listed(const InputPart& part, const ShardIndex& index, const ShardIndex::Entry& entry) {
  const std::string text = read_small_file(part.file, std::numeric_limits<i64>::max(), ErrorCode::IndexJson);
  return {part, offset_of_entry(text, index, entry), entry.tensor};
}

[[noreturn]] void fail_stale(const CheckpointFiles& files, const ShardIndex::Entry& entry) {
  fail_at(ErrorCode::IndexStale, listed(files.index_file, *files.index, entry),
          "says tensor '{}' is in {}, which does not have it", entry.tensor, files.index->files[entry.file]);
}

[[noreturn]] void fail_unlisted(const CheckpointFiles& files, const TensorRef& tensor) {
  fail(ErrorCode::IndexIncomplete, {files.index_file, tensor.name},
       "{}: does not list tensor '{}', which is at byte {} of {}", files.index_file, tensor.name, tensor.offset,
       files.shards[tensor.file]);
}

}  // namespace

void FileSource::read_side_files() {
  if (!files_.config.empty()) {
    const std::string text = read_small_file(files_.config, kMaxConfigBytes, ErrorCode::ConfigJson);
    hints_ = parse_config(text, files_.config.string());
  }
  if (!files_.record.empty()) {
    const std::string text = read_small_file(files_.record, kMaxRecordBytes, ErrorCode::RecordInvalid);
    add_record(text, files_.record.string());
  }
  if (!files_.extras.empty()) take_extras(Extras::open(files_.extras));
  structure_.iteration_dir = files_.iteration_dir;
  structure_.tracker = files_.tracker;
}

void FileSource::add_record(std::string_view text, const InputPart& part) {
  records_.add(parse_record_json(text, part).record, part, text);
}

void FileSource::take_extras(Extras extras) {
  extras_ = std::move(extras);
  const Structure& from = extras_.structure();
  if (files_.format != Format::Torch) structure_.trees = from.trees;
  if (files_.format == Format::TorchDist) return;
  structure_.objects = from.objects;
  structure_.paths = from.paths;
  structure_.metadata_json = from.metadata_json;
  structure_.has_integrity = from.has_integrity;
}

std::vector<std::byte> FileSource::read_object(std::size_t object) const { return extras_.read_object(object); }

const TensorRef& FileSource::checked_range(std::size_t tensor, i64 offset, i64 bytes) const {
  const TensorRef& from = inventory_.tensors.at(tensor);
  if (offset < 0 || offset > from.bytes || bytes > from.bytes - offset)
    fail(ErrorCode::Io, {files_.path.string(), from.name}, "{}: bytes [{}, {}) of '{}' were asked for; it has {}",
         files_.path.string(), offset, offset + bytes, from.name, from.bytes);
  return from;
}

std::vector<u32> FileSource::sorted_by_name() const {
  const auto& tensors = inventory_.tensors;
  std::vector<u32> order(tensors.size());
  for (u32 i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return tensors[a].name < tensors[b].name; });
  const auto twice =
      std::adjacent_find(order.begin(), order.end(), [&](u32 a, u32 b) { return tensors[a].name == tensors[b].name; });
  if (twice == order.end()) return order;
  const TensorRef& tensor = tensors[*twice];
  const TensorRef& other = tensors[*std::next(twice)];
  fail_at(ErrorCode::DuplicateKey,
          {(files_.directory / inventory_.files[other.file]).string(), other.offset, other.name},
          "tensor '{}' is here, and also at byte {} of {}", other.name, tensor.offset, inventory_.files[tensor.file]);
}

/// Walks index and tensors, both sorted by name, side by side. The shards are the index's own list, so
/// equal file numbers mean equal files.
void FileSource::check_index(const std::vector<u32>& order) {
  auto at = order.begin();
  for (const ShardIndex::Entry& entry : files_.index->entries) {
    const TensorRef* tensor = at == order.end() ? nullptr : &inventory_.tensors[*at];
    if (tensor != nullptr && tensor->name < entry.tensor) fail_unlisted(files_, *tensor);
    if (tensor == nullptr || tensor->name != entry.tensor || tensor->file != entry.file) fail_stale(files_, entry);
    ++at;
  }
  if (at != order.end()) fail_unlisted(files_, inventory_.tensors[*at]);
  files_.index.reset();
}

void FileSource::watch(const File& file, const std::string& name) {
  watched_.push_back({file.path(), name, file.identity()});
}

void FileSource::check_unchanged() const {
  for (const Watched& watched : watched_) {
    const std::string name = watched.path.string();
    if (path_kind(watched.path) != PathKind::File)
      fail(ErrorCode::SourceChanged, {name, {}}, "{}: is no longer there; it was when this run began", name);
    const FileIdentity was = watched.identity, now = File::open_read(watched.path).identity();
    if (now.size != was.size)
      fail(ErrorCode::SourceChanged, {name, {}}, "{}: has {} bytes; it had {} when this run began", name, now.size,
           was.size);
    // The status, which links and permissions change too, says nothing about the content.
    if (now.dev != was.dev || now.ino != was.ino || now.mtime_ns != was.mtime_ns)
      fail(ErrorCode::SourceChanged, {name, {}}, "{}: was {} while this run read it; run again", name,
           now.ino == was.ino ? "written to" : "replaced");
  }
}

std::string FileSource::identity() const {
  // Sizes and dates alone may be another model's: images and archives have one date for all files.
  std::string text;
  for (const Watched& watched : watched_)
    text += fmt::format("file {} {} {} {}\n", canonical_path(watched.path).string(), watched.identity.ino,
                        watched.identity.size, watched.identity.mtime_ns);
  return text;
}

File FileSource::open_shard(const std::string& name) {
  const fs::path path = files_.directory / name;
  try {
    File file = File::open_read(path);
    watch(file, name);
    return file;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound || !files_.index) throw;
    const auto lists = [&](const ShardIndex::Entry& entry) { return files_.index->files[entry.file] == name; };
    const auto entry = std::ranges::find_if(files_.index->entries, lists);
    fail_at(ErrorCode::IndexMissingShard, listed(files_.index_file, *files_.index, *entry),
            "lists the shard {}, which does not exist", name);
  }
}

void FileSource::fail_shrunk(const Error& error, const TensorRef& tensor) const {
  fail(ErrorCode::SourceChanged, {error.file(), tensor.name}, "{}: became shorter while it was read: {}", error.file(),
       error.what());
}

}  // namespace glu_ckpt
