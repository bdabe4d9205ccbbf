#include "format/model_config.hpp"

#include <algorithm>
#include <array>

#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::size_t kMaxDepth = 64;
/// Families spell it differently; the first that is a number counts.
constexpr std::array<std::string_view, 4> kExpertKeys = {"num_experts", "num_local_experts", "n_routed_experts",
                                                         "moe_num_experts"};

bool starts_value(char c) { return c == '-' || c == 'I' || c == 'N' || (c >= '0' && c <= '9'); }
bool ends_value(char c) { return c == ',' || c == ']' || c == '}' || c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// True for what Python's json writes and JSON has no word for, and for integers beyond 64 bits.
bool is_python_number(std::string_view token) {
  if (token == "Infinity" || token == "-Infinity" || token == "NaN") return true;
  return token.size() > 18 && token.find_first_not_of("-0123456789") == token.npos;
}

/// Configs are written by Python, so they hold Infinity ("time_step_limit" of hybrid Mamba models) and
/// huge integers. Strict JSON has neither; as null they are ignored like other values of no use here.
std::string without_python_numbers(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t next = i + 1;
    if (in_string && text[i] == '\\') next = std::min(i + 2, text.size());
    if (text[i] == '"') in_string = !in_string;
    const bool is_token = !in_string && starts_value(text[i]);
    while (is_token && next < text.size() && !ends_value(text[next])) ++next;
    const std::string_view token = text.substr(i, next - i);
    out += is_token && is_python_number(token) ? std::string_view("null") : token;
    i = next;
  }
  return out;
}

/// The last entry of that name, as Python's json takes it.
const element* find(const object& fields, std::string_view name, element& found) {
  const element* result = nullptr;
  for (const auto& [key, value] : fields) {
    if (key != name) continue;
    found = value;
    result = &found;
  }
  return result;
}

std::optional<i64> find_integer(const object& fields, std::string_view name, i64 at_least) {
  element value;
  i64 number = 0;
  if (find(fields, name, value) == nullptr || !(value.is_int64() || value.is_uint64())) return std::nullopt;
  if (value.get(number) || number < at_least) return std::nullopt;
  return number;
}

std::string find_model_type(const object& fields, const std::string& file) {
  element value;
  std::string_view text;
  if (find(fields, "model_type", value) == nullptr || value.is_null()) return {};
  if (value.get(text)) fail(ErrorCode::ConfigJson, {file, {}}, "{}: model_type is not a string", file);
  return std::string(text);
}

std::optional<i64> find_num_experts(const object& fields) {
  for (const std::string_view key : kExpertKeys)
    if (const auto number = find_integer(fields, key, 0)) return number;
  return std::nullopt;
}

ModelHints read_hints(const object& fields, const std::string& file) {
  return {.model_type = find_model_type(fields, file),
          .text_model_type = {},
          .num_hidden_layers = find_integer(fields, "num_hidden_layers", 1),
          .num_experts = find_num_experts(fields)};
}

ModelHints read_config(const JsonDocument& document, const std::string& file) {
  object root;
  if (document.root().get(root)) fail(ErrorCode::ConfigJson, {file, {}}, "{}: is not a JSON object", file);
  ModelHints hints = read_hints(root, file);
  element nested;
  object text_config;
  if (find(root, "text_config", nested) == nullptr || nested.get(text_config)) return hints;
  // Multimodal models keep the language model's numbers one level down.
  ModelHints inner = read_hints(text_config, file);
  hints.text_model_type = inner.model_type;
  if (hints.model_type.empty()) hints.model_type = inner.model_type;
  if (!hints.num_hidden_layers) hints.num_hidden_layers = inner.num_hidden_layers;
  if (!hints.num_experts) hints.num_experts = inner.num_experts;
  return hints;
}

}  // namespace

ModelHints parse_config(std::string_view text, const std::string& file) {
  if (text.size() > static_cast<std::size_t>(kMaxConfigBytes))
    fail(ErrorCode::ConfigJson, {file, {}}, "{}: is {} bytes long; at most {} are read", file, text.size(),
         kMaxConfigBytes);
  const JsonDocument document(text, kMaxDepth);
  if (document.fault() == JsonFault::None) return read_config(document, file);
  const JsonDocument second(without_python_numbers(text), kMaxDepth);
  if (second.fault() == JsonFault::None) return read_config(second, file);
  fail(ErrorCode::ConfigJson, {file, {}}, "{}: is not JSON: {}", file, document.message());
}

}  // namespace glu_ckpt
