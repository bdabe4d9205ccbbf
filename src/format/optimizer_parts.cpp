#include "format/optimizer_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/crc32.hpp"
#include "core/fail.hpp"
#include "format/pickle_graph.hpp"
#include "format/torch_tensor.hpp"
#include "format/torch_zip.hpp"
#include "format/zip_layout.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kPickle = "data.pkl";
constexpr std::string_view kCommonFile = "common.pt";
/// An object or pickle of more bytes holds tensors, whatever else it holds.
constexpr i64 kMaxBytes = i64{64} << 20;
constexpr int kMaxDepth = 64;
constexpr std::string_view kZipStart = "PK\x03\x04";

bool is_common_state(std::string_view name) { return name == kCommonFile || name.starts_with("common_state"); }

bool has_word(std::string_view key, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return key.find(word) != key.npos; });
}

/// Says whether a key, or a part of a name, is an optimizer's.
bool is_optimizer_word(std::string_view key) {
  return key == "optim" ||
         has_word(key, {"optimizer", "optim.", "optim_", "_optim", "exp_avg", "momentum_buffer", "master_param",
                        "fp32_param", "param_state", "fp32_from_fp16", "gbuf_idx", "bucket_idx", "dp_group_idx"});
}

bool is_generator(std::string_view key) { return has_word(key, {"rng", "random_state", "_extra_state"}); }

std::optional<std::string> state_in(const ReadAt& read, i64 bytes, const std::string& file, bool named);
ReadAt read_from(std::span<const std::byte> zip, const std::string& file);

/// Bytes as protocol 2 writes them: a text whose characters are the bytes.
std::string latin1_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if ((first & 0xFCU) == 0xC0U && i + 1 < text.size())
      bytes += static_cast<char>((first & 3U) << 6U | (static_cast<unsigned char>(text[++i]) & 0x3FU));
    else
      bytes += text[i];
  }
  return bytes;
}

/// More numbers, or bytes, than those of a setting such as betas.
constexpr std::size_t kMostSettings = 64;
constexpr std::size_t kMostSettingBytes = 1024;

/// Walks a pickle to its first tensor of more than one element that is an optimizer's.
class StateFinder {
 public:
  StateFinder(const PickleGraph& graph, const InputPart& part) : graph_(graph), part_(part) {}

  /// Returns the keys on the way to it; nothing where there is none. `within`: the name says that all is an
  /// optimizer's.
  std::optional<std::string> find(PickleRef node, bool within) {
    visited_.clear();
    return walk(node, {}, within, 0);
  }

 private:
  bool is_large_tensor(PickleRef node) const {
    if (!is_object(graph_.kind(node))) return false;
    const PickleRef function = graph_.function(node);
    // States of numpy: _reconstruct(ndarray, ...).
    if (graph_.kind(function) == PickleKind::Global && graph_.module(function).starts_with("numpy"))
      return graph_.name(function) == "_reconstruct" || graph_.name(function) == "_frombuffer";
    if (!is_tensor(graph_, node)) return false;
    try {
      i64 elements = 1;
      for (const i64 extent : read_tensor(graph_, node, part_, "tensor").shape) elements *= std::min<i64>(extent, 2);
      return elements > 1;
    } catch (const Error&) {
      return true;  // of a kind that is not known
    }
  }

  /// Values without a tensor around them.
  bool holds_values(PickleRef node) const {
    const PickleKind kind = graph_.kind(node);
    if (kind == PickleKind::Bytes || kind == PickleKind::ByteArray)
      return graph_.text(node).size() > kMostSettingBytes && !graph_.text(node).starts_with(kZipStart);
    if (kind != PickleKind::List && kind != PickleKind::Tuple) return false;
    const std::vector<PickleRef> items = graph_.items(node);
    return items.size() > kMostSettings &&
           std::ranges::all_of(items, [&](PickleRef item) { return graph_.kind(item) == PickleKind::Float; });
  }

