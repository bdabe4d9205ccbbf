#include "format/dcp_sink.hpp"

#include <deque>

#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "format/create_sink.hpp"
#include "format/dcp_metadata.hpp"
#include "format/extras.hpp"
#include "format/integrity.hpp"
#include "format/pickle_writer.hpp"
#include "format/staged_checkpoint.hpp"
#include "format/torch_archive.hpp"
#include "format/torch_tensor.hpp"
#include "format/torch_tree.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// Readers fetch whole chunks, so a matrix of a stack becomes a chunk of its own. Below this the 1.5 KB around each
/// would weigh more than that saves.
constexpr i64 kMinSlabBytes = i64{64} << 10;
constexpr std::string_view kMetadataJson = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";

/// One zip inside a file. Its headers are made again at the end rather than kept: there may be 100,000 of them.
struct Item {
  i64 base = 0;
  i64 bytes = 0;
  PiecewiseCrc crc;
};

/// How a tensor is cut into chunks of equal size.
struct Chunking {
  /// Torch elements.
  std::vector<i64> shape;
  std::vector<i64> chunk_shape;
  i64 chunk_bytes = 0;
  i64 count = 1;
  std::size_t first_item = 0;
  /// From the start of the zip.
  i64 data_offset = 0;

  std::vector<i64> start(i64 chunk) const {
    std::vector<i64> start(shape.size(), 0);
    for (std::size_t axis = shape.size() - std::min<std::size_t>(2, shape.size()); axis-- > 0 && count > 1;) {
      start[axis] = chunk % shape[axis];
      chunk /= shape[axis];
    }
    return start;
  }
};

Chunking chunking_of(const OutputTensor& tensor) {
  Chunking cut;
  cut.shape = torch_shape(tensor.dtype, tensor.shape, tensor.name);
  cut.chunk_shape = cut.shape;
  cut.chunk_bytes = tensor.bytes;
  const std::size_t rank = cut.shape.size();
  if (rank < 3 || tensor.bytes == 0) return cut;
  const i64 slab_bytes = cut.shape[rank - 2] * cut.shape[rank - 1] * torch_dtype(tensor.dtype)->element_bytes;
  if (slab_bytes < kMinSlabBytes) return cut;
  std::fill(cut.chunk_shape.begin(), cut.chunk_shape.end() - 2, 1);
  cut.chunk_bytes = slab_bytes;
  cut.count = tensor.bytes / slab_bytes;
  return cut;
}

/// The same for all chunks of a tensor.
TorchArchive archive_of(const OutputTensor& tensor, const Chunking& cut) {
  PickleGraph graph;
  std::vector<i64> values = cut.chunk_shape;
  if (!values.empty()) values.back() *= torch_dtype(tensor.dtype)->values;
  const PickleRef root = add_tensor(graph, tensor.dtype, values, "0", tensor.name);
  return {"archive", write_pickle(graph, root), {cut.chunk_bytes}};
}

