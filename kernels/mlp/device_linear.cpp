/// The grouped linear layer with splits on the device: two launches a run, the schedule and the product. On Hopper the
/// grouped MLP's kernels make the products of 16-bit rows: FC2's is y, its gradient of x without a gate is dx.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "glu_ckpt/ops/grouped_linear.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/grouped_gemm/linear_launch.hpp"
#include "kernels/mlp/device_layer.hpp"
#include "kernels/mlp/sm90_backward.hpp"

namespace glu_ckpt {
namespace {

/// The place of dW among the matrices of an expert of the grouped MLP.
constexpr auto kOnlyGrad = MlpMatrix::Down;

/// A dense matrix of any dtype.
StoredMatrix stored_as(const void* data, Dtype dtype, i64 rows, i64 cols) {
  const i64 element_bytes = dtype_bits(dtype) / 8, row_bytes = cols * element_bytes;
  StoredMatrix made;
  made.dtype = dtype;
  made.rows = made.tail_row = rows;
  made.cols = cols;
  made.first = {static_cast<const std::byte*>(data), {0, rows, rows * row_bytes, row_bytes, element_bytes}};
  return made;
}

/// The products by WGMMA and TMA. An element's sum has the order, and the bits, of the kernels for other GPUs.
class Sm90Linear {
 public:
  /// Keeps nothing of the lists that `linear` points to. `matrices` are the addresses of its W, or dW.
  Sm90Linear(const GroupedLinear& linear, const std::vector<const void*>& matrices, GpuStream stream)
      : linear_(linear), multiprocessors_(current_multiprocessors()) {
    std::vector<StoredMatrix> pairs, table;
    const Dtype dtype = linear.product == LinearProduct::WeightGrad ? linear.grad_dtype : linear.dtype;
    for (const void* const matrix : matrices) {
      const StoredMatrix stored = stored_as(matrix, dtype, linear.out_features, linear.in_features);
      pairs.insert(pairs.end(), {stored, stored});
      table.resize(table.size() + kMlpMatrices);
      table[table.size() - kMlpMatrices + static_cast<std::size_t>(kOnlyGrad)] = stored;
    }
    switch (linear.product) {
      case LinearProduct::Forward: weights_ = HalfMaps(pairs, stream); break;
      case LinearProduct::InputGrad: maps_ = upload_maps(pairs, kHalfDepthRows, stream); break;
      case LinearProduct::WeightGrad:
        grads_ = upload(table, stream);
        // TMA stores no fp32 and adds to nothing.
        if (linear.grad_dtype != Dtype::F32 && !linear.accumulate) maps_ = upload_maps(table, kStoreRows, stream);
        break;
    }
  }

  /// Returns whether they take the products, if a run's rows begin at multiples of 16 bytes.
  static bool takes(const GroupedLinear& linear, const std::vector<const void*>& matrices) {
    constexpr i64 kMost = INT32_MAX / 2, kMostExperts = 65535;
    return takes_sm90(linear.dtype) && linear.in_features % kRowMultiple == 0 &&
           linear.out_features % kRowMultiple == 0 && linear.in_features <= kMost && linear.out_features <= kMost &&
           linear.num_experts <= kMostExperts &&
           std::ranges::all_of(matrices, [](const void* matrix) { return is_aligned(matrix, 16); });
  }

  /// There is a row, and every row begins at a multiple of 16 bytes.
  void run(const LinearRows& rows, const i64* splits, const ExpertTiles& tiles, GpuStream stream) const {
    if (linear_.product == LinearProduct::Forward) return run_forward(rows, splits, tiles, stream);
    make_expert_tiles(splits, linear_.num_experts, rows.rows, kBackwardTileRows, tiles, stream);
    const auto in = static_cast<i32>(linear_.in_features), out = static_cast<i32>(linear_.out_features);
    BackwardArgs args;
    args.dtype = linear_.dtype;
    args.experts = static_cast<i32>(linear_.num_experts);
    args.hidden = in;
    args.width = out;
    args.gated = false;
    args.rows = rows.rows;
    args.dx = rows.out;
    args.tiles = tiles;
    args.grads = reinterpret_cast<const StoredMatrix*>(grads_.data());
    args.accumulate = linear_.accumulate;
    const auto map = [&](const void* data, i64 cols, int box_rows) {
      return make_rows_map(data, linear_.dtype, rows.rows, cols, cols, box_rows);
    };
    const auto* const maps = maps_.bytes() > 0 ? reinterpret_cast<const TmaWeight*>(maps_.data()) : nullptr;
    if (linear_.product == LinearProduct::InputGrad) {
      const CUtensorMap dy = map(rows.dy, out, kBackwardBoxRows);
      launch_sm90_input_grad({args, {dy, dy}, map(rows.out, in, kStoreRows), maps, tiles.taken}, multiprocessors_,
                             stream);
    } else {
      launch_sm90_weight_grad(
          {args, 1, out, in, {map(rows.dy, out, kDepthRows)}, map(rows.x, in, kHalfDepthRows), {kOnlyGrad}, maps},
          multiprocessors_, stream);
    }
  }

