/// One loop, compiled for the vector lengths there are. The lanes of a sum are spread over as many registers as it
/// takes, so each makes the same additions in the same order on every processor. There are no fused multiply-adds
/// (-ffp-contract=off), for not every processor has them. Weights are widened in registers: they pass through once.

#include "forward/dot_products.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/simd.hpp"

namespace glu_ckpt {
namespace {

using u16 = std::uint16_t;
using DotFunction = void(const DotProducts&);

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

typedef float Floats4 __attribute__((vector_size(16)));
typedef float Floats8 __attribute__((vector_size(32)));
typedef float Floats16 __attribute__((vector_size(64)));

// The upper half of the lanes is added to the lower half, until there are four.
ALWAYS_INLINE void fold(const Floats4& lanes, Floats4& sums) { sums = lanes; }
ALWAYS_INLINE void fold(const Floats8& lanes, Floats4& sums) {
  sums = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3) + __builtin_shufflevector(lanes, lanes, 4, 5, 6, 7);
}
ALWAYS_INLINE void fold(const Floats16& lanes, Floats4& sums) {
  const Floats8 half = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
  fold(half, sums);
}

/// Registers of 16, 32 and 64 bytes. Not one template: g++ 12 has no __builtin_convertvector of dependent types. Values
/// go by reference, for without these registers they have no agreed way to be returned.
template <int kBytes>
struct Lanes;

#define LANES(BYTES)                                                     \
  template <>                                                            \
  struct Lanes<BYTES> {                                                  \
    typedef float Floats __attribute__((vector_size(BYTES)));            \
    typedef u32 Words __attribute__((vector_size(BYTES)));               \
    typedef u16 Halves __attribute__((vector_size((BYTES) / 2)));        \
    ALWAYS_INLINE void load_words(const std::byte* from, Words& words) { \
      Halves halves;                                                     \
      std::memcpy(&halves, from, sizeof halves);                         \
      words = __builtin_convertvector(halves, Words);                    \
    }                                                                    \
    ALWAYS_INLINE void to_floats(const Words& words, Floats& floats) {   \
      floats = __builtin_convertvector(words, Floats);                   \
    }                                                                    \
  }
LANES(16);
LANES(32);
LANES(64);
#undef LANES

/// Elements as the checkpoint stores them, in fp32; exactly as widen_row() has them.
template <int kBytes>
struct FromF32 {
  static constexpr i64 kElementBytes = 4;
  using Floats = typename Lanes<kBytes>::Floats;
  ALWAYS_INLINE void widen(const std::byte* from, Floats& to) { std::memcpy(&to, from, sizeof to); }
};

template <int kBytes>
struct FromBf16 {
  static constexpr i64 kElementBytes = 2;
  using Floats = typename Lanes<kBytes>::Floats;
  ALWAYS_INLINE void widen(const std::byte* from, Floats& to) {
    typename Lanes<kBytes>::Words words;
    Lanes<kBytes>::load_words(from, words);
    to = (Floats)(words << 16);
  }
};

template <int kBytes>
struct FromF16 {
  static constexpr i64 kElementBytes = 2;
  using Floats = typename Lanes<kBytes>::Floats;
  using Words = typename Lanes<kBytes>::Words;
  ALWAYS_INLINE void widen(const std::byte* from, Floats& to) {
    // The exponent's bias is 112 less than that of fp32; subnormals are so many units of 2^-24.
    Words bits;
    Lanes<kBytes>::load_words(from, bits);
    const Words magnitude = bits & 0x7fff;
    const Words normal = (magnitude << 13) + (u32{112} << 23);
    Floats units;
    Lanes<kBytes>::to_floats(magnitude, units);
    const Words subnormal = (Words)(units * 0x1p-24F);
    const Words special = (magnitude << 13) | 0x7f80'0000;
    const Words is_subnormal = (Words)(magnitude < 0x0400);
    const Words is_special = (Words)(magnitude >= 0x7c00);
    const Words finite = (subnormal & is_subnormal) | (normal & ~is_subnormal);
    to = (Floats)((bits & 0x8000) << 16 | (special & is_special) | (finite & ~is_special));
  }
};

/// Adds the last four lanes of one sum, or of four sums at once: lanes 0 and 2, lanes 1 and 3, and those two.
ALWAYS_INLINE float add_four(const Floats4& a) { return (a[0] + a[2]) + (a[1] + a[3]); }
ALWAYS_INLINE void add_four(const Floats4& a, const Floats4& b, const Floats4& c, const Floats4& d, float* out) {
  const Floats4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Floats4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Floats4 sums = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  std::memcpy(out, &sums, sizeof sums);
}

/// A tile of kTokens by kRows inner products, with registers of kBytes.
template <template <int> typename From, int kBytes, int kTokens, int kRows>
struct Tile {
  using Floats = typename Lanes<kBytes>::Floats;
  static constexpr int kWidth = kBytes / static_cast<int>(sizeof(float));
  static constexpr int kParts = static_cast<int>(kDotLanes) / kWidth;
  static constexpr i64 kElementBytes = From<kBytes>::kElementBytes;

