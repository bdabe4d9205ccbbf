#pragma once
/// Throwing an Error with a formatted sentence.

#include <fmt/format.h>

#include <string>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {

/// The file and the tensor an Error is about; either may be empty.
struct Where {
  std::string file;
  std::string tensor;
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, const Where& where, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...), where.file, where.tensor);
}

}  // namespace glu_ckpt
