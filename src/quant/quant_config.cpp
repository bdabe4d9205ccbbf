#include "quant/quant_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "format/model_config.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxQuantConfigDepth = 64;
constexpr std::string_view kFields[] = {"quantization_config", "compression_config"};
constexpr std::string_view kModelOptConfig = "hf_quant_config.json";
/// The last one is auto-round's, which has the same in config.json.
constexpr std::string_view kFiles[] = {kModelOptConfig, "quantize_config.json", "quant_config.json",
                                       "quantization_config.json"};
/// The formats' fields for the modules that they leave as they are.
constexpr std::string_view kSkippedFields[] = {"modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"};

std::string text_of(const JsonValue& object, std::string_view name) {
  const auto text = object.find<std::string_view>(name);
  return text ? std::string(*text) : std::string();
}

/// Larger ones are no blocks of any weight, and sums with them would overflow.
constexpr i64 kMostBlockExtent = i64{1} << 31;

/// compressed-tensors also reads "128x64".
std::vector<std::optional<i64>> block_extents(const JsonValue& block) {
  std::vector<std::optional<i64>> extents;
  if (block.kind() == JsonKind::Array)
    for (const JsonValue item : block.items()) extents.push_back(item.get<i64>());
  const auto text = block.get<std::string_view>();
  for (std::size_t at = 0; text && at <= text->size();) {
    const std::size_t end = std::min(text->find('x', at), text->size());
    extents.push_back(parse_number<i64>(text->substr(at, end - at)));
    at = end + 1;
  }
  return extents;
}

void read_block(const std::optional<JsonValue>& block, QuantConfig& config) {
  if (!block || block->kind() == JsonKind::Null) return;
  const std::vector<std::optional<i64>> extents = block_extents(*block);
  const bool is_read = extents.size() == 2 && std::ranges::all_of(extents, [](const std::optional<i64>& extent) {
                         return extent && *extent > 0 && *extent <= kMostBlockExtent;
                       });
  if (!is_read) {
    config.fault =
        "quantization_config has a block size ('weight_block_size' or 'block_structure') that is not two whole numbers "
        "from 1 to 2147483648, such as [128, 128]; without it scales cannot be told apart. Correct it in config.json";
    return;
  }
  config.block_rows = extents[0];
  config.block_cols = extents[1];
}

/// Fields of quantization_config that are of one type in every format that has them.
constexpr auto kTypedFields = std::to_array<JsonField>({
    {"quant_method", JsonType::Text},
    {"format", JsonType::Text},
    {"quant_algo", JsonType::Text},
    {"fmt", JsonType::Text},
    {"packing_format", JsonType::Text},
    {"bits", JsonType::Integer, 1, 64},
    {"w_bit", JsonType::Integer, 1, 64},
    {"group_size", JsonType::Integer, -1, kMostBlockExtent},
    {"q_group_size", JsonType::Integer, -1, kMostBlockExtent},
    {"sym", JsonType::Flag},
    {"config_groups", JsonType::Object},
    {"modules_to_not_convert", JsonType::List},
    {"ignored_layers", JsonType::List},
    {"ignore", JsonType::List},
    {"exclude_modules", JsonType::List},
});
/// Those of a group's weights.
constexpr auto kWeightFields = std::to_array<JsonField>({
    {"num_bits", JsonType::Integer, 1, 64},
    {"group_size", JsonType::Integer, -1, kMostBlockExtent},
    {"symmetric", JsonType::Flag},
    {"strategy", JsonType::Text},
    {"type", JsonType::Text},
});

/// Says which of the fields cannot be read; `where` stands before its name. An earlier fault stays.
void check_types(std::span<const JsonField> fields, const JsonValue& object, const std::string& where,
                 std::string& fault) {
  for (const JsonField& field : fields) {
    const auto value = field.name.empty() ? std::nullopt : object.find(field.name);
    if (value && fault.empty()) fault = fault_of(field, where + std::string(field.name), *value);
  }
}

