/// Products of factors are added to weights: a GPU waits for their way to it, so the kernel is short rather than tuned.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/quant/add_products.cuh"
#include "kernels/quant/add_products.hpp"

namespace glu_ckpt {
namespace {

template <Dtype kDtype>
__global__ void __launch_bounds__(products::kThreads)
    add_products_kernel(const __grid_constant__ products::ProductArgs args) {
  products::add_products<kDtype>(args);
}

template <Dtype kDtype>
void launch(const ProductBatch& batch, const products::ProductArgs& args, GpuStream stream) {
  add_products_kernel<kDtype>
      <<<static_cast<unsigned>(products::blocks_of(batch)), products::kThreads, 0, stream>>>(args);
}

}  // namespace

void add_products(const ProductBatch& batch, const ProductBuffers& buffers, u32* flag, GpuStream stream) {
  if (batch.lines == 0 || batch.cols == 0) return;
  products::ProductArgs args = products::product_args(batch);
  args.buffers = buffers;
  args.flag = flag;
  if (batch.dtype == Dtype::BF16)
    launch<Dtype::BF16>(batch, args, stream);
  else if (batch.dtype == Dtype::F16)
    launch<Dtype::F16>(batch, args, stream);
  else
    launch<Dtype::F32>(batch, args, stream);
  check_launch("add_products", [&] {
    return "[" + std::to_string(batch.lines) + ", " + std::to_string(batch.cols) + "], rank " +
           std::to_string(batch.rank);
  });
}

}  // namespace glu_ckpt
