#include "format/safetensors_source.hpp"

#include <algorithm>
#include <array>

#include "core/fail.hpp"
#include "format/model_config.hpp"
#include "format/record_file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// Tensor numbers sorted by name; names in two files are an error.
std::vector<u32> sorted_by_name(const Inventory& inventory, const fs::path& directory) {
  const auto& tensors = inventory.tensors;
  std::vector<u32> order(tensors.size());
  for (u32 i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return tensors[a].name < tensors[b].name; });
  const auto twice =
      std::adjacent_find(order.begin(), order.end(), [&](u32 a, u32 b) { return tensors[a].name == tensors[b].name; });
  if (twice == order.end()) return order;
  const TensorRef& tensor = tensors[*twice];
  const TensorRef& other = tensors[*std::next(twice)];
  fail(ErrorCode::DuplicateKey, {directory.string(), tensor.name}, "{}: tensor '{}' is in both {} and {}",
       directory.string(), tensor.name, inventory.files[tensor.file], inventory.files[other.file]);
}

[[noreturn]] void fail_stale(const CheckpointFiles& files, const ShardIndex::Entry& entry) {
  const std::string& shard = files.index->files[entry.file];
  fail(ErrorCode::IndexStale, {files.index_file, entry.tensor}, "{}: says tensor '{}' is in {}, which does not have it",
       files.index_file, entry.tensor, shard);
}

[[noreturn]] void fail_unlisted(const CheckpointFiles& files, const TensorRef& tensor) {
  fail(ErrorCode::IndexIncomplete, {files.index_file, tensor.name}, "{}: does not list tensor '{}', which is in {}",
       files.index_file, tensor.name, files.shards[tensor.file]);
}

/// Walks index and tensors, both sorted by name, side by side. The shards are the index's own list, so
/// equal file numbers mean equal files.
void check_index(const CheckpointFiles& files, const Inventory& inventory, const std::vector<u32>& order) {
  auto at = order.begin();
  for (const ShardIndex::Entry& entry : files.index->entries) {
    const TensorRef* tensor = at == order.end() ? nullptr : &inventory.tensors[*at];
    if (tensor != nullptr && tensor->name < entry.tensor) fail_unlisted(files, *tensor);
    if (tensor == nullptr || tensor->name != entry.tensor || tensor->file != entry.file) fail_stale(files, entry);
    ++at;
  }
  if (at != order.end()) fail_unlisted(files, inventory.tensors[*at]);
}

File open_shard(const CheckpointFiles& files, const std::string& name) {
  const fs::path path = files.directory / name;
  try {
    return File::open_read(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound || !files.index) throw;
    fail(ErrorCode::IndexMissingShard, {files.index_file, {}}, "{}: lists the shard {}, which does not exist",
         files.index_file, name);
  }
}

/// torch.distributed.checkpoint's HuggingFaceStorageWriter writes one file a rank whose shapes are those
/// of slices; only its consolidated files hold whole tensors.
void refuse_slices(const std::map<std::string, std::string>& metadata, const std::string& file) {
  const auto info = metadata.find("DCP_SHARDING_INFO");
  if (info == metadata.end() || info->second.find_first_of("123456789") == std::string::npos) return;
  const std::string shard = fs::path(file).filename().string();
  if (shard.starts_with("shard-"))
    fail(ErrorCode::NotSupported, {file, {}},
         "{}: holds one rank's slices of tensors (DCP_SHARDING_INFO), not whole ones; consolidate them first", file);
}

/// A header that does not start as JSON is refused before all of it, up to 100 MB, is read.
void check_opening(const File& file, i64 header_bytes) {
  if (header_bytes == 0) return;
  std::array<char, 64> opening{};
  const auto head = std::span(opening).first(static_cast<std::size_t>(std::min<i64>(header_bytes, 64)));
  file.pread_exact(std::as_writable_bytes(head), kHeaderPrefixBytes);
  if (head.front() == '{' || head.front() == ' ' || head.front() == '\t' || head.front() == '\n') return;
  const std::string name = file.path().string();
  if (static_cast<unsigned char>(head.front()) >= 0x80) return;  // the parser says whether it is UTF-8
  fail(ErrorCode::HeaderJson, {name, {}}, "{}: the header does not start with '{{'", name);
}

