#pragma once
/// Activations of the grouped MLP on a CPU, one element at a time.

#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {

/// act(a, u) in fp32; without a gate `a` is not looked at. From IEEE basic operations alone, so that no library and no
/// processor changes a bit: s() and Phi() are made in double and rounded once to fp32.
float activate(const Activation& activation, float a, float u);

}  // namespace glu_ckpt
