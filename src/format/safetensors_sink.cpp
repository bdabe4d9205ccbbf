#include "format/safetensors_sink.hpp"

#include <algorithm>
#include <system_error>

#include "core/base64.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "format/create_sink.hpp"
#include "format/extras.hpp"
#include "format/record_file.hpp"
#include "format/safetensors_header.hpp"
#include "format/safetensors_index.hpp"
#include "format/safetensors_source.hpp"
#include "format/staged_checkpoint.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_backed.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {


struct Shard {
  std::string name;
  OutputFile* file = nullptr;
  i64 header_bytes = 0;
  i64 data_bytes = 0;
  /// Its tensors are [first, last) of the outputs.
  std::size_t first = 0;
  std::size_t last = 0;
};

std::map<std::string, std::string> metadata_with(const SinkOptions& options, const Record& record) {
  auto metadata = options.metadata;
  // Some readers refuse a file that does not say which framework it is for.
  metadata.insert_or_assign("format", "pt");
  put_record(metadata, record);
  return metadata;
}

/// Splits the outputs by shard and checks what the header reader will check later: no gap, no overlap.
std::vector<Shard> group_by_shard(const std::vector<OutputTensor>& tensors) {
  std::vector<Shard> shards(tensors.empty() ? 1 : tensors.back().shard + std::size_t{1});
  std::size_t next = 0;
  for (u32 number = 0; number < shards.size(); ++number) {
    Shard& shard = shards[number];
    shard.first = next;
    for (; next < tensors.size() && tensors[next].shard == number; ++next) {
      if (tensors[next].offset != shard.data_bytes)
        fail(ErrorCode::PlanUnproved, {{}, tensors[next].name}, "'{}' is planned at {}, where {} is the next free byte",
             tensors[next].name, tensors[next].offset, shard.data_bytes);
      shard.data_bytes += tensors[next].bytes;
    }
    shard.last = next;
  }
  if (next != tensors.size())
    fail(ErrorCode::PlanUnproved, {{}, tensors[next].name}, "'{}' is not grouped with its shard", tensors[next].name);
  return shards;
}

class SafetensorsSink final : public Sink {
 public:
  SafetensorsSink(const SinkOptions& options, const std::vector<OutputTensor>& tensors)
      : options_(options), tensors_(tensors), shards_(group_by_shard(tensors)), out_(options, {}) {
    raise_open_file_limit();  // every shard stays open
    if (needs_extras(options_.structure, Format::Safetensors)) print_structure();
    for (u32 number = 0; number < shards_.size(); ++number) create_shard(number);
    out_.remove_others();
  }

  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    check_write_range(tensors_.at(tensor), offset, static_cast<i64>(bytes.size()));
    file_of(tensor).write(bytes, file_offset(tensor) + offset);
    out_.count(static_cast<i64>(bytes.size()));
  }

  bool clone(std::size_t tensor, i64 offset, const FilePlace& from, i64 bytes) override {
    check_write_range(tensors_.at(tensor), offset, bytes);
    if (!is_cloned(tensors_[tensor].shard)) return false;
    return file_of(tensor).try_clone_from(*from.file, from.offset, file_offset(tensor) + offset, bytes);
  }

  void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const override {
    check_write_range(tensors_.at(tensor), offset, static_cast<i64>(out.size()));
    file_of(tensor).read(out, file_offset(tensor) + offset);
  }

  void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    check_write_range(tensors_.at(tensor), offset, static_cast<i64>(bytes.size()));
    file_of(tensor).add_written(bytes, file_offset(tensor) + offset);
    out_.count(static_cast<i64>(bytes.size()));
  }

  i64 file_offset(std::size_t tensor) const override {
    const OutputTensor& to = tensors_.at(tensor);
    return shards_[to.shard].header_bytes + to.offset;
  }

  std::vector<std::byte> export_sums() override { return out_.export_sums(); }
  void import_sums(std::span<const std::byte> sums) override { out_.import_sums(sums); }

  void finish(const Record& record) override {
    out_.require_owner("finish");
    for (const Shard& shard : shards_) write_header(shard, record);
    out_.publish_files();
    if (out_.single_file()) return;
    if (shards_.size() > 1) write_index();
    if (!extras_.empty()) out_.write_text(std::string(kExtrasFileName), extras_);
    out_.copy_extra_files();
    out_.write_record_file(record);
    out_.sync_directories();
  }

  bool has_journal() const override { return out_.has_journal(); }
  Journal& journal() override { return out_.journal(); }
  bool resumed() const override { return out_.resumed(); }
  void keep() override { out_.keep(); }
  void discard() override { out_.discard(); }
  fs::path staged_path() const override { return out_.staged_path(); }
  void commit() override { out_.commit(); }
  i64 bytes_written() const override { return out_.bytes_written(); }

 private:
  OutputFile& file_of(std::size_t tensor) const { return *shards_[tensors_[tensor].shard].file; }

  bool is_cloned(u32 shard) const { return std::ranges::binary_search(options_.cloned_shards, shard); }

  /// Its length is where the data begin, whatever the record's values are.
  std::string header_of(const Shard& shard, const Record& record) const {
    const auto mine = std::span(tensors_).subspan(shard.first, shard.last - shard.first);
    const auto number = static_cast<std::size_t>(&shard - shards_.data());
    const auto phase =
        number < options_.data_phases.size() ? std::optional(options_.data_phases[number]) : std::nullopt;
    return print_header(mine, metadata_with(options_, record), phase);
  }

  void print_structure() {
    extras_ = print_extras(options_.structure, tensors_);
    if (!out_.single_file()) return;
    constexpr std::size_t kMaxEmbeddedBytes = std::size_t{16} << 20;
    if (extras_.size() > kMaxEmbeddedBytes)
      fail(ErrorCode::ExtrasNoPlace, {options_.path.string(), {}},
           "{}: the source holds {} bytes besides tensors, too many for the header of one file; name a directory",
           options_.path.string(), extras_.size());
    options_.metadata[std::string(kExtrasEntry)] = base64_encode(extras_);
  }

  void create_shard(u32 number) {
    Shard& shard = shards_[number];
    shard.name = out_.single_file() ? out_.file_name() : shard_name(number, static_cast<u32>(shards_.size()));
    shard.header_bytes = static_cast<i64>(header_of(shard, options_.record).size());
    const Space space = is_cloned(number) ? Space::AsWritten : Space::All;
    shard.file = &out_.open_file(shard.name, shard.header_bytes + shard.data_bytes, shard.header_bytes, space);
  }

  void write_header(const Shard& shard, const Record& record) {
    const std::string header = header_of(shard, record);
    if (static_cast<i64>(header.size()) != shard.header_bytes)
      fail(ErrorCode::RecordInvalid, {shard.name, {}},
           "{}: the final record makes a header of {} bytes; {} were kept free for it", shard.name, header.size(),
           shard.header_bytes);
    shard.file->write_header(std::as_bytes(std::span(header)));
    out_.count(shard.header_bytes);
  }

  void write_index() {
    std::map<std::string, std::string> weight_map;
    for (const OutputTensor& tensor : tensors_) weight_map.emplace(tensor.name, shards_[tensor.shard].name);
    i64 total_bytes = 0;
    for (const Shard& shard : shards_) total_bytes += shard.data_bytes;
    out_.write_text(std::string(kSafetensorsIndexFile), print_index(weight_map, total_bytes, count_parameters(tensors_)));
  }

  SinkOptions options_;
  std::vector<OutputTensor> tensors_;
  std::vector<Shard> shards_;
  /// Empty where the source holds tensors only.
  std::string extras_;
  StagedCheckpoint out_;
};