class DcpSink final : public Sink {
 public:
  DcpSink(const SinkOptions& options, const std::vector<OutputTensor>& tensors)
      : options_(options),
        tensors_(tensors),
        structure_(options_.structure),
        out_(options, structure_.iteration_dir) {
    place_items();
    create_files();
  }

  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    for_each_part(tensor, offset, bytes,
                  [&](std::size_t item, i64 within, i64 position, std::span<const std::byte> part) {
                    file_of(tensor).write(part, position);
                    items_[item].crc.add(within, part);
                  });
    out_.count(static_cast<i64>(bytes.size()));
  }

  void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const override {
    for_each_part(tensor, offset, out, [&](std::size_t, i64, i64 position, std::span<std::byte> part) {
      file_of(tensor).read(part, position);
    });
  }

  void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    for_each_part(tensor, offset, bytes,
                  [&](std::size_t item, i64 within, i64 position, std::span<const std::byte> part) {
                    file_of(tensor).add_written(part, position);
                    items_[item].crc.add(within, part);
                  });
    out_.count(static_cast<i64>(bytes.size()));
  }

  i64 file_offset(std::size_t tensor) const override {
    const Chunking& cut = cuts_.at(tensor);
    return cut.count == 1 ? items_[cut.first_item].base + cut.data_offset : -1;
  }

  std::vector<std::byte> export_sums() override {
    std::vector<std::byte> crcs;
    for (std::size_t i = 0; i < items_.size(); ++i) items_[i].crc.export_to(crcs, i);
    return out_.export_sums(crcs);
  }

  void import_sums(std::span<const std::byte> sums) override {
    const std::string crcs = out_.import_sums(sums);
    for (const CrcPiece& piece : read_crc_pieces(std::as_bytes(std::span(crcs))))
      items_.at(piece.number).crc.add_sum(piece.offset, piece.bytes, static_cast<u32>(piece.crc));
  }

  void finish(const Record& record) override {
    out_.require_owner("finish");
    write_objects();
    parallel_for(tensors_.size(), kFileThreads, [&](std::size_t i, int) { write_zips(i); });
    out_.publish_files();
    write_metadata_json();
    if (needs_extras(structure_, Format::TorchDist))
      out_.write_text(std::string(kExtrasFileName), print_extras(structure_, tensors_));
    out_.copy_extra_files();
    // A checkpoint is one from here on, for PyTorch.
    out_.write_text(std::string(kDcpMetadataName), print_dcp_metadata(metadata()));
    out_.write_record_file(record);
    if (structure_.has_integrity) write_integrity();
    if (!structure_.iteration_dir.empty()) out_.write_tracker(structure_.tracker);
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
  OutputFile& file_of(std::size_t tensor) const { return *files_[tensors_[tensor].shard]; }

  /// visit(number of the item, offset within its chunk, position in the file, part of `bytes`) for each chunk that the
  /// range reaches.
  template <typename Bytes, typename Visit>
  void for_each_part(std::size_t tensor, i64 offset, Bytes bytes, const Visit& visit) const {
    check_write_range(tensors_.at(tensor), offset, static_cast<i64>(bytes.size()));
    const Chunking& cut = cuts_[tensor];
    while (!bytes.empty()) {
      const i64 within = offset % cut.chunk_bytes;
      const std::size_t item = cut.first_item + static_cast<std::size_t>(offset / cut.chunk_bytes);
      const auto part = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(cut.chunk_bytes - within)));
      visit(item, within, items_[item].base + cut.data_offset + within, part);
      bytes = bytes.subspan(part.size());
      offset += static_cast<i64>(part.size());
    }
  }

  /// Objects first, then tensors, without gaps, as PyTorch's own writer does.
  void place_items() {
    file_bytes_.resize(tensors_.empty() ? 1 : tensors_.back().shard + std::size_t{1});
    for (const NamedObject& object : structure_.objects) {
      object_offsets_.push_back(file_bytes_[0]);
      file_bytes_[0] += object.bytes;
    }
    u32 shard = 0;
    for (const OutputTensor& tensor : tensors_) {
      if (tensor.shard < shard || tensor.shard >= file_bytes_.size())
        fail(ErrorCode::PlanUnproved, {{}, tensor.name}, "'{}' is not grouped with its shard", tensor.name);
      shard = tensor.shard;
      place_tensor(tensor);
    }
  }

  void place_tensor(const OutputTensor& tensor) {
    Chunking cut = chunking_of(tensor);
    const TorchArchive archive = archive_of(tensor, cut);
    cut.first_item = items_.size();
    cut.data_offset = archive.storage_offset(0);
    for (i64 i = 0; i < cut.count; ++i) {
      Item& item = items_.emplace_back();
      item.base = file_bytes_[tensor.shard];
      item.bytes = archive.total_bytes();
      file_bytes_[tensor.shard] += item.bytes;
    }
    cuts_.push_back(std::move(cut));
  }

  void create_files() {
    raise_open_file_limit();  // every file stays open
    for (std::size_t shard = 0; shard < file_bytes_.size(); ++shard) {
      file_names_.push_back(fmt::format("__0_{}.distcp", shard));
      files_.push_back(&out_.open_file(file_names_.back(), file_bytes_[shard]));
    }
    out_.remove_others();
  }

  void write_objects() {
    for (std::size_t i = 0; i < structure_.objects.size(); ++i) {
      const NamedObject& object = structure_.objects[i];
      const std::vector<std::byte> bytes = object.read();
      if (static_cast<i64>(bytes.size()) != object.bytes)
        fail(ErrorCode::SourceChanged, {{}, object.name}, "'{}' has {} bytes; it had {}", object.name, bytes.size(),
             object.bytes);
      files_[0]->write(bytes, object_offsets_[i]);
      out_.count(object.bytes);
    }
  }

  /// What stands around the bytes of all chunks of one tensor.
  void write_zips(std::size_t tensor) {
    const Chunking& cut = cuts_[tensor];
    const TorchArchive archive = archive_of(tensors_[tensor], cut);
    for (i64 i = 0; i < cut.count; ++i) {
      const Item& item = items_[cut.first_item + static_cast<std::size_t>(i)];
      const u32 crc = item.crc.finish(cut.chunk_bytes, tensors_[tensor].name);
      out_.count(archive.write_rest(file_of(tensor), item.base, {&crc, 1}));
    }
  }

  /// Megatron takes a directory for a distributed checkpoint by this file. A plain one of PyTorch has none.
  void write_metadata_json() {
    const bool is_dist = options_.source_format == Format::TorchDist;
    if (!structure_.metadata_json.empty())
      out_.write_text("metadata.json", structure_.metadata_json);
    else if (!is_dist)
      out_.write_text("metadata.json", kMetadataJson);
  }

  void write_integrity() {
    const std::vector<std::string> names(out_.names().begin(), out_.names().end());
    out_.write_text(std::string(kIntegrityName), print_integrity(out_.root(), names));
  }

  DcpMetadata metadata() const {
    DcpMetadata metadata;
    metadata.files = file_names_;
    for (std::size_t i = 0; i < structure_.objects.size(); ++i)
      metadata.objects.push_back({structure_.objects[i].name, {0, object_offsets_[i], structure_.objects[i].bytes}});
    for (std::size_t i = 0; i < tensors_.size(); ++i) metadata.tensors.push_back(entry_of(i));
    metadata.has_planner_data = !structure_.paths.empty();
    if (metadata.has_planner_data) add_paths(metadata.paths);
    return metadata;
  }

  DcpTensor entry_of(std::size_t tensor) const {
    const Chunking& cut = cuts_[tensor];
    DcpTensor entry{tensors_[tensor].name, tensors_[tensor].dtype, cut.shape, {}};
    for (i64 i = 0; i < cut.count; ++i) {
      const Item& item = items_[cut.first_item + static_cast<std::size_t>(i)];
      entry.chunks.push_back({cut.start(i), cut.chunk_shape, {tensors_[tensor].shard, item.base, item.bytes}});
    }
    return entry;
  }

  void add_paths(std::map<std::string, KeyPath>& paths) const {
    for (const NamedObject& object : structure_.objects) paths[object.name] = path_of(object.name, object.name);
    for (const OutputTensor& tensor : tensors_) paths[tensor.name] = path_of(tensor.name, tensor.from);
  }

  /// Beside what it was made from, under a key that differs as the names do.
  KeyPath path_of(const std::string& name, const std::string& from) const {
    const auto found = structure_.paths.find(from);
    if (found == structure_.paths.end() || found->second.empty()) return {{name, false}};
    KeyPath path = found->second;
    const std::string key = renamed_key(path.back().text, from, name);
    if (key != path.back().text) path.back() = {key, false};
    return path;
  }

  SinkOptions options_;
  std::vector<OutputTensor> tensors_;
  const Structure& structure_;
  StagedCheckpoint out_;
  std::vector<std::string> file_names_;
  std::vector<OutputFile*> files_;
  std::vector<i64> file_bytes_;
  std::vector<i64> object_offsets_;
  std::vector<Chunking> cuts_;
  /// Of all tensors, chunk by chunk. A deque: a checksum cannot move.
  std::deque<Item> items_;
};

}  // namespace

std::unique_ptr<Sink> create_torch_dist_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors) {
  if (names_single_file(options.path))
    fail(ErrorCode::Usage, {options.path.string(), {}},
         "{}: names one file, but a torch-dist checkpoint is a directory; name one", options.path.string());
  return std::make_unique<DcpSink>(options, tensors);
}

}  // namespace glu_ckpt