/// compressed-tensors stores the order of columns where it is chosen by group; "weight" and "static" leave it as it is.
bool stores_column_order(const JsonValue& weights) {
  const std::string order = text_of(weights, "actorder");
  return order == "group" || order == "dynamic" || weights.find<bool>("actorder").value_or(false);
}

/// Codes of integers share words, unless each has a byte of its own.
bool are_packed(const JsonValue& group, const JsonValue& weights) {
  return text_of(weights, "type") != "float" && text_of(group, "format") != "int-quantized";
}

std::vector<std::string> texts_of(const std::optional<JsonValue>& list) {
  std::vector<std::string> texts;
  if (!list || list->kind() != JsonKind::Array) return texts;
  for (const JsonValue item : list->items())
    if (const auto text = item.get<std::string_view>()) texts.emplace_back(*text);
  return texts;
}

/// `config` with what one group says.
QuantConfig with_group(QuantConfig config, std::string_view name, const JsonValue& group, const JsonValue& weights) {
  check_types(kWeightFields, weights, fmt::format("config.json: quantization_config.config_groups.{}.weights.", name),
              config.fault);
  config.group = name;
  config.targets = texts_of(group.find("targets"));
  config.bits = weights.find<i64>("num_bits");
  config.group_size = weights.find<i64>("group_size");
  if (config.group_size && *config.group_size <= 0) config.group_size.reset();
  config.symmetric = weights.find<bool>("symmetric");
  config.some_asymmetric = config.symmetric == false;
  config.some_reordered = stores_column_order(weights);
  config.strategy = text_of(weights, "strategy");
  config.type = text_of(weights, "type");
  if (const std::string format = text_of(group, "format"); !format.empty()) config.format = format;
  if (config.strategy == "block") read_block(weights.find("block_structure"), config);
  return config;
}

/// The weights of all groups of compressed-tensors and of ModelOpt have the same answers, or none counts.
void read_groups(const JsonValue& groups, QuantConfig& config) {
  const QuantConfig base = config;
  std::optional<i64> packed_bits;
  for (const auto& [name, group] : groups.members()) {
    const auto weights = group.find("weights");
    if (!weights || weights->kind() != JsonKind::Object) continue;
    QuantConfig one = with_group(base, name, group, *weights);
    const bool first = config.groups.empty();
    config.some_asymmetric = config.some_asymmetric || one.some_asymmetric;
    config.some_reordered = config.some_reordered || one.some_reordered;
    if (config.fault.empty()) config.fault = one.fault;
    if (are_packed(group, *weights)) {
      config.bits_differ = config.bits_differ || (packed_bits && packed_bits != one.bits);
      packed_bits = one.bits;
    }
    const auto keep = [&](auto& all, const auto& own) {
      if (first)
        all = own;
      else if (all != own)
        all = {};
    };
    keep(config.bits, one.bits);
    keep(config.group_size, one.group_size);
    keep(config.symmetric, one.symmetric);
    keep(config.strategy, one.strategy);
    keep(config.type, one.type);
    keep(config.format, one.format);
    keep(config.block_rows, one.block_rows);
    keep(config.block_cols, one.block_cols);
    config.groups.push_back(std::move(one));
  }
  if (config.groups.size() != 1) return;
  // All that is quantized is in the only group.
  config.group = config.groups.front().group;
  config.targets = config.groups.front().targets;
  config.groups.clear();
}

std::vector<std::string> skipped_modules(const JsonValue& object) {
  std::vector<std::string> names;
  for (const std::string_view field : kSkippedFields) {
    std::ranges::move(texts_of(object.find(field)), std::back_inserter(names));
  }
  return names;
}

/// Publishers write "GEMM" and "gemm".
std::string small_text_of(const JsonValue& object, std::string_view name) {
  std::string text = text_of(object, name);
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return text;
}

