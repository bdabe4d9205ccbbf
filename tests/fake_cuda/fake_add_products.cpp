/// In the place of the kernel that adds products: the CPU's loops, queued on the stream as a launch is. The kernel
/// itself runs in tests/fake_warp.

#include <cmath>
#include <string>
#include <vector>

#include "adapters/add_product.hpp"
#include "core/float_rows.hpp"
#include "fake_cuda/fake_runtime.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/quant/add_products.hpp"

namespace glu_ckpt {
namespace {

using fake_cuda::Range;

void add(const ProductBatch& batch, const ProductBuffers& buffers, u32* flag) {
  const i64 size = dtype_bits(batch.dtype) / 8;
  for (i64 i = 0; i < batch.lines; ++i) {
    ProductLine line{buffers.coefficients + i * batch.rank, buffers.weights + i * batch.pitch() * size};
    if (batch.scales == ProductScales::OfLines) line.scales = {buffers.scales + i, 0};
    if (batch.scales == ProductScales::OfColumns) line.scales = {buffers.scales, 1};
    add_product_one_by_one({&line, 1}, {buffers.vectors, batch.rank, batch.pitch()}, batch.merging, batch.dtype,
                           batch.cols);
    for (i64 col = 0; col < batch.cols; ++col)
      if (std::isnan(widen_element(line.data + col * size, batch.dtype))) *flag = 1;
  }
}

Range range_of(const void* data, i64 bytes) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
}

}  // namespace

void add_products(const ProductBatch& batch, const ProductBuffers& buffers, u32* flag, GpuStream stream) {
  std::vector<Range> used = {range_of(buffers.weights, batch.weight_bytes()), range_of(flag, sizeof(u32)),
                             range_of(buffers.coefficients, batch.coefficient_bytes()),
                             range_of(buffers.vectors, batch.vector_bytes())};
  if (batch.scales != ProductScales::None) used.push_back(range_of(buffers.scales, batch.scales_bytes()));
  const auto work = [=] { add(batch, buffers, flag); };
  if (const cudaError_t status = fake_cuda::launch("add_products", stream, used, work); status != cudaSuccess)
    cuda_launch_fail(status, "add_products", std::to_string(batch.lines) + " lines");
}

}  // namespace glu_ckpt
