#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "arch/find_flaws.hpp"
#include "core/checked_math.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "families/architecture.hpp"
#include "layout/bare_codes.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kNumber = "{N}", kKind = "{K}";

/// More layers, or experts, than any part has.
constexpr i64 kMostNumbers = 4096;

/// The first word of a list, which is cut off.
std::string_view next_of(std::string_view& list, char separator) {
  const std::size_t end = list.find(separator);
  std::string_view word = list.substr(0, end);
  list.remove_prefix(end == list.npos ? list.size() : end + 1);
  while (word.starts_with(' ')) word.remove_prefix(1);
  return word;
}

/// Reads the fields of config.json that describe one part of the model, such as its vision tower.
class PartFields {
 public:
  PartFields(const JsonValue& root, std::string_view section) : root_(root), section_(find(root, section)) {}

  bool are_there() const { return section_.has_value(); }

  /// Returns nothing where the field is missing, or is no number above 0.
  std::optional<i64> number(std::string_view name) const {
    if (const auto literal = parse_number<i64>(name)) return literal;
    const auto value = field(name);
    if (!value) return std::nullopt;
    if (value->kind() == JsonKind::Array) return static_cast<i64>(value->size());
    const auto number = value->get<i64>();
    return number && *number > 0 ? number : std::nullopt;
  }

  std::optional<i64> product(std::string_view factors) const {
    i64 product = 1;
    while (!factors.empty()) {
      const auto factor = number(next_of(factors, '*'));
      const auto next = factor ? checked_mul(product, *factor) : std::nullopt;
      if (!next) return std::nullopt;
      product = *next;
    }
    return product;
  }

 private:
  static std::optional<JsonValue> find(const JsonValue& root, std::string_view path) {
    std::optional<JsonValue> value = root;
    while (!path.empty() && value)
      value = value->kind() == JsonKind::Object ? value->find(next_of(path, '.')) : std::nullopt;
    return value;
  }

  std::optional<JsonValue> field(std::string_view name) const {
    if (name.starts_with('.')) return find(root_, name.substr(1));
    return section_ ? find(*section_, name) : std::nullopt;
  }

  JsonValue root_;
  std::optional<JsonValue> section_;
};

/// The tensors of one part that are there, that are not, and that are otherwise than config.json says.
class PartFinder {
 public:
  using Tensors = std::map<std::string_view, const TensorRef*>;

  PartFinder(const Tensors& tensors, const BesidePart& part, const JsonValue& config)
      : tensors_(tensors), part_(part), fields_(config, part.section) {
    for (const BesideKey& key : part.keys)
      look_for(key, std::string(part.root) + std::string(key.key), key.counts.empty() ? part.count : key.counts);
  }

  i64 found() const { return found_; }
  /// A section without the number of layers says nothing of the part.
  bool is_described() const {
    return fields_.are_there() && (part_.count.empty() || fields_.number(part_.count).has_value());
  }
  const std::vector<std::string>& missing() const { return missing_; }
  const std::vector<DenseMisfit>& misfits() const { return misfits_; }

 private:
  /// Puts each number in the place of the first {N} of the key.
  void look_for(const BesideKey& key, const std::string& name, std::string_view counts) {
    const std::size_t at = name.find(kNumber);
    if (at == name.npos) return look_for_kinds(key, name);
    const std::string before = name.substr(0, at), behind = name.substr(at + kNumber.size());
    const std::string_view field = next_of(counts, ',');
    const i64 stored = layers_behind(before);
    const i64 said = field.empty() ? stored : fields_.number(field).value_or(stored);
    for (i64 number = 0; number < std::min(said, kMostNumbers) && !is_another(); ++number)
      look_for(key, fmt::format("{}{}{}", before, number, behind), counts);
    if (stored > said && beyond_.emplace(before).second)
      misfits_.push_back(
          {0, fmt::format("'{}{}.' is there, but config.json says {} {}", before, stored - 1, field, said)});
  }

  /// More are missing than are there at all: the part is spelled otherwise.
  bool is_another() const { return missing_.size() > tensors_.size(); }

  /// The number of the last layer that has any tensor, and one.
  i64 layers_behind(const std::string& before) const {
    i64 layers = 0;
    for (auto it = tensors_.lower_bound(before); it != tensors_.end() && it->first.starts_with(before); ++it) {
      const std::string_view behind = it->first.substr(before.size());
      if (const auto number = parse_number<i64>(behind.substr(0, behind.find('.'))); number && *number < kMostNumbers)
        layers = std::max(layers, *number + 1);
    }
    return layers;
  }

