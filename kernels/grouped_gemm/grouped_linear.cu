/// Which kernel makes which product, and its launch.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/grouped_gemm/linear_launch.hpp"
#include "kernels/grouped_gemm/linear_mma.cuh"
#include "kernels/grouped_gemm/linear_simt.cuh"

namespace glu_ckpt {
namespace {

using Kernel = void (*)(LinearOperands, bool);

struct Choice {
  Kernel kernel = nullptr;
  i32 threads = 0;
  i32 shared_bytes = 0;
};

enum class Order { Tn, Nn, Nt };

Order order_of(const LinearOperands& operands) {
  if (operands.m > 0) return Order::Nt;
  return operands.b_along_k ? Order::Tn : Order::Nn;
}

template <typename Element, typename Tile, bool kWide>
Choice mma_by_rows(Order order) {
  return {order == Order::Tn ? linear::mma_kernel<Element, Tile, Along::K, Along::K, kWide>
                             : linear::mma_kernel<Element, Tile, Along::K, Along::Mn, kWide>,
          Tile::kThreads, Tile::kSharedBytes};
}

template <typename Element, bool kWide>
Choice choose_mma(Order order, bool small) {
  using Large = LargeMmaTile;
  if (order == Order::Nt)
    return {linear::mma_kernel<Element, Large, Along::Mn, Along::Mn, kWide>, Large::kThreads, Large::kSharedBytes};
  return small ? mma_by_rows<Element, SmallMmaTile, kWide>(order) : mma_by_rows<Element, Large, kWide>(order);
}

Choice choose_simt(Order order) {
  const Kernel kernel = order == Order::Nt   ? linear::simt_kernel<Along::Mn, Along::Mn>
                        : order == Order::Nn ? linear::simt_kernel<Along::K, Along::Mn>
                                             : linear::simt_kernel<Along::K, Along::K>;
  return {kernel, kSimtThreads, 0};
}

Choice choose(Dtype dtype, Order order, bool small, bool wide) {
  if (dtype == Dtype::F32) return choose_simt(order);
  if (dtype == Dtype::BF16)
    return wide ? choose_mma<linear::Bf16, true>(order, small) : choose_mma<linear::Bf16, false>(order, small);
  return wide ? choose_mma<linear::Fp16, true>(order, small) : choose_mma<linear::Fp16, false>(order, small);
}

std::string shape_of(const LinearOperands& operands, i64 rows) {
  return std::to_string(operands.num_experts) + " experts, " + std::to_string(rows) + " rows, m " +
         std::to_string(operands.m) + ", n " + std::to_string(operands.n) + ", k " + std::to_string(operands.k);
}

}  // namespace

void prepare_linear(Dtype dtype, const LinearOperands& operands) {
  for (const bool small : {false, true})
    for (const bool wide : {false, true}) {
      const Choice choice = choose(dtype, order_of(operands), small, wide);
      // Loads the kernel too, which a stream that is being captured might not allow.
      const auto* const kernel = reinterpret_cast<const void*>(choice.kernel);
      CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes));
    }
  prepare_expert_tiles();
}

void launch_linear(Dtype dtype, Dtype c_dtype, const LinearOperands& operands, i64 rows, bool wide, GpuStream stream) {
  const i64 blocks = linear_blocks(dtype, operands, rows);
  if (blocks == 0) return;
  const Choice choice = choose(dtype, order_of(operands), takes_small_tile(rows, operands.num_experts), wide);
  const auto grid = static_cast<unsigned>(blocks);
  const auto threads = static_cast<unsigned>(choice.threads);
  const auto shared = static_cast<std::size_t>(choice.shared_bytes);
  choice.kernel<<<grid, threads, shared, stream>>>(operands, c_dtype == Dtype::F32);
  check_launch("grouped_linear", [&] { return shape_of(operands, rows); });
}

}  // namespace glu_ckpt
