/// The grouped linear layer with splits on the device: two launches a run, the schedule and the product.

#include <utility>

#include "core/fail.hpp"
#include "glu_ckpt/ops/grouped_linear.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/grouped_gemm/linear_launch.hpp"

namespace glu_ckpt {
struct DeviceGroupedLinear::State {
  /// Sizes and dtypes alone: the caller's list of addresses may be gone when it runs.
  GroupedLinear linear;
  std::vector<const void*> matrices;
  DeviceBuffer table;
  DeviceBuffer schedule;

  State(const GroupedLinear& given, GpuStream stream)
      : linear(checked_sizes(given)),
        matrices(matrix_addresses(given)),
        table(std::ssize(matrices) * static_cast<i64>(sizeof(void*))),
        schedule(expert_tiles_bytes(given.num_experts)) {
    prepare_linear(linear.dtype, operands({}));
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