  void look_for_kinds(const BesideKey& key, const std::string& name) {
    if (!name.ends_with(kKind)) return look_for_name(key, name, false);
    const std::string stem = name.substr(0, name.size() - kKind.size());
    look_for_name(key, stem + "weight", false);
    look_for_name(key, stem + "bias", true);
  }

  void look_for_name(const BesideKey& key, const std::string& name, bool is_bias) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return missing_.push_back(name);
    ++found_;
    check_shape(key, *found->second, name, is_bias);
  }

  void check_shape(const BesideKey& key, const TensorRef& tensor, const std::string& name, bool is_bias) {
    if (key.shape.empty() || holds_codes(tensor.dtype)) return;
    std::string_view list = key.shape;
    std::string wanted;
    std::size_t axis = 0;
    bool fits = true;
    while (!list.empty() && !(is_bias && axis > 0)) {
      const auto extent = fields_.product(next_of(list, ','));
      wanted += fmt::format("{}{}", axis == 0 ? "" : ", ", extent ? fmt::format("{}", *extent) : "?");
      fits &= axis < tensor.shape.size() && (!extent || tensor.shape[axis] == *extent);
      ++axis;
    }
    if (fits && axis == tensor.shape.size()) return;
    misfits_.push_back({0, fmt::format("'{}' is {} {}, but config.json makes it [{}] ({} of {})", name,
                                       dtype_name(tensor.dtype), shape_text(tensor.shape), wanted,
                                       is_bias ? key.shape.substr(0, key.shape.find(',')) : key.shape, part_.section)});
  }

  const Tensors& tensors_;
  const BesidePart& part_;
  PartFields fields_;
  i64 found_ = 0;
  std::vector<std::string> missing_;
  std::vector<DenseMisfit> misfits_;
  std::set<std::string> beyond_;
};

std::string and_more(std::size_t all, std::string_view one, std::string_view several) {
  return all > 1 ? fmt::format(" and {} more {}", all - 1, several) : " " + std::string(one);
}

}  // namespace

void find_missing_beside(const Inventory& named, const ModelHints& hints, Recognition& model) {
  const Family& family = *model.architecture->family;
  const auto wrapper = std::ranges::find(family.wrappers, hints.model_type, &Wrapper::model_type);
  if (wrapper == family.wrappers.end() || wrapper->beside.empty()) return;
  constexpr std::size_t kDeepest = 64;
  const JsonDocument document(hints.config, kDeepest);
  if (document.fault() || document.root().kind() != JsonKind::Object) return;
  PartFinder::Tensors tensors;
  for (const TensorRef& tensor : named.tensors) {
    std::string_view name = tensor.name;
    // What travels beside a trainer's keys.
    if (name.starts_with(kUnknownPrefix)) name.remove_prefix(kUnknownPrefix.size());
    tensors.emplace(name, &tensor);
  }
  std::vector<PartFinder> parts;
  for (const BesidePart& part : wrapper->beside)
    if (part.asked_for.empty() || document.root().find<bool>(part.asked_for) != false)
      parts.emplace_back(tensors, part, document.root());
  const bool is_alone = std::ranges::all_of(parts, [](const PartFinder& part) { return part.found() == 0; });
  const auto add = [&](ErrorCode code, std::string name, std::string text) {
    const auto kind = is_alone ? ModelFlaw::Kind::Alone : ModelFlaw::Kind::Beside;
    model.flaws.push_back({kind, code, std::move(name), std::move(text)});
  };
  for (const PartFinder& part : parts) {
    const std::vector<std::string>& missing = part.missing();
    // A part that is spelled otherwise has some of the names at most.
    if (part.found() == 0 ? !part.is_described() : part.found() <= std::ssize(missing)) continue;
    if (!missing.empty())
      add(ErrorCode::ModelIncomplete, missing.front(),
          fmt::format("'{}'{} missing, which a {} model has beside its language model: programs start what is missing "
                      "at random{}",
                      missing.front(), and_more(missing.size(), "is", "tensors are"), hints.model_type,
                      is_alone ? "; --fill-from takes it from a checkpoint that has it" : ""));
    if (!part.misfits().empty())
      add(ErrorCode::ModelShape, {},
          fmt::format(
              "{}{}", part.misfits().front().fault,
              part.misfits().size() > 1 ? fmt::format("; so with {} more", part.misfits().size() - 1) : std::string()));
  }
}

}  // namespace glu_ckpt
