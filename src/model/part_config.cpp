#include "model/part_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/config_json.hpp"
#include "core/json.hpp"
#include "format/model_config.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxConfigDepth = 64;

struct Edit {
  TextRange range;
  std::string text;
};

bool names_any(std::string_view key, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return key.find(word) != key.npos; });
}

bool is_any(std::string_view key, Spellings words) { return std::ranges::find(words, key) != words.end(); }

/// The fields of one object that speak of layers.
class FieldEditor {
 public:
  FieldEditor(std::string_view text, const LayerPart& part) : text_(text), part_(part) {}

  std::vector<Edit> edits(const JsonValue& fields) {
    for (const JsonMember member : fields.members()) read(member);
    return std::move(edits_);
  }

 private:
  void read(const JsonMember& member) {
    const std::string_view key = part_.family == nullptr ? member.key : part_.family->usual_word(member.key);
    const TextRange range = json_value_range(text_, static_cast<std::size_t>(member.value.offset()));
    const auto number = member.value.get<i64>();
    if (part_.expert_width > 0 && member.key == part_.expert_width_field && number)
      return put(range, std::to_string(part_.expert_width));
    if (part_.drops_mtp && is_any(key, {"num_nextn_predict_layers", "mtp_num_hidden_layers"}) && number)
      return put(range, "0");
    if (is_any(key, kExpertCounts) && number == part_.experts_of && part_.experts != part_.experts_of)
      return put(range, std::to_string(part_.experts));
    if (part_.first == 0 && part_.count == part_.of) return;
    if (key == "num_hidden_layers" && number) return put(range, std::to_string(part_.count));
    // Counted from the first layer.
    if (is_any(key, {"first_k_dense_replace", "num_dense_layers", "max_window_layers"}) && number)
      return put(range, std::to_string(std::max<i64>(*number - part_.first, 0)));
    if (member.value.kind() == JsonKind::Array) return read_list(key, range, member.value);
    const auto letters = member.value.get<std::string_view>();
    if (letters && names_any(key, {"pattern"}) && std::ssize(*letters) == part_.of)
      put(range, fmt::format("\"{}\"", letters->substr(static_cast<std::size_t>(part_.first),
                                                       static_cast<std::size_t>(part_.count))));
  }

  void read_list(std::string_view key, const TextRange& range, const JsonValue& list) {
    std::vector<std::string> kept;
    // Numbers of layers.
    if (is_any(key, {"mlp_only_layers", "moe_layers", "attn_layer_indices", "full_attn_idxs"})) {
      for (const JsonValue item : list.items())
        if (const auto layer = item.get<i64>(); layer && *layer >= part_.first && *layer < part_.first + part_.count)
          kept.push_back(std::to_string(*layer - part_.first));
      return put(range, fmt::format("[{}]", fmt::join(kept, ", ")));
    }
    if (static_cast<i64>(list.size()) != part_.of || !names_any(key, {"layer", "types", "pattern", "freq", "list"}))
      return;
    i64 layer = 0;
    for (const JsonValue item : list.items()) {
      const auto begin = static_cast<std::size_t>(item.offset());
      const std::string_view value = text_.substr(begin, json_value_end(text_, begin) - begin);
      if (layer >= part_.first && layer < part_.first + part_.count)
        kept.emplace_back(value.substr(0, value.find_last_not_of(" \t\r\n") + 1));
      ++layer;
    }
    put(range, fmt::format("[{}]", fmt::join(kept, ", ")));
  }

  void put(const TextRange& range, std::string_view text) { edits_.push_back({range, fmt::format(" {}", text)}); }

  std::string_view text_;
  const LayerPart& part_;
  std::vector<Edit> edits_;
};

}  // namespace

std::string part_config(std::string_view config, const LayerPart& part) {
  const std::string strict = without_python_numbers(config);
  const JsonDocument document(strict, kMaxConfigDepth);
  if (document.fault() || document.root().kind() != JsonKind::Object) return std::string(config);
  const auto inner = find_text_config(document.root());
  std::vector<Edit> edits = FieldEditor(strict, part).edits(inner ? *inner : document.root());
  std::ranges::sort(edits, {}, [](const Edit& edit) { return edit.range.begin; });
  std::string text;
  std::size_t done = 0;
  for (const Edit& edit : edits) {
    text += std::string(config.substr(done, edit.range.begin - done)) + edit.text;
    done = edit.range.end;
  }
  return text + std::string(config.substr(done));
}

std::string language_config(std::string_view config, const Family& family, const std::string& model_type,
                            std::string_view from) {
  const std::string strict = without_python_numbers(config);
  const JsonDocument document(strict, kMaxConfigDepth);
  if (document.fault() || document.root().kind() != JsonKind::Object) return std::string(config);
  const auto inner = find_text_config(document.root());
  if (!inner) return std::string(config);
  const auto value_of = [&](const JsonValue& member) {
    const TextRange range = json_value_range(strict, static_cast<std::size_t>(member.offset()));
    return std::string(config.substr(range.begin, range.end - range.begin));
  };
  std::string added;
  const auto add = [&](std::string_view field, const std::string& value) {
    added += fmt::format("\n  \"{}\": {},", field, value);
  };
  if (!family.model_class.empty()) add("architectures", fmt::format("[\"{}\"]", family.model_class));
  if (!inner->find("model_type")) add("model_type", fmt::format("\"{}\"", model_type));
  for (const std::string_view field : {"dtype", "torch_dtype", "quantization_config", "transformers_version"})
    if (const auto found = document.root().find(field); found && !inner->find(field)) {
      std::string value = value_of(*found);
      const std::string old_root = fmt::format("\"{}", from), root = fmt::format("\"{}", family.root);
      for (std::size_t at = value.find(old_root); at != value.npos; at = value.find(old_root, at + root.size()))
        value.replace(at, old_root.size(), root);
      add(field, value);
    }
  std::string text = value_of(*inner);
  const std::size_t brace = text.find('{') + 1;
  // The head is the whole model's: what that says of it counts.
  if (const auto tied = document.root().find<bool>("tie_word_embeddings")) {
    const std::string word = *tied ? "true" : "false";
    const auto own = inner->find("tie_word_embeddings");
    if (!own) add("tie_word_embeddings", word);
    if (own) {
      const TextRange range = json_value_range(strict, static_cast<std::size_t>(own->offset()));
      const TextRange object = json_value_range(strict, static_cast<std::size_t>(inner->offset()));
      text.replace(range.begin - object.begin, range.end - range.begin, fmt::format(" {}", word));
    }
  }
  if (inner->size() == 0 && !added.empty()) added.pop_back();
  return text.substr(text.find('{'), brace - text.find('{')) + added + text.substr(brace);
}

}  // namespace glu_ckpt
