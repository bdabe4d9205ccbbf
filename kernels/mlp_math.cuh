#pragma once
/// What becomes of a layer's sums, in fp32. Formulas and constants as in forward.hpp.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/mlp_layer.hpp"

namespace glu_ckpt {

/// Rounds to Element, to nearest even.
template <typename Element>
__device__ inline Element narrow(float value) {
  if constexpr (std::is_same_v<Element, float>)
    return value;
  else if constexpr (std::is_same_v<Element, __nv_bfloat16>)
    return __float2bfloat16_rn(value);
  else
    return __float2half_rn(value);
}

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float widen(__half value) { return __half2float(value); }

/// The fp32 value that rounding to Element leaves.
template <typename Element>
__device__ inline float round_as(float value) {
  return widen(narrow<Element>(value));
}

/// 1 / (1 + exp(-v)). For 16-bit results the special function units' exponential and reciprocal do: their errors of a
/// few 2^-22 vanish in the rounding.
template <typename Element>
__device__ inline float sigmoid(float v) {
  if constexpr (std::is_same_v<Element, float>)
    return 1.0F / (1.0F + expf(-v));
  else
    return __fdividef(1.0F, 1.0F + __expf(-v));
}

// Comparisons with a NaN are false, so a NaN stays one; fmin and fmax would swallow it.
__device__ inline float at_most(float value, float limit) { return value > limit ? limit : value; }
__device__ inline float at_least(float value, float limit) { return value < limit ? limit : value; }

/// The activation of gate a and linear term u. `kind` and constants are the same for a whole launch, so branches on
/// them cost little.
template <typename Element>
__device__ inline float activate(const Activation& activation, float a, float u) {
  switch (activation.kind) {
    case ActivationKind::Swiglu: return a * sigmoid<Element>(a) * u;
    case ActivationKind::ClampedSwiglu:
      a = at_most(a, activation.limit);
      u = at_least(at_most(u, activation.limit), -activation.limit);
      return a * sigmoid<Element>(a) * u;
    case ActivationKind::GegluTanh: return a * sigmoid<Element>(2 * a * (0.79788456F + 0.03567741F * a * a)) * u;
    case ActivationKind::GegluErf: return a * normcdff(a) * u;
    case ActivationKind::QuickGeglu: return a * sigmoid<Element>(activation.alpha * a) * (u + activation.offset);
    case ActivationKind::ClampedQuickGeglu:
      a = at_most(a, activation.limit);
      u = at_least(at_most(u, activation.limit), -activation.limit);
      return a * sigmoid<Element>(activation.alpha * a) * (u + activation.offset);
    case ActivationKind::Reglu: return at_least(a, 0) * u;
    case ActivationKind::Glu: return sigmoid<Element>(a) * u;
    case ActivationKind::SquaredRelu: return at_least(u, 0) * at_least(u, 0);
  }
  return 0;
}

__device__ inline float bias_of(const MlpLayer& layer, int which, int expert, int col) {
  return col < layer.cols ? __ldg(layer.bias[which] + static_cast<i64>(expert) * layer.cols + col) : 0.0F;
}

/// One element of the result before it is narrowed. `p` is the probability, rounded to Element for FC1.
template <typename Element, LayerKind kKind>
__device__ inline float finish(const MlpLayer& layer, int expert, int col, float first, float second, float p) {
  if constexpr (kKind == LayerKind::Linear) {
    return layer.bias[0] != nullptr ? fmaf(bias_of(layer, 0, expert, col), p, first) : first;
  } else if constexpr (kKind == LayerKind::Ungated) {
    const float u = round_as<Element>(layer.bias[0] != nullptr ? first + bias_of(layer, 0, expert, col) : first);
    return activate<Element>(layer.activation, 0, u) * p;
  } else {
    const float a = round_as<Element>(layer.bias[0] != nullptr ? first + bias_of(layer, 0, expert, col) : first);
    const float u = round_as<Element>(layer.bias[1] != nullptr ? second + bias_of(layer, 1, expert, col) : second);
    return activate<Element>(layer.activation, a, u) * p;
  }
}

/// The probability as finish() takes it; rows behind the expert's have none.
template <typename Element, LayerKind kKind>
__device__ inline float probability(const MlpLayer& layer, i64 row, i64 row_end) {
  if (kKind == LayerKind::Linear && layer.bias[0] == nullptr) return 1;
  const float p = row < row_end ? __ldg(layer.probs + row) : 0.0F;
  return kKind == LayerKind::Linear ? p : round_as<Element>(p);
}

}  // namespace glu_ckpt
