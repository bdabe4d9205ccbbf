#include "core/parser_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace glu_ckpt {
namespace {

std::atomic<i64> parser_memory = i64{1} << 30;

}  // namespace

void set_parser_memory(i64 bytes) { parser_memory = bytes; }

i64 parser_allowance(i64 read_bytes) {
  const i64 memory = parser_memory;
  if (read_bytes > memory / 3) return memory;
  return std::min(memory, std::max(i64{1} << 20, memory / 64) + 3 * read_bytes);
}

std::optional<std::string> over_allowance(i64 read_bytes, i64 held_bytes) {
  const i64 allowed = parser_allowance(read_bytes);
  if (held_bytes <= allowed) return std::nullopt;
  return fmt::format(
      "hold so many small values in their first {} bytes that these take {} bytes of memory, and {} are allowed; no "
      "checkpoint is known to hold that many, but --max-memory with more than {} MiB allows more",
      read_bytes, held_bytes, allowed, parser_memory.load() >> 20);
}

}  // namespace glu_ckpt
