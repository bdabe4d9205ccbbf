#include "report/text/tell.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace glu_ckpt::report {

namespace {

Colors chosen = Colors::Auto;

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool is_terminal(std::FILE* stream) {
  const char* const kind = std::getenv("TERM");
  return isatty(fileno(stream)) != 0 && (kind == nullptr || std::string_view(kind) != "dumb");
}

/// https://no-color.org, https://force-color.org, http://bixense.com/clicolors
bool has_colors(std::FILE* stream) {
  if (chosen != Colors::Auto) return chosen == Colors::Always;
  if (is_set("NO_COLOR")) return false;
  if (is_set("FORCE_COLOR") || is_set("CLICOLOR_FORCE")) return true;
  return is_terminal(stream);
}

std::string_view code_of(Paint paint) {
  switch (paint) {
    case Paint::Error: return "1;31";
    case Paint::Warning: return "1;33";
    case Paint::Note: return "36";
    case Paint::Bar: return "32";
    case Paint::Heading: return "1";
    case Paint::Term: return "36";
  }
  return "0";
}

}  // namespace

void use_colors(Colors colors) { chosen = colors; }

bool is_terminal() { return is_terminal(stderr); }

std::string painted(Paint paint, const std::string& text, std::FILE* stream) {
  return has_colors(stream) ? fmt::format("\x1b[{}m{}\x1b[0m", code_of(paint), text) : text;
}

}  // namespace glu_ckpt::report
