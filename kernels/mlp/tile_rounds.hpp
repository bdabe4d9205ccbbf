#pragma once
/// The order in which the clusters make the tiles of weight gradients. These are not given out one by one, as others
/// are: tiles of few rows, which a cluster makes in 3 us, took as long or up to 5 % longer then.

#include "kernels/common/fast_division.hpp"
#include "kernels/grouped_gemm/expert_tiles.hpp"

namespace glu_ckpt {

/// The tiles of a cluster: of the tiles 0, 1, 2 and so on, `clusters` make one each in every round. From round to round
/// a cluster goes on to another place. The last tile of a row of tiles has fewer columns, and where the tiles of some
/// experts fill some rounds, a cluster that stayed in its place would make only such tiles, or none of them: it would
/// end sooner than others, or later, and read what these have in L2 no longer, or not yet.
/// 32 bits hold the numbers of tiles, and those of two rounds more.
class TileRounds {
 public:
  GLU_CKPT_DEVICE TileRounds(u32 cluster, u32 clusters) : clusters_(clusters), step_(step(clusters)), place_(cluster) {}

  /// The number of this round's tile. Where it is not below the number of tiles, no later round has one.
  GLU_CKPT_DEVICE u32 tile() const { return first_ + place_; }

  GLU_CKPT_DEVICE void next() {
    first_ += clusters_;
    place_ += step_;
    if (place_ >= clusters_) place_ -= clusters_;
  }

 private:
  /// The places to go on by: nearly half of them, which shares the narrow tiles well among the 66 clusters of 132
  /// multiprocessors, and among 57 and 39. The sum of both is a multiple of four: tiles that follow one another read
  /// the same columns, and so the same clusters make four of them again in the next round, but where places begin anew.
  GLU_CKPT_DEVICE static u32 step(u32 clusters) {
    return ((clusters + clusters * 6 / 13 + 3) / 4 * 4 - clusters) % clusters;
  }

  u32 clusters_;
  u32 step_;
  u32 place_;
  u32 first_ = 0;
};

}  // namespace glu_ckpt
