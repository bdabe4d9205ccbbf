#include "core/process_name.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace glu_ckpt {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::string start_of_process(const std::string& process) {
  constexpr int kFieldsBetween = 19;  // from the state, which follows the name in brackets, to the start
  const std::string line = first_line("/proc/" + process + "/stat");
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i <= kFieldsBetween; ++i) {
    fields >> field;
    // A zombie has ended: nobody asked for its status yet.
    if (i == 0 && (field == "Z" || field == "X")) return "";
  }
  return fields ? field : "";
}

ProcessName name_this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"unknown"};
  std::error_code none;
  return {host.data(), first_line("/proc/sys/kernel/random/boot_id"),
          std::filesystem::read_symlink("/proc/self/ns/pid", none).string(), std::to_string(::getpid()),
          start_of_process("self")};
}

}  // namespace glu_ckpt
