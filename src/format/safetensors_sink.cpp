#include "format/safetensors_sink.hpp"

#include <atomic>
#include <set>
#include <system_error>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "format/record_file.hpp"
#include "format/safetensors_header.hpp"
#include "format/safetensors_index.hpp"
#include "format/safetensors_source.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "io/file.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// Enough to keep a fast disk busy with flushes, and hashing at several GB/s a thread.
constexpr int kFileThreads = 8;
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

struct Shard {
  std::string name;
  File file;
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

i64 count_parameters(const std::vector<OutputTensor>& tensors) {
  i64 total = 0;
  for (const OutputTensor& tensor : tensors) total += checked_product(tensor.shape).value_or(0);
  return total;
}

class SafetensorsSink final : public Sink {
 public:
  SafetensorsSink(const SinkOptions& options, const std::vector<OutputTensor>& tensors)
      : options_(options),
        tensors_(tensors),
        single_file_(names_single_file(options.path)),
        shards_(group_by_shard(tensors)),
        staged_(options.path, options.overwrite) {
    raise_open_file_limit();  // every shard stays open
    for (u32 number = 0; number < shards_.size(); ++number) create_shard(number);
  }

  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    const OutputTensor& to = tensors_.at(tensor);
    const auto count = static_cast<i64>(bytes.size());
    if (offset < 0 || offset > to.bytes || count > to.bytes - offset)
      fail(ErrorCode::Io, {{}, to.name}, "bytes [{}, {}) were to be written to '{}'; it has {}", offset, offset + count,
           to.name, to.bytes);
    const Shard& shard = shards_[to.shard];
    shard.file.pwrite_exact(bytes, shard.header_bytes + to.offset + offset);
    bytes_written_ += count;
  }

  void finish(const Record& record) override {
    for (const Shard& shard : shards_) write_header(shard, record);
    parallel_for(shards_.size(), kFileThreads, [&](std::size_t i, int) { shards_[i].file.sync(); });
    if (single_file_) return;
    if (shards_.size() > 1) write_index();
    for (const ExtraFile& extra : options_.extra_files) copy_extra_file(extra);
    write_record_file(record);
    for (const fs::path& subdirectory : subdirectories_) sync_directory(staged_.path() / subdirectory);
  }

  fs::path staged_path() const override {
    return single_file_ ? staged_.path() / shards_.front().name : staged_.path();
  }

  void commit() override {
    if (single_file_)
      staged_.commit_file(shards_.front().name);
    else
      staged_.commit();
  }

  i64 bytes_written() const override { return bytes_written_; }

 private:
  std::string header_of(const Shard& shard, const Record& record) const {
    const auto mine = std::span(tensors_).subspan(shard.first, shard.last - shard.first);
    return print_header(mine, metadata_with(options_, record));
  }

  void create_shard(u32 number) {
    Shard& shard = shards_[number];
    shard.name =
        single_file_ ? staged_.final_path().filename().string() : shard_name(number, static_cast<u32>(shards_.size()));
    shard.header_bytes = static_cast<i64>(header_of(shard, options_.record).size());
    shard.file = File::create(staged_.path() / shard.name);
    shard.file.reserve(shard.header_bytes + shard.data_bytes);
    names_.insert(shard.name);
  }

  void write_header(const Shard& shard, const Record& record) {
    const std::string header = header_of(shard, record);
    if (static_cast<i64>(header.size()) != shard.header_bytes)
      fail(ErrorCode::RecordInvalid, {shard.name, {}},
           "{}: the final record makes a header of {} bytes; {} were kept free for it", shard.name, header.size(),
           shard.header_bytes);
    shard.file.pwrite_exact(std::as_bytes(std::span(header)), 0);
    bytes_written_ += shard.header_bytes;
  }

  void write_text(std::string_view name, std::string_view text) {
    write_small_file(staged_.path() / name, text);
    names_.insert(std::string(name));
    bytes_written_ += static_cast<i64>(text.size());
  }

  void write_index() {
    std::map<std::string, std::string> weight_map;
    for (const OutputTensor& tensor : tensors_) weight_map.emplace(tensor.name, shards_[tensor.shard].name);
    i64 total_bytes = 0;
    for (const Shard& shard : shards_) total_bytes += shard.data_bytes;
    write_text(kIndexFile, print_index(weight_map, total_bytes, count_parameters(tensors_)));
  }

  /// What was written here stays: an extra file of the same name is from the source's own layout.
  void copy_extra_file(const ExtraFile& extra) {
    if (extra.name == kRecordFileName || !names_.insert(extra.name).second) return;
    const fs::path path = staged_.path() / extra.name;
    make_subdirectories(fs::path(extra.name).parent_path());
    const File from = File::open_read(extra.path);
    const i64 bytes = from.size();
    const File to = File::create(path);
    to.copy_from(from, 0, 0, bytes);
    to.set_mode((from.mode() & 0777) | 0200);
    to.sync();
    bytes_written_ += bytes;
  }

  void make_subdirectories(const fs::path& relative) {
    std::error_code error;
    fs::path path;
    for (const fs::path& part : relative) {
      path /= part;
      fs::create_directory(staged_.path() / path, error);
      if (error) fail_errno(error.value(), "create", staged_.path() / path);
      subdirectories_.insert(path);
    }
  }

  void write_record_file(const Record& record) {
    const std::vector<std::string> names(names_.begin(), names_.end());
    RecordFile content{record, options_.options, std::vector<FileHash>(names.size())};
    parallel_for(names.size(), kFileThreads,
                 [&](std::size_t i, int) { content.files[i] = hash_file(staged_.path() / names[i], names[i]); });
    write_text(kRecordFileName, print_record_json(content));
  }

  SinkOptions options_;
  std::vector<OutputTensor> tensors_;
  bool single_file_;
  std::vector<Shard> shards_;
  StagedDir staged_;
  /// All files written, relative to the directory.
  std::set<std::string> names_;
  std::set<fs::path> subdirectories_;
  std::atomic<i64> bytes_written_{0};
};

OutputTensor as_output(const TensorRef& tensor, i64 data_start) {
  return {tensor.name, tensor.dtype, tensor.shape, tensor.bytes, 0, tensor.offset - data_start};
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
  const std::string text = print_header(tensors, header.metadata);
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

/// Options, file hashes and fields that `record` does not have stay.
void write_record_to_directory(const fs::path& directory, const Record& record) {
  const fs::path path = directory / kRecordFileName;
  RecordFile content;
  std::error_code ignored;
  if (fs::exists(path, ignored))
    content = parse_record_json(read_small_file(path, kMaxRecordBytes, ErrorCode::RecordInvalid), path.string());
  for (const auto& [key, value] : record) content.record.insert_or_assign(key, value);
  replace_small_file(path, print_record_json(content));
}

}  // namespace

std::string shard_name(u32 shard, u32 num_shards) {
  if (num_shards <= 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards);
}

bool names_single_file(const fs::path& path) { return path.filename().string().ends_with(".safetensors"); }

std::unique_ptr<Sink> create_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors) {
  if (names_single_file(options.path) && !tensors.empty() && tensors.back().shard > 0)
    fail(ErrorCode::Usage, {options.path.string(), {}},
         "{}: names one file, but the output has {} shards; name a directory or give a larger --max-shard-size",
         options.path.string(), tensors.back().shard + 1);
  return std::make_unique<SafetensorsSink>(options, tensors);
}

void write_record(const fs::path& path, const Record& record) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    write_record_to_directory(path, record);
  else
    write_record_to_file(path, record);
}

}  // namespace glu_ckpt