 private:
  void run_forward(const LinearRows& rows, const i64* splits, const ExpertTiles& tiles, GpuStream stream) const {
    const TileHeight height = choose_tile_height(rows.rows, linear_.num_experts);
    make_expert_tiles(splits, linear_.num_experts, rows.rows, height.tile_rows, tiles, stream);
    MlpLayer layer;
    layer.dtype = linear_.dtype;
    layer.experts = static_cast<i32>(linear_.num_experts);
    layer.k = static_cast<i32>(linear_.in_features);
    layer.n = static_cast<i32>(linear_.out_features);
    layer.out = {rows.out, linear_.out_features, true};
    layer.tiles = tiles;
    Sm90Layer sm90{
        layer,
        make_rows_map(rows.x, layer.dtype, rows.rows, linear_.in_features, linear_.in_features, height.box_rows),
        {},
        {},
        weights_.of(half_rows(height)),
        tiles.taken};
    launch_sm90(sm90, rows.rows, height, multiprocessors_, stream);
  }

  GroupedLinear linear_;
  int multiprocessors_;
  HalfMaps weights_;
  /// Maps of both halves of each W for dx, or of all matrices of each expert for dW.
  DeviceBuffer maps_;
  /// StoredMatrix, kMlpMatrices for each expert.
  DeviceBuffer grads_;
};

}  // namespace

struct DeviceGroupedLinear::State {
  /// Sizes and dtypes alone: the caller's list of addresses may be gone when it runs.
  GroupedLinear linear;
  std::vector<const void*> matrices;
  DeviceBuffer table;
  DeviceBuffer schedule;
  std::optional<Sm90Linear> sm90;

  State(const GroupedLinear& given, GpuStream stream)
      : linear(checked_sizes(given)),
        matrices(matrix_addresses(given)),
        table(std::ssize(matrices) * static_cast<i64>(sizeof(void*))),
        schedule(expert_tiles_bytes(given.num_experts)) {
    prepare_linear(linear.dtype, operands({}));
    if (Sm90Linear::takes(linear, matrices)) sm90.emplace(linear, matrices, stream);
    const auto bytes = static_cast<std::size_t>(table.bytes());
    CUDA_CHECK(cudaMemcpyAsync(table.data(), matrices.data(), bytes, cudaMemcpyHostToDevice, stream));
    // Before the first run there are no wrong splits.
    CUDA_CHECK(cudaMemsetAsync(schedule.data(), 0, static_cast<std::size_t>(schedule.bytes()), stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }

  static GroupedLinear checked_sizes(const GroupedLinear& given) {
    check_linear(given);
    GroupedLinear sizes = given;
    sizes.weights = {};
    sizes.grads = {};
    return sizes;
  }

  ExpertTiles tiles() const { return expert_tiles_at(schedule.data(), linear.num_experts); }

  LinearOperands operands(const LinearRows& rows) const {
    return linear_operands(linear, rows, reinterpret_cast<const void* const*>(table.data()), tiles());
  }

  void run(const LinearRows& rows, const i64* splits, GpuStream stream) const {
    check_linear_rows(linear, rows);
    if (splits == nullptr) fail(ErrorCode::Usage, {}, "the pointer to {} splits is null", linear.num_experts);
    if (reinterpret_cast<std::uintptr_t>(splits) % alignof(i64) != 0)
      fail(ErrorCode::Usage, {}, "splits at {} are not aligned to I64", static_cast<const void*>(splits));
    const bool wide = is_wide(linear, rows, matrices);
    if (sm90 && wide && rows.rows > 0 && rows.rows <= INT32_MAX) return sm90->run(rows, splits, tiles(), stream);
    const LinearOperands now = operands(rows);
    (void)linear_blocks(linear.dtype, now, rows.rows);
    make_expert_tiles(splits, linear.num_experts, rows.rows,
                      linear_tile_rows(linear.dtype, rows.rows, linear.num_experts), now.tiles, stream);
    launch_linear(linear.dtype, output_dtype(linear), now, rows.rows, wide, stream);
  }
};

DeviceGroupedLinear::DeviceGroupedLinear(const GroupedLinear& linear, GpuStream stream)
    : state_(std::make_unique<State>(linear, stream)) {}
DeviceGroupedLinear::~DeviceGroupedLinear() = default;
DeviceGroupedLinear::DeviceGroupedLinear(DeviceGroupedLinear&&) noexcept = default;
DeviceGroupedLinear& DeviceGroupedLinear::operator=(DeviceGroupedLinear&&) noexcept = default;

void DeviceGroupedLinear::run(const LinearRows& rows, const i64* splits, GpuStream stream) const {
  state_->run(rows, splits, stream);
}

void DeviceGroupedLinear::check_splits(GpuStream stream) const { check_split_status(state_->tiles().status, stream); }

}  // namespace glu_ckpt
