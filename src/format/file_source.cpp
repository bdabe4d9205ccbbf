#include "format/file_source.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/fail.hpp"
#include "format/model_config.hpp"
#include "format/trainer_args.hpp"
#include "io/directory.hpp"
#include "io/run_owner.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail_stale(const CheckpointFiles& files, const ShardIndex::Entry& entry) {
  fail_at(ErrorCode::IndexStale, {files.index_file, entry.offset, entry.tensor},
          "says tensor '{}' is in {}, which does not have it", entry.tensor, files.index->files[entry.file]);
}

[[noreturn]] void fail_unlisted(const CheckpointFiles& files, const TensorRef& tensor) {
  fail(ErrorCode::IndexIncomplete, {files.index_file, tensor.name},
       "{}: does not list tensor '{}', which is at byte {} of {}", files.index_file, tensor.name, tensor.offset,
       files.shards[tensor.file]);
}

}  // namespace

FileSource::FileSource(const CheckpointFiles& files) : files_(files) {
  info_.format = files.format;
  info_.path = files.path;
  info_.extra_files = files.extra_files;
  info_.left_out = files.left_out;
  info_.dangling = files.dangling;
  info_.warnings = files.warnings;
  info_.structure.iteration_dir = files.iteration_dir;
  info_.structure.tracker = files.tracker;
}

void FileSource::read_side_files() {
  if (!files_.config.empty()) {
    const std::string text = read_small_file(files_.config, kMaxConfigBytes, ErrorCode::ConfigJson);
    info_.hints = parse_config(text, files_.config.string());
  }
  info_.hints.trained = trained_args(info_);
  info_.hints.listed = listed_args(info_);
  if (!files_.record.empty()) {
    const std::string text = read_small_file(files_.record, kMaxRecordBytes, ErrorCode::RecordInvalid);
    parse_record(text, files_.record.string());
  }
  if (!files_.extras.empty()) take_extras(open_extras(files_.extras));
}

void FileSource::add_record(const Record& record, const InputPart& part, std::string_view text) {
  records_.add(record, part, text);
  info_.record = records_.merged();
}

void FileSource::parse_record(std::string_view text, const InputPart& part) {
  RecordFile content = parse_record_json(text, part);
  add_record(content.record, part, text);
  if (files_.format != Format::Safetensors) info_.metadata.merge(content.metadata);
}

void FileSource::take_extras(const Structure& extras) {
  Structure& to = info_.structure;
  if (files_.format != Format::Torch) to.trees = extras.trees;
  if (files_.format == Format::TorchDist) return;
  to.objects = extras.objects;
  to.paths = extras.paths;
  to.metadata_json = extras.metadata_json;
  to.has_integrity = extras.has_integrity;
}

const TensorRef& FileSource::checked_range(std::size_t tensor, i64 offset, i64 bytes) const {
  const TensorRef& from = info_.inventory.tensors.at(tensor);
  if (offset < 0 || offset > from.bytes || bytes > from.bytes - offset)
    fail(ErrorCode::Io, {files_.path.string(), from.name}, "{}: bytes [{}, {}) of '{}' were asked for; it has {}",
         files_.path.string(), offset, offset + bytes, from.name, from.bytes);
  return from;
}

std::vector<u32> FileSource::sorted_by_name() const {
  const auto& tensors = info_.inventory.tensors;
  std::vector<u32> order(tensors.size());
  for (u32 i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return tensors[a].name < tensors[b].name; });
  const auto twice =
      std::adjacent_find(order.begin(), order.end(), [&](u32 a, u32 b) { return tensors[a].name == tensors[b].name; });
  if (twice == order.end()) return order;
  const TensorRef& tensor = tensors[*twice];
  const TensorRef& other = tensors[*std::next(twice)];
  fail_at(ErrorCode::DuplicateKey,
          {(files_.directory / info_.inventory.files[other.file]).string(), other.offset, other.name},
          "tensor '{}' is here, and also at byte {} of {}", other.name, tensor.offset,
          info_.inventory.files[tensor.file]);
}

/// Walks index and tensors, both sorted by name, side by side. The shards are the index's own list, so
/// equal file numbers mean equal files.
void FileSource::check_index(const std::vector<u32>& order) {
  auto at = order.begin();
  for (const ShardIndex::Entry& entry : files_.index->entries) {
    const TensorRef* tensor = at == order.end() ? nullptr : &info_.inventory.tensors[*at];
    if (tensor != nullptr && tensor->name < entry.tensor) fail_unlisted(files_, *tensor);
    if (tensor == nullptr || tensor->name != entry.tensor || tensor->file != entry.file) fail_stale(files_, entry);
    ++at;
  }
  if (at != order.end()) fail_unlisted(files_, info_.inventory.tensors[*at]);
  files_.index.reset();
}

void FileSource::add_opened(const File& file) {
  const FileIdentity identity = file.identity();
  info_.files.push_back({file.path(), identity.dev, identity.ino, identity.size, identity.mtime_ns, identity.ctime_ns});
}

File FileSource::open_shard(const std::string& name) {
  constexpr std::size_t kNamed = 8;
  const fs::path path = files_.directory / name;
  try {
    File file = File::open_read(path);
    add_opened(file);
    return file;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound || !files_.index) throw;
    const auto lists = [&](const ShardIndex::Entry& entry) { return files_.index->files[entry.file] == name; };
    const auto entry = std::ranges::find_if(files_.index->entries, lists);
    std::vector<std::string> missing = files_.index->files;
    std::erase_if(missing, [&](const std::string& shard) { return path_exists(files_.directory / shard); });
    // It is listed, and its server does not give it.
    if (missing.empty()) throw;
    const std::size_t more = missing.size() - std::min(missing.size(), kNamed);
    missing.resize(missing.size() - more);
    fail_at(ErrorCode::IndexMissingShard, {files_.index_file, entry->offset, entry->tensor},
            "lists {} shards, of which {} {} not there: {}{}. {}", files_.index->files.size(), missing.size() + more,
            missing.size() + more == 1 ? "is" : "are", fmt::join(missing, ", "),
            more > 0 ? fmt::format(" and {} more", more) : std::string(),
            RunOwner::why_missing(files_.directory,
                                  "`hf download` of the same repository goes on with a download that stopped"));
  }
}

void FileSource::fail_shrunk(const Error& error, const TensorRef& tensor) const {
  fail(ErrorCode::SourceChanged, {error.file(), tensor.name}, "{}: became shorter while it was read: {}", error.file(),
       error.what());
}

}  // namespace glu_ckpt
