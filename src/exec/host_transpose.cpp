/// One transpose, compiled for the vector lengths there are. A register holds one row of 16 bytes in each of its lanes;
/// m of them, where 16 bytes are m elements, are transposed by log2(m) rounds of interleaving their lanes, and are then
/// m rows of the target, as long as a register.

#include "exec/host_transpose.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace glu_ckpt {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/// Bytes of a tile's rows in the target and in the source: two lines, so that one which a register fills only in part
/// is still in the first cache when the next register fills the rest, and few enough source rows for it to hold them
/// all.
constexpr i64 kTileDownBytes = 128;
constexpr i64 kTileAcrossBytes = 512;

/// Elements of a lane, and along the sides of a tile.
template <typename Element>
constexpr int kLaneElements = 16 / static_cast<int>(sizeof(Element));
template <typename Element>
constexpr i64 kTileDown = kTileDownBytes / static_cast<i64>(sizeof(Element));
template <typename Element>
constexpr i64 kTileAcross = kTileAcrossBytes / static_cast<i64>(sizeof(Element));

/// The element of two registers that comes to place `i` when the lower or the upper halves of their lanes meet.
template <typename Element, int kLanes>
constexpr int interleaved_from(int i, bool upper) {
  constexpr int kLane = kLaneElements<Element>;
  const int in_lane = i % kLane;
  return i / kLane * kLane + in_lane / 2 + (upper ? kLane / 2 : 0) + (in_lane % 2) * kLane * kLanes;
}

typedef u64 Lane __attribute__((vector_size(16)));
typedef u64 TwoLanes __attribute__((vector_size(32)));
typedef u64 FourLanes __attribute__((vector_size(64)));

// Values go by reference, for without these registers they have no agreed way to be returned.
ALWAYS_INLINE void load_lanes(const std::byte* src, const i64* down, i64 lane_rows, TwoLanes& to) {
  Lane a, b;
  std::memcpy(&a, src + down[0], sizeof a);
  std::memcpy(&b, src + down[lane_rows], sizeof b);
  to = __builtin_shufflevector(a, b, 0, 1, 2, 3);
}
ALWAYS_INLINE void load_lanes(const std::byte* src, const i64* down, i64 lane_rows, FourLanes& to) {
  TwoLanes a, b;
  load_lanes(src, down, lane_rows, a);
  load_lanes(src, down + 2 * lane_rows, lane_rows, b);
  to = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
}

template <typename Element, int kLanes>
struct Register {
  typedef Element Elements __attribute__((vector_size(16 * kLanes)));
  using Words = std::conditional_t<kLanes == 2, TwoLanes, FourLanes>;

  template <int... kPlaces>
  ALWAYS_INLINE void interleave(const Words& a, const Words& b, Words& lower, Words& upper,
                                std::integer_sequence<int, kPlaces...>) {
    const Elements x = (Elements)a, y = (Elements)b;
    lower = (Words)__builtin_shufflevector(x, y, interleaved_from<Element, kLanes>(kPlaces, false)...);
    upper = (Words)__builtin_shufflevector(x, y, interleaved_from<Element, kLanes>(kPlaces, true)...);
  }
};

/// Elements (d, a) of kLanes * m rows of the source, m a row. The lanes of register r are rows r, r + m, r + 2m, ...
template <typename Element, int kLanes>
ALWAYS_INLINE void transpose_block(const std::byte* src, const i64* down, std::byte* dst, const i64* across) {
  using Words = typename Register<Element, kLanes>::Words;
  constexpr int kRows = kLaneElements<Element>;
  Words rows[kRows], transposed[kRows];
  for (int r = 0; r < kRows; ++r) load_lanes(src, down + r, kRows, rows[r]);
  for (int round = 1; round < kRows; round *= 2) {
    for (int r = 0; r < kRows / 2; ++r)
      Register<Element, kLanes>::interleave(rows[r], rows[r + kRows / 2], transposed[2 * r], transposed[2 * r + 1],
                                            std::make_integer_sequence<int, kRows * kLanes>());
    for (int r = 0; r < kRows; ++r) rows[r] = transposed[r];
  }
  for (int r = 0; r < kRows; ++r) std::memcpy(dst + across[r], &rows[r], sizeof(Words));
}

/// Elements of the tile [down, down + downs) by [across, across + acrosses), one by one.
template <typename Element>
ALWAYS_INLINE void copy_block(const std::byte* src, const i64* down, i64 downs, i64 src_step, std::byte* dst,
                              const i64* across, i64 acrosses, i64 dst_step) {
  for (i64 a = 0; a < acrosses; ++a)
    for (i64 d = 0; d < downs; ++d)
      std::memcpy(dst + across[a] + d * dst_step, src + down[d] + a * src_step, sizeof(Element));
}

/// The rows of a tile whose elements have gaps between them, without the gaps.
template <typename Element>
struct Packed {
  alignas(64) std::array<Element, kTileDown<Element> * kTileAcross<Element>> elements;
  std::array<i64, kTileDown<Element>> down;

