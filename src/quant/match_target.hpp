#pragma once
/// The targets by which a group of compressed-tensors' quantization_config names modules.

#include <optional>
#include <string_view>

namespace glu_ckpt {

/// Returns whether Python's re.match(pattern, text) finds something; none for a pattern that is broken, longer than 256
/// characters, or has more in it than alternatives, groups, classes, `.`, `*`, `+`, `?`, `^` and `$`. The time is that
/// of the lengths' product at most.
std::optional<bool> matches_pattern(std::string_view pattern, std::string_view text);

/// Returns whether a target means the module: its name, or "re:" and a pattern of it. Names of classes, such as
/// "Linear", mean no module by its name.
std::optional<bool> names_module(std::string_view target, std::string_view module);

}  // namespace glu_ckpt