/// auto-round writes the words of AWQ or of GPTQ and says which in a field that its versions call differently.
std::string method_of(const JsonValue& object) {
  std::string method = small_text_of(object, "quant_method");
  if (method != "auto-round" && method != "intel/auto-round") return method;
  for (const std::string_view field : {"packing_format", "backend"}) {
    const std::string packing = small_text_of(object, field);
    for (const QuantFormat* format : quant_formats())
      if (!packing.empty() && format->words.auto_round == packing) return std::string(format->methods.begin()->word);
  }
  return method;
}

/// AutoAWQ's own file spells two fields otherwise.
std::optional<i64> integer_of(const JsonValue& object, std::string_view name, std::string_view other) {
  const auto found = object.find<i64>(name);
  return found ? found : object.find<i64>(other);
}

void read_words(const JsonValue& object, const WordsConfig& words, const std::string& where, QuantConfig& config) {
  for (const std::string_view field : words.version)
    check_types(std::array{JsonField{field, JsonType::Text}}, object, where, config.fault);
  for (const std::string_view field : {words.marlin, words.order, words.zeros})
    check_types(std::array{JsonField{field, JsonType::Flag}}, object, where, config.fault);
  for (const std::string_view field : words.version)
    if (config.version.empty()) config.version = small_text_of(object, field);
  if (object.find<bool>(words.marlin).value_or(false)) config.version = "marlin";
  config.some_reordered = object.find<bool>(words.order).value_or(false);
  config.symmetric = object.find<bool>("sym");
  if (const auto zeros = object.find<bool>(words.zeros)) config.symmetric = !*zeros;
}

/// `where` stands before the name of a field in messages.
QuantConfig read_object(const JsonValue& object, const std::string& where, std::string_view default_method = {}) {
  QuantConfig config;
  check_types(kTypedFields, object, where, config.fault);
  config.method = method_of(object);
  if (config.method.empty()) config.method = default_method;
  config.format = text_of(object, "format");
  if (config.format.empty()) config.format = text_of(object, "quant_algo");
  config.fp8_format = text_of(object, "fmt");
  config.skipped = skipped_modules(object);
  config.run_time_words = run_time_words(object);
  for (const std::string_view field : {"moe_quant_algo", "store_dtype", "expert_dtype", "quantized_layers"})
    config.is_mixed = config.is_mixed || object.find(field).has_value();
  if (config.method == "auto-round") config.version = small_text_of(object, "packing_format");
  if (const QuantFormat* format = format_of_words(config.method)) read_words(object, format->words, where, config);
  config.bits = integer_of(object, "bits", "w_bit");
  config.group_size = integer_of(object, "group_size", "q_group_size");
  read_block(object.find("weight_block_size"), config);
  if (const auto groups = object.find("config_groups")) read_groups(*groups, config);
  // GPTQ writes -1 for one group over all columns, which contradicts a number; others mean nothing by it.
  if (config.group_size && *config.group_size <= 0)
    config.group_size = config.method == "gptq" || config.method == "awq" ? std::optional<i64>(-1) : std::nullopt;
  return config;
}

std::optional<JsonValue> find_quantization(const JsonValue& fields) {
  for (const std::string_view name : kFields)
    if (const auto found = fields.find(name); found && found->kind() == JsonKind::Object) return found;
  return std::nullopt;
}

/// Returns the quantization object of the model, or else of its language model.
std::optional<JsonValue> find_quantization_object(const JsonValue& root) {
  if (root.kind() != JsonKind::Object) return std::nullopt;
  if (const auto object = find_quantization(root)) return object;
  const auto inner = find_text_config(root);
  return inner ? find_quantization(*inner) : std::nullopt;
}

/// DeepSeek-V3's, where nothing says it.
constexpr i64 kBlockCols = 128;

struct Member {
  std::size_t key = 0;
  bool is_first = true;
};

/// What members may hold: transformers also writes `"quantization_config": null`.
enum class Holds { Anything, AnObject };

