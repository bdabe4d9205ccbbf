/// Chooses the kernel of a product, and launches it.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/grouped_gemm/grouped_gemm_fp32.cuh"
#include "kernels/grouped_gemm/linear_launch.hpp"
#include "kernels/grouped_gemm/sm80_grouped_gemm.cuh"

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
Choice sm80_by_rows(Order order) {
  return {order == Order::Tn ? linear::sm80_grouped_gemm<Element, Tile, Along::K, Along::K, kWide>
                             : linear::sm80_grouped_gemm<Element, Tile, Along::K, Along::Mn, kWide>,
          Tile::kThreads, Tile::kSharedBytes};
}

template <typename Element, bool kWide>
Choice choose_sm80(Order order, bool small) {
  using Large = LargeMmaTile;
  if (order == Order::Nt)
    return {linear::sm80_grouped_gemm<Element, Large, Along::Mn, Along::Mn, kWide>, Large::kThreads,
            Large::kSharedBytes};
  return small ? sm80_by_rows<Element, SmallMmaTile, kWide>(order) : sm80_by_rows<Element, Large, kWide>(order);
}

Choice choose_fp32(Order order) {
  const Kernel kernel = order == Order::Nt   ? linear::grouped_gemm_fp32<Along::Mn, Along::Mn>
                        : order == Order::Nn ? linear::grouped_gemm_fp32<Along::K, Along::Mn>
                                             : linear::grouped_gemm_fp32<Along::K, Along::K>;
  return {kernel, kSimtThreads, 0};
}

Choice choose(Dtype dtype, Order order, bool small, bool wide) {
  if (dtype == Dtype::F32) return choose_fp32(order);
  if (dtype == Dtype::BF16)
    return wide ? choose_sm80<linear::Bf16, true>(order, small) : choose_sm80<linear::Bf16, false>(order, small);
  return wide ? choose_sm80<linear::Fp16, true>(order, small) : choose_sm80<linear::Fp16, false>(order, small);
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
      // The call loads the kernel, too, which a stream that is being captured might not allow.
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
