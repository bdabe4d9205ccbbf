#pragma once
/// WGMMA's sums go to device memory in squares of 16 rows by 64 columns, a warp's, which pass through shared memory, so
/// that a row leaves in one piece. Piece c of row r lies at c ^ r % 8, as TMA reads and writes it; without that all
/// rows' pieces would share their banks.

#include "kernels/grouped_gemm/sm90_ptx.cuh"
#include "kernels/mlp/epilogue.cuh"
#include "kernels/mlp/sm90_grouped_gemm.hpp"

namespace glu_ckpt {

inline constexpr int kSquareRowBytes = kTileCols * 2;
inline constexpr int kSquareBytes = kStoreRows * kSquareRowBytes;

/// The matrix that squares are written to.
struct SquareOut {
  const RowsOut& out;
  /// The map of `out`, in boxes of a square; only where `out` is wide.
  const CUtensorMap* map;
  /// The columns of `out`.
  int cols;
};

/// The address by which this lane stores its part of columns 8 chunk to 8 chunk + 16 of a square with
/// sm90::store_matrices(), or loads it with sm90::load_matrices(): values 4 chunk to 4 chunk + 8 of the square's sums.
__device__ inline uint32_t square_address(uint32_t square, int chunk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Piece chunk + lane / 16 of row lane % 16; chunk is even, so that its bits are changed apart from the lane's.
  const int in_square = lane % 16 * kSquareRowBytes + ((lane / 16) ^ (lane % 8)) * 16;
  return (square + static_cast<uint32_t>(in_square)) ^ static_cast<uint32_t>(chunk * 16);
}

/// Stores the first kCols columns of a square that the warp has published in shared memory, in its elected lane's
/// current group. TMA stores a whole one where all its rows are the expert's; otherwise rows are stored one by one.
template <typename Element, int kCols = kTileCols>
__device__ inline void store_square(const SquareOut& to, const std::byte* buffer, i64 row, i64 row_end, int col) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (kCols == kTileCols && to.out.wide && row + kStoreRows <= row_end) {
    if (sm90::is_elected()) sm90::store_tile_2d(to.map, buffer, col, static_cast<int>(row));
    return;
  }
  constexpr int kPieces = kCols / 8;
  // Few rows come here; unrolled, their code would cost those that do not.
#pragma unroll 1
  for (int i = 0; i < kStoreRows * kPieces / 32; ++i) {
    const int r = i * (32 / kPieces) + lane / kPieces;
    const int piece = lane % kPieces;
    const uint4 words = *reinterpret_cast<const uint4*>(buffer + r * kSquareRowBytes + (piece ^ (r % 8)) * 16);
    if (row + r < row_end && col + piece * 8 < to.cols)
      store_piece<Element>(to.out, to.cols, row + r, col + piece * 8, words);
  }
}

/// Writes a square of word(0) to word(kCols / 4 - 1), each two elements of which the sums are neighbours. `buffer` is
/// one of kBuffers that take turns.
template <typename Element, int kCols = kTileCols, int kBuffers = 2, typename Word>
__device__ inline void write_square(const SquareOut& to, std::byte* buffer, i64 row, i64 row_end, int col,
                                    const Word& word) {
  const uint32_t base = sm90::shared_address(buffer);
  // The other buffers' stores may still be under way, this one's is not.
  if (sm90::is_elected()) sm90::store_wait_read<kBuffers - 1>();
  __syncwarp();
#pragma unroll
  for (int chunk = 0; chunk < kCols / 8; chunk += 2)
    sm90::store_matrices(square_address(base, chunk), word(chunk * 2), word(chunk * 2 + 1), word(chunk * 2 + 2),
                         word(chunk * 2 + 3));
  sm90::publish_shared();
  __syncwarp();
  store_square<Element, kCols>(to, buffer, row, row_end, col);
  // A group is committed without a store, too: the wait above counts groups to know whose buffer is free.
  if (sm90::is_elected()) sm90::store_commit();
  __syncwarp();
}

}  // namespace glu_ckpt