/// The last member of that name.
std::optional<Member> find_member(const JsonValue& fields, std::string_view name, Holds holds) {
  std::optional<Member> found;
  bool first = true;
  for (const JsonMember member : fields.members()) {
    if (member.key == name && (holds == Holds::Anything || member.value.kind() == JsonKind::Object))
      found = Member{static_cast<std::size_t>(member.value.offset()), first};
    first = false;
  }
  return found;
}

/// Cuts a member with the comma that parts it from its neighbour.
std::string without_member(std::string_view text, const Member& member) {
  std::size_t begin = member.key;
  std::size_t end = json_value_end(text, text.find(':', member.key) + 1);
  if (end < text.size() && text[end] == ',') {
    end = std::min(text.find_first_not_of(" \t\r\n", end + 1), text.size());
  } else {
    end = text.find_last_not_of(" \t\r\n", end - 1) + 1;
    if (!member.is_first) begin = text.rfind(',', begin);
  }
  return std::string(text.substr(0, begin)) + std::string(text.substr(end));
}

/// The first that an object has, or that objects in it have: its language model's before others.
std::optional<Member> find_quantization_member(const JsonValue& fields, Holds holds) {
  for (const std::string_view name : kFields)
    if (const auto member = find_member(fields, name, holds)) return member;
  if (const auto inner = find_text_config(fields))
    if (const auto member = find_quantization_member(*inner, holds)) return member;
  for (const JsonMember member : fields.members())
    if (member.value.kind() == JsonKind::Object)
      if (const auto found = find_quantization_member(member.value, holds)) return found;
  return std::nullopt;
}

std::optional<Member> find_quantization_member(std::string_view text, Holds holds) {
  const std::string strict = without_python_numbers(text);
  const JsonDocument document(strict, kMaxQuantConfigDepth);
  if (document.fault() || document.root().kind() != JsonKind::Object) return std::nullopt;
  return find_quantization_member(document.root(), holds);
}

}  // namespace

std::optional<i64> block_rows_of(const QuantConfig& config) {
  std::optional<i64> rows = config.block_rows;
  for (const QuantConfig& group : config.groups) {
    if (!group.block_rows) continue;
    if (rows && rows != group.block_rows) return std::nullopt;
    rows = group.block_rows;
  }
  return rows;
}

QuantConfig read_quant_config(const std::string& config) {
  if (config.empty()) return {};
  const JsonDocument document(config, kMaxQuantConfigDepth);
  if (document.fault()) return {};
  const auto object = find_quantization_object(document.root());
  return object ? read_object(*object, "config.json: quantization_config.") : QuantConfig();
}

bool is_quantization_file(std::string_view name) {
  return std::ranges::find(kFiles, name.substr(name.rfind('/') + 1)) != std::end(kFiles);
}

void take_out_quantization_files(CheckpointInfo& info) {
  std::erase_if(info.extra_files, [&](const ExtraFile& file) {
    if (!is_quantization_file(file.name)) return false;
    info.deciding_files.push_back(file.path);
    return true;
  });
}

