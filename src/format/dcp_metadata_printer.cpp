/// print_dcp_metadata().

#include <charconv>
#include <initializer_list>
#include <unordered_map>

#include "format/dcp_metadata.hpp"
#include "format/pickle_graph.hpp"
#include "format/torch_dtype.hpp"
#include "format/torch_tensor.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";

/// Every node that several entries can share is made once.
class MetadataPrinter {
 public:
  explicit MetadataPrinter(const DcpMetadata& metadata) : metadata_(metadata) {}

  std::string print() {
    for (const std::string& file : metadata_.files) files_.push_back(graph_.add_string(file));
    for (const DcpTensor& tensor : metadata_.tensors) add_tensor(tensor);
    for (const DcpObject& object : metadata_.objects) add_object(object);
    const PickleRef none = graph_.add_none();
    const PickleRef root =
        object("Metadata", {{"state_dict_metadata", graph_.add_container(PickleKind::Dict, entries_)},
                            {"planner_data", metadata_.has_planner_data ? planner_data() : none},
                            {"storage_data", graph_.add_container(PickleKind::Dict, storage_)},
                            {"storage_meta", none},
                            {"version", none}});
    return write_pickle(graph_, root);
  }

 private:
  using Fields = std::initializer_list<std::pair<std::string_view, PickleRef>>;

  PickleRef key(std::string_view text) {
    const auto [at, is_new] = keys_.try_emplace(text, 0);
    if (is_new) at->second = graph_.add_string(std::string(text));
    return at->second;
  }

  PickleRef object_of(std::string_view module, std::string_view type, Fields fields) {
    const PickleRef made = graph_.add_new(graph_.add_global(module, type), graph_.add_tuple({}));
    std::vector<PickleRef> items;
    for (const auto& [name, value] : fields) {
      items.push_back(key(name));
      items.push_back(value);
    }
    if (!items.empty()) graph_.add_state(made, graph_.add_container(PickleKind::Dict, items));
    return made;
  }

  PickleRef object(std::string_view type, Fields fields) { return object_of(kMetadataModule, type, fields); }

  PickleRef item(const DcpItem& item) {
    return object_of("torch.distributed.checkpoint.filesystem", "_StorageInfo",
                     {{"relative_path", files_[item.file]},
                      {"offset", graph_.add_int(item.offset)},
                      {"length", graph_.add_int(item.length)}});
  }

  void add_object(const DcpObject& entry) {
    const PickleRef name = graph_.add_string(entry.name);
    entries_.insert(entries_.end(), {name, object("BytesStorageMetadata", {})});
    const PickleRef index = object("MetadataIndex", {{"fqn", name}, {"index", graph_.add_none()}});
    storage_.insert(storage_.end(), {index, item(entry.item)});
  }

  void add_tensor(const DcpTensor& tensor) {
    const PickleRef name = graph_.add_string(tensor.name);
    std::vector<PickleRef> chunks;
    for (const DcpChunk& chunk : tensor.chunks) {
      const PickleRef start = add_size(graph_, chunk.start);
      chunks.push_back(object("ChunkStorageMetadata", {{"offsets", start}, {"sizes", add_size(graph_, chunk.shape)}}));
      const PickleRef index = object("MetadataIndex", {{"fqn", name}, {"index", graph_.add_none()}, {"offset", start}});
      storage_.insert(storage_.end(), {index, item(chunk.item)});
    }
    const PickleRef entry =
        object("TensorStorageMetadata", {{"properties", properties(tensor.dtype)},
                                         {"size", add_size(graph_, tensor.shape)},
                                         {"chunks", graph_.add_container(PickleKind::List, chunks)}});
    entries_.insert(entries_.end(), {name, entry});
  }

  /// (dtype, layout, requires_grad, memory format, pin_memory).
  PickleRef properties(Dtype dtype) {
    const auto [at, is_new] = properties_.try_emplace(dtype, 0);
    if (!is_new) return at->second;
    const PickleRef layout = graph_.add_call(graph_.add_global("torch.serialization", "_get_layout"),
                                             graph_.add_tuple({graph_.add_string("torch.strided")}));
    const PickleRef contiguous = graph_.add_call(graph_.add_global(kMetadataModule, "_MEM_FORMAT_ENCODING"),
                                                 graph_.add_tuple({graph_.add_int(0)}));
    const PickleRef state = graph_.add_tuple({graph_.add_global("torch", torch_dtype(dtype)->name), layout,
                                              graph_.add_bool(false), contiguous, graph_.add_bool(false)});
    at->second = object("TensorProperties", {});
    graph_.add_state(at->second, state);
    return at->second;
  }

  PickleRef planner_data() {
    std::vector<PickleRef> items;
    for (const auto& [name, path] : metadata_.paths) {
      std::vector<PickleRef> steps;
      for (const PathKey& step : path) steps.push_back(path_step(step));
      items.push_back(graph_.add_string(name));
      items.push_back(graph_.add_container(PickleKind::Tuple, steps));
    }
    return graph_.add_container(PickleKind::Dict, items);
  }

  PickleRef path_step(const PathKey& step) {
    i64 index = 0;
    const char* end = step.text.data() + step.text.size();
    const auto [stop, error] = std::from_chars(step.text.data(), end, index);
    const bool is_number = step.is_index && error == std::errc() && stop == end;
    return is_number ? graph_.add_int(index) : key(step.text);
  }

  const DcpMetadata& metadata_;
  PickleGraph graph_;
  std::vector<PickleRef> files_;
  std::vector<PickleRef> entries_;
  std::vector<PickleRef> storage_;
  std::map<Dtype, PickleRef> properties_;
  std::unordered_map<std::string_view, PickleRef> keys_;
};

}  // namespace

std::string print_dcp_metadata(const DcpMetadata& metadata) { return MetadataPrinter(metadata).print(); }

}  // namespace glu_ckpt
