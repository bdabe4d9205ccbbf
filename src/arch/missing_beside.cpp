#include "arch/missing_beside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "core/parse_number.hpp"
#include "families/architecture.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kNumber = "{N}", kKind = "{K}";

class BesideFinder {
 public:
  explicit BesideFinder(const Inventory& named) {
    for (const TensorRef& tensor : named.tensors) names_.insert(tensor.name);
  }

  void look_for(std::string_view key) {
    const std::size_t at = key.find(kNumber);
    if (at == key.npos) return look_for_kinds(std::string(key));
    const std::string_view before = key.substr(0, at), behind = key.substr(at + kNumber.size());
    for (i64 number = 0; number < layers_behind(before); ++number)
      look_for_kinds(fmt::format("{}{}{}", before, number, behind));
  }

  i64 found() const { return found_; }
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  /// The number of the last layer that has any tensor, and one.
  i64 layers_behind(std::string_view before) const {
    constexpr i64 kMostNumbers = 4096;
    i64 layers = 0;
    for (const std::string_view name : names_) {
      if (!name.starts_with(before)) continue;
      const std::string_view behind = name.substr(before.size());
      if (const auto number = parse_number<i64>(behind.substr(0, behind.find('.'))); number && *number < kMostNumbers)
        layers = std::max(layers, *number + 1);
    }
    return layers;
  }

  void look_for_kinds(const std::string& key) {
    if (!key.ends_with(kKind)) return look_for_name(key);
    for (const char* kind : {"weight", "bias"}) look_for_name(key.substr(0, key.size() - kKind.size()) + kind);
  }

  void look_for_name(const std::string& name) {
    if (names_.contains(name))
      ++found_;
    else
      missing_.push_back(name);
  }

  std::unordered_set<std::string_view> names_;
  i64 found_ = 0;
  std::vector<std::string> missing_;
};

}  // namespace

void find_missing_beside(const Inventory& named, const ModelHints& hints, Recognition& model) {
  const Family& family = *model.architecture->family;
  const auto wrapper = std::ranges::find(family.wrappers, hints.model_type, &Wrapper::model_type);
  if (model.dense_naming != &family.naming || wrapper == family.wrappers.end() || wrapper->beside.empty()) return;
  BesideFinder finder(named);
  for (const std::string_view key : wrapper->beside) finder.look_for(key);
  const std::vector<std::string>& missing = finder.missing();
  if (missing.empty() || finder.found() <= std::ssize(missing)) return;
  const std::string more = missing.size() > 1 ? fmt::format(" and {} more tensors are", missing.size() - 1) : " is";
  model.flaws.push_back({ModelFlaw::Kind::Unread, ErrorCode::ModelIncomplete, missing.front(),
                         fmt::format("'{}'{} missing, which a {} model has beside its language model: programs start "
                                     "what is missing at random",
                                     missing.front(), more, hints.model_type)});
}

}  // namespace glu_ckpt
