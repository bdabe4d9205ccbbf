/// One loop, compiled for the vector lengths there are. The lanes of a sum are spread over as many registers as it
/// takes, so each makes the same additions in the same order on every processor. There are no fused multiply-adds
/// (-ffp-contract=off), for not every processor has them.

#include "exec/dot_products.hpp"

#include <cstring>

namespace glu_ckpt {
namespace {

using DotFunction = void(const DotProducts&);

float sum_lanes(float* lanes) {
  for (i64 half = kDotLanes / 2; half > 0; half /= 2)
    for (i64 l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/// A tile of kTokens by kRows inner products, with registers of kBytes.
template <int kBytes, int kTokens, int kRows>
struct Tile {
  typedef float Vector __attribute__((vector_size(kBytes)));
  static constexpr int kWidth = kBytes / static_cast<int>(sizeof(float));
  static constexpr int kParts = static_cast<int>(kDotLanes) / kWidth;

  __attribute__((always_inline)) static inline void run(const DotProducts& dots, i64 token, i64 row) {
    const float* const x = dots.x + token * dots.x_step;
    const float* const w = dots.w + row * dots.cols;
    Vector sums[kTokens][kRows][kParts] = {};
    for (i64 k = 0; k < dots.cols; k += kDotLanes)
      for (int p = 0; p < kParts; ++p) {
        Vector weights[kRows];
        for (int r = 0; r < kRows; ++r) std::memcpy(&weights[r], w + r * dots.cols + k + p * kWidth, sizeof(Vector));
        for (int t = 0; t < kTokens; ++t) {
          Vector values;
          std::memcpy(&values, x + t * dots.x_step + k + p * kWidth, sizeof(Vector));
          for (int r = 0; r < kRows; ++r) sums[t][r][p] += values * weights[r];
        }
      }
    for (int t = 0; t < kTokens; ++t)
      for (int r = 0; r < kRows; ++r) {
        float lanes[kDotLanes];
        std::memcpy(lanes, sums[t][r], sizeof lanes);
        dots.out[(token + t) * dots.out_step + row + r] = sum_lanes(lanes);
      }
  }
};

template <int kBytes, int kTokens, int kRows>
__attribute__((always_inline)) inline void run_tiles(const DotProducts& dots) {
  const i64 whole_tokens = dots.tokens / kTokens * kTokens;
  const i64 whole_rows = dots.rows / kRows * kRows;
  for (i64 t = 0; t < whole_tokens; t += kTokens)
    for (i64 r = 0; r < whole_rows; r += kRows) Tile<kBytes, kTokens, kRows>::run(dots, t, r);
  for (i64 t = whole_tokens; t < dots.tokens; ++t)
    for (i64 r = 0; r < whole_rows; r += kRows) Tile<kBytes, 1, kRows>::run(dots, t, r);
  for (i64 t = 0; t < dots.tokens; ++t)
    for (i64 r = whole_rows; r < dots.rows; ++r) Tile<kBytes, 1, 1>::run(dots, t, r);
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void dot_avx512(const DotProducts& dots) { run_tiles<64, 4, 4>(dots); }
__attribute__((target("avx2"))) void dot_avx2(const DotProducts& dots) { run_tiles<32, 2, 2>(dots); }

#endif

DotFunction* choose_function() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return dot_avx512;
  if (__builtin_cpu_supports("avx2")) return dot_avx2;
#endif
  return dot_products_plain;
}

}  // namespace

void dot_products(const DotProducts& dots) {
  static DotFunction* const function = choose_function();
  function(dots);
}

void dot_products_plain(const DotProducts& dots) { run_tiles<16, 2, 1>(dots); }

}  // namespace glu_ckpt
