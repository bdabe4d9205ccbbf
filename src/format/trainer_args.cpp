#include "format/trainer_args.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "core/readable.hpp"
#include "format/checkpoint_files.hpp"
#include "format/pickle_graph.hpp"
#include "format/torch_zip.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kRouted = "moe_mlp_glu_interleave_size";
constexpr std::string_view kShared = "moe_shared_expert_glu_interleave_size";
constexpr i64 kMaxStateBytes = i64{64} << 20;

/// No other argument describes a model without this one.
constexpr std::string_view kHeads = "num_attention_heads";

constexpr int kMaxArgDepth = 4;

/// The class or function that a value is, or is made by; empty of a plain value.
std::string class_of(const PickleGraph& graph, PickleRef value) {
  const PickleRef type = is_object(graph.kind(value)) ? graph.function(value) : value;
  if (graph.kind(type) != PickleKind::Global) return {};
  return fmt::format("{}.{}", graph.module(type), graph.name(type));
}

/// Returns true for torch.bfloat16, an activation function and other names that stand for themselves.
bool is_known_name(const PickleGraph& graph, PickleRef value) {
  return graph.kind(value) == PickleKind::Global &&
         name_use(PickleNames::Torch, graph.module(value), graph.name(value)) != NameUse::Refused;
}

bool is_plain(const PickleGraph& graph, PickleRef value, int depth = 0) {
  const auto all_plain = [&](const std::vector<PickleRef>& items) {
    return depth < kMaxArgDepth &&
           std::ranges::all_of(items, [&](PickleRef item) { return is_plain(graph, item, depth + 1); });
  };
  switch (graph.kind(value)) {
    case PickleKind::None:
    case PickleKind::Bool:
    case PickleKind::Int:
    case PickleKind::String:
    case PickleKind::Float: return true;
    case PickleKind::Global: return is_known_name(graph, value);
    case PickleKind::List:
    case PickleKind::Tuple:
    case PickleKind::Set:
    case PickleKind::FrozenSet: return all_plain(graph.items(value));
    case PickleKind::Dict: {
      const std::vector<PickleRef> items = graph.items(value);
      for (std::size_t i = 0; i < items.size(); i += 2)
        if (graph.kind(items[i]) != PickleKind::String) return false;
      return all_plain(items);
    }
    default: return false;
  }
}

void write_plain(const PickleGraph& graph, PickleRef value, JsonWriter& json) {
  switch (graph.kind(value)) {
    case PickleKind::Bool: json.value(graph.boolean(value)); break;
    case PickleKind::Int: json.value(graph.integer(value)); break;
    case PickleKind::Float:
      if (std::isfinite(graph.number(value)))
        json.value(graph.number(value));
      else
        json.value(fmt::format("{}", graph.number(value)));
      break;
    case PickleKind::String: json.value(graph.text(value)); break;
    case PickleKind::Global: json.value(class_of(graph, value)); break;
    case PickleKind::Dict: {
      const std::vector<PickleRef> items = graph.items(value);
      json.begin_object();
      for (std::size_t i = 0; i + 1 < items.size(); i += 2)
        write_plain(graph, items[i + 1], json.key(graph.text(items[i])));
      json.end_object();
      break;
    }
    case PickleKind::None: json.null(); break;
    default:
      json.begin_array();
      for (const PickleRef item : graph.items(value)) write_plain(graph, item, json);
      json.end_array();
  }
}

/// The first class or function of a value, or within it, that is not known.
std::string foreign_class(const PickleGraph& graph, PickleRef value, int depth = 0) {
  if (const std::string type = class_of(graph, value); !type.empty() && !is_known_name(graph, value)) return type;
  if (depth >= kMaxArgDepth || is_plain(graph, value, kMaxArgDepth)) return {};
  switch (graph.kind(value)) {
    case PickleKind::List:
    case PickleKind::Tuple:
    case PickleKind::Set:
    case PickleKind::FrozenSet:
    case PickleKind::Dict:
      for (const PickleRef item : graph.items(value))
        if (std::string type = foreign_class(graph, item, depth + 1); !type.empty()) return type;
      return {};
    default: return {};
  }
}

/// Calls `entry(name, value)` for each of the arguments: the pairs of a Dict, or what an object such as argparse's
/// Namespace has, in its pairs or its states.
template <typename Entry>
void for_each_arg(const PickleGraph& graph, PickleRef args, const Entry& entry, int depth = 0) {
  if (depth > kMaxArgDepth) return;
  const bool object = is_object(graph.kind(args));
  if (object)
    for (const PickleRef state : graph.states(args)) for_each_arg(graph, state, entry, depth + 1);
  // The state of an object with slots.
  if (depth > 0 && graph.kind(args) == PickleKind::Tuple)
    for (const PickleRef part : graph.items(args)) for_each_arg(graph, part, entry, depth + 1);
  if (graph.kind(args) != PickleKind::Dict && !(object && graph.items_are_pairs(args))) return;
  const std::vector<PickleRef> items = graph.items(args);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (graph.kind(items[i]) == PickleKind::String) entry(graph.text(items[i]), items[i + 1]);
}

