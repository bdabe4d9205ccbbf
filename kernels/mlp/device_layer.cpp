#include "kernels/mlp/device_layer.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/mlp/layer_tiles.hpp"

namespace glu_ckpt {

i64 buffer_bytes(i64 count, i64 rows, i64 cols, i64 element_bytes) {
  const i64 extents[] = {count, rows, cols, element_bytes};
  const auto bytes = checked_product(extents);
  if (!bytes) fail(ErrorCode::ShapeOverflow, {}, "{} matrices of {} x {}: too many bytes", count, rows, cols);
  return *bytes;
}

DeviceBuffer upload_bytes(const void* data, i64 bytes, GpuStream stream) {
  DeviceBuffer buffer(bytes);
  if (bytes > 0)
    CUDA_CHECK(cudaMemcpyAsync(buffer.data(), data, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return buffer;
}

std::vector<StoredMatrix> members(std::span<const ExpertWeights> experts, MlpMember member) {
  std::vector<StoredMatrix> matrices;
  for (const ExpertWeights& expert : experts) matrices.push_back(expert.*member);
  return matrices;
}

DeviceBuffer upload_maps(const std::vector<StoredMatrix>& matrices, int rows, GpuStream stream) {
  std::vector<TmaWeight> maps;
  for (const StoredMatrix& m : matrices)
    maps.push_back(m.is_there() ? make_tma_weight(m, tma_boxes(m, rows).value()) : TmaWeight{});
  return upload(maps, stream);
}

HalfMaps::HalfMaps(const std::vector<StoredMatrix>& pairs, GpuStream stream) {
  for (std::size_t i = 0; i < maps_.size(); ++i) maps_[i] = upload_maps(pairs, kHalfLengths[i], stream);
}

const TmaWeight* HalfMaps::of(int half_rows) const {
  const auto i = static_cast<std::size_t>(std::ranges::find(kHalfLengths, half_rows) - std::begin(kHalfLengths));
  return reinterpret_cast<const TmaWeight*>(maps_[i].data());
}

int current_multiprocessors() {
  int device = 0;
  int count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

bool takes_sm90(Dtype compute) {
  constexpr int kHopper = 9;
  int device = 0;
  int major = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return GLU_CKPT_HOPPER_KERNELS && major == kHopper && compute != Dtype::F32;
}

TileHeight choose_tile_height(i64 rows, i64 experts) {
  const i64 each = (rows + experts - 1) / experts;
  TileHeight height = sm90_grouped_gemm_height();
  if (each <= 128) height.box_rows = height.tile_rows = each > 64 ? 128 : each > 24 ? 64 : each > 8 ? 32 : 16;
  return height;
}

namespace {

bool is_high(const TileHeight& height) { return height.tile_rows == sm90_grouped_gemm_height().tile_rows; }

}  // namespace

int half_rows(const TileHeight& height) { return is_high(height) ? kTurnHalfRows : kHalfRows; }

void set_z(MlpLayer& layer, void* z) {
  const i64 halves = layer.kind == LayerKind::Gated ? 2 : 1;
  const i64 half_bytes = layer.n * (dtype_bits(layer.dtype) / 8);
  const bool wide = half_bytes % 16 == 0 && is_aligned(z, 16);
  layer.z[0] = {z, halves * layer.n, wide};
  layer.z[1] = {static_cast<std::byte*>(z) + (halves - 1) * half_bytes, halves * layer.n, wide};
}

void launch_sm90(Sm90Layer& layer, i64 rows, const TileHeight& height, int multiprocessors, GpuStream stream) {
  const auto map = [&](const RowsOut& out) {
    return out.wide ? make_rows_map(out.data, layer.dtype, rows, layer.n, out.pitch, kStoreRows) : CUtensorMap{};
  };
  layer.out_map = map(layer.out);
  for (int half = 0; half < 2; ++half) layer.z_maps[half] = map(layer.z[half]);
  if (is_high(height))
    launch_sm90_grouped_gemm(layer, multiprocessors, stream);
  else
    launch_sm90_grouped_gemm_swap_ab(layer, height.tile_rows, multiprocessors, stream);
  check_launch("sm90_grouped_gemm", [&] {
    return fmt::format("{} experts, K {}, N {}, tiles of {} rows", layer.experts, layer.k, layer.n, height.tile_rows);
  });
}

void require_aligned(const void* data, i64 bytes, std::string_view name) {
  if (data == nullptr || !is_aligned(data, bytes))
    fail(ErrorCode::Usage, {}, "{}: address {}, expected a multiple of {}", name, data, bytes);
}

}  // namespace glu_ckpt
