#pragma once
/// Paths of files that an index, a record or a manifest gives: it comes with a download, and must not reach files
/// outside its own directory.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

namespace glu_ckpt {

/// What Linux opens at most: the bytes of one name, and of a path.
inline constexpr std::size_t kMaxNameBytes = 255;
inline constexpr std::size_t kMaxPathBytes = 4095;

/// Says why there can be no file of that path below a directory, as a clause for after the path; "" where there can.
inline std::string inner_path_fault(std::string_view text) {
  const std::filesystem::path path(text);
  if (text.find('\0') != text.npos || !path.is_relative() || !path.has_filename() ||
      std::ranges::find(path, std::filesystem::path("..")) != path.end())
    return "which is no path below the directory";
  for (const std::filesystem::path& part : path)
    if (const std::size_t bytes = part.native().size(); bytes > kMaxNameBytes)
      return fmt::format("which has a name of {} bytes; a file's name has at most {}", bytes, kMaxNameBytes);
  if (text.size() > kMaxPathBytes)
    return fmt::format("a path of {} bytes; a file's path has at most {}", text.size(), kMaxPathBytes);
  return "";
}

}  // namespace glu_ckpt
