#pragma once

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The resident memory that this process has had at the most, in bytes.
i64 peak_memory();

}  // namespace glu_ckpt
