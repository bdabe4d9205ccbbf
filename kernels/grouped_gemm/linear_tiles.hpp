#pragma once
/// The places in a tile of a grouped linear layer: which tile a block takes, where a piece of an operand lies in shared
/// memory, and which elements a lane of a warp holds. They are pure functions of the kernels' indices, so that tests
/// without a GPU can walk them.

#include "kernels/grouped_gemm/expert_tiles.hpp"

namespace glu_ckpt {

/// A block's tile of C, in tiles.
struct TilePlace {
  /// -1 where no tile is left.
  i32 expert = -1;
  i32 m = 0;
  i32 n = 0;

  bool operator==(const TilePlace&) const = default;
};

/// Rows of tiles that are taken together, column by column: blocks that run at the same time then share both operands
/// in L2.
inline constexpr i32 kGroupedTileRows = 8;

/// Returns the place of number `index` of `m_tiles` * `n_tiles` tiles.
constexpr TilePlace place_in_expert(i32 expert, i32 index, i32 m_tiles, i32 n_tiles) {
  const i32 first_m = index / (kGroupedTileRows * n_tiles) * kGroupedTileRows;
  const i32 height = m_tiles - first_m < kGroupedTileRows ? m_tiles - first_m : kGroupedTileRows;
  const i32 within = index % (kGroupedTileRows * n_tiles);
  return {expert, first_m + within % height, within / height};
}

/// Returns the place of a block's tile where C has an expert's rows as its rows.
constexpr TilePlace place_by_rows(const i32* first_tile, i32 num_experts, i32 n_tiles, i32 block) {
  const i32 tile_row = block / n_tiles;
  if (tile_row >= first_tile[num_experts]) return {};
  const i32 expert = expert_of_tile(first_tile, num_experts, tile_row);
  const i32 first = first_tile[expert];
  return place_in_expert(expert, block - first * n_tiles, first_tile[expert + 1] - first, n_tiles);
}

/// Returns the place of a block's tile where C has one size for all experts.
constexpr TilePlace place_by_experts(i32 m_tiles, i32 n_tiles, i32 block) {
  const i32 tiles = m_tiles * n_tiles;
  return place_in_expert(block / tiles, block % tiles, m_tiles, n_tiles);
}

/// 16-bit elements move and are multiplied in pieces of 8, 16 bytes.
inline constexpr i32 kPiece = 8;

/// An operand's tile in shared memory: `rows` rows of `pieces` pieces, 8 or a multiple of it. Pieces of a row are
/// permuted by the row's number, so that one column of 8 consecutive rows, which is what ldmatrix reads at a time,
/// falls into different banks. Returns the piece's number.
constexpr i32 piece_place(i32 row, i32 piece, i32 pieces) { return row * pieces + (piece ^ (row & 7)); }

/// Index along the operand's own axis of C (m of A, n of B) and along k.
struct MatrixPoint {
  i32 mn = 0;
  i32 k = 0;

  bool operator==(const MatrixPoint&) const = default;
};

/// The axis of an operand along which its elements follow one another, in device memory and in shared memory.
enum class Along { K, Mn };

/// The first element of the 8 in one row that a lane names to ldmatrix.x4, which fills the four registers of
/// mma.m16n8k16's A from 16 m by 16 k. Along Mn with .trans.
constexpr MatrixPoint a_fragment_row(Along along, i32 lane) {
  if (along == Along::K) return {lane % 16, lane / 16 * 8};
  return {lane / 8 % 2 * 8, lane % 8 + lane / 16 * 8};
}

/// The first element that a lane names for B of 16 n by 16 k: registers 0 and 1 are the operand for the first 8 n, 2
/// and 3 for the others.
constexpr MatrixPoint b_fragment_row(Along along, i32 lane) {
  if (along == Along::K) return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8};
  return {lane / 16 * 8, lane % 16};
}

/// Row and first column, of 16 by 8, of the two sums in a lane's accumulators 2 * half and 2 * half + 1.
struct SumPlace {
  i32 row = 0;
  i32 col = 0;
};
constexpr SumPlace sum_place(i32 lane, i32 half) { return {lane / 4 + half * 8, lane % 4 * 2}; }

inline constexpr i32 kMmaCols = 128;
inline constexpr i32 kMmaDepth = 64;

/// The tile of C that one block makes by mma: kMmaCols columns wide, kMmaDepth products deep a step. It is a type
/// because nvcc's stubs cannot spell values of classes as arguments of templates.
template <i32 kTileRows, i32 kTileWarpsM, i32 kTileWarpsN, i32 kTileStages>
struct MmaTile {
  static constexpr i32 kRows = kTileRows;
  /// Warps along m and along n.
  static constexpr i32 kWarpsM = kTileWarpsM;
  static constexpr i32 kWarpsN = kTileWarpsN;
  static constexpr i32 kStages = kTileStages;
  static constexpr i32 kThreads = kWarpsM * kWarpsN * 32;
  static constexpr i32 kABytes = kRows * kMmaDepth * 2;
  static constexpr i32 kStageBytes = kABytes + kMmaCols * kMmaDepth * 2;
  static constexpr i32 kSharedBytes = kStages * kStageBytes;
};

using LargeMmaTile = MmaTile<128, 2, 2, 3>;
/// This tile is for few rows an expert: then C is bound by reading W, and a large tile's rows would mostly be padding.
using SmallMmaTile = MmaTile<32, 1, 4, 4>;

/// Says which of the two tiles a product by rows takes. The bits do not depend on it.
constexpr bool takes_small_tile(i64 rows, i64 num_experts) { return rows <= SmallMmaTile::kRows * num_experts; }

/// fp32: a block of 256 threads makes 64 by 64, each thread 4 by 4, 16 products deep a step.
inline constexpr i32 kSimtTile = 64;
inline constexpr i32 kSimtDepth = 16;
inline constexpr i32 kSimtThreads = 256;

}  // namespace glu_ckpt