  ALWAYS_INLINE void run(const DotProducts& dots, i64 token, i64 row) {
    const float* const x = dots.x + token * dots.x_step;
    const std::byte* w[kRows];
    for (int r = 0; r < kRows; ++r) w[r] = dots.w[row + r];
    Floats sums[kTokens][kRows][kParts] = {};
    for (i64 k = 0; k < dots.cols; k += kDotLanes)
      for (int p = 0; p < kParts; ++p) {
        const i64 at = k + p * kWidth;
        Floats weights[kRows];
        for (int r = 0; r < kRows; ++r) From<kBytes>::widen(w[r] + at * kElementBytes, weights[r]);
        for (int t = 0; t < kTokens; ++t) {
          Floats values;
          std::memcpy(&values, x + t * dots.x_step + at, sizeof values);
          for (int r = 0; r < kRows; ++r) sums[t][r][p] += values * weights[r];
        }
      }
    for (int t = 0; t < kTokens; ++t) {
      Floats4 left[kRows];
      for (int r = 0; r < kRows; ++r) {
        for (int half = kParts / 2; half > 0; half /= 2)
          for (int p = 0; p < half; ++p) sums[t][r][p] += sums[t][r][p + half];
        fold(sums[t][r][0], left[r]);
      }
      float* const out = dots.out + (token + t) * dots.out_step + row;
      if constexpr (kRows == 4)
        add_four(left[0], left[1], left[2], left[3], out);
      else
        for (int r = 0; r < kRows; ++r) out[r] = add_four(left[r]);
    }
  }
};

/// Rows by kRows, and the rest one by one.
template <template <int> typename From, int kBytes, int kTokens, int kRows>
ALWAYS_INLINE void run_rows(const DotProducts& dots, i64 token) {
  const i64 whole_rows = dots.rows / kRows * kRows;
  for (i64 r = 0; r < whole_rows; r += kRows) Tile<From, kBytes, kTokens, kRows>::run(dots, token, r);
  for (i64 r = whole_rows; r < dots.rows; ++r) Tile<From, kBytes, kTokens, 1>::run(dots, token, r);
}

/// Tokens in groups of at most kMost, as alike as can be: 9 are 5 and 4, each of which passes over the weights once.
template <template <int> typename From, int kBytes, int kMost, int kRows>
ALWAYS_INLINE void run_tokens(const DotProducts& dots) {
  const i64 groups = (dots.tokens + kMost - 1) / kMost;
  i64 token = 0;
  for (i64 g = groups; g > 0; --g) {
    const i64 count = (dots.tokens - token + g - 1) / g;
    static_assert(kMost <= 7);
    if (count == 1) run_rows<From, kBytes, 1, kRows>(dots, token);
    if constexpr (kMost >= 2)
      if (count == 2) run_rows<From, kBytes, 2, kRows>(dots, token);
    if constexpr (kMost >= 3)
      if (count == 3) run_rows<From, kBytes, 3, kRows>(dots, token);
    if constexpr (kMost >= 4)
      if (count == 4) run_rows<From, kBytes, 4, kRows>(dots, token);
    if constexpr (kMost >= 5)
      if (count == 5) run_rows<From, kBytes, 5, kRows>(dots, token);
    if constexpr (kMost >= 6)
      if (count == 6) run_rows<From, kBytes, 6, kRows>(dots, token);
    if constexpr (kMost >= 7)
      if (count == 7) run_rows<From, kBytes, 7, kRows>(dots, token);
    token += count;
  }
}

/// Tiles of at most kMost by kRows sums and what they are made of stay in registers.
template <int kBytes, int kMost, int kRows>
ALWAYS_INLINE void run_dtype(const DotProducts& dots) {
  if (dots.dtype == Dtype::BF16)
    run_tokens<FromBf16, kBytes, kMost, kRows>(dots);
  else if (dots.dtype == Dtype::F16)
    run_tokens<FromF16, kBytes, kMost, kRows>(dots);
  else
    run_tokens<FromF32, kBytes, kMost, kRows>(dots);
}

GLU_CKPT_AVX512 void dot_avx512(const DotProducts& dots) { run_dtype<64, 7, 4>(dots); }
GLU_CKPT_AVX2 void dot_avx2(const DotProducts& dots) { run_dtype<32, 2, 2>(dots); }

}  // namespace

void dot_products(const DotProducts& dots) {
  static DotFunction* const function = fastest(dot_avx512, dot_avx2, dot_products_plain);
  function(dots);
}

void dot_products_plain(const DotProducts& dots) { run_dtype<16, 2, 1>(dots); }

}  // namespace glu_ckpt
