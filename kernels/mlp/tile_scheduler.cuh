#pragma once
/// The tile scheduler of the sm_90a kernels, the loads of weights by TMA, and how FC2 begins before FC1 has ended.

#include "kernels/common/launch_overlapping.cuh"
#include "kernels/grouped_gemm/sm90_ptx.cuh"
#include "kernels/mlp/sm90_grouped_gemm.hpp"
#include "kernels/mlp/stage_turns.cuh"

namespace glu_ckpt {

constexpr int kTileRowBytes = kTileCols * 2;
/// 64 rows of kTileCols columns.
constexpr int kChunkBytes = 64 * kTileRowBytes;

/// The place of a tile of C.
struct LayerTile {
  int expert = 0;
  /// Rows of A; those at `row_end` and behind are not this expert's.
  i64 row = 0;
  i64 row_end = 0;
  /// The number of the tile along N.
  int n = 0;

  /// A tile that is there has rows.
  __device__ bool is_there() const { return row_end > row; }
};

/// A place that all lanes of a warp looked up, for TMA to take its operands from.
__device__ inline LayerTile uniform(const LayerTile& tile) {
  return {sm90::uniform(tile.expert), sm90::uniform(tile.row), sm90::uniform(tile.row_end), sm90::uniform(tile.n)};
}

/// Finds the places of tiles, which have to be asked for in growing order.
class TileScheduler {
 public:
  __device__ TileScheduler(const ExpertTiles& tiles, int experts, int tile_rows, int tiles_n)
      : tiles_(tiles), experts_(experts), tile_rows_(tile_rows), tiles_n_(tiles_n) {}

  __device__ i64 count() const { return static_cast<i64>(tiles_.first_tile[experts_]) * tiles_n_; }

  /// Tiles of kGroup heights follow one another for each n, so that those which run together share A and B in L2.
  __device__ LayerTile at(i64 tile) {
    constexpr int kGroup = 8;
    while (tile >= static_cast<i64>(tiles_.first_tile[expert_ + 1]) * tiles_n_) ++expert_;
    const int first = tiles_.first_tile[expert_];
    const int heights = tiles_.first_tile[expert_ + 1] - first;
    const int local = static_cast<int>(tile - static_cast<i64>(first) * tiles_n_);
    const int group = local / (kGroup * tiles_n_);
    const int in_group = local - group * kGroup * tiles_n_;
    const int high = min(kGroup, heights - group * kGroup);
    const int m = group * kGroup + in_group % high;
    return {expert_, tiles_.first_row[expert_] + static_cast<i64>(m) * tile_rows_, tiles_.first_row[expert_ + 1],
            in_group / high};
  }

 private:
  const ExpertTiles& tiles_;
  int experts_;
  int tile_rows_;
  int tiles_n_;
  int expert_ = 0;
};

/// Loads rows of a stored matrix by TMA. What it needs to know of the matrix is read once, and may still be under way
/// when the constructor returns.
class StoredRowsLoader {
 public:
  /// The GLU block of a row, and its number in that block.
  struct Place {
    int block = 0, in_block = 0;
  };

  /// Places as far from one another as `step` is from row 0. at() for each would divide while a stage waits for its
  /// loads.
  struct Walk {
    Place place, step;
    int block_rows = 1;

    __device__ void next() {
      place.block += step.block;
      place.in_block += step.in_block;
      if (place.in_block >= block_rows) {
        place.in_block -= block_rows;
        ++place.block;
      }
    }
  };

  StoredRowsLoader() = default;
  __device__ explicit StoredRowsLoader(const TmaWeight* weight)
      : map_(&weight->map), block_rows_(__ldg(&weight->block_rows)), box_rows_(__ldg(&weight->box_rows)) {
    sm90::tensor_map_to_l2(map_);
  }

  /// Comes before the first load.
  __device__ void open() const { sm90::tensor_map_acquire(map_); }

  __device__ Place at(int row) const {
    const int block = row / block_rows_;
    return {block, row - block * block_rows_};
  }

  /// Returns a place, and those kRows behind one another from there on.
  template <int kRows>
  __device__ Walk walk(int row) const {
    return {at(row), at(kRows), block_rows_};
  }

  /// Loads kRows rows from `place` on, kChunks times kTileCols columns from `col` on, each at kChunkBytes behind the
  /// one before; to both blocks of a cluster if kMulticast. kRows are those that the map's boxes were made for.
  template <int kRows, int kChunks, bool kMulticast>
  __device__ void load(std::byte* to, uint64_t* barrier, int col, Place place, uint64_t policy) const {
    for (int r = 0; r < kRows; r += box_rows_) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        std::byte* const box = to + chunk * kChunkBytes + r * kTileRowBytes;
        const int box_col = col + chunk * kTileCols;
        if constexpr (kMulticast)
          sm90::load_tile_3d_multicast(box, map_, barrier, box_col, place.in_block, place.block, 3, policy);
        else
          sm90::load_tile_3d(box, map_, barrier, box_col, place.in_block, place.block, policy);
      }
      place.in_block += box_rows_;
      if (place.in_block >= block_rows_) {
        place.in_block = 0;
        ++place.block;
      }
    }
  }

 private:
  const CUtensorMap* map_ = nullptr;
  int block_rows_ = 1;
  int box_rows_ = 1;
};

/// Loads one half of a tile's weights, of kRows rows.
template <int kRows>
class TmaWeightLoader {
 public:
  __device__ TmaWeightLoader(const Sm90Layer& layer, const LayerTile& tile, int half)
      : rows_(&layer.weights[2 * tile.expert + half]), row_(half_row(layer.kind, kRows, tile.n, half)) {}

  /// Comes before the first load.
  __device__ void open() {
    rows_.open();
    place_ = rows_.at(row_);
  }

  /// Loads kTileCols columns from `col` on; to both blocks of a cluster if kMulticast.
  template <bool kMulticast>
  __device__ void load(std::byte* to, uint64_t* barrier, int col, uint64_t policy) const {
    rows_.load<kRows, 1, kMulticast>(to, barrier, col, place_, policy);
  }

 private:
  StoredRowsLoader rows_;
  int row_;
  StoredRowsLoader::Place place_;
};

/// How FC2 begins before FC1 has ended: FC1 counts, in ExpertTiles::written, the columns that it has written of each 16
/// rows of a tile, and FC2 waits for those of its tile's expert. It waits for running blocks alone, since a launch
/// begins only once all blocks of the one before it run or have ended.
///
/// A warp counts `cols` columns of each of `squares` times kStoreRows rows. Its stores have to end first, so this is
/// called when they have had the time.
__device__ inline void count_written(const Sm90Layer& layer, int expert, int squares, int cols) {
  __syncwarp();
  if (!sm90::is_elected()) return;
  sm90::store_wait_all();
  sm90::fence_tma();
  sm90::add_released(&layer.tiles.written[expert], static_cast<u64>(squares * cols));
}

/// FC2's side: waits for all rows of an expert, whose tiles are `tile_rows` high.
__device__ inline void wait_until_written(const Sm90Layer& layer, int expert, int tile_rows) {
  const int tiles = layer.tiles.first_tile[expert + 1] - layer.tiles.first_tile[expert];
  const u64 all = all_written(tiles, tile_rows, layer.k);
  while (sm90::load_acquired(&layer.tiles.written[expert]) < all) __nanosleep(50);
  sm90::fence_tma();
}

}  // namespace glu_ckpt
