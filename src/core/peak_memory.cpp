#include "core/peak_memory.hpp"

#include <sys/resource.h>

#include <fstream>
#include <string>
#include <string_view>

#include "core/parse_number.hpp"

namespace glu_ckpt {
namespace {

/// The line is "VmHWM:      9876 kB".
i64 high_water_kib(const std::string& line) {
  const std::size_t begin = line.find_first_of("0123456789");
  if (!line.starts_with("VmHWM:") || begin == std::string::npos) return 0;
  return parse_number<i64>(std::string_view(line).substr(begin, line.find(' ', begin) - begin)).value_or(0);
}

}  // namespace

/// getrusage() also counts what the process was before it ran this program: ru_maxrss is kept over exec(), so that the
/// child of a large Python process began as large as that.
i64 peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (const i64 kib = high_water_kib(line); kib > 0) return i64{1024} * kib;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return i64{1024} * usage.ru_maxrss;
}

}  // namespace glu_ckpt