std::optional<PickleRef> find_entry(const PickleGraph& graph, PickleRef node, std::string_view key) {
  std::optional<PickleRef> found;
  for_each_arg(graph, node, [&](std::string_view name, PickleRef value) {
    if (name == key) found = value;
  });
  return found;
}

/// Reads the arguments into what is known of them. A name that comes twice has its last value, as in Python.
class ArgsReader {
 public:
  ArgsReader(const PickleGraph& graph, PickleRef args) : graph_(graph) {
    for_each_arg(graph, args, [&](std::string_view name, PickleRef value) { values_[std::string(name)] = value; });
    if (values_.empty())
      read_.unread.push_back({"", fmt::format("they are {}", class_of(graph, args).empty() ? "no dictionary or object"
                                                                                           : class_of(graph, args))});
  }

  RunArguments read() {
    read_.glu = order(kRouted);
    read_.shared_glu = order(kShared);
    JsonWriter json;
    json.begin_object();
    for (const auto& [name, value] : values_) {
      if (is_plain(graph_, value))
        write_plain(graph_, value, json.key(name));
      else
        add_unread(name, value);
    }
    json.end_object();
    if (values_.contains(kHeads)) read_.args = json.text();
    return std::move(read_);
  }

 private:
  std::string order(std::string_view name) {
    const auto value = values_.find(name);
    if (value == values_.end() || !is_plain(graph_, value->second)) return {};
    if (graph_.kind(value->second) == PickleKind::None) return "contiguous";
    if (graph_.kind(value->second) == PickleKind::Int && graph_.integer(value->second) > 0)
      return fmt::format("interleaved:{}", graph_.integer(value->second));
    JsonWriter json;
    write_plain(graph_, value->second, json);
    read_.unread.push_back(
        {std::string(name), fmt::format("is {}, which is neither a number of rows nor None", json.text())});
    return {};
  }

  /// Paths, dates and Megatron's own enums have no word in JSON, and no use: they are left out.
  bool is_known_object(PickleRef value) const {
    if (!is_object(graph_.kind(value)) || graph_.kind(graph_.function(value)) != PickleKind::Global) return false;
    const std::string_view module = graph_.module(graph_.function(value));
    return !module.starts_with("numpy") &&
           name_use(PickleNames::Torch, module, graph_.name(graph_.function(value))) != NameUse::Refused;
  }

  void add_unread(const std::string& name, PickleRef value) {
    if (is_known_object(value)) return;
    const std::string type = foreign_class(graph_, value);
    read_.unread.push_back(
        {name, type.empty() ? std::string("is of a kind that is not read") : fmt::format("is or holds {}", type)});
  }

  const PickleGraph& graph_;
  std::map<std::string, PickleRef, std::less<>> values_;
  RunArguments read_;
};

/// `pickle` holds a dict with "args", or a list of one.
RunArguments args_in(std::string pickle, const InputPart& part) {
  // Most states are large and say nothing of it.
  if (pickle.find(kRouted) == pickle.npos && pickle.find(kShared) == pickle.npos && pickle.find(kHeads) == pickle.npos)
    return {};
  PickleGraph graph(std::move(pickle));
  PickleRef root = read_pickle(graph, PickleNames::Any, part);
  if (graph.kind(root) == PickleKind::List)
    if (const auto items = graph.items(root); items.size() == 1) root = items.front();
  const auto args = find_entry(graph, root, "args");
  return args ? ArgsReader(graph, *args).read() : RunArguments();
}

RunArguments args_in_zip(std::span<const std::byte> zip, const InputPart& part) {
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

bool is_text(std::string_view text) { return is_utf8(text) && text.find('\0') == text.npos; }

/// The words of each line as a shell cuts them. A line that begins with '#' is one word.
std::vector<std::vector<std::string_view>> words_of(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\v\f";
  std::vector<std::vector<std::string_view>> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    auto& words = lines.emplace_back();
    while (true) {
      line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
      if (line.empty()) break;
      const bool is_remark = words.empty() && line.front() == '#';
      words.push_back(is_remark ? line : line.substr(0, line.find_first_of(kBlank)));
      line.remove_prefix(words.back().size());
    }
  }
  return lines;
}

