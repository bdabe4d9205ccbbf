#pragma once
/// Patterns of names with *, ? and [...], as --tensors takes them.

#include <fnmatch.h>

#include <string>

namespace glu_ckpt {

/// A * stands for dots and slashes, too.
inline bool fits_glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

}  // namespace glu_ckpt
