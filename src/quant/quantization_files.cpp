#include "quant/quantization_files.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/model_config.hpp"
#include "quant/formats/quant_format.hpp"
#include "quant/quantization_object.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kModelOptConfig = "hf_quant_config.json";
/// The last one is auto-round's, which has the same in config.json.
constexpr std::string_view kFiles[] = {kModelOptConfig, "quantize_config.json", "quant_config.json",
                                       "quantization_config.json"};

}  // namespace

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
  check_quantization_types(*said, fmt::format("{}: quantization.", kModelOptConfig), config.fault);
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
  QuantConfig file = read_quantization_object(root, fmt::format("{}: ", name),
                                              format != nullptr ? config.method : method_of_file(name, root));
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

}  // namespace glu_ckpt