  std::optional<std::string> walk(PickleRef node, const std::string& path, bool within, int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    if (is_large_tensor(node)) return within ? std::optional(path) : std::nullopt;
    if (within && holds_values(node)) return path;
    const PickleKind kind = graph_.kind(node);
    if (kind == PickleKind::Bytes || kind == PickleKind::ByteArray || kind == PickleKind::String)
      return walk_saved(kind == PickleKind::String ? latin1_bytes(graph_.text(node)) : std::string(graph_.text(node)),
                        path, within);
    const bool object = is_object(kind);
    const bool container = kind == PickleKind::List || kind == PickleKind::Tuple || kind == PickleKind::Dict || object;
    if (!container || !visited_.insert({node, within}).second) return std::nullopt;
    if (object || kind == PickleKind::Dict)
      for (const PickleRef state : graph_.states(node))
        if (auto found = walk(state, path, within, depth + 1)) return found;
    if (object)
      if (auto found = walk(graph_.arguments(node), path, within, depth + 1)) return found;
    const std::vector<PickleRef> items = graph_.items(node);
    const bool pairs = kind == PickleKind::Dict || (object && graph_.items_are_pairs(node));
    // torch.optim's own state_dict() has these two keys, whatever it is called.
    const bool own = pairs && has_key(items, "param_groups") && has_key(items, "state");
    for (std::size_t i = 0; i < items.size(); i += pairs ? 2 : 1) {
      if (pairs && i + 1 == items.size()) break;
      const std::string key = pairs ? key_text(items[i]) : fmt::format("{}", i);
      if (pairs && is_generator(key)) continue;
      const std::string below = path.empty() ? key : fmt::format("{}.{}", path, key);
      if (auto found =
              walk(items[pairs ? i + 1 : i], below, within || own || (pairs && is_optimizer_word(key)), depth + 1))
        return found;
    }
    return std::nullopt;
  }

  /// An object that was saved by torch.save before it was saved in another.
  std::optional<std::string> walk_saved(const std::string& zip, const std::string& path, bool within) const {
    if (!zip.starts_with(kZipStart)) return std::nullopt;
    const auto found =
        state_in(read_from(std::as_bytes(std::span(zip)), part_.file), std::ssize(zip), part_.file, within);
    return found ? std::optional(path.empty() || found->empty() ? path + *found : path + "." + *found) : std::nullopt;
  }

  bool has_key(const std::vector<PickleRef>& items, std::string_view key) const {
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (graph_.kind(items[i]) == PickleKind::String && graph_.text(items[i]) == key) return true;
    return false;
  }

  std::string key_text(PickleRef key) const {
    if (graph_.kind(key) == PickleKind::String) return std::string(graph_.text(key));
    return graph_.kind(key) == PickleKind::Int ? fmt::format("{}", graph_.integer(key)) : "(...)";
  }

  const PickleGraph& graph_;
  const InputPart& part_;
  std::set<std::pair<PickleRef, bool>> visited_;
};

ReadAt read_from(std::span<const std::byte> zip, const std::string& file) {
  return [zip, file](std::span<std::byte> out, i64 offset) {
    if (offset < 0 || offset + std::ssize(out) > std::ssize(zip))
      fail(ErrorCode::FileTruncated, {file, {}}, "{}: ends too early", file);
    if (!out.empty()) std::memcpy(out.data(), zip.data() + offset, out.size());
  };
}

std::string read_record(const ReadAt& read, const ZipRecord& record) {
  std::string text(static_cast<std::size_t>(record.bytes), '\0');
  read(std::as_writable_bytes(std::span(text)), record.offset);
  return text;
}

/// Returns the keys of the first tensor of an optimizer in a torch zip. What cannot be read is an optimizer's where its
/// name says so.
std::optional<std::string> state_in(const ReadAt& read, i64 bytes, const std::string& file, bool named) {
  const auto unread = [&] { return named ? std::optional<std::string>("") : std::nullopt; };
  try {
    const InputPart part(file);
    const ZipDirectory directory = read_zip_directory(read, bytes, part);
    const ZipRecord* const record = directory.find(kPickle);
    if (record == nullptr || record->bytes > kMaxBytes) return unread();
    PickleGraph graph(read_record(read, *record));
    const PickleRef root = read_pickle(graph, PickleNames::Any, part);
    return StateFinder(graph, part).find(root, named);
  } catch (const Error& error) {
    if (exit_status(error.code()) == exit_status(ErrorCode::Io)) throw;
    return unread();
  }
}

void add_objects(const CheckpointInfo& info, std::vector<OptimizerPart>& parts) {
  for (const NamedObject& object : info.structure.objects) {
    if (is_generator(object.name)) continue;
    const bool common = is_common_state(object.name);
    const bool named = !common && is_optimizer_word(object.name);
    if (object.bytes > kMaxBytes) {
      if (named) parts.push_back({OptimizerPart::Kind::Object, object.name, {}});
      continue;
    }
    const std::vector<std::byte> zip = object.read();
    if (auto keys = state_in(read_from(zip, object.name), std::ssize(zip), object.name, named))
      parts.push_back(
          {common ? OptimizerPart::Kind::CommonState : OptimizerPart::Kind::Object, object.name, std::move(*keys)});
  }
}

void add_file(const ExtraFile& file, std::vector<OptimizerPart>& parts) {
  const bool torch = std::ranges::any_of(std::initializer_list<std::string_view>{".pt", ".pth", ".bin", ".ckpt"},
                                         [&](std::string_view end) { return file.name.ends_with(end); });
  if (!torch || is_generator(file.name)) return;
  const bool common = file.name == kCommonFile;
  const File open = File::open_read(file.path);
  const ReadAt read = [&open](std::span<std::byte> out, i64 offset) { open.pread_exact(out, offset); };
  if (auto keys = state_in(read, open.size(), file.path.string(), !common && is_optimizer_word(file.name)))
    parts.push_back(
        {common ? OptimizerPart::Kind::CommonState : OptimizerPart::Kind::File, file.name, std::move(*keys)});
}

