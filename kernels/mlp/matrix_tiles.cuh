#pragma once
/// What the two matrix kernels share: finding a tile's expert, loading weights, and writing rows out.

#include "kernels/grouped_gemm/hopper.cuh"
#include "kernels/mlp/matrix_mlp.hpp"
#include "kernels/mlp/mlp_math.cuh"

namespace glu_ckpt {

constexpr int kWarpgroup = 128;
constexpr int kTileRowBytes = kTileCols * 2;
constexpr int kHalfBytes = kHalfRows * kTileRowBytes;

/// Which of the stages that loads go through in turn, and the parity of its phase.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Where a tile of the result lies.
struct LayerTile {
  int expert = 0;
  /// Of the left side; rows at `row_end` and behind are not this expert's.
  i64 row = 0;
  i64 row_end = 0;
  /// Number of the tile along the weights' rows.
  int n = 0;
};

/// Walks through tiles of growing number.
class TileWalk {
 public:
  __device__ TileWalk(const MatrixLayer& layer, int tile_rows, int tiles_n)
      : layer_(layer), tile_rows_(tile_rows), tiles_n_(tiles_n) {}

  __device__ i64 count() const { return static_cast<i64>(__ldg(layer_.tiles.first_tile + layer_.experts)) * tiles_n_; }

  /// Tiles of kGroup heights follow one another for each n, so that those which run together share weights and rows in
  /// the cache.
  __device__ LayerTile at(i64 tile) {
    constexpr int kGroup = 4;
    while (tile >= static_cast<i64>(__ldg(layer_.tiles.first_tile + expert_ + 1)) * tiles_n_) ++expert_;
    const int first = __ldg(layer_.tiles.first_tile + expert_);
    const int heights = __ldg(layer_.tiles.first_tile + expert_ + 1) - first;
    const int local = static_cast<int>(tile - static_cast<i64>(first) * tiles_n_);
    const int group = local / (kGroup * tiles_n_);
    const int in_group = local - group * kGroup * tiles_n_;
    const int high = min(kGroup, heights - group * kGroup);
    const int m = group * kGroup + in_group % high;
    return {expert_, __ldg(layer_.tiles.first_row + expert_) + static_cast<i64>(m) * tile_rows_,
            __ldg(layer_.tiles.first_row + expert_ + 1), in_group / high};
  }

 private:
  const MatrixLayer& layer_;
  int tile_rows_;
  int tiles_n_;
  int expert_ = 0;
};

/// Number of the result's columns that a tile has.
__host__ __device__ constexpr int tile_cols(LayerKind kind) {
  return kind == LayerKind::Gated ? kHalfRows : 2 * kHalfRows;
}

/// First weight row of a half.
__device__ inline int half_row(LayerKind kind, int n, int half) {
  return kind == LayerKind::Gated ? n * kHalfRows : (2 * n + half) * kHalfRows;
}

/// Loads one half of a tile's weights.
class HalfLoader {
 public:
  __device__ HalfLoader(const MatrixLayer& layer, const LayerTile& place, int half)
      : map_(&layer.weights[2 * place.expert + half].map),
        row_(half_row(layer.kind, place.n, half)),
        block_rows_(__ldg(&layer.weights[2 * place.expert + half].block_rows)),
        box_rows_(__ldg(&layer.weights[2 * place.expert + half].box_rows)),
        block_(row_ / block_rows_),
        in_block_(row_ - block_ * block_rows_) {
    hopper::tensor_map_acquire(map_);
  }

  /// Of columns `col` on; to both blocks of a cluster if kMulticast.
  template <bool kMulticast>
  __device__ void load(std::byte* to, uint64_t* barrier, int col, uint64_t policy) const {
    int block = block_;
    int in_block = in_block_;
    for (int r = 0; r < kHalfRows; r += box_rows_) {
      std::byte* const place = to + r * kTileRowBytes;
      if constexpr (kMulticast)
        hopper::load_tile_3d_multicast(place, map_, barrier, col, in_block, block, 3, policy);
      else
        hopper::load_tile_3d(place, map_, barrier, col, in_block, block, policy);
      in_block += box_rows_;
      if (in_block >= block_rows_) {
        in_block = 0;
        ++block;
      }
    }
  }

  /// The first box, as far as the second cache: most halves have no other one.
  __device__ void prefetch(int col) const { hopper::prefetch_tile_3d(map_, col, in_block_, block_); }

 private:
  const CUtensorMap* map_;
  int row_;
  int block_rows_;
  int box_rows_;
  int block_;
  int in_block_;
};

/// 16 bytes of a row of the result, columns `col` to `col` + 8. Rows that begin at multiples of 16 bytes are written in
/// one piece.
template <typename Element>
__device__ inline void store_piece(const MatrixLayer& layer, i64 row, int col, uint4 piece) {
  Element* const to = static_cast<Element*>(layer.out) + row * layer.out_pitch + col;
  if (layer.wide_stores && col + 8 <= layer.cols) {
    *reinterpret_cast<uint4*>(to) = piece;
    return;
  }
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (col + i < layer.cols) {
      const auto bits = static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16));
      *reinterpret_cast<unsigned short*>(to + i) = bits;
    }
}

template <typename Element>
__device__ inline uint32_t pack(float first, float second) {
  const Element low = narrow<Element>(first);
  const Element high = narrow<Element>(second);
  return static_cast<uint32_t>(*reinterpret_cast<const unsigned short*>(&low)) |
         static_cast<uint32_t>(*reinterpret_cast<const unsigned short*>(&high)) << 16;
}

}  // namespace glu_ckpt
