#pragma once
/// Names in the order people count, names that fit a pattern, and how far one is from another.

#include <fnmatch.h>

#include <string>
#include <string_view>

namespace glu_ckpt {

/// Keys compared byte by byte order their names as people count: runs of decimal digits are numbers. Names that differ
/// only in leading zeros have equal keys. A key is made once for each name, so that sorting does not read the digits
/// again in every comparison.
std::string natural_key(std::string_view name);

/// The least number of letters to change, put in, take out or exchange with their neighbour.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// A * stands for dots and slashes, too.
inline bool fits_glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

}  // namespace glu_ckpt
