#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include "core/base64.hpp"
#include "core/fail.hpp"
#include "format/file_source.hpp"
#include "format/safetensors_header.hpp"
#include "io/file_backed.hpp"
#include "io/input_file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

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
  fail_at(ErrorCode::HeaderJson, {name, kHeaderPrefixBytes}, "the header does not start with '{{'");
}

class SafetensorsSource final : public FileSource, public FileBacked {
 public:
  explicit SafetensorsSource(const CheckpointFiles& files) : FileSource(files) {
    raise_open_file_limit();  // every shard stays open
    std::vector<Record> shard_records;
    for (const std::string& name : files_.shards) shard_records.push_back(add_shard(open_shard(name), name));
    // The records of some shards say nothing about a shard that another tool wrote.
    if (std::ranges::none_of(shard_records, [](const Record& record) { return record.empty(); }))
      for (std::size_t i = 0; i < shard_records.size(); ++i)
        add_record(shard_records[i], shards_[i].file().path().string());
    const std::vector<u32> order = sorted_by_name();
    if (files_.index) check_index(order);
    read_side_files();
  }

  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return this; }
  std::vector<u32> files_of(std::size_t tensor) const override { return {info_.inventory.tensors.at(tensor).file}; }

  FilePlace place(std::size_t tensor) const override {
    const TensorRef& from = info_.inventory.tensors.at(tensor);
    return {&shards_[from.file].file(), from.offset};
  }

  bool reads_past_cache(std::size_t tensor) const override {
    return shards_[info_.inventory.tensors.at(tensor).file].reads_past_cache();
  }

  void keep_in_cache() const override {
    for (const InputFile& shard : shards_) shard.keep_in_cache();
  }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    std::vector<iovec> vector;
    i64 bytes = 0;
    for (const std::span<std::byte> piece : pieces) {
      vector.push_back({piece.data(), piece.size()});
      bytes += static_cast<i64>(piece.size());
    }
    const TensorRef& from = checked_range(tensor, offset, bytes);
    guard_read(from, [&] { shards_[from.file].read(vector, from.offset + offset); });
  }

 private:
  /// Returns what the shard records.
  Record add_shard(File file, const std::string& name) {
    ParsedHeader header = read_header(file);
    const auto number = static_cast<u32>(info_.inventory.files.size());
    for (TensorRef& tensor : header.tensors) {
      tensor.file = number;
      info_.inventory.tensors.push_back(std::move(tensor));
    }
    if (const auto extras = header.metadata.find(std::string(kExtrasEntry)); extras != header.metadata.end()) {
      take_embedded_extras(extras->second, file.path().string());
      header.metadata.erase(extras);
    }
    Record record = take_record(header.metadata);
    refuse_slices(header.metadata, file.path().string());
    info_.metadata.merge(header.metadata);
    info_.inventory.files.push_back(name);
    shards_.emplace_back(std::move(file));
    return record;
  }

  void take_embedded_extras(const std::string& text, const std::string& file) {
    const auto bytes = base64_decode(text);
    if (!bytes) fail(ErrorCode::ExtrasInvalid, {file, {}}, "{}: its {} is not base64", file, kExtrasEntry);
    const auto zip = std::make_shared<std::string>(*bytes);
    const ReadAt read = [zip](std::span<std::byte> out, i64 offset) {
      std::memcpy(out.data(), zip->data() + offset, out.size());
    };
    take_extras(read_extras(read, static_cast<i64>(zip->size()), {file, 0, std::string(kExtrasEntry)}));
  }

  std::deque<InputFile> shards_;
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

std::unique_ptr<Source> read_safetensors(const CheckpointFiles& files) {
  return std::make_unique<SafetensorsSource>(files);
}

}  // namespace glu_ckpt
