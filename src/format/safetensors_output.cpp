/// The files of a safetensors checkpoint that is written.

#include <algorithm>

#include "core/base64.hpp"
#include "core/fail.hpp"
#include "format/extras.hpp"
#include "format/output_format.hpp"
#include "format/record_file.hpp"
#include "format/safetensors_header.hpp"
#include "format/safetensors_index.hpp"

namespace glu_ckpt {
namespace {

struct SafetensorsShard {
  std::string name;
  i64 header_bytes = 0;
  i64 data_bytes = 0;
  /// Its tensors are [first, last) of the outputs.
  std::size_t first = 0;
  std::size_t last = 0;
};

/// Splits the outputs by shard and checks what the header reader will check later: no gap, no overlap.
std::vector<SafetensorsShard> group_by_shard(const std::vector<OutputTensor>& tensors) {
  std::vector<SafetensorsShard> shards(tensors.empty() ? 1 : tensors.back().shard + std::size_t{1});
  std::size_t next = 0;
  for (u32 number = 0; number < shards.size(); ++number) {
    SafetensorsShard& shard = shards[number];
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

class SafetensorsFormat final : public OutputFormat {
 public:
  SafetensorsFormat(const OutputOptions& options, const std::vector<OutputTensor>& tensors)
      : options_(options), tensors_(tensors), metadata_(options.metadata), shards_(group_by_shard(tensors)) {
    // Some readers refuse a file that does not say which framework it is for.
    metadata_.insert_or_assign("format", "pt");
    const bool single_file = names_single_file(options_.path);
    if (single_file && needs_extras(options_.structure, Format::Safetensors)) embed_extras();
    for (u32 number = 0; number < shards_.size(); ++number) {
      SafetensorsShard& shard = shards_[number];
      shard.name = single_file ? options_.path.filename().string()
                   : shards_.size() == 1 && !options_.only_file.empty()
                       ? options_.only_file
                       : shard_name(number, static_cast<u32>(shards_.size()));
      shard.header_bytes = std::ssize(header_of(shard, options_.record));
    }
  }

  std::string directory() const override { return {}; }

  std::vector<TensorFile> files() const override {
    std::vector<TensorFile> files;
    for (u32 number = 0; number < shards_.size(); ++number) {
      const SafetensorsShard& shard = shards_[number];
      const bool is_cloned = std::ranges::binary_search(options_.cloned_shards, number);
      files.push_back({shard.name, shard.header_bytes + shard.data_bytes, shard.header_bytes,
                       is_cloned ? Space::AsWritten : Space::All});
    }
    return files;
  }

  TensorPlace place(std::size_t tensor, i64 offset) const override {
    const OutputTensor& to = tensors_.at(tensor);
    return {to.shard, shards_[to.shard].header_bytes + to.offset + offset, to.bytes - offset};
  }

  std::size_t num_crcs() const override { return 0; }
  CrcRange crc_range(std::size_t) const override { return {}; }
  i64 write_around(std::size_t, u32, std::deque<OutputFile>&) const override { return 0; }

  i64 write_headers(const Record& record, std::deque<OutputFile>& files, const std::deque<PiecewiseCrc>&) override {
    i64 bytes = 0;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const SafetensorsShard& shard = shards_[i];
      const std::string header = header_of(shard, record);
      if (std::ssize(header) != shard.header_bytes)
        fail(ErrorCode::RecordInvalid, {shard.name, {}},
             "{}: the final record makes a header of {} bytes; {} were kept free for it", shard.name, header.size(),
             shard.header_bytes);
      files[i].write_header(std::as_bytes(std::span(header)));
      bytes += shard.header_bytes;
    }
    return bytes;
  }

  std::vector<SideFile> side_files() const override {
    if (shards_.size() == 1) return {};
    std::map<std::string, std::string> weight_map;
    for (const OutputTensor& tensor : tensors_) weight_map.emplace(tensor.name, shards_[tensor.shard].name);
    i64 total_bytes = 0;
    for (const SafetensorsShard& shard : shards_) total_bytes += shard.data_bytes;
    return {{std::string(kSafetensorsIndexFile), print_index(weight_map, total_bytes, count_parameters(tensors_))}};
  }

 private:
  /// Returns the header. Its length is where the data begin, whatever the record's values are.
  std::string header_of(const SafetensorsShard& shard, const Record& record) const {
    const auto mine = std::span(tensors_).subspan(shard.first, shard.last - shard.first);
    const auto number = static_cast<std::size_t>(&shard - shards_.data());
    const auto phase =
        number < options_.data_phases.size() ? std::optional(options_.data_phases[number]) : std::nullopt;
    auto metadata = metadata_;
    put_record(metadata, record);
    return print_header(mine, metadata, phase);
  }

  void embed_extras() {
    const std::string extras = print_extras(options_.structure, tensors_);
    constexpr std::size_t kMaxEmbeddedBytes = std::size_t{16} << 20;
    if (extras.size() > kMaxEmbeddedBytes)
      fail(ErrorCode::ExtrasNoPlace, {options_.path.string(), {}},
           "{}: the source holds {} bytes besides tensors, too many for the header of one file; name a directory",
           options_.path.string(), extras.size());
    metadata_[std::string(kExtrasEntry)] = base64_encode(extras);
  }

  const OutputOptions& options_;
  const std::vector<OutputTensor>& tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsShard> shards_;
};

}  // namespace

std::string shard_name(u32 shard, u32 num_shards) {
  if (num_shards <= 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards);
}

std::unique_ptr<OutputFormat> make_safetensors_format(const OutputOptions& options,
                                                      const std::vector<OutputTensor>& tensors) {
  if (names_single_file(options.path) && !tensors.empty() && tensors.back().shard > 0)
    fail(ErrorCode::Usage, {options.path.string(), {}},
         "{}: names one file, but the output has {} shards; name a directory or give a larger --max-shard-size",
         options.path.string(), tensors.back().shard + 1);
  return std::make_unique<SafetensorsFormat>(options, tensors);
}

}  // namespace glu_ckpt
