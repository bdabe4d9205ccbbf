#pragma once
/// The derivatives of the activations, in fp32; the formulas are those of ops/grouped_mlp_backward.hpp.

#include "kernels/mlp/epilogue.cuh"

namespace glu_ckpt {

/// The results of one element of G, before they are rounded.
struct Derived {
  float da, du, y;
  /// The element's part of dprobs.
  float dp;
};

/// act(a, u) and its derivatives by a and by u.
template <typename Element, Formula kFormula>
__device__ inline void differentiate(const Activation& activation, float a, float u, float& value, float& by_gate,
                                     float& by_linear) {
  if constexpr (kFormula == Formula::Swiglu) {
    const float s = sigmoid<Element>(a);
    by_linear = a * s;
    value = by_linear * u;
    by_gate = fmaf(by_linear, 1 - s, s) * u;
  }
  if constexpr (kFormula == Formula::Scaled) {
    const float limit = activation.limit;
    const float ac = at_most(a, limit);
    const float factor = at_least(at_most(u, limit), -limit) + activation.offset;
    const float s = sigmoid<Element>(activation.alpha * ac);
    const float gate = ac * s;
    value = gate * factor;
    by_gate = a > limit ? 0 : fmaf(activation.alpha * gate, 1 - s, s) * factor;
    by_linear = u > limit || u < -limit ? 0 : gate;
  }
  if constexpr (kFormula == Formula::GegluTanh) {
    const float square = a * a;
    const float s = sigmoid<Element>(2 * a * fmaf(0.03567741F, square, 0.79788456F));
    by_linear = a * s;
    value = by_linear * u;
    // The slope of the argument may be infinite where s (1 - s) has vanished.
    const float bend = by_linear * (1 - s);
    by_gate = (bend == 0 ? s : fmaf(bend, 2 * fmaf(0.10703223F, square, 0.79788456F), s)) * u;
  }
  if constexpr (kFormula == Formula::Other) {
    if (activation.kind == ActivationKind::GegluErf) {
      const float phi = normcdff(a);
      by_linear = a * phi;
      const float bend = isinf(a) ? 0 : a * 0.39894228F * expf(-0.5F * a * a);
      by_gate = (phi + bend) * u;
      value = by_linear * u;
    } else if (activation.kind == ActivationKind::Reglu) {
      by_linear = at_least(a, 0);
      by_gate = a > 0 ? u : a <= 0 ? 0 : a;
      value = by_linear * u;
    } else if (activation.kind == ActivationKind::SituGlu) {
      const float s = sigmoid<Element>(a);
      const float t = tanhf(a / activation.alpha), v = tanhf(u / activation.limit);
      const float gate = activation.alpha * t * s, linear = activation.limit * v;
      value = gate * linear;
      by_gate = fmaf((1 - t) * (1 + t), s, gate * (1 - s)) * linear;
      by_linear = gate * ((1 - v) * (1 + v));
    } else {
      by_linear = sigmoid<Element>(a);
      by_gate = by_linear * (1 - by_linear) * u;
      value = by_linear * u;
    }
  }
  if constexpr (kFormula == Formula::SquaredRelu) {
    const float positive = at_least(u, 0);
    value = positive * positive;
    by_gate = 0;
    by_linear = 2 * positive;
  }
}

/// `g` is the element of G, `p` the row's rounded probability.
template <typename Element, Formula kFormula>
__device__ inline Derived derive(const Activation& activation, float a, float u, float g, float p) {
  float value, by_gate, by_linear;
  differentiate<Element, kFormula>(activation, a, u, value, by_gate, by_linear);
  const float scaled = g * p;
  return {scaled * by_gate, scaled * by_linear, value * p, g * value};
}

/// A row's probability as the forward rounds it; 0 for rows behind the expert's.
template <typename Element>
__device__ inline float rounded_probability(const float* probs, i64 row, i64 row_end) {
  return round_as<Element>(row < row_end ? __ldg(probs + row) : 0.0F);
}

}  // namespace glu_ckpt
