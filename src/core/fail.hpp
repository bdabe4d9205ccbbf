#pragma once
/// Throwing an Error with a formatted sentence, and catching one.

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {

/// The file and the tensor an Error is about; either may be empty.
struct Where {
  std::string file;
  std::string tensor;
};

/// The byte of `part` that an Error is about, counted from the part's start; none where none can be named.
struct WhereAt {
  const InputPart& part;
  std::optional<std::int64_t> offset;
  std::string tensor = {};
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, const Where& where, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...), where.file, where.tensor);
}

/// The same where options would be the way on: those that take one value, or whose value is asked for.
template <typename... Args>
[[noreturn]] void fail_asking(std::vector<std::string> options, ErrorCode code, const Where& where,
                              fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...), where.file, where.tensor)
      .with_missing_options(std::move(options));
}

/// "FILE: byte N", or "FILE" where no byte is known.
inline std::string place_text(const InputPart& part, std::optional<std::int64_t> offset) {
  if (!offset || part.begin < 0) return part.file;
  const std::string place = fmt::format("{}: byte {}", part.file, part.begin + *offset);
  return part.inside.empty() ? place : fmt::format("{} of its {}", place, part.inside);
}

/// The sentence after "FILE: byte N: ", which is how every error about bytes of the input begins.
template <typename... Args>
[[noreturn]] void fail_at(ErrorCode code, const WhereAt& where, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, place_text(where.part, where.offset) + ": " + fmt::format(text, std::forward<Args>(args)...),
              where.part.file, where.tensor);
}

/// The exception that is being handled, as an Error: one of the library's as it is, a failed allocation as NoMemory,
/// any other as Io. Only inside a catch.
Error current_error();

}  // namespace glu_ckpt
