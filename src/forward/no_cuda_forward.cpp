/// This file takes the place of cuda_forward.cpp where nvcc is missing.

#include "core/fail.hpp"
#include "forward/mlp_runners.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

std::unique_ptr<MlpRunner> make_cuda_mlp_runner(int device, const BackendOptions&) {
  fail(ErrorCode::NoDevice, {}, "cuda:{}: {}; use --device cpu", device, why_no_cuda());
}

}  // namespace glu_ckpt
