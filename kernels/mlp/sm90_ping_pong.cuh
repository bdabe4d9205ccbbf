#pragma once
/// sm90_grouped_gemm.cu, the derivative and the gradients of weights share this schedule, in which the two warpgroups
/// of a block take turns with the tensor cores ("ping-pong"). Each makes tiles of 128 x 192 of its own; while
/// one multiplies, the other stores its results. The two blocks of a cluster work on neighbouring rows and share
/// the columns, of which each loads half for both.

#include "kernels/mlp/sm90_block.cuh"

namespace glu_ckpt::sm90 {

inline constexpr int kPingPongCols = 192;
inline constexpr int kPingPongChunks = kPingPongCols / kTileCols;
/// The parts of a tile, 64 rows each, which is what one WGMMA multiplies.
inline constexpr int kParts = kBlockRows / 64;
inline constexpr int kPartSums = kPingPongCols / 2;
using PingPongSums = float[kParts][kPartSums];
/// The bytes of a square of B that each block of a cluster loads for both.
inline constexpr int kHalfChunkBytes = kHalfDepthRows * kTileRowBytes;
static_assert(kHalfDepthRows * kCluster == kDepthRows);

/// One warpgroup of each block gives a stage back.
template <int kNumStages, int kNumSquares>
struct PingPongStages : BlockStages<kNumStages, kABytes + kPingPongCols * kTileRowBytes, kNumSquares, kCluster> {
  Turns turns;

  __device__ void init() {
    BlockStages<kNumStages, kABytes + kPingPongCols * kTileRowBytes, kNumSquares, kCluster>::init();
    turns.init();
  }
};

/// Adds the products of a stage to the sums of the first kCols columns: of A's rows by depth and B's rows by depth, or,
/// where kTurnsA or kTurnsB is 1, of depth by columns.
template <typename Element, int kTurnsA, int kTurnsB, int kCols>
__device__ inline void multiply_stage(PingPongSums& sums, const std::byte* stage, bool keep) {
  const uint64_t a = kTurnsA == 1 ? transposed_descriptor(stage, kChunkBytes) : tile_descriptor(stage);
  const std::byte* const second = stage + kABytes;
  const uint64_t b = kTurnsB == 1 ? transposed_descriptor(second, kChunkBytes) : tile_descriptor(second);
  constexpr uint64_t kAStep = kTurnsA == 1 ? kTransposedStep : 2;
  constexpr uint64_t kBStep = kTurnsB == 1 ? kTransposedStep : 2;
  mma_fence();
#pragma unroll
  for (int k = 0; k < kDepthRows / 16; ++k)
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      multiply_add<Element, kCols, kTurnsA, kTurnsB>(
          sums[part], a + static_cast<uint64_t>(k) * kAStep + static_cast<uint64_t>(part * kChunkBytes >> 4),
          b + static_cast<uint64_t>(k) * kBStep, keep || k > 0 ? 1 : 0);
}

/// Calls `use` with the columns of a tile to multiply, as a constant: all kMost, or as few as hold the `cols` that the
/// last tile of a row has, in steps of 64. `cols` are more than kFewer. The sums of other columns stay undefined.
/// Without this the tensor cores would multiply zeros: for H = 2048 eleven tiles of 192 have 2112 columns, 64 of them
/// empty.
template <int kFewer = 0, int kMost = kPingPongCols, typename Use>
__device__ inline void with_cols(int cols, const Use& use) {
  constexpr int kLess = kMost - kTileCols;
  if constexpr (kLess > kFewer)
    if (cols <= kLess) return with_cols<kFewer, kLess>(cols, use);
  use(std::integral_constant<int, kMost>{});
}

/// Sets the sums behind the first kCols columns to 0. Undefined, they would keep their registers from tile to tile,
/// which matters where a tile's results need as many. Gradients of weights take 2 % longer with it.
template <int kCols>
__device__ inline void clear_behind(PingPongSums& sums) {
#pragma unroll
  for (int part = 0; part < kParts; ++part)
#pragma unroll
    for (int i = kCols / 2; i < kPartSums; ++i) sums[part][i] = 0;
}

}  // namespace glu_ckpt::sm90
