/// This file takes the place of the GPU benchmarks where nvcc is missing.

#include "bench/bench.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

std::vector<KernelFigure> bench_kernels(const KernelBenchOptions&) {
  fail(ErrorCode::NoDevice, {}, "bench kernels: {}", why_no_cuda());
}

ForwardBench bench_forward(const ForwardBenchOptions&) {
  fail(ErrorCode::NoDevice, {}, "bench forward: {}; --device cpu measures the CPU", why_no_cuda());
}

}  // namespace glu_ckpt
