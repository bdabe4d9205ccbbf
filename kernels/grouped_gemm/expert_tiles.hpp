#pragma once
/// The schedule that grouped kernels read before they take a tile: where each expert's rows and tiles begin, computed
/// from splits that are on the device. Every run makes it anew, so a captured graph replays with new splits.

#include <cstddef>
#include <cstdint>
#include <span>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

using i32 = std::int32_t;

enum class SplitFault : i32 {
  None = 0,
  Negative = 1,
  /// The split and those before it take more rows than there are.
  TooMany = 2,
};

/// The first wrong split, in memory of the device or the host. All zeros mean that none is wrong.
struct SplitStatus {
  SplitFault fault = SplitFault::None;
  i32 expert = 0;
  /// The value of that split.
  i64 value = 0;
  /// Rows of the experts before it, and all rows.
  i64 before = 0;
  i64 rows = 0;

  bool operator==(const SplitStatus&) const = default;
};

/// Device memory, in one allocation. Expert e has rows [first_row[e], first_row[e + 1]), and tiles [first_tile[e],
/// first_tile[e + 1]) of `tile_rows` rows each, the last of which may be shorter. Both arrays have E + 1 elements;
/// where a split is wrong they are all zeros, so that no tile is there to be computed. `written` has E elements, by
/// which a kernel can tell the next one how much of each expert it has written, and `taken` has kTakers, by which the
/// blocks of as many kernels share their tiles out; they begin as zeros.
struct ExpertTiles {
  static constexpr i64 kTakers = 2;
  SplitStatus* status = nullptr;
  i64* first_row = nullptr;
  u64* written = nullptr;
  i32* first_tile = nullptr;
  i32* taken = nullptr;
};

constexpr i64 expert_tiles_bytes(i64 num_experts) {
  return static_cast<i64>(sizeof(SplitStatus)) + (num_experts + 1) * static_cast<i64>(sizeof(i64) + sizeof(i32)) +
         num_experts * static_cast<i64>(sizeof(u64)) + ExpertTiles::kTakers * static_cast<i64>(sizeof(i32));
}

/// Places the arrays in expert_tiles_bytes(num_experts) bytes at a multiple of 8.
inline ExpertTiles expert_tiles_at(std::byte* memory, i64 num_experts) {
  std::byte* const rows = memory + sizeof(SplitStatus);
  std::byte* const written = rows + (num_experts + 1) * static_cast<i64>(sizeof(i64));
  std::byte* const tiles = written + num_experts * static_cast<i64>(sizeof(u64));
  std::byte* const taken = tiles + (num_experts + 1) * static_cast<i64>(sizeof(i32));
  return {reinterpret_cast<SplitStatus*>(memory), reinterpret_cast<i64*>(rows), reinterpret_cast<u64*>(written),
          reinterpret_cast<i32*>(tiles), reinterpret_cast<i32*>(taken)};
}

/// No splits of `rows` rows have more tiles: a grid of so many blocks is enough for all of them.
constexpr i64 max_expert_tiles(i64 rows, i64 num_experts, i64 tile_rows) {
  const i64 tiles = rows / tile_rows + num_experts;
  return tiles < rows ? tiles : rows;
}

/// The expert of a tile < first_tile[num_experts]; experts without rows have none.
constexpr i32 expert_of_tile(const i32* first_tile, i32 num_experts, i32 tile) {
  i32 low = 0;
  i32 high = num_experts;
  while (high - low > 1) {
    const i32 middle = low + (high - low) / 2;
    if (first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// One launch of one block. `splits` [num_experts] is device memory. Needs num_experts >= 1, and
/// max_expert_tiles() <= 2^31 - 1.
void make_expert_tiles(const i64* splits, i64 num_experts, i64 rows, i32 tile_rows, const ExpertTiles& tiles,
                       GpuStream stream);
/// Loads the kernel on the current device, so that a launch can be captured.
void prepare_expert_tiles();

/// Stores splits from the host in device memory, as kernel arguments of one launch for every 256 splits: unlike a copy
/// it needs neither page-locked memory nor that the host's stay until it is done, in a captured graph as well.
void store_splits(std::span<const i64> splits, i64* on_device, GpuStream stream);

/// The oracle, all in host memory.
void make_expert_tiles_ref(std::span<const i64> splits, i64 rows, i32 tile_rows, const ExpertTiles& tiles);

/// Throws Usage with the numbers if a split is wrong.
void check_split_status(const SplitStatus& status);
/// Synchronizes `stream`, and checks a status in device memory.
void check_split_status(const SplitStatus* device_status, GpuStream stream);

/// The status of splits in host memory.
SplitStatus split_status(std::span<const i64> splits, i64 rows);

}  // namespace glu_ckpt
