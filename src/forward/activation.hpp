#pragma once
/// Activations of the grouped MLP on a CPU, one element at a time.

#include <span>

#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {

/// act(a, u) in fp32; without a gate `a` is not looked at. From IEEE basic operations alone, so that no library and no
/// processor changes a bit: s() and Phi() are made in double and rounded once to fp32.
float activate(const Activation& activation, float a, float u);

/// act(a, u) and its derivatives, in fp32, as ops/grouped_mlp_backward.hpp has them.
struct ActivationGrad {
  float value = 0;
  float by_gate = 0;
  float by_linear = 0;
};

/// Computes by IEEE basic operations alone, as activate(); the value has its bits.
ActivationGrad activation_grad(const Activation& activation, float a, float u);

/// out[i] = round(round(act(a[i], u[i]) * scale) to dtype), the same bits, several elements at a time where the
/// activation is made of s(). All spans are equally long; `a` may be empty without a gate. `out` may be `u`.
void activate_row(const Activation& activation, std::span<const float> a, std::span<const float> u, float scale,
                  Dtype dtype, std::span<float> out);

}  // namespace glu_ckpt
