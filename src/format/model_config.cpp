#include "format/model_config.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxConfigDepth = 64;
constexpr std::array<std::string_view, 3> kActivationKeys = {"hidden_act", "hidden_activation", "mlp_hidden_act"};

bool starts_value(char c) { return c == '-' || c == 'I' || c == 'N' || (c >= '0' && c <= '9'); }
bool ends_value(char c) { return c == ',' || c == ']' || c == '}' || c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// Returns true for what Python's json writes and JSON has no word for, and for integers beyond 64 bits.
bool is_python_number(std::string_view token) {
  if (token == "Infinity" || token == "-Infinity" || token == "NaN") return true;
  return token.size() > 18 && token.find_first_not_of("-0123456789") == token.npos;
}

std::optional<i64> find_integer(const JsonValue& fields, std::string_view name, i64 at_least) {
  const auto number = fields.find<i64>(name);
  return number && *number >= at_least ? number : std::nullopt;
}

/// The first spelling that is a number counts.
std::optional<i64> find_num_experts(const JsonValue& fields) {
  for (const std::string_view key : kExpertCounts)
    if (const auto number = find_integer(fields, key, 0)) return number;
  return std::nullopt;
}

/// The text of the first of these fields that has one.
std::string find_text(const JsonValue& fields, std::span<const std::string_view> names) {
  for (const std::string_view name : names)
    if (const auto text = fields.find<std::string_view>(name)) return std::string(*text);
  return {};
}

/// The first field that says more of the activation than its name and one limit do.
std::string find_swiglu_other(const JsonValue& fields) {
  for (const auto& [key, value] : fields.members()) {
    const bool is_known = (key == "swiglu_limit" || key == "swiglu_alpha") && value.get<double>();
    if (key.starts_with("swiglu_") && value.kind() != JsonKind::Null && !is_known) return std::string(key);
  }
  return {};
}

std::string find_model_type(const JsonValue& fields, const InputPart& part) {
  const auto found = fields.find("model_type");
  if (!found || found->kind() == JsonKind::Null) return {};
  const auto text = found->get<std::string_view>();
  if (!text) fail_at(ErrorCode::ConfigJson, {part, found->offset()}, "model_type is not a string");
  return std::string(*text);
}

ModelHints read_hints(const JsonValue& fields, const InputPart& part) {
  return {.model_type = find_model_type(fields, part),
          .text_model_type = {},
          .num_hidden_layers = find_integer(fields, "num_hidden_layers", 1),
          .num_experts = find_num_experts(fields),
          .hidden_act = find_text(fields, kActivationKeys),
          .swiglu_limit = fields.find<double>("swiglu_limit"),
          .swiglu_alpha = fields.find<double>("swiglu_alpha"),
          .swiglu_other = find_swiglu_other(fields)};
}

ModelHints read_config(std::string_view text, const JsonValue& root, const InputPart& part) {
  if (root.kind() != JsonKind::Object) fail_at(ErrorCode::ConfigJson, {part, root.offset()}, "is not a JSON object");
  ModelHints hints = read_hints(root, part);
  hints.config = text;
  const auto text_config = find_text_config(root);
  if (!text_config) return hints;
  // Multimodal models keep the language model's numbers one level down.
  ModelHints inner = read_hints(*text_config, part);
  hints.text_model_type = inner.model_type;
  if (hints.model_type.empty()) hints.model_type = inner.model_type;
  if (!hints.num_hidden_layers) hints.num_hidden_layers = inner.num_hidden_layers;
  if (!hints.num_experts) hints.num_experts = inner.num_experts;
  // The activation of the language model, not of what stands around it.
  if (!inner.hidden_act.empty()) hints.hidden_act = inner.hidden_act;
  if (inner.swiglu_limit) hints.swiglu_limit = inner.swiglu_limit;
  if (inner.swiglu_alpha) hints.swiglu_alpha = inner.swiglu_alpha;
  if (!inner.swiglu_other.empty()) hints.swiglu_other = inner.swiglu_other;
  return hints;
}

}  // namespace

/// Configs are written by Python, so they hold Infinity ("time_step_limit" of hybrid Mamba models) and
/// huge integers. Strict JSON has neither. They become empty texts, padded so that positions stay what they are: no
/// rule takes one for a number, an object or a word.
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

ModelHints parse_config(std::string_view text, const std::string& file) {
  const InputPart part(file);
  if (text.size() > static_cast<std::size_t>(kMaxConfigBytes))
    fail_at(ErrorCode::ConfigJson, {part, kMaxConfigBytes}, "goes on to {} bytes; at most {} are read", text.size(),
            kMaxConfigBytes);
  const JsonDocument document(text, kMaxConfigDepth);
  if (!document.fault()) return read_config(text, document.root(), part);
  const std::string strict = without_python_numbers(text);
  const JsonDocument second(strict, kMaxConfigDepth);
  if (!second.fault()) return read_config(strict, second.root(), part);
  fail_at(ErrorCode::ConfigJson, {part, second.fault()->offset}, "{}", second.fault()->text());
}

void edit_config(CheckpointInfo& info, const std::function<std::string(std::string_view text)>& edit) {
  const auto after = [&edit](const std::function<std::string(std::string_view text)>& first) {
    return [edit, first](std::string_view text) { return edit(first ? first(text) : std::string(text)); };
  };
  for (ExtraFile& file : info.extra_files)
    if (file.name == "config.json" || file.name.ends_with("/config.json")) file.edit = after(file.edit);
  info.config_edit = after(info.config_edit);
  if (!info.hints.config.empty()) info.hints.config = edit(info.hints.config);
}

}  // namespace glu_ckpt
