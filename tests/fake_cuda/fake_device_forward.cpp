/// In the place of the kernels of the grouped MLP: the CPU's, queued on the stream as launches are.

#include "core/fail.hpp"
#include "fake_cuda/fake_runtime.hpp"
#include "glu_ckpt/ops/device_forward.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/check_mlp.hpp"

namespace glu_ckpt {
namespace {

using fake_cuda::Range;

Range range_of(const void* data, i64 bytes) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
}

/// First and last byte of each matrix: what lies between is in the same allocation, or the upload was not.
void add_ends(const StoredMatrix& matrix, std::vector<Range>& used) {
  const i64 size = dtype_bits(matrix.dtype) / 8;
  for (const i64 row : {i64{0}, matrix.rows - 1}) {
    const StoredMatrix::Part& part = row < matrix.tail_row ? matrix.first : matrix.tail;
    const Placement& place = part.place;
    const std::byte* const at =
        part.data + place.offset + row / place.block_rows * place.block_step + row % place.block_rows * place.row_step;
    used.push_back(range_of(at, size));
    used.push_back(range_of(at + (matrix.cols - 1) * place.col_step, size));
  }
}

}  // namespace

struct DeviceGroupedMlp::State {
  GroupedMlp mlp;
  std::vector<ExpertWeights> experts;
  i64 max_rows = 0;
};

DeviceGroupedMlp::DeviceGroupedMlp(const GroupedMlp& mlp, i64 max_rows, GpuStream)
    : state_(new State{mlp, {mlp.experts.begin(), mlp.experts.end()}, max_rows}) {
  check_mlp(mlp);
  for (const ExpertWeights& expert : mlp.experts)
    if (expert.up.rows != mlp.experts[0].up.rows) fail(ErrorCode::NotSupported, {}, "widths differ");
  state_->mlp.experts = state_->experts;
}
DeviceGroupedMlp::~DeviceGroupedMlp() = default;
DeviceGroupedMlp::DeviceGroupedMlp(DeviceGroupedMlp&&) noexcept = default;
DeviceGroupedMlp& DeviceGroupedMlp::operator=(DeviceGroupedMlp&&) noexcept = default;

void DeviceGroupedMlp::run(const void* x, i64 rows, const i64* splits, const float* probs, void* out, GpuStream stream,
                           void* z, void*) const {
  const i64 row_bytes = rows * state_->mlp.hidden * dtype_bits(state_->mlp.compute) / 8;
  const auto num_experts = state_->experts.size();
  std::vector<Range> used{range_of(x, row_bytes), range_of(out, row_bytes),
                          range_of(splits, static_cast<i64>(num_experts * sizeof(i64))),
                          range_of(probs, rows * static_cast<i64>(sizeof(float)))};
  for (const ExpertWeights& expert : state_->experts)
    for (const StoredMatrix* const matrix :
         {&expert.gate, &expert.up, &expert.down, &expert.gate_bias, &expert.up_bias, &expert.down_bias})
      if (matrix->is_there()) add_ends(*matrix, used);
  // What a kernel is given outlives the object, as what the kernels' own object frees waits for them.
  const auto work = [=, mlp = state_->mlp, experts = state_->experts] {
    GroupedMlp given = mlp;
    given.experts = experts;
    grouped_mlp_host(given, x, rows, {splits, num_experts}, probs, out, 1, z);
  };
  if (const cudaError_t status = fake_cuda::launch("grouped_mlp", stream, used, work); status != cudaSuccess)
    cuda_launch_fail(status, "grouped_mlp", std::to_string(rows) + " rows");
}

void DeviceGroupedMlp::check_splits(GpuStream stream) const { CUDA_CHECK(cudaStreamSynchronize(stream)); }

}  // namespace glu_ckpt
