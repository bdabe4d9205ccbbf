#include "report/text/tell.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace glu_ckpt::report {

bool is_terminal() {
  const char* const kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (kind == nullptr || std::string_view(kind) != "dumb");
}

std::string painted(Paint paint, const std::string& text) {
  const char* const no_color = std::getenv("NO_COLOR");
  if (!is_terminal() || (no_color != nullptr && *no_color != '\0')) return text;
  const std::string_view code = paint == Paint::Error     ? "1;31"
                                : paint == Paint::Warning ? "1;33"
                                : paint == Paint::Note    ? "36"
                                                          : "32";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace glu_ckpt::report
