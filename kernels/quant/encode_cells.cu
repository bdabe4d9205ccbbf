/// Weights become codes and scales: a GPU waits for their way to it, so kernels are short rather than tuned.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/quant/encode_cells.cuh"
#include "kernels/quant/encode_cells.hpp"

namespace glu_ckpt {
namespace {

using encoding::CellArgs;

template <Codes kCodes, bool kBf16>
__global__ void __launch_bounds__(encoding::kThreads) row_cells_kernel(const __grid_constant__ CellArgs args) {
  encoding::encode_row_cells<kCodes, kBf16>(args);
}

template <Codes kCodes, bool kBf16>
__global__ void __launch_bounds__(encoding::kThreads) block_cells_kernel(const __grid_constant__ CellArgs args) {
  encoding::encode_block_cells<kCodes, kBf16>(args);
}

template <Codes kCodes, bool kBf16>
void launch(const CellBatch& batch, const CellArgs& args, GpuStream stream) {
  const auto blocks = static_cast<unsigned>(encoding::blocks_of(batch));
  if (encoding::has_row_cells(batch))
    row_cells_kernel<kCodes, kBf16><<<blocks, encoding::kThreads, 0, stream>>>(args);
  else
    block_cells_kernel<kCodes, kBf16><<<blocks, encoding::kThreads, 0, stream>>>(args);
}

template <Codes kCodes>
void launch_dtype(const CellBatch& batch, const CellArgs& args, GpuStream stream) {
  if (batch.rule.bf16)
    launch<kCodes, true>(batch, args, stream);
  else
    launch<kCodes, false>(batch, args, stream);
}

}  // namespace

void encode_cells(const CellBatch& batch, const std::byte* weights, u32* flag, std::byte* codes, std::byte* scales,
                  GpuStream stream) {
  if (batch.rows == 0 || batch.cols == 0) return;
  CellArgs args = encoding::cell_args(batch);
  args.weights = weights;
  args.flag = flag;
  args.codes = codes;
  args.scales = scales;
  if (batch.rule.codes == Codes::E4m3)
    launch_dtype<Codes::E4m3>(batch, args, stream);
  else if (batch.rule.codes == Codes::E2m1)
    launch_dtype<Codes::E2m1>(batch, args, stream);
  else
    launch_dtype<Codes::Int4>(batch, args, stream);
  check_launch("encode_cells", [&] {
    return "[" + std::to_string(batch.rows) + ", " + std::to_string(batch.cols) + "], cells of " +
           std::to_string(batch.cell_rows) + " x " + std::to_string(batch.cell_cols);
  });
}

}  // namespace glu_ckpt
