#pragma once
/// Prints to people, on stderr.

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace glu_ckpt::report {

enum class Paint { Error, Warning, Note, Bar, Heading, Term };

/// Auto: the environment says it (NO_COLOR, else FORCE_COLOR or CLICOLOR_FORCE), or the stream is a terminal.
enum class Colors { Auto, Always, Never };
/// There is one for the process, as there is one stderr.
void use_colors(Colors colors);

/// `text` in a colour, where that stream has them.
std::string painted(Paint paint, const std::string& text, std::FILE* stream = stderr);
/// Says whether stderr is a terminal on which a line can be written anew.
bool is_terminal();

/// Prints to stderr. What cannot be printed there is lost: a log on a full disk neither stops a run nor hides how it
/// ended.
template <typename... Values>
void tell(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace glu_ckpt::report
