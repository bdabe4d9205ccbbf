#include "format/model_config.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/json_offset.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::size_t kMaxConfigDepth = 64;
/// Families spell it differently; the first that is a number counts.
constexpr std::array<std::string_view, 4> kExpertKeys = {"num_experts", "num_local_experts", "n_routed_experts",
                                                         "moe_num_experts"};

constexpr std::array<std::string_view, 3> kActivationKeys = {"hidden_act", "hidden_activation", "mlp_hidden_act"};

bool starts_value(char c) { return c == '-' || c == 'I' || c == 'N' || (c >= '0' && c <= '9'); }
bool ends_value(char c) { return c == ',' || c == ']' || c == '}' || c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// True for what Python's json writes and JSON has no word for, and for integers beyond 64 bits.
bool is_python_number(std::string_view token) {
  if (token == "Infinity" || token == "-Infinity" || token == "NaN") return true;
  return token.size() > 18 && token.find_first_not_of("-0123456789") == token.npos;
}

/// Configs are written by Python, so they hold Infinity ("time_step_limit" of hybrid Mamba models) and
/// huge integers. Strict JSON has neither; as empty strings, padded so that positions stay what they are, they are
/// ignored like other values of no use here.
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
    if (is_token && is_python_number(token))
      out.append("\"\"").append(token.size() - 2, ' ');
    else
      out += token;
    i = next;
  }
  return out;
}

/// A member of an object, and which one it is.
struct Member {
  element value;
  std::size_t number = 0;
};

/// The last entry of that name, as Python's json takes it.
std::optional<Member> find(const object& fields, std::string_view name) {
  std::optional<Member> found;
  std::size_t number = 0;
  for (const auto& [key, value] : fields) {
    if (key == name) found = Member{value, number};
    ++number;
  }
  return found;
}

std::optional<i64> find_integer(const object& fields, std::string_view name, i64 at_least) {
  const auto found = find(fields, name);
  i64 number = 0;
  if (!found || !(found->value.is_int64() || found->value.is_uint64())) return std::nullopt;
  if (found->value.get(number) || number < at_least) return std::nullopt;
  return number;
}

std::optional<i64> find_num_experts(const object& fields) {
  for (const std::string_view key : kExpertKeys)
    if (const auto number = find_integer(fields, key, 0)) return number;
  return std::nullopt;
}

std::optional<double> find_number(const object& fields, std::string_view name) {
  const auto found = find(fields, name);
  double number = 0;
  if (!found || !found->value.is_number() || found->value.get(number)) return std::nullopt;
  return number;
}

/// The text of the first of these fields that has one.
std::string find_text(const object& fields, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    const auto found = find(fields, name);
    std::string_view text;
    if (found && !found->value.get(text)) return std::string(text);
  }
  return {};
}

/// What says of the activation more than its name and one limit.
std::string find_swiglu_other(const object& fields) {
  for (const auto& [key, value] : fields)
    if (key.starts_with("swiglu_") && !value.is_null() && !(key == "swiglu_limit" && value.is_number()))
      return std::string(key);
  return {};
}

class ConfigReader {
 public:
  ConfigReader(std::string_view text, const InputPart& part) : text_(text), part_(part) {}

  ModelHints read(const JsonDocument& document) const {
    object root;
    if (document.root().get(root))
      fail_at(ErrorCode::ConfigJson, {part_, json_offset(text_, {})}, "is not a JSON object");
    ModelHints hints = read_hints(root, std::nullopt);
    hints.config = text_;
    object text_config;
    const auto nested = find(root, "text_config");
    if (!nested || nested->value.get(text_config)) return hints;
    // Multimodal models keep the language model's numbers one level down.
    ModelHints inner = read_hints(text_config, nested->number);
    hints.text_model_type = inner.model_type;
    if (hints.model_type.empty()) hints.model_type = inner.model_type;
    if (!hints.num_hidden_layers) hints.num_hidden_layers = inner.num_hidden_layers;
    if (!hints.num_experts) hints.num_experts = inner.num_experts;
    // The activation of the language model, not of what stands around it.
    if (!inner.hidden_act.empty()) hints.hidden_act = inner.hidden_act;
    if (inner.swiglu_limit) hints.swiglu_limit = inner.swiglu_limit;
    if (!inner.swiglu_other.empty()) hints.swiglu_other = inner.swiglu_other;
    return hints;
  }

 private:
  /// `below` is the member of the root that `fields` is, if it is not the root itself.
  ModelHints read_hints(const object& fields, std::optional<std::size_t> below) const {
    return {.model_type = find_model_type(fields, below),
            .text_model_type = {},
            .num_hidden_layers = find_integer(fields, "num_hidden_layers", 1),
            .num_experts = find_num_experts(fields),
            .hidden_act = find_text(fields, kActivationKeys),
            .swiglu_limit = find_number(fields, "swiglu_limit"),
            .swiglu_other = find_swiglu_other(fields)};
  }

  std::string find_model_type(const object& fields, std::optional<std::size_t> below) const {
    const auto found = find(fields, "model_type");
    std::string_view text;
    if (!found || found->value.is_null()) return {};
    if (found->value.get(text)) {
      const i64 offset = below ? json_offset(text_, {*below, found->number}) : json_offset(text_, {found->number});
      fail_at(ErrorCode::ConfigJson, {part_, offset}, "model_type is not a string");
    }
    return std::string(text);
  }

  std::string_view text_;
  const InputPart& part_;
};

}  // namespace

ModelHints parse_config(std::string_view text, const std::string& file) {
  const InputPart part(file);
  if (text.size() > static_cast<std::size_t>(kMaxConfigBytes))
    fail_at(ErrorCode::ConfigJson, {part, kMaxConfigBytes}, "goes on to {} bytes; at most {} are read", text.size(),
            kMaxConfigBytes);
  const ConfigReader reader(text, part);
  const JsonDocument document(text, kMaxConfigDepth);
  if (document.fault() == JsonFault::None) return reader.read(document);
  const std::string strict = without_python_numbers(text);
  const JsonDocument second(strict, kMaxConfigDepth);
  if (second.fault() == JsonFault::None) return reader.read(second);
  fail_at(ErrorCode::ConfigJson, {part, json_fault_offset(strict, second.fault(), kMaxConfigDepth)}, "is not JSON: {}",
          second.message());
}

}  // namespace glu_ckpt
