#pragma once
/// The forward and the backward of the grouped MLP on a GPU share these functions of the host.

#include <array>
#include <string_view>
#include <vector>

#include "core/checked_math.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "kernels/mlp/sm90_grouped_gemm.hpp"

namespace glu_ckpt {

/// Elements of 16 bits in 16 bytes: rows that TMA reads begin at multiples of that.
inline constexpr i64 kRowMultiple = 8;

/// The bytes of `count` matrices [rows, cols]. Throws ShapeOverflow.
i64 buffer_bytes(i64 count, i64 rows, i64 cols, i64 element_bytes);

/// Copies bytes to device memory of their own; waits for `stream`, as they may be pageable.
DeviceBuffer upload_bytes(const void* data, i64 bytes, GpuStream stream);
template <typename T>
DeviceBuffer upload(const std::vector<T>& values, GpuStream stream) {
  return upload_bytes(values.data(), static_cast<i64>(values.size() * sizeof(T)), stream);
}

/// One matrix of each expert.
std::vector<StoredMatrix> members(std::span<const ExpertWeights> experts, MlpMember member);

/// Maps of all matrices that are there, in boxes of `rows` rows, in device memory. TMA has to be able to read them so.
DeviceBuffer upload_maps(const std::vector<StoredMatrix>& matrices, int rows, GpuStream stream);

/// The maps of Sm90Layer::weights, in boxes of each of kHalfLengths.
class HalfMaps {
 public:
  HalfMaps() = default;
  /// `pairs` are the matrices of both halves of one expert after the other.
  HalfMaps(const std::vector<StoredMatrix>& pairs, GpuStream stream);

  /// Returns those whose boxes bring so many rows, one of kHalfLengths.
  const TmaWeight* of(int half_rows) const;

 private:
  std::array<DeviceBuffer, std::size(kHalfLengths)> maps_;
};

int current_multiprocessors();
/// Says whether the current device and the dtype take the kernels for sm_90a.
bool takes_sm90(Dtype compute);

/// The tile height for about so many rows an expert. It depends on nothing else, so that equal sizes make sums in equal
/// order.
TileHeight choose_tile_height(i64 rows, i64 experts);

/// The weight rows that the boxes of Sm90Layer::weights bring to the kernel for tiles of this height.
int half_rows(const TileHeight& height);

/// Makes FC1 save its rounded sums to `z` [rows, 2F], or [rows, F] without a gate.
void set_z(MlpLayer& layer, void* z);

/// Makes the maps of what the layer writes, and launches it for tiles of this height.
void launch_sm90(Sm90Layer& layer, i64 rows, const TileHeight& height, int multiprocessors, GpuStream stream);

/// Throws Usage for null and for other addresses than multiples of `bytes`.
void require_aligned(const void* data, i64 bytes, std::string_view name);

}  // namespace glu_ckpt
