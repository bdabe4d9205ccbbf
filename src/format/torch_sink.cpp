#include "format/torch_sink.hpp"

#include <algorithm>
#include <deque>
#include <limits>

#include "core/crc32.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "format/create_sink.hpp"
#include "format/extras.hpp"
#include "format/pickle_writer.hpp"
#include "format/record_file.hpp"
#include "format/safetensors_index.hpp"
#include "format/staged_checkpoint.hpp"
#include "format/torch_archive.hpp"
#include "format/torch_tensor.hpp"
#include "format/torch_tree.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTorchIndexFile = "pytorch_model.bin.index.json";

std::string bin_name(u32 shard, u32 num_shards) {
  if (num_shards <= 1) return "pytorch_model.bin";
  return fmt::format("pytorch_model-{:05}-of-{:05}.bin", shard + 1, num_shards);
}

/// A file to be written: its outputs, and the objects around them.
struct TorchFile {
  std::string name;
  /// Null for a flat dict.
  const TorchTree* tree = nullptr;
  std::vector<std::size_t> members;
};

class TorchSink final : public Sink {
 public:
  TorchSink(const SinkOptions& options, const std::vector<OutputTensor>& tensors)
      : options_(options),
        structure_(options_.structure),
        tensors_(tensors),
        crcs_(tensors.size()),
        places_(tensors.size()),
        out_(options_, structure_.iteration_dir) {
    raise_open_file_limit();
    if (needs_extras(structure_, Format::Torch)) extras_ = print_extras(structure_, tensors_);
    for (TorchFile& file : divide()) create_file(std::move(file));
    out_.remove_others();
  }

  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    check_write_range(tensors_.at(tensor), offset, static_cast<i64>(bytes.size()));
    file_of(tensor).write(bytes, file_offset(tensor) + offset);
    add_written(tensor, offset, bytes);
  }

  void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const override {
    check_write_range(tensors_.at(tensor), offset, static_cast<i64>(out.size()));
    file_of(tensor).read(out, file_offset(tensor) + offset);
  }

  void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    check_write_range(tensors_.at(tensor), offset, static_cast<i64>(bytes.size()));
    file_of(tensor).add_written(bytes, file_offset(tensor) + offset);
    add_written(tensor, offset, bytes);
  }

  i64 file_offset(std::size_t tensor) const override {
    const Place& place = places_.at(tensor);
    return files_[place.file].archive.storage_offset(place.storage);
  }

  std::vector<std::byte> export_sums() override {
    std::vector<std::byte> crcs;
    for (std::size_t i = 0; i < crcs_.size(); ++i) crcs_[i].export_to(crcs, i);
    return out_.export_sums(crcs);
  }

  void import_sums(std::span<const std::byte> sums) override {
    const std::string crcs = out_.import_sums(sums);
    for (const CrcPiece& piece : read_crc_pieces(std::as_bytes(std::span(crcs))))
      crcs_.at(piece.number).add_sum(piece.offset, piece.bytes, static_cast<u32>(piece.crc));
  }

  void finish(const Record& record) override {
    out_.require_owner("finish");
    if (out_.single_file()) files_.front().archive.replace(0, print_record(record));
    parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { finish_file(files_[i]); });
    out_.publish_files();
    if (out_.single_file()) return;
    if (is_sharded_) write_index();
    if (!extras_.empty()) out_.write_text(std::string(kExtrasFileName), extras_);
    out_.copy_extra_files();
    out_.write_record_file(record);
    out_.write_tracker(structure_.tracker);
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
  static constexpr std::size_t kEmbedded = std::numeric_limits<std::size_t>::max();

  struct Place {
    std::size_t file = 0;
    std::size_t storage = 0;
  };
  struct Open {
    OutputFile* file = nullptr;
    TorchArchive archive;
    /// Output numbers by storage; kEmbedded for tensors that came out of the tree.
    std::vector<std::size_t> storages;
    std::vector<u32> embedded_crcs;
    std::string name;
  };

  OutputFile& file_of(std::size_t tensor) const { return *files_[places_[tensor].file].file; }

  void add_written(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) {
    crcs_[tensor].add(offset, bytes);
    out_.count(static_cast<i64>(bytes.size()));
  }

  std::string print_record(const Record& record) const { return print_record_json({record, options_.options, {}}); }

  std::vector<TorchFile> divide() {
    const auto& trees = structure_.trees;
    const u32 num_shards = tensors_.empty() ? 1 : tensors_.back().shard + 1;
    if (out_.single_file()) return {only_file(num_shards)};
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
    TorchFile file{out_.file_name(), structure_.trees.empty() ? nullptr : &structure_.trees.front(), {}};
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
    for (const TorchTree& tree : trees) files.push_back({tree.file, &tree, {}});
    const std::vector<std::size_t> tree_of = tree_of_outputs(trees, tensors_);
    TorchFile rest{bin_name(0, 1), nullptr, {}};
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      (tree_of[i] < trees.size() ? files[tree_of[i]] : rest).members.push_back(i);
    if (!rest.members.empty()) files.push_back(std::move(rest));
    return files;
  }

  void create_file(TorchFile file) {
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
    if (out_.single_file()) more.push_back({std::string(kRecordFileName), print_record(options_.record)});
    if (out_.single_file() && !extras_.empty()) more.push_back({std::string(kExtrasFileName), extras_});
    const std::string base_name = fs::path(file.name).filename().string();
    TorchArchive archive(archive_prefix(base_name), write_pickle(graph, root), sizes, std::move(more));
    OutputFile& created = out_.open_file(file.name, archive.total_bytes());
    std::vector<u32> crcs;
    for (const auto& [storage, bytes] : embedded) {
      const auto content = std::as_bytes(std::span(bytes));
      crcs.push_back(crc32_of(content));
      if (!out_.owns()) continue;
      created.write(content, archive.storage_offset(storage));
      out_.count(std::ssize(bytes));
    }
    files_.push_back({&created, std::move(archive), std::move(storages), std::move(crcs), std::move(file.name)});
  }

  PickleRef flat_dict(PickleGraph& graph, const std::vector<std::size_t>& members, const MakeTensor& make) const {
    std::vector<PickleRef> items;
    for (const std::size_t output : members) {
      items.push_back(graph.add_string(tensors_[output].name));
      items.push_back(make.output(graph, output));
    }
    return graph.add_container(PickleKind::Dict, items);
  }

  void finish_file(const Open& open) {
    std::vector<u32> crcs;
    auto embedded = open.embedded_crcs.begin();
    for (const std::size_t output : open.storages)
      crcs.push_back(output == kEmbedded ? *embedded++
                                         : crcs_[output].finish(tensors_[output].bytes, tensors_[output].name));
    out_.count(open.archive.write_rest(*open.file, 0, crcs));
  }

  void write_index() {
    std::map<std::string, std::string> weight_map;
    i64 total_bytes = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      weight_map.emplace(tensors_[i].name, files_[places_[i].file].name);
      total_bytes += tensors_[i].bytes;
    }
    out_.write_text(std::string(kTorchIndexFile), print_index(weight_map, total_bytes, count_parameters(tensors_)));
  }

  SinkOptions options_;
  const Structure& structure_;
  std::vector<OutputTensor> tensors_;
  std::deque<PiecewiseCrc> crcs_;
  std::vector<Place> places_;
  std::vector<Open> files_;
  std::string extras_;
  bool is_sharded_ = false;
  StagedCheckpoint out_;
};

}  // namespace

std::unique_ptr<Sink> create_torch_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors) {
  return std::make_unique<TorchSink>(options, tensors);
}

}  // namespace glu_ckpt
