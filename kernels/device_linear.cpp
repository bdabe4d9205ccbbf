/// The grouped linear layer with splits on the device: two launches a run, the schedule and the product.

#include <utility>

#include "core/fail.hpp"
#include "glu_ckpt/grouped_linear.hpp"
#include "kernels/device_buffer.hpp"
#include "kernels/linear_args.hpp"
#include "kernels/linear_launch.hpp"

namespace glu_ckpt {
namespace {

/// The address that a product reads or writes, without the others, which may hold anything.
LinearRows used_rows(LinearProduct product, const LinearRows& rows) {
  switch (product) {
    case LinearProduct::Forward: return {rows.rows, rows.x, nullptr, rows.out};
    case LinearProduct::InputGrad: return {rows.rows, nullptr, rows.dy, rows.out};
    case LinearProduct::WeightGrad: return {rows.rows, rows.x, rows.dy, nullptr};
  }
  return {};
}

}  // namespace

struct DeviceGroupedLinear::State {
  /// What is kept of it are sizes: the caller's lists of addresses may be gone by then.
  GroupedLinear linear;
  std::vector<const void*> matrices;
  DeviceBuffer table;
  DeviceBuffer schedule;

  State(const GroupedLinear& given, GpuStream stream)
      : linear((check_linear(given), given)),
        matrices(matrix_addresses(given)),
        table(std::ssize(matrices) * static_cast<i64>(sizeof(void*))),
        schedule(expert_tiles_bytes(given.num_experts)) {
    linear.weights = {};
    linear.grads = {};
    prepare_linear(linear.dtype, operands({}));
    const auto bytes = static_cast<std::size_t>(table.bytes());
    CUDA_CHECK(cudaMemcpyAsync(table.data(), matrices.data(), bytes, cudaMemcpyHostToDevice, stream));
    // Before the first run there are no wrong splits.
    CUDA_CHECK(cudaMemsetAsync(schedule.data(), 0, static_cast<std::size_t>(schedule.bytes()), stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }

  ExpertTiles tiles() const { return expert_tiles_at(schedule.data(), linear.num_experts); }

  LinearOperands operands(const LinearRows& rows) const {
    const LinearShape shape = linear_shape(linear);
    const bool by_experts = linear.product == LinearProduct::WeightGrad;
    LinearOperands operands;
    operands.a = linear.product == LinearProduct::Forward ? rows.x : rows.dy;
    operands.b = by_experts ? rows.x : nullptr;
    operands.c = rows.out;
    operands.matrices = reinterpret_cast<const void* const*>(table.data());
    operands.tiles = tiles();
    operands.num_experts = static_cast<i32>(linear.num_experts);
    operands.m = shape.m;
    operands.n = shape.n;
    operands.k = shape.k;
    operands.b_along_k = linear.product == LinearProduct::Forward;
    operands.accumulate = linear.accumulate;
    return operands;
  }

  void run(const LinearRows& given, const i64* splits, GpuStream stream) const {
    check_linear_rows(linear, given);
    if (splits == nullptr) fail(ErrorCode::Usage, {}, "the pointer to {} splits is null", linear.num_experts);
    if (reinterpret_cast<std::uintptr_t>(splits) % alignof(i64) != 0)
      fail(ErrorCode::Usage, {}, "splits at {} are not aligned to I64", static_cast<const void*>(splits));
    const LinearRows rows = used_rows(linear.product, given);
    const LinearOperands now = operands(rows);
    (void)linear_blocks(linear.dtype, now, rows.rows);
    make_expert_tiles(splits, linear.num_experts, rows.rows,
                      linear_tile_rows(linear.dtype, rows.rows, linear.num_experts), now.tiles, stream);
    launch_linear(linear.dtype, output_dtype(linear), now, rows.rows, is_wide(linear, rows, matrices), stream);
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