namespace {

/// Refuses two statements of one thing that differ. What only one of them says counts.
template <typename Value>
void agree(Value& ours, const Value& theirs, std::string_view what, std::string_view file) {
  const Value unsaid{};
  if (theirs == unsaid) return;
  if (ours == unsaid) ours = theirs;
  if (ours == theirs) return;
  const auto text = [](const Value& value) {
    if constexpr (std::is_same_v<Value, std::string>)
      return "'" + value + "'";
    else
      return fmt::format("{}", *value);
  };
  fail(ErrorCode::QuantConfigContradicts, {},
       "quantization_config of config.json says {} {}, but {} beside it says {}; correct the one that is wrong, or "
       "remove the file if it does not belong to these weights",
       what, text(ours), file, text(theirs));
}

/// ModelOpt's file says it of all weights, or lists modules. Beside another method in config.json it is about some of
/// the weights, whose tensors tell what they are.
QuantConfig with_modelopt_file(QuantConfig config, const JsonValue& root) {
  const auto said = root.find("quantization");
  if (!said || said->kind() != JsonKind::Object) return config;
  const std::string algorithm = text_of(*said, "quant_algo");
  const bool is_other = !config.method.empty() && config.method != "modelopt";
  // Both would be about the same weights, which the two decode to other bits.
  if (is_other && algorithm.starts_with("FP8"))
    fail(
        ErrorCode::QuantConfigContradicts, {},
        "quantization_config of config.json says '{}', but {} beside it says ModelOpt's '{}'; remove the one that does "
        "not belong to these weights",
        config.method, kModelOptConfig, algorithm);
  if (algorithm.empty() || is_other) return config;
  check_types(kTypedFields, *said, fmt::format("{}: quantization.", kModelOptConfig), config.fault);
  std::optional<i64> group_size = said->find<i64>("group_size");
  if (group_size && *group_size <= 0) group_size.reset();
  if (config.method.empty()) config.skipped = skipped_modules(*said);
  config.method = "modelopt";
  agree(config.format, algorithm, "quant_algo", kModelOptConfig);
  agree(config.group_size, group_size, "group_size", kModelOptConfig);
  return config;
}

/// Returns the method of a file that names none.
std::string_view method_of_file(std::string_view name, const JsonValue& root) {
  const auto has = [&](std::string_view field) { return root.find(field).has_value(); };
  std::string_view other;
  for (const QuantFormat* format : quant_formats()) {
    if (format->versions.begin() == format->versions.end()) continue;
    const WordsConfig& words = format->words;
    if (name == words.file || std::any_of(words.own.begin(), words.own.end(), has))
      return format->methods.begin()->word;
    if (words.own.begin() == words.own.end()) other = format->methods.begin()->word;
  }
  return other;
}

/// The files of AWQ and GPTQ are older than quantization_config and often name no method.
QuantConfig with_words_file(QuantConfig config, std::string_view name, const JsonValue& root) {
  const QuantFormat* const format = format_of_words(config.method);
  QuantConfig file =
      read_object(root, fmt::format("{}: ", name), format != nullptr ? config.method : method_of_file(name, root));
  if (config.method.empty()) return file;
  if (format == nullptr || format_of_words(file.method) == nullptr) return config;
  agree(config.method, file.method, "quant_method", name);
  agree(config.version, file.version, *format->words.version.begin(), name);
  agree(config.bits, file.bits, "bits", name);
  agree(config.group_size, file.group_size, "group_size", name);
  agree(config.symmetric, file.symmetric, format->words.zeros.empty() ? "sym" : format->words.zeros, name);
  config.some_reordered = config.some_reordered || file.some_reordered;
  if (config.run_time_words.empty()) config.run_time_words = file.run_time_words;
  if (config.fault.empty()) config.fault = file.fault;
  return config;
}

}  // namespace

QuantConfig with_quantization_file(QuantConfig config, std::string_view name, const std::string& text) {
  const std::string strict = without_python_numbers(text);
  const JsonDocument document(strict, kMaxQuantConfigDepth);
  if (document.fault() && document.fault()->kind == JsonFault::Kind::Memory)
    fail(ErrorCode::ConfigJson, {}, "{}: {}", name, document.fault()->message);
  if (document.fault() || document.root().kind() != JsonKind::Object)
    fail(ErrorCode::ConfigJson, {}, "{}, which says how weights are quantized, {}", name,
         document.fault() ? document.fault()->text() : "is no JSON object");
  return name == kModelOptConfig ? with_modelopt_file(std::move(config), document.root())
                                 : with_words_file(std::move(config), name, document.root());
}

