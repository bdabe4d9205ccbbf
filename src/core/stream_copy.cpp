#include "core/stream_copy.hpp"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace glu_ckpt {

#if defined(__SSE2__)

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLineBytes = 64;

/// One line of 64 bytes; `to` is aligned to 16.
inline void stream_line(std::byte* to, const std::byte* from) {
  const auto* const source = reinterpret_cast<const __m128i*>(from);
  auto* const target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}

}  // namespace

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes;
  if (bytes < head + 4 * kPageBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  // A line of each of four pages in turn, as the C library does: that keeps more of the memory's banks busy.
  for (; bytes >= 4 * kPageBytes; to += 4 * kPageBytes, from += 4 * kPageBytes, bytes -= 4 * kPageBytes)
    for (std::size_t at = 0; at < kPageBytes; at += kLineBytes)
      for (std::size_t page = 0; page < 4; ++page) {
        _mm_prefetch(reinterpret_cast<const char*>(from + page * kPageBytes + at + 8 * kLineBytes), _MM_HINT_T0);
        stream_line(to + page * kPageBytes + at, from + page * kPageBytes + at);
      }
  for (; bytes >= kLineBytes; to += kLineBytes, from += kLineBytes, bytes -= kLineBytes) stream_line(to, from);
  _mm_sfence();
  std::memcpy(to, from, bytes);
}

#else

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace glu_ckpt