OutputTensor as_output(const TensorRef& tensor, i64 data_start) {
  return {tensor.name, tensor.dtype, tensor.shape, tensor.bytes, 0, tensor.offset - data_start, tensor.name};
}

/// The header is of another length now, so the data moves: into a new file beside the old one.
void write_record_to_file(const fs::path& path, const Record& record) {
  const File old = File::open_read(path);
  ParsedHeader header = read_header(old);
  put_record(header.metadata, record);
  i64 data_bytes = 0;
  for (const TensorRef& tensor : header.tensors) data_bytes += tensor.bytes;
  const i64 data_start = old.size() - data_bytes;
  std::vector<OutputTensor> tensors;
  for (const TensorRef& tensor : header.tensors) tensors.push_back(as_output(tensor, data_start));
  // In phase with the old file, so that a file system that can share extents copies nothing.
  const std::string text = print_header(tensors, header.metadata, shareable_phase(data_start));
  const auto header_bytes = static_cast<i64>(text.size());

  StagedDir staged(path, /*overwrite=*/true);
  const std::string name = staged.final_path().filename().string();
  const File file = File::create(staged.path() / name);
  file.reserve(header_bytes + data_bytes);
  file.pwrite_exact(std::as_bytes(std::span(text)), 0);
  file.copy_from(old, data_start, header_bytes, data_bytes);
  file.set_mode(old.mode());
  file.sync();
  staged.commit_file(name);
}

/// Options, checksums of files and fields that `record` does not have stay.
void write_record_to_directory(const fs::path& directory, const Record& record) {
  const fs::path path = directory / kRecordFileName;
  RecordFile content;
  if (path_exists(path))
    content = parse_record_json(read_small_file(path, kMaxRecordBytes, ErrorCode::RecordInvalid), path.string());
  for (const auto& [key, value] : record) content.record.insert_or_assign(key, value);
  replace_small_file(path, print_record_json(content));
}

}  // namespace

std::string shard_name(u32 shard, u32 num_shards) {
  if (num_shards <= 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards);
}

std::unique_ptr<Sink> create_safetensors_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors) {
  if (names_single_file(options.path) && !tensors.empty() && tensors.back().shard > 0)
    fail(ErrorCode::Usage, {options.path.string(), {}},
         "{}: names one file, but the output has {} shards; name a directory or give a larger --max-shard-size",
         options.path.string(), tensors.back().shard + 1);
  return std::make_unique<SafetensorsSink>(options, tensors);
}

void write_record(const fs::path& path, const Record& record) {
  if (is_directory_at(path)) return write_record_to_directory(path, record);
  if (names_single_file(path) && path.extension() != ".safetensors")
    fail(ErrorCode::NotSupported, {path.string(), {}},
         "{}: a record can be added to a safetensors file or to a directory; give this file a directory of its own and "
         "stamp that",
         path.string());
  write_record_to_file(path, record);
}

}  // namespace glu_ckpt
