#include "quant/quant_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "quant/formats/quant_format.hpp"
#include "quant/quantization_object.hpp"

namespace glu_ckpt {
namespace {

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

}  // namespace

std::string text_of(const JsonValue& object, std::string_view name) {
  const auto text = object.find<std::string_view>(name);
  return text ? std::string(*text) : std::string();
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

void check_quantization_types(const JsonValue& object, const std::string& where, std::string& fault) {
  check_types(kTypedFields, object, where, fault);
}

std::vector<std::string> skipped_modules(const JsonValue& object) {
  std::vector<std::string> names;
  for (const std::string_view field : kSkippedFields) {
    std::ranges::move(texts_of(object.find(field)), std::back_inserter(names));
  }
  return names;
}

QuantConfig read_quantization_object(const JsonValue& object, const std::string& where,
                                     std::string_view default_method) {
  QuantConfig config;
  check_quantization_types(object, where, config.fault);
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
  return object ? read_quantization_object(*object, "config.json: quantization_config.") : QuantConfig();
}

std::string_view block_rows_field(const QuantConfig& config) {
  if (config.method == "fp8" || config.method.empty()) return "weight_block_size";
  return config.method == "compressed-tensors" && block_rows_of(config) ? "block_structure" : "";
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
