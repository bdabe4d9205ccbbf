#pragma once
/// The runner of a GPU behind make_mlp_runner().

#include <memory>

#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {

/// Throws NoDevice, DeviceFailed.
std::unique_ptr<MlpRunner> make_cuda_mlp_runner(int device, const BackendOptions& options);

}  // namespace glu_ckpt
