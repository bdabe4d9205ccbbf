#pragma once
/// The meaning of an error: its cause, an example and the ways out, as `help SLUG` and docs/errors.md have them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt::cli {

/// All of them, in the order of ErrorCode.
std::vector<std::string> error_slugs();

/// Returns the help of one, which may be given in its brackets; none where there is no such error.
std::optional<std::string> error_help(std::string_view slug, std::string_view program);

/// docs/errors.md.
std::string errors_page(std::string_view program);

/// Adds `text` in lines of at most kHelpColumns, each indented.
void append_wrapped(std::string& out, std::size_t indent, std::string_view text);

}  // namespace glu_ckpt::cli
