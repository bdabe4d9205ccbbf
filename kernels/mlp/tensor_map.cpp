/// Tensor maps, by which TMA finds the boxes of a matrix in device memory.

#include <cuda_runtime_api.h>

#include "core/fail.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/sm90_grouped_gemm.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kElementBytes = 2;

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time, so that the program does not need a driver to start.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault, &found));
#else
  CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    fail(ErrorCode::DeviceFailed, {}, "the CUDA driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
  return reinterpret_cast<Encode>(function);
}

struct Axis {
  i64 size = 0;
  /// The bytes from one index to the next; an element's for the first axis.
  i64 step = 0;
  int box = 0;
};

template <std::size_t kAxes>
CUtensorMap encode(const void* data, Dtype dtype, const Axis (&axes)[kAxes]) {
  static const Encode function = find_encode();
  cuuint64_t sizes[kAxes];
  cuuint64_t steps[kAxes];
  cuuint32_t box[kAxes];
  cuuint32_t element_steps[kAxes];
  for (std::size_t i = 0; i < kAxes; ++i) {
    sizes[i] = static_cast<cuuint64_t>(axes[i].size);
    steps[i] = static_cast<cuuint64_t>(axes[i].step);
    box[i] = static_cast<cuuint32_t>(axes[i].box);
    element_steps[i] = 1;
  }
  CUtensorMap map{};
  // A box has 128 bytes of each row. L2 would fetch 256, of which half may be gone before the next step asks for it.
  const CUresult status =
      function(&map, dtype == Dtype::BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, kAxes,
               const_cast<void*>(data), sizes, steps + 1, box, element_steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail(ErrorCode::DeviceFailed, {}, "cuTensorMapEncodeTiled failed with {} for a matrix [{}, {}], {} bytes a row",
         static_cast<int>(status), axes[1].size, axes[0].size, axes[1].step);
  return map;
}

}  // namespace

TmaWeight make_tma_weight(const StoredMatrix& matrix, const TmaBoxes& boxes) {
  const Placement& place = matrix.first.place;
  const i64 block_rows = std::min(place.block_rows, matrix.rows);
  const Axis axes[] = {{matrix.cols, kElementBytes, kTileCols},
                       {block_rows, place.row_step, boxes.rows},
                       // The rows are a multiple of a GLU block: other layouts are refused.
                       {matrix.rows / block_rows, std::max(place.block_step, place.row_step), boxes.blocks}};
  return {encode(matrix.first.data + place.offset, matrix.dtype, axes), static_cast<int>(block_rows), boxes.box_rows};
}

CUtensorMap make_rows_map(const void* data, Dtype dtype, i64 rows, i64 cols, i64 pitch, int box_rows) {
  const Axis axes[] = {{cols, kElementBytes, kTileCols}, {rows, pitch * kElementBytes, box_rows}};
  return encode(data, dtype, axes);
}

}  // namespace glu_ckpt