class SafetensorsSource final : public Source {
 public:
  explicit SafetensorsSource(const CheckpointFiles& files)
      : path_(files.path), extra_files_(files.extra_files), left_out_(files.left_out) {
    raise_open_file_limit();  // every shard stays open
    std::vector<Record> shard_records;
    for (const std::string& name : files.shards) shard_records.push_back(add_shard(open_shard(files, name), name));
    RecordMerger records;
    // What some shards say of themselves says nothing about one that another tool wrote.
    if (std::ranges::none_of(shard_records, [](const Record& record) { return record.empty(); }))
      for (std::size_t i = 0; i < shard_records.size(); ++i) records.add(shard_records[i], shards_[i].path().string());
    const std::vector<u32> order = sorted_by_name(inventory_, files.directory);
    if (files.index) check_index(files, inventory_, order);
    if (!files.config.empty()) {
      const std::string text = read_small_file(files.config, kMaxConfigBytes, ErrorCode::ConfigJson);
      hints_ = parse_config(text, files.config.string());
    }
    if (!files.record.empty()) {
      const std::string text = read_small_file(files.record, kMaxRecordBytes, ErrorCode::RecordInvalid);
      records.add(parse_record_json(text, files.record.string()).record, files.record.string());
    }
    record_ = records.merged();
  }

  const Inventory& inventory() const override { return inventory_; }
  const ModelHints& hints() const override { return hints_; }
  const Record& record() const override { return record_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<ExtraFile>& extra_files() const override { return extra_files_; }
  std::vector<std::string> left_out() const override { return left_out_; }
  const fs::path& path() const override { return path_; }
  i64 file_bytes() const override { return file_bytes_; }

  void read(std::size_t tensor, i64 offset, std::span<std::byte> out) const override {
    const TensorRef& from = inventory_.tensors.at(tensor);
    const auto bytes = static_cast<i64>(out.size());
    if (offset < 0 || offset > from.bytes || bytes > from.bytes - offset)
      fail(ErrorCode::Io, {path_.string(), from.name}, "{}: bytes [{}, {}) of '{}' were asked for; it has {}",
           path_.string(), offset, offset + bytes, from.name, from.bytes);
    try {
      shards_[from.file].pread_exact(out, from.offset + offset);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::FileTruncated) throw;
      // The header was checked against the file's size, so the file was whole when it was opened.
      fail(ErrorCode::SourceChanged, {error.file(), from.name}, "{}: became shorter while it was read: {}",
           error.file(), error.what());
    }
  }

 private:
  /// Returns what the shard records.
  Record add_shard(File file, const std::string& name) {
    ParsedHeader header = read_header(file);
    const auto number = static_cast<u32>(inventory_.files.size());
    for (TensorRef& tensor : header.tensors) {
      tensor.file = number;
      inventory_.tensors.push_back(std::move(tensor));
    }
    Record record = take_record(header.metadata);
    refuse_slices(header.metadata, file.path().string());
    metadata_.merge(header.metadata);
    inventory_.files.push_back(name);
    file_bytes_ += file.size();
    shards_.push_back(std::move(file));
    return record;
  }

  fs::path path_;
  std::vector<ExtraFile> extra_files_;
  std::vector<std::string> left_out_;
  std::vector<File> shards_;
  Inventory inventory_;
  ModelHints hints_;
  Record record_;
  std::map<std::string, std::string> metadata_;
  i64 file_bytes_ = 0;
};

}  // namespace

ParsedHeader read_header(const File& file) {
  const std::string name = file.path().string();
  const i64 file_bytes = file.size();
  std::array<std::byte, kHeaderPrefixBytes> prefix{};
  const auto head = std::span(prefix).first(static_cast<std::size_t>(std::min(file_bytes, kHeaderPrefixBytes)));
  file.pread_exact(head, 0);
  const i64 length = check_header_length(head, file_bytes, name);
  check_opening(file, length);
  std::string json(static_cast<std::size_t>(length), '\0');
  file.pread_exact(std::as_writable_bytes(std::span(json)), kHeaderPrefixBytes);
  const i64 data_start = kHeaderPrefixBytes + length;
  ParsedHeader header = parse_header(json, file_bytes - data_start, name);
  for (TensorRef& tensor : header.tensors) tensor.offset += data_start;
  return header;
}

std::unique_ptr<Source> read_checkpoint(const CheckpointFiles& files) {
  return std::make_unique<SafetensorsSource>(files);
}

}  // namespace glu_ckpt