  Packed() {
    for (i64 d = 0; d < kTileDown<Element>; ++d)
      down[static_cast<std::size_t>(d)] = d * kTileAcross<Element> * static_cast<i64>(sizeof(Element));
  }
  ALWAYS_INLINE void pack_row(Element* to, const std::byte* from, i64 step, i64 count) {
    for (i64 a = 0; a < count; ++a) std::memcpy(to + a, from + a * step, sizeof(Element));
  }
  ALWAYS_INLINE void pack(Packed& packed, const std::byte* src, const i64* rows, i64 downs, i64 step, i64 count) {
    for (i64 d = 0; d < downs; ++d) {
      Element* const to = packed.elements.data() + d * kTileAcross<Element>;
      // Gate or up out of both in turn: with a step that is known the compiler uses registers.
      if (step == 2 * static_cast<i64>(sizeof(Element)))
        pack_row(to, src + rows[d], 2 * sizeof(Element), count);
      else
        pack_row(to, src + rows[d], step, count);
    }
  }
};

template <typename Element, int kLanes>
ALWAYS_INLINE void transpose_tile(const std::byte* src, const i64* down, i64 downs, std::byte* dst, const i64* across,
                                  i64 acrosses) {
  constexpr i64 kRows = kLaneElements<Element>, kElementBytes = sizeof(Element);
  const i64 whole_downs = downs / (kRows * kLanes) * (kRows * kLanes), whole_acrosses = acrosses / kRows * kRows;
  for (i64 d = 0; d < whole_downs; d += kRows * kLanes)
    for (i64 a = 0; a < whole_acrosses; a += kRows)
      transpose_block<Element, kLanes>(src + a * kElementBytes, down + d, dst + d * kElementBytes, across + a);
  copy_block<Element>(src + whole_acrosses * kElementBytes, down, whole_downs, kElementBytes, dst,
                      across + whole_acrosses, acrosses - whole_acrosses, kElementBytes);
  copy_block<Element>(src, down + whole_downs, downs - whole_downs, kElementBytes, dst + whole_downs * kElementBytes,
                      across, acrosses, kElementBytes);
}

/// Transposes in registers of kLanes lanes, or element by element where kLanes is 0.
template <typename Element, int kLanes>
ALWAYS_INLINE void transpose(const HostTranspose& shape, const std::byte* src, std::byte* dst) {
  const i64 downs = static_cast<i64>(shape.down.size()), acrosses = static_cast<i64>(shape.across.size());
  const bool vectors = kLanes > 0 && shape.dst_step == static_cast<i64>(sizeof(Element));
  Packed<Element> packed;
  for (i64 d0 = 0; d0 < downs; d0 += kTileDown<Element>)
    for (i64 a0 = 0; a0 < acrosses; a0 += kTileAcross<Element>) {
      const i64 d_count = std::min(kTileDown<Element>, downs - d0),
                a_count = std::min(kTileAcross<Element>, acrosses - a0);
      const i64* const down = shape.down.data() + d0;
      const i64* const across = shape.across.data() + a0;
      const std::byte* const from = src + a0 * shape.src_step;
      std::byte* const to = dst + d0 * shape.dst_step;
      if (!vectors) {
        copy_block<Element>(from, down, d_count, shape.src_step, to, across, a_count, shape.dst_step);
      } else if constexpr (kLanes > 0) {
        if (shape.src_step == static_cast<i64>(sizeof(Element))) {
          transpose_tile<Element, kLanes>(from, down, d_count, to, across, a_count);
        } else {
          Packed<Element>::pack(packed, from, down, d_count, shape.src_step, a_count);
          transpose_tile<Element, kLanes>(reinterpret_cast<const std::byte*>(packed.elements.data()),
                                          packed.down.data(), d_count, to, across, a_count);
        }
      }
    }
}

template <int kLanes>
ALWAYS_INLINE void transpose_any(const HostTranspose& shape, const std::byte* src, std::byte* dst) {
  switch (shape.element_bytes) {
    case 1: return transpose<std::uint8_t, kLanes>(shape, src, dst);
    case 2: return transpose<std::uint16_t, kLanes>(shape, src, dst);
    case 4: return transpose<std::uint32_t, kLanes>(shape, src, dst);
    default: return transpose<std::uint64_t, kLanes>(shape, src, dst);
  }
}

GLU_CKPT_AVX512 void transpose_avx512(const HostTranspose& shape, const std::byte* src, std::byte* dst) {
  transpose_any<4>(shape, src, dst);
}
GLU_CKPT_AVX2 void transpose_avx2(const HostTranspose& shape, const std::byte* src, std::byte* dst) {
  transpose_any<2>(shape, src, dst);
}

}  // namespace

void transpose_in_host(const HostTranspose& shape, const std::byte* src, std::byte* dst, SimdLevel level) {
  if (level == SimdLevel::Avx512) return transpose_avx512(shape, src, dst);
  if (level == SimdLevel::Avx2) return transpose_avx2(shape, src, dst);
  transpose_any<0>(shape, src, dst);
}

}  // namespace glu_ckpt
