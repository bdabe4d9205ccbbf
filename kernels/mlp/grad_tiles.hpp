#pragma once
/// The order in which the sm_90a kernel makes the tiles of weight gradients.

#include "kernels/common/fast_division.hpp"
#include "kernels/grouped_gemm/linear_tiles.hpp"

namespace glu_ckpt {

/// The place of a tile: the number of its matrix among those of an expert, and its numbers along that one's rows and
/// columns.
struct GradPlace {
  u32 expert = 0;
  u32 matrix = 0;
  u32 m = 0;
  u32 n = 0;

  bool operator==(const GradPlace&) const = default;
};

/// The tiles of all experts' gradients, one expert after the other. Within an expert they lie as those of one matrix
/// that has the rows of all, in the order of place_in_expert(). Nothing is divided on the device: a warpgroup looks a
/// tile up for each that it makes, and with divisions those of few rows took 5 % longer.
class GradTiles {
 public:
  GradTiles() = default;
  /// Each expert has `matrices` matrices, one or two, of tiles_m by tiles_n tiles.
  GradTiles(i32 experts, i32 matrices, i32 tiles_m, i32 tiles_n)
      : tiles_m_(static_cast<u32>(tiles_m)),
        per_expert_(static_cast<u32>(matrices * tiles_m * tiles_n)),
        per_group_(static_cast<u32>(kGroupedTileRows * tiles_n)),
        count_(static_cast<u32>(experts) * per_expert_.divisor) {
    const i32 rows = matrices * tiles_m;
    const i32 before_last = (rows - 1) / kGroupedTileRows * kGroupedTileRows;
    last_group_ = static_cast<u32>(before_last * tiles_n);
    last_rows_ = FastDivision(static_cast<u32>(rows - before_last));
  }

  GLU_CKPT_DEVICE u32 count() const { return count_; }
  GLU_CKPT_DEVICE u32 expert(u32 tile) const { return per_expert_.quotient(tile); }

  /// `tile` is below count().
  GLU_CKPT_DEVICE GradPlace at(u32 tile) const {
    GradPlace place;
    place.expert = expert(tile);
    const u32 in_expert = tile - place.expert * per_expert_.divisor;
    const u32 group = per_group_.quotient(in_expert);
    const u32 in_group = in_expert - group * per_group_.divisor;
    // Groups have kGroupedTileRows rows of tiles, but for the last.
    const bool is_last = in_expert >= last_group_;
    place.n = is_last ? last_rows_.quotient(in_group) : in_group / kGroupedTileRows;
    place.m = group * kGroupedTileRows + in_group - place.n * (is_last ? last_rows_.divisor : kGroupedTileRows);
    if (place.m >= tiles_m_) {
      place.matrix = 1;
      place.m -= tiles_m_;
    }
    return place;
  }

 private:
  /// The rows of tiles of a matrix.
  u32 tiles_m_ = 1;
  FastDivision per_expert_, per_group_;
  u32 count_ = 0;
  /// The first tile of an expert's last group, and the rows of tiles in that.
  u32 last_group_ = 0;
  FastDivision last_rows_;
};

}  // namespace glu_ckpt