namespace {

/// Returns where the blocks of each group of compressed-tensors are in the text, and their columns.
std::vector<std::pair<TextRange, i64>> block_structures(std::string_view config) {
  std::vector<std::pair<TextRange, i64>> found;
  const JsonDocument document(without_python_numbers(config), kMaxQuantConfigDepth);
  if (document.fault()) return found;
  const auto object = find_quantization_object(document.root());
  const auto groups = object ? object->find("config_groups") : std::nullopt;
  if (!groups) return found;
  for (const auto& [name, group] : groups->members()) {
    const auto weights = group.find("weights");
    if (!weights || text_of(*weights, "strategy") != "block") continue;
    QuantConfig block;
    const auto structure = weights->find("block_structure");
    read_block(structure, block);
    if (!block.block_cols) continue;
    found.emplace_back(json_value_range(config, static_cast<std::size_t>(structure->offset())), *block.block_cols);
  }
  return found;
}

/// compressed-tensors says of each group of modules how large its blocks are.
std::string with_block_structure(std::string_view config, i64 rows) {
  std::string text;
  std::size_t done = 0;
  for (const auto& [old, cols] : block_structures(config)) {
    text += fmt::format("{} [{}, {}]", config.substr(done, old.begin - done), rows, cols);
    done = old.end;
  }
  return text + std::string(config.substr(done));
}

}  // namespace

std::string_view block_rows_field(const QuantConfig& config) {
  if (config.method == "fp8" || config.method.empty()) return "weight_block_size";
  return config.method == "compressed-tensors" && block_rows_of(config) ? "block_structure" : "";
}

std::string with_block_rows(std::string_view config, i64 rows) {
  const auto object = find_quantization_member(config, Holds::AnObject);
  if (!object) return std::string(config);
  if (block_rows_field(read_quant_config(std::string(config))) == "block_structure")
    return with_block_structure(config, rows);
  const i64 cols = read_quant_config(std::string(config)).block_cols.value_or(kBlockCols);
  const std::string value = fmt::format("[{}, {}]", rows, cols);
  constexpr std::string_view kField = "\"weight_block_size\"";
  const TextRange all = json_value_range(config, object->key);
  const std::size_t at = config.substr(0, all.end).find(kField, all.begin);
  if (at == std::string_view::npos) {
    const std::size_t open = config.find('{', all.begin) + 1;
    const bool empty = config[config.find_first_not_of(" \t\r\n", open)] == '}';
    return fmt::format("{}{}: {}{}{}", config.substr(0, open), kField, value, empty ? "" : ", ", config.substr(open));
  }
  const TextRange old = json_value_range(config, at);
  return fmt::format("{} {}{}", config.substr(0, old.begin), value, config.substr(old.end));
}

std::string with_mxfp8(std::string_view config) {
  const auto member = find_quantization_member(config, Holds::AnObject);
  if (!member) return std::string(config);
  const TextRange all = json_value_range(config, member->key);
  const std::string_view old = config.substr(all.begin, all.end - all.begin);
  std::string skipped;
  for (const std::string_view field : kSkippedFields) {
    const std::size_t at = old.find(fmt::format("\"{}\"", field));
    if (at == std::string_view::npos) continue;
    const TextRange list = json_value_range(old, at);
    skipped = fmt::format(", \"modules_to_not_convert\":{}", old.substr(list.begin, list.end - list.begin));
    break;
  }
  return fmt::format(
      "{} {{\"quant_method\": \"mxfp8\", \"fmt\": \"e4m3\", \"scale_fmt\": \"ue8m0\", "
      "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [1, 32]{}}}{}",
      config.substr(0, all.begin), skipped, config.substr(all.end));
}

std::string without_quantization(std::string_view config) {
  std::string text(config);
  while (const auto member = find_quantization_member(text, Holds::Anything)) text = without_member(text, *member);
  return text;
}