/// The option that a word of megatron_args.txt is, spelled as trainers save it; empty of a value.
std::string option_in(std::string_view word) {
  if (!word.starts_with("--")) return {};
  std::string name(word.substr(2, std::min(word.find('='), word.size()) - 2));
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string as_option(std::string_view name) {
  std::string option = fmt::format("--{}", name);
  std::ranges::replace(option, '_', '-');
  return option;
}

/// The words of a megatron_args.txt, as options and their values.
class ListedArgs {
 public:
  explicit ListedArgs(std::string_view text) {
    for (const auto& line : words_of(text))
      if (!line.empty() && !line.front().starts_with('#'))
        for (const std::string_view word : line) add(word);
  }

  RunArguments read() {
    read_.glu = order(kRouted);
    read_.shared_glu = order(kShared);
    JsonWriter json;
    json.begin_object();
    for (const auto& [name, uses] : options_) write(uses.back(), json.key(name));
    json.end_object();
    if (!options_.empty()) read_.args = json.text();
    return std::move(read_);
  }

 private:
  using Values = std::vector<std::string>;

  void add(std::string_view word) {
    if (const std::string name = option_in(word); !name.empty()) {
      last_ = &options_[name];
      last_->emplace_back();
      if (const std::size_t equals = word.find('='); equals != word.npos)
        last_->back().emplace_back(word.substr(equals + 1));
    } else if (last_ != nullptr) {
      last_->back().emplace_back(word);
    }
  }

  std::string order(std::string_view name) {
    const auto found = options_.find(name);
    if (found == options_.end()) return {};
    const std::string option = as_option(name);
    const std::vector<Values>& uses = found->second;
    const auto other = std::ranges::find_if(uses, [&](const Values& values) { return values != uses.front(); });
    if (other != uses.end()) {
      read_.unread.push_back({option, fmt::format("is there as {} and as {}, which cannot both be true",
                                                  value_text(uses.front()), value_text(*other))});
      return {};
    }
    const auto rows = uses.front().size() == 1 ? parse_number<i64>(uses.front().front()) : std::nullopt;
    if (rows && *rows > 0) return fmt::format("interleaved:{}", *rows);
    read_.unread.push_back({option, fmt::format("is {}, which is no number of rows", value_text(uses.front()))});
    return {};
  }

  static std::string value_text(const Values& values) {
    return values.empty() ? "without a value" : printable(fmt::format("'{}'", fmt::join(values, " ")));
  }

  static void write(const Values& values, JsonWriter& json) {
    const auto number = values.size() == 1 ? parse_number<i64>(values.front()) : std::nullopt;
    if (values.empty())
      json.value(true);
    else if (number)
      json.value(*number);
    else
      json.value(fmt::format("{}", fmt::join(values, " ")));
  }

  /// Of each option its uses, and of each use the values.
  std::map<std::string, std::vector<Values>, std::less<>> options_;
  std::vector<Values>* last_ = nullptr;
  RunArguments read_;
};

}  // namespace

RunArguments listed_args(const CheckpointInfo& info) {
  constexpr i64 kMaxBytes = i64{1} << 20;
  std::string text;
  for (const ExtraFile& file : info.extra_files) {
    if (!is_megatron_args(file.name)) continue;
    try {
      text += read_small_file(file.path, kMaxBytes, ErrorCode::NotSupported);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::NotSupported) throw;
      return {.unread = {{"", error.what()}}};
    }
    if (!is_text(text)) return {.unread = {{"", fmt::format("{}: is no text", file.path.string())}}};
    text += '\n';
  }
  return ListedArgs(text).read();
}

std::string with_orders(std::string_view text, std::optional<i64> glu_rows, std::optional<i64> shared_rows) {
  if (!is_text(text)) return std::string(text);
  const std::pair<std::string_view, std::optional<i64>> orders[] = {{kRouted, glu_rows}, {kShared, shared_rows}};
  const auto is_asked = [&](const std::string& name) {
    return std::ranges::any_of(orders, [&](const auto& order) { return order.first == name && order.second; });
  };
  std::string made;
  bool leaves_out = false;
  for (const auto& line : words_of(text)) {
    std::vector<std::string_view> kept;
    for (const std::string_view word : line) {
      if (word.starts_with("--")) leaves_out = is_asked(option_in(word));
      if (!leaves_out || word.starts_with('#')) kept.push_back(word);
    }
    if (!kept.empty()) made += fmt::format("{}\n", fmt::join(kept, " "));
  }
  for (const auto& [name, rows] : orders)
    if (rows.value_or(0) > 0) made += fmt::format("{} {}\n", as_option(name), *rows);
  return made;
}

RunArguments trained_args(const CheckpointInfo& info) {
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
      if (RunArguments found = args_in(tree.pickle, InputPart(path)); !found.glu.empty() || !found.args.empty())
        return found;
  } catch (const Error& error) {
    // The machine's failures are not the file's.
    if (exit_status(error.code()) == exit_status(ErrorCode::Io)) throw;
    RunArguments none;
    none.unread.push_back({"", error.what()});
    return none;
  }
  return {};
}

}  // namespace glu_ckpt
