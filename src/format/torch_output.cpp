/// The files of a torch.save checkpoint that is written.

#include <atomic>
#include <limits>

#include "core/crc32.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "format/extras.hpp"
#include "format/output_format.hpp"
#include "format/pickle_graph.hpp"
#include "format/record_file.hpp"
#include "format/safetensors_index.hpp"
#include "format/torch_archive.hpp"
#include "format/torch_tensor.hpp"
#include "format/torch_tree.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

std::string bin_name(u32 shard, u32 num_shards) {
  if (num_shards <= 1) return "pytorch_model.bin";
  return fmt::format("pytorch_model-{:05}-of-{:05}.bin", shard + 1, num_shards);
}

/// A file to be written: its outputs, and the objects around them.
struct TorchFile {
  std::string name;
  /// It is null for a flat dict.
  const TorchTree* tree = nullptr;
  std::vector<std::size_t> members;
};

class TorchFormat final : public OutputFormat {
 public:
  TorchFormat(const OutputOptions& options, const std::vector<OutputTensor>& tensors)
      : options_(options),
        structure_(options.structure),
        tensors_(tensors),
        single_file_(names_single_file(options.path)),
        places_(tensors.size()) {
    for (const TorchFile& file : divide()) plan_file(file);
  }

  std::string directory() const override { return single_file_ ? std::string() : structure_.iteration_dir; }

  std::vector<TensorFile> files() const override {
    std::vector<TensorFile> files;
    for (const PlannedFile& file : files_) files.push_back({file.name, file.archive.total_bytes()});
    return files;
  }

  TensorPlace place(std::size_t tensor, i64 offset) const override {
    const Place& place = places_.at(tensor);
    return {place.file, files_[place.file].archive.storage_offset(place.storage) + offset,
            tensors_[tensor].bytes - offset, tensor, offset};
  }

  std::size_t num_crcs() const override { return tensors_.size(); }
  CrcRange crc_range(std::size_t crc) const override { return {crc, tensors_[crc].bytes}; }
  /// One directory at the end has all checksums of a file, so write_headers() does it.
  i64 write_around(std::size_t, u32, std::deque<OutputFile>&) const override { return 0; }

  i64 write_headers(const Record& record, std::deque<OutputFile>& files,
                    const std::deque<PiecewiseCrc>& crcs) override {
    if (single_file_) files_.front().archive.replace(0, print_record(record));
    std::atomic<i64> bytes{0};
    parallel_for(files_.size(), kFileThreads,
                 [&](std::size_t i, int) { bytes += write_archive(files_[i], files[i], crcs); });
    return bytes;
  }

