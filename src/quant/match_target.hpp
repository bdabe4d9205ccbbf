#pragma once
/// The targets by which a group of compressed-tensors' quantization_config names modules.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace glu_ckpt {

/// Returns whether Python's re.match(pattern, text) finds something; none for a pattern that is broken, longer than 256
/// characters, or has more in it than alternatives, groups, classes, `.`, `*`, `+`, `?`, `^` and `$`. The time is that
/// of the lengths' product at most.
std::optional<bool> matches_pattern(std::string_view pattern, std::string_view text);

/// A pattern that is read once and tried on many texts.
struct Pattern;

/// The name of a module, or "re:" and a pattern of it. Names of classes, such as "Linear", mean no module by its name.
class ModuleTarget {
 public:
  explicit ModuleTarget(std::string_view text);

  /// Returns whether the target means the module; none where its pattern is not read here.
  std::optional<bool> names(std::string_view module) const;

 private:
  std::string text_;
  bool is_pattern_ = false;
  /// Null where the pattern is not read here.
  std::shared_ptr<const Pattern> pattern_;
};

}  // namespace glu_ckpt
