#include "format/trainer_args.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/pickle_reader.hpp"
#include "format/torch_zip.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kRouted = "moe_mlp_glu_interleave_size";
constexpr std::string_view kShared = "moe_shared_expert_glu_interleave_size";
constexpr i64 kMaxStateBytes = i64{64} << 20;

/// No other argument describes a model without this one.
constexpr std::string_view kHeads = "num_attention_heads";

/// The value of a key of a Dict, or of the state of an object such as argparse's Namespace.
std::optional<PickleRef> find_entry(const PickleGraph& graph, PickleRef node, std::string_view key) {
  const auto find_in = [&](const std::vector<PickleRef>& items) -> std::optional<PickleRef> {
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (graph.kind(items[i]) == PickleKind::String && graph.text(items[i]) == key) return items[i + 1];
    return std::nullopt;
  };
  if (graph.kind(node) == PickleKind::Dict)
    if (const auto found = find_in(graph.items(node))) return found;
  if (is_object(graph.kind(node)))
    for (const PickleRef state : graph.states(node))
      if (const auto found = find_entry(graph, state, key)) return found;
  return std::nullopt;
}

std::string order_of(const PickleGraph& graph, PickleRef args, std::string_view name) {
  const auto value = find_entry(graph, args, name);
  if (!value) return {};
  if (graph.kind(*value) == PickleKind::None) return "contiguous";
  if (graph.kind(*value) != PickleKind::Int || graph.integer(*value) < 1) return {};
  return fmt::format("interleaved:{}", graph.integer(*value));
}

bool is_plain(const PickleGraph& graph, PickleRef value) {
  switch (graph.kind(value)) {
    case PickleKind::None:
    case PickleKind::Bool:
    case PickleKind::Int:
    case PickleKind::String: return true;
    case PickleKind::Float: return std::isfinite(graph.number(value));
    default: return false;
  }
}

void write_plain(const PickleGraph& graph, PickleRef value, JsonWriter& json) {
  switch (graph.kind(value)) {
    case PickleKind::Bool: json.value(graph.boolean(value)); break;
    case PickleKind::Int: json.value(graph.integer(value)); break;
    case PickleKind::Float: json.value(graph.number(value)); break;
    case PickleKind::String: json.value(graph.text(value)); break;
    default: json.null();
  }
}

void write_entry(const PickleGraph& graph, std::string_view name, PickleRef value, JsonWriter& json) {
  if (is_plain(graph, value)) {
    json.key(name);
    return write_plain(graph, value, json);
  }
  if (graph.kind(value) != PickleKind::List && graph.kind(value) != PickleKind::Tuple) return;
  const std::vector<PickleRef> items = graph.items(value);
  if (!std::ranges::all_of(items, [&](PickleRef item) { return is_plain(graph, item); })) return;
  json.key(name).begin_array();
  for (const PickleRef item : items) write_plain(graph, item, json);
  json.end_array();
}

/// The entries of a Dict, or of the states of an object, that JSON has a word for.
void write_entries(const PickleGraph& graph, PickleRef node, JsonWriter& json) {
  if (is_object(graph.kind(node)))
    for (const PickleRef state : graph.states(node))
      if (graph.kind(state) == PickleKind::Dict) write_entries(graph, state, json);
  if (graph.kind(node) != PickleKind::Dict) return;
  const std::vector<PickleRef> items = graph.items(node);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (graph.kind(items[i]) == PickleKind::String) write_entry(graph, graph.text(items[i]), items[i + 1], json);
}

std::string json_of(const PickleGraph& graph, PickleRef args) {
  if (!find_entry(graph, args, kHeads)) return {};
  JsonWriter json;
  json.begin_object();
  write_entries(graph, args, json);
  json.end_object();
  return json.text();
}

/// `pickle` holds a dict with "args", or a list of one.
TrainedArgs args_in(std::string pickle, const InputPart& part) {
  // Most states are large and say nothing of it.
  if (pickle.find(kRouted) == pickle.npos && pickle.find(kShared) == pickle.npos && pickle.find(kHeads) == pickle.npos)
    return {};
  PickleGraph graph(std::move(pickle));
  PickleRef root = read_pickle(graph, PickleNames::Torch, part);
  if (graph.kind(root) == PickleKind::List)
    if (const auto items = graph.items(root); items.size() == 1) root = items.front();
  const auto args = find_entry(graph, root, "args");
  if (!args) return {};
  return {order_of(graph, *args, kRouted), order_of(graph, *args, kShared), json_of(graph, *args)};
}

TrainedArgs args_in_zip(std::span<const std::byte> zip, const InputPart& part) {
  const ReadAt read = [&](std::span<std::byte> out, i64 offset) {
    if (offset < 0 || offset + std::ssize(out) > std::ssize(zip))
      fail(ErrorCode::FileTruncated, {part.file, {}}, "{}: ends too early", part.file);
    if (!out.empty()) std::memcpy(out.data(), zip.data() + offset, out.size());
  };
  const ZipDirectory directory = read_zip_directory(read, std::ssize(zip), part);
  const ZipRecord* const record = directory.find("data.pkl");
  if (record == nullptr || record->bytes > kMaxStateBytes) return {};
  std::string pickle(static_cast<std::size_t>(record->bytes), '\0');
  read(std::as_writable_bytes(std::span(pickle)), record->offset);
  return args_in(std::move(pickle), part);
}

}  // namespace

TrainedArgs trained_args(const CheckpointInfo& info) {
  const std::string path = info.path.string();
  try {
    for (const NamedObject& object : info.structure.objects)
      if (object.name.starts_with("common_state") && object.bytes <= kMaxStateBytes)
        return args_in_zip(object.read(), InputPart(path));
    const auto common = std::ranges::find(info.extra_files, "common.pt", &ExtraFile::name);
    if (common != info.extra_files.end()) {
      const std::string zip = read_small_file(common->path, kMaxStateBytes, ErrorCode::NotSupported);
      return args_in_zip(std::as_bytes(std::span(zip)), InputPart(common->path.string()));
    }
    for (const TorchTree& tree : info.structure.trees)
      if (TrainedArgs found = args_in(tree.pickle, InputPart(path)); !found.glu.empty() || !found.json.empty())
        return found;
  } catch (const Error& error) {
    // The machine's failures are not the file's.
    if (exit_status(error.code()) == exit_status(ErrorCode::Io)) throw;
  }
  return {};
}

}  // namespace glu_ckpt
