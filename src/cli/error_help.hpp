#pragma once
/// The meaning of an error: its cause, an example and the ways out, as `help SLUG` and docs/errors.md have them;
/// and what the words of other programs are here (other_words.cpp).

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

/// Returns "; DST is the second argument" for the command "glu-ckpt convert" and the word "--output" of other programs;
/// empty where no other program says it so.
std::string said_otherwise(std::string_view command, std::string_view word);

/// Returns the words for which said_otherwise() has an answer.
std::vector<std::string> words_said_otherwise(std::string_view command);

}  // namespace glu_ckpt::cli