/// Adds the state that a trainer saved beside a model of the hub: optimizer.pt, files below DeepSpeed's
/// global_step500/, the optimizer_0/ that FSDP writes as a torch_dist checkpoint of its own, and files that only their
/// names tell.
void add_left_out(const CheckpointInfo& info, std::vector<OptimizerPart>& parts) {
  if (info.left_out.empty() || !is_directory_at(info.path)) return;
  const auto add_unread = [&](const std::string& name) {
    if (is_optimizer_word(name) && std::ranges::find(parts, name, &OptimizerPart::name) == parts.end())
      parts.push_back({OptimizerPart::Kind::File, name, {}});
  };
  for (const std::string& name : info.left_out) {
    const std::filesystem::path path = info.path / info.structure.iteration_dir / name;
    if (name.ends_with(".distcp"))
      add_unread(name.substr(0, name.rfind('/') + 1));
    else if (name.ends_with('/') || name.ends_with(kSafetensorsSuffix))
      add_unread(name);
    else if (is_file(path))
      try {
        add_file({name, path}, parts);
      } catch (const Error&) {
        add_unread(name);  // nothing of it is written, so it need not be readable
      }
  }
}

/// The keys of the storages that a pickle still needs: those of its persistent ids.
std::set<std::string> storages_of(const PickleGraph& graph) {
  std::set<std::string> keys;
  for (PickleRef node = 0; node < graph.size(); ++node) {
    if (graph.kind(node) != PickleKind::Persistent || graph.kind(graph.arguments(node)) != PickleKind::Tuple) continue;
    const auto items = graph.items(graph.arguments(node));
    if (items.size() > 2 && graph.kind(items[2]) == PickleKind::String) keys.emplace(graph.text(items[2]));
  }
  return keys;
}

}  // namespace

std::vector<OptimizerPart> find_optimizer_parts(const CheckpointInfo& info) {
  std::vector<OptimizerPart> parts;
  add_objects(info, parts);
  for (const ExtraFile& file : info.extra_files) add_file(file, parts);
  add_left_out(info, parts);
  return parts;
}

std::string without_optimizer(std::string_view zip, const std::string& file) {
  const InputPart part(file);
  const ReadAt read = read_from(std::as_bytes(std::span(zip)), file);
  const ZipDirectory directory = read_zip_directory(read, std::ssize(zip), part);
  const ZipRecord* const record = directory.find(kPickle);
  if (record == nullptr) fail_at(ErrorCode::ZipDirectory, {part, directory.offset}, "lacks {}", kPickle);
  PickleGraph graph(read_record(read, *record));
  PickleRef root = read_pickle(graph, PickleNames::Torch, part);
  const bool listed = graph.kind(root) == PickleKind::List && graph.items(root).size() == 1;
  if (listed) root = graph.items(root).front();
  if (graph.kind(root) != PickleKind::Dict) return std::string(zip);
  PickleGraph kept;
  std::vector<PickleRef> entries;
  const std::vector<PickleRef> items = graph.items(root);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const PickleRef pair[] = {items[i], items[i + 1]};
    if (StateFinder(graph, part).find(graph.add_container(PickleKind::Dict, pair), false)) continue;
    entries.push_back(kept.import(graph, items[i]));
    entries.push_back(kept.import(graph, items[i + 1]));
  }
  PickleRef made = kept.add_container(PickleKind::Dict, entries);
  if (listed) made = kept.add_container(PickleKind::List, {&made, 1});
  const std::set<std::string> storages = storages_of(kept);
  std::vector<std::pair<std::string, std::string>> records;
  for (const ZipRecord& each : directory.records) {
    constexpr std::string_view kStorage = "data/";
    if (each.name == kPickle)
      records.emplace_back(each.name, write_pickle(kept, made));
    else if (!each.name.starts_with(kStorage) || storages.contains(each.name.substr(kStorage.size())))
      records.emplace_back(each.name, read_record(read, each));
  }
  ZipLayout layout(directory.prefix);
  for (const auto& [name, text] : records) layout.add(name, std::ssize(text));
  std::string out;
  std::vector<u32> crcs;
  for (std::size_t i = 0; i < records.size(); ++i) {
    crcs.push_back(crc32_of(std::as_bytes(std::span(records[i].second))));
    out += layout.header(i) + records[i].second + layout.descriptor(i, crcs[i]);
  }
  return out + layout.directory(crcs);
}

}  // namespace glu_ckpt