  std::vector<SideFile> side_files() const override {
    if (!is_sharded_) return {};
    std::map<std::string, std::string> weight_map;
    i64 total_bytes = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      weight_map.emplace(tensors_[i].name, files_[places_[i].file].name);
      total_bytes += tensors_[i].bytes;
    }
    return {{std::string(kTorchIndexFile), print_index(weight_map, total_bytes, count_parameters(tensors_))}};
  }

 private:
  static constexpr std::size_t kEmbedded = std::numeric_limits<std::size_t>::max();

  struct Place {
    std::size_t file = 0;
    std::size_t storage = 0;
  };
  struct PlannedFile {
    std::string name;
    TorchArchive archive;
    /// Output numbers by storage; kEmbedded for tensors that came out of the tree.
    std::vector<std::size_t> storages;
    /// The bytes of those, by storage.
    std::map<std::size_t, std::string> embedded;
  };

  std::string print_record(const Record& record) const {
    return print_record_json({record, options_.options, {}, recorded_metadata(options_)});
  }

  std::vector<TorchFile> divide() {
    const auto& trees = structure_.trees;
    const u32 num_shards = tensors_.empty() ? 1 : tensors_.back().shard + 1;
    if (single_file_) return {only_file(num_shards)};
    const bool may_shard =
        trees.empty() || (trees.size() == 1 && num_shards > 1 && trees[0].prefix.empty() && is_flat_tree(trees[0]));
    return may_shard ? by_shard(num_shards) : by_tree();
  }

  TorchFile only_file(u32 num_shards) const {
    if (structure_.trees.size() > 1)
      fail(ErrorCode::Usage, {options_.path.string(), {}},
           "{}: names one file, but the source has {}; name a directory", options_.path.string(),
           structure_.trees.size());
    if (num_shards > 1 && structure_.trees.empty())
      fail(ErrorCode::Usage, {options_.path.string(), {}},
           "{}: names one file, but the output has {} shards; name a directory or give a larger --max-shard-size",
           options_.path.string(), num_shards);
    TorchFile file{
        options_.path.filename().string(), structure_.trees.empty() ? nullptr : &structure_.trees.front(), {}};
    for (std::size_t i = 0; i < tensors_.size(); ++i) file.members.push_back(i);
    return file;
  }

  std::vector<TorchFile> by_shard(u32 num_shards) {
    is_sharded_ = num_shards > 1;
    std::vector<TorchFile> files;
    for (u32 shard = 0; shard < num_shards; ++shard) files.push_back({bin_name(shard, num_shards), nullptr, {}});
    for (std::size_t i = 0; i < tensors_.size(); ++i) files[tensors_[i].shard].members.push_back(i);
    return files;
  }

  std::vector<TorchFile> by_tree() const {
    const auto& trees = structure_.trees;
    std::vector<TorchFile> files;
    files.reserve(trees.size() + 1);
    for (const TorchTree& tree : trees) files.push_back({tree.file, &tree, {}});
    const std::vector<std::size_t> tree_of = tree_of_outputs(trees, tensors_);
    TorchFile rest{bin_name(0, 1), nullptr, {}};
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      (tree_of[i] < trees.size() ? files[tree_of[i]] : rest).members.push_back(i);
    if (!rest.members.empty()) files.push_back(std::move(rest));
    return files;
  }

  void plan_file(const TorchFile& file) {
    PickleGraph graph;
    std::vector<std::size_t> storages;
    std::map<std::size_t, std::string> embedded;
    const MakeTensor make{[&](PickleGraph& into, std::size_t output) {
                            places_[output] = {files_.size(), storages.size()};
                            storages.push_back(output);
                            const OutputTensor& tensor = tensors_[output];
                            return add_tensor(into, tensor.dtype, tensor.shape, fmt::format("{}", storages.size() - 1),
                                              tensor.name);
                          },
                          [&](PickleGraph& into, EmbeddedTensor tensor) {
                            const std::size_t storage = storages.size();
                            storages.push_back(kEmbedded);
                            embedded.emplace(storage, std::move(tensor.bytes));
                            return add_tensor(into, tensor.dtype, tensor.shape, fmt::format("{}", storage), file.name);
                          }};
    const PickleRef root = file.tree != nullptr ? place_in_tree(*file.tree, tensors_, file.members, graph, make)
                                                : flat_dict(graph, file.members, make);
    std::vector<i64> sizes;
    for (std::size_t i = 0; i < storages.size(); ++i)
      sizes.push_back(storages[i] == kEmbedded ? std::ssize(embedded[i]) : tensors_[storages[i]].bytes);
    std::vector<TextRecord> more;
    if (single_file_) more.push_back({std::string(kRecordFileName), print_record(options_.record)});
    if (single_file_ && needs_extras(structure_, Format::Torch))
      more.push_back({std::string(kExtrasFileName), print_extras(structure_, tensors_)});
    const std::string base_name = fs::path(file.name).filename().string();
    TorchArchive archive(archive_prefix(base_name), write_pickle(graph, root), sizes, std::move(more));
    files_.push_back({file.name, std::move(archive), std::move(storages), std::move(embedded)});
  }

  PickleRef flat_dict(PickleGraph& graph, const std::vector<std::size_t>& members, const MakeTensor& make) const {
    std::vector<PickleRef> items;
    for (const std::size_t output : members) {
      items.push_back(graph.add_string(tensors_[output].name));
      items.push_back(make.output(graph, output));
    }
    return graph.add_container(PickleKind::Dict, items);
  }

  i64 write_archive(const PlannedFile& planned, OutputFile& file, const std::deque<PiecewiseCrc>& crcs) const {
    std::vector<u32> sums;
    i64 bytes = 0;
    for (std::size_t i = 0; i < planned.storages.size(); ++i) {
      const std::size_t output = planned.storages[i];
      if (output != kEmbedded) {
        sums.push_back(crcs[output].finish(tensors_[output].bytes, tensors_[output].name));
        continue;
      }
      const auto content = std::as_bytes(std::span(planned.embedded.at(i)));
      file.write(content, planned.archive.storage_offset(i));
      sums.push_back(crc32_of(content));
      bytes += std::ssize(content);
    }
    return bytes + planned.archive.write_rest(file, 0, sums);
  }

  const OutputOptions& options_;
  const Structure& structure_;
  const std::vector<OutputTensor>& tensors_;
  bool single_file_;
  std::vector<Place> places_;
  std::vector<PlannedFile> files_;
  bool is_sharded_ = false;
};

}  // namespace

std::unique_ptr<OutputFormat> make_torch_format(const OutputOptions& options,
                                                const std::vector<OutputTensor>& tensors) {
  return std::make_unique<TorchFormat>(options, tensors);
}

}  // namespace glu_ckpt
