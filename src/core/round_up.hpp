#pragma once

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// `value`, or the next multiple of `multiple`.
constexpr i64 round_up(i64 value, i64 multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace glu_ckpt
