#include "quant/quantization_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "core/config_json.hpp"
#include "core/json.hpp"
#include "format/model_config.hpp"
#include "quant/quantization_object.hpp"

namespace glu_ckpt {
namespace {

/// DeepSeek-V3's, where nothing says it.
constexpr i64 kBlockCols = 128;

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

}  // namespace glu_ckpt
