/// In the place of bench_kernels.cpp where nvcc is missing.

#include "core/fail.hpp"
#include "glu_ckpt/bench.hpp"
#include "glu_ckpt/cuda.hpp"

namespace glu_ckpt {

std::vector<KernelFigure> bench_kernels(const KernelBenchOptions&) {
  fail(ErrorCode::NoDevice, {}, "bench kernels: {}", why_no_cuda());
}

}  // namespace glu_ckpt