namespace {

bool is_word_of_codes(std::string_view word) {
  if (word.starts_with("torch.")) word.remove_prefix(6);
  return std::ranges::any_of(std::initializer_list<std::string_view>{"float8", "float4", "int", "uint"},
                             [&](std::string_view begin) { return word.starts_with(begin); });
}

/// `codes_only` leaves fields alone that name numbers.
std::string with_dtype(std::string text, Dtype dtype, bool codes_only) {
  const std::string word = dtype == Dtype::F32 ? "\"float32\"" : dtype == Dtype::F16 ? "\"float16\"" : "\"bfloat16\"";
  for (const std::string_view field : {"torch_dtype", "dtype"})
    for (const bool is_inner : {false, true}) {
      const std::string strict = without_python_numbers(text);
      const JsonDocument document(strict, kMaxQuantConfigDepth);
      if (document.fault() || document.root().kind() != JsonKind::Object) return text;
      const auto fields = is_inner ? find_text_config(document.root()) : std::optional(document.root());
      if (!fields || fields->kind() != JsonKind::Object || !fields->find<std::string_view>(field)) continue;
      if (codes_only && !is_word_of_codes(*fields->find<std::string_view>(field))) continue;
      const TextRange old = json_value_range(text, find_member(*fields, field, Holds::Anything)->key);
      text = fmt::format("{} {}{}", text.substr(0, old.begin), word, text.substr(old.end));
    }
  return text;
}

}  // namespace

std::string decoded_config(std::string_view config, Dtype dtype) {
  return with_dtype(without_quantization(config), dtype, false);
}

std::string config_of_dtype(std::string_view config, Dtype dtype) {
  return with_dtype(std::string(config), dtype, false);
}

std::string unquantized_config(std::string_view config, Dtype dtype) {
  return with_dtype(without_quantization(config), dtype, true);
}

std::string stated_method(std::string_view name, const std::string& text) {
  const std::string strict = without_python_numbers(text);
  const JsonDocument document(strict, kMaxQuantConfigDepth);
  if (document.fault() || document.root().kind() != JsonKind::Object) return {};
  const std::string_view last = name.substr(name.rfind('/') + 1);
  if (last == kModelOptConfig) return with_modelopt_file({}, document.root()).method;
  if (is_quantization_file(last)) return with_words_file({}, last, document.root()).method;
  const auto member = find_quantization_member(document.root(), Holds::AnObject);
  if (!member) return {};
  const TextRange value = json_value_range(strict, member->key);
  const std::string own = strict.substr(value.begin, value.end - value.begin);
  const JsonDocument said(own, kMaxQuantConfigDepth);
  const JsonValue object = said.root();
  if (said.fault() || object.members().begin() == object.members().end()) return {};
  const auto groups = object.find("config_groups");
  const bool has_groups =
      groups && groups->kind() == JsonKind::Object && groups->members().begin() != groups->members().end();
  const auto cache = object.find("kv_cache_scheme");
  const bool of_cache = (cache && cache->kind() == JsonKind::Object) || !text_of(object, "kv_cache_quant_algo").empty();
  if (of_cache && !has_groups && text_of(object, "quant_algo").empty()) return {};
  const std::string method = text_of(object, "quant_method");
  return method.empty() ? "?" : method;
}

bool holds_any_codes(const Inventory& inventory) {
  constexpr Dtype kFloats[] = {Dtype::BOOL, Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64, Dtype::C64};
  constexpr Dtype kIntegers[] = {Dtype::U8, Dtype::I8, Dtype::I16, Dtype::U16, Dtype::I32, Dtype::U32};
  return std::ranges::any_of(inventory.tensors, [&](const TensorRef& tensor) {
    if (std::ranges::find(kFloats, tensor.dtype) != std::end(kFloats)) return false;
    if (tensor.dtype == Dtype::I64 || tensor.dtype == Dtype::U64) return false;
    if (std::ranges::find(kIntegers, tensor.dtype) == std::end(kIntegers)) return true;
    // TransformerEngine's state and tables of indices are no codes.
    return tensor.shape.size() >= 2 && !tensor.name.ends_with("_extra_state") &&
           (tensor.name.find("weight") != std::string::npos || tensor.name.find("_proj") != std::string::npos ||
            tensor.name.find("experts") != std::string::npos);
  });
}

}  // namespace glu_ckpt
