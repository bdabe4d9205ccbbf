/// The files of a torch.distributed.checkpoint directory that is written, as Megatron's torch_dist has them.

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "format/dcp_metadata.hpp"
#include "format/megatron_state.hpp"
#include "format/output_format.hpp"
#include "format/pickle_graph.hpp"
#include "format/torch_archive.hpp"
#include "format/torch_tensor.hpp"
#include "format/torch_tree.hpp"
#include "io/page_bytes.hpp"

namespace glu_ckpt {
namespace {

/// Readers fetch whole chunks, so a matrix of a stack becomes a chunk of its own. Below this the 1.5 KB around each
/// would weigh more than that saves.
constexpr i64 kMinSlabBytes = i64{64} << 10;

/// A chunk's data starts a page of the file, so that it is written past the page cache, whole and without a copy. Of
/// fewer bytes than these the gap before the zip would be more than one part in 256.
constexpr i64 kMinAlignedBytes = i64{1} << 20;

/// One zip inside a file. Its headers are made again at the end rather than kept: there may be 100,000 of them.
struct DcpOutputItem {
  std::size_t tensor = 0;
  i64 base = 0;
  i64 bytes = 0;
  /// Zeros in front of it.
  i64 gap = 0;
};

/// A tensor's cut into chunks of equal size.
struct DcpChunking {
  /// Torch elements.
  std::vector<i64> shape;
  std::vector<i64> chunk_shape;
  i64 chunk_bytes = 0;
  i64 count = 1;
  std::size_t first_item = 0;
  /// The offset of the data from the start of the zip.
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

DcpChunking chunking_of(const OutputTensor& tensor) {
  DcpChunking cut;
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

/// Returns the archive, which is the same for all chunks of a tensor.
TorchArchive archive_of(const OutputTensor& tensor, const DcpChunking& cut) {
  PickleGraph graph;
  std::vector<i64> values = cut.chunk_shape;
  if (!values.empty()) values.back() *= torch_dtype(tensor.dtype)->values;
  const PickleRef root = add_tensor(graph, tensor.dtype, values, "0", tensor.name);
  return {"archive", write_pickle(graph, root), {cut.chunk_bytes}};
}

class DcpFormat final : public OutputFormat {
 public:
  DcpFormat(const OutputOptions& options, const std::vector<OutputTensor>& tensors)
      : options_(options), structure_(options.structure), tensors_(tensors) {
    place_items();
  }

  std::string directory() const override { return structure_.iteration_dir; }

  std::vector<TensorFile> files() const override {
    std::vector<TensorFile> files;
    for (const std::string& name : file_names()) files.push_back({name, file_bytes_[files.size()]});
    return files;
  }

  TensorPlace place(std::size_t tensor, i64 offset) const override {
    const DcpChunking& cut = cuts_.at(tensor);
    const i64 chunk = cut.chunk_bytes == 0 ? 0 : offset / cut.chunk_bytes;
    const i64 within = offset - chunk * cut.chunk_bytes;
    const std::size_t item = cut.first_item + static_cast<std::size_t>(chunk);
    return {tensors_[tensor].shard, items_[item].base + cut.data_offset + within, cut.chunk_bytes - within, item,
            within};
  }

  std::size_t num_crcs() const override { return items_.size(); }

  CrcRange crc_range(std::size_t crc) const override {
    return {items_[crc].tensor, cuts_[items_[crc].tensor].chunk_bytes};
  }

  /// A zip's headers and directory, and the gap in front of it.
  i64 write_around(std::size_t crc, u32 value, std::deque<OutputFile>& files) const override {
    const DcpOutputItem& item = items_[crc];
    const OutputTensor& tensor = tensors_[item.tensor];
    OutputFile& file = files[tensor.shard];
    const std::vector<std::byte> gap(static_cast<std::size_t>(item.gap));
    file.write(gap, item.base - item.gap);
    return item.gap + archive_of(tensor, cuts_[item.tensor]).write_rest(file, item.base, {&value, 1});
  }

  i64 write_headers(const Record&, std::deque<OutputFile>& files, const std::deque<PiecewiseCrc>&) override {
    return write_objects(files[0]);
  }

  std::vector<SideFile> side_files() const override {
    std::vector<SideFile> files;
    // Megatron takes a directory for a distributed checkpoint by this file. A plain one of PyTorch has none.
    if (!structure_.metadata_json.empty())
      files.push_back({"metadata.json", structure_.metadata_json});
    else if (options_.source_format != Format::TorchDist)
      files.push_back({"metadata.json", std::string(kTorchDistMetadata)});
    files.push_back({std::string(kDcpMetadataName), print_dcp_metadata(metadata())});
    return files;
  }

 private:
  /// Objects first, then tensors, one zip behind the other as PyTorch's own writer does.
  void place_items() {
    file_bytes_.resize(tensors_.empty() ? 1 : tensors_.back().shard + std::size_t{1});
    for (const NamedObject& object : structure_.objects) {
      object_offsets_.push_back(file_bytes_[0]);
      file_bytes_[0] += object.bytes;
    }
    u32 shard = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const OutputTensor& tensor = tensors_[i];
      if (tensor.shard < shard || tensor.shard >= file_bytes_.size())
        fail(ErrorCode::PlanUnproved, {{}, tensor.name}, "'{}' is not grouped with its shard", tensor.name);
      shard = tensor.shard;
      place_tensor(i);
    }
  }

  void place_tensor(std::size_t number) {
    const OutputTensor& tensor = tensors_[number];
    DcpChunking cut = chunking_of(tensor);
    const TorchArchive archive = archive_of(tensor, cut);
    cut.first_item = items_.size();
    cut.data_offset = archive.storage_offset(0);
    i64& end = file_bytes_[tensor.shard];
    for (i64 i = 0; i < cut.count; ++i) {
      const i64 data = end + cut.data_offset;
      const i64 gap = cut.chunk_bytes < kMinAlignedBytes ? 0 : round_up(data, kPageBytes) - data;
      items_.push_back({number, end + gap, archive.total_bytes(), gap});
      end += gap + archive.total_bytes();
    }
    cuts_.push_back(std::move(cut));
  }

  std::vector<std::string> file_names() const {
    std::vector<std::string> names;
    for (std::size_t shard = 0; shard < file_bytes_.size(); ++shard)
      names.push_back(fmt::format("__0_{}.distcp", shard));
    return names;
  }

  i64 write_objects(OutputFile& file) const {
    i64 written = 0;
    for (std::size_t i = 0; i < structure_.objects.size(); ++i) {
      const NamedObject& object = structure_.objects[i];
      const std::vector<std::byte> bytes = object.read();
      if (std::ssize(bytes) != object.bytes)
        fail(ErrorCode::SourceChanged, {{}, object.name}, "'{}' has {} bytes; it had {}", object.name, bytes.size(),
             object.bytes);
      file.write(bytes, object_offsets_[i]);
      written += object.bytes;
    }
    return written;
  }

  DcpMetadata metadata() const {
    DcpMetadata metadata;
    metadata.files = file_names();
    for (std::size_t i = 0; i < structure_.objects.size(); ++i)
      metadata.objects.push_back({structure_.objects[i].name, {0, object_offsets_[i], structure_.objects[i].bytes}});
    for (std::size_t i = 0; i < tensors_.size(); ++i) metadata.tensors.push_back(entry_of(i));
    metadata.has_planner_data = !structure_.paths.empty();
    if (metadata.has_planner_data) add_paths(metadata.paths);
    return metadata;
  }

  DcpTensor entry_of(std::size_t tensor) const {
    const DcpChunking& cut = cuts_[tensor];
    DcpTensor entry{tensors_[tensor].name, tensors_[tensor].dtype, cut.shape, {}};
    for (i64 i = 0; i < cut.count; ++i) {
      const DcpOutputItem& item = items_[cut.first_item + static_cast<std::size_t>(i)];
      entry.chunks.push_back({cut.start(i), cut.chunk_shape, {tensors_[tensor].shard, item.base, item.bytes}});
    }
    return entry;
  }

  void add_paths(std::map<std::string, KeyPath>& paths) const {
    for (const NamedObject& object : structure_.objects) paths[object.name] = path_of(object.name, object.name);
    for (const OutputTensor& tensor : tensors_) paths[tensor.name] = path_of(tensor.name, tensor.from);
  }

  /// Returns a path beside that of what it was made from, with a key that differs as the names do.
  KeyPath path_of(const std::string& name, const std::string& from) const {
    const auto found = structure_.paths.find(from);
    if (found == structure_.paths.end() || found->second.empty()) return {{name, false}};
    KeyPath path = found->second;
    const std::string key = renamed_key(path.back().text, from, name);
    if (key != path.back().text) path.back() = {key, false};
    return path;
  }

  const OutputOptions& options_;
  const Structure& structure_;
  const std::vector<OutputTensor>& tensors_;
  std::vector<i64> file_bytes_;
  std::vector<i64> object_offsets_;
  std::vector<DcpChunking> cuts_;
  /// The chunks of all tensors, in their order.
  std::vector<DcpOutputItem> items_;
};

}  // namespace

std::unique_ptr<OutputFormat> make_torch_dist_format(const OutputOptions& options,
                                                     const std::vector<OutputTensor>& tensors) {
  if (names_single_file(options.path))
    fail(ErrorCode::Usage, {options.path.string(), {}},
         "{}: names one file, but a torch-dist checkpoint is a directory; name one", options.path.string());
  return std::make_unique<DcpFormat>(options, tensors);
}

}  // namespace glu_ckpt
