#include "quant/quantization_object.hpp"

#include "core/config_json.hpp"
#include "format/model_config.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kFields[] = {"quantization_config", "compression_config"};

std::optional<JsonValue> find_quantization(const JsonValue& fields) {
  for (const std::string_view name : kFields)
    if (const auto found = fields.find(name); found && found->kind() == JsonKind::Object) return found;
  return std::nullopt;
}

}  // namespace

std::optional<JsonValue> find_quantization_object(const JsonValue& root) {
  if (root.kind() != JsonKind::Object) return std::nullopt;
  if (const auto object = find_quantization(root)) return object;
  const auto inner = find_text_config(root);
  return inner ? find_quantization(*inner) : std::nullopt;
}

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

}  // namespace glu_ckpt
