#pragma once
/// The epilogue of a layer: bias, activation, probability and rounding of its sums, in fp32. The formulas and constants
/// are those of ops/grouped_mlp.hpp.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/mlp/mlp_layer.hpp"

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
/// few 2^-22 vanish in the rounding. Subnormal numbers become 0 in them, which spares the instructions that scale.
template <typename Element>
__device__ inline float sigmoid(float v) {
  if constexpr (std::is_same_v<Element, float>) {
    return 1.0F / (1.0F + expf(-v));
  } else {
    constexpr float kMinusLog2E = -1.44269504F;
    float power, result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * kMinusLog2E));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0F + power));
    return result;
  }
}

// Comparisons with a NaN are false, so a NaN stays one; fmin and fmax would swallow it.
__device__ inline float at_most(float value, float limit) { return value > limit ? limit : value; }
__device__ inline float at_least(float value, float limit) { return value < limit ? limit : value; }

/// bound tanh(v / bound).
__device__ inline float smooth_bound(float v, float bound) { return bound * tanhf(v / bound); }

/// The formula of an activation. Those that differ in constants alone share one, and with it the code that follows a
/// layer's sums.
enum class Formula {
  /// (a s(a)) u. It is a formula of its own, because the constants of Scaled would cost the most used activation time.
  Swiglu,
  /// (ac s(alpha ac)) (uc + offset), with the constants of scaled().
  Scaled,
  GegluTanh,
  /// Formulas that are seldom used: the choice among them is made for each element.
  Other,
  /// max(u, 0)^2, without a gate.
  SquaredRelu,
};

/// The activation of gate a and linear term u.
template <typename Element, Formula kFormula>
__device__ inline float activate(const Activation& activation, float a, float u) {
  if constexpr (kFormula == Formula::Swiglu) return a * sigmoid<Element>(a) * u;
  if constexpr (kFormula == Formula::Scaled) {
    a = at_most(a, activation.limit);
    u = at_least(at_most(u, activation.limit), -activation.limit);
    return a * sigmoid<Element>(activation.alpha * a) * (u + activation.offset);
  }
  if constexpr (kFormula == Formula::GegluTanh)
    return a * sigmoid<Element>(2 * a * (0.79788456F + 0.03567741F * a * a)) * u;
  if constexpr (kFormula == Formula::Other) {
    if (activation.kind == ActivationKind::GegluErf) return a * normcdff(a) * u;
    if (activation.kind == ActivationKind::Reglu) return at_least(a, 0) * u;
    if (activation.kind == ActivationKind::SituGlu)
      return smooth_bound(a, activation.alpha) * sigmoid<Element>(a) * smooth_bound(u, activation.limit);
    return sigmoid<Element>(a) * u;
  }
  if constexpr (kFormula == Formula::SquaredRelu) return at_least(u, 0) * at_least(u, 0);
}

/// The probability of a row as it is stored; 0 for rows behind the expert's, and 1 where the layer needs none.
template <LayerKind kKind>
__device__ inline float load_probability(const MlpLayer& layer, i64 row, i64 row_end) {
  if (kKind == LayerKind::Linear && layer.bias[0] == nullptr) return 1;
  return row < row_end ? layer.probs[row] : 0.0F;
}
/// A stored probability as Epilogue takes it: FC1 rounds it to Element, the bias of FC2 takes it as it is.
template <typename Element, LayerKind kKind>
__device__ inline float round_probability(float p) {
  return kKind == LayerKind::Linear ? p : round_as<Element>(p);
}
/// The probability of a row as Epilogue takes it.
template <typename Element, LayerKind kKind>
__device__ inline float probability(const MlpLayer& layer, i64 row, i64 row_end) {
  return round_probability<Element, kKind>(load_probability<kKind>(layer, row, row_end));
}

/// An expert's biases, or null.
__device__ inline const float* expert_bias(const MlpLayer& layer, int which, int expert) {
  const float* const bias = layer.bias[which];
  return bias != nullptr ? bias + static_cast<i64>(expert) * layer.bias_pitch : nullptr;
}

/// The epilogue as a type, so that its formula is chosen once for a tile, not for each of the tile's elements.
template <typename ElementType, LayerKind kLayerKind, Formula kFormula>
struct Epilogue {
  using Element = ElementType;
  static constexpr LayerKind kKind = kLayerKind;
  const MlpLayer& layer;
  /// The expert's biases, or null.
  const float* first_bias;
  const float* second_bias;

  __device__ Epilogue(const MlpLayer& mlp_layer, int expert)
      : layer(mlp_layer), first_bias(expert_bias(layer, 0, expert)), second_bias(expert_bias(layer, 1, expert)) {}

  /// Returns one element of C before it is rounded. `p` is that of probability().
  __device__ float operator()(int col, float first, float second, float p) const {
    if constexpr (kKind == LayerKind::Linear) return first_bias != nullptr ? fmaf(first_bias[col], p, first) : first;
    if constexpr (kKind == LayerKind::Ungated) return activated(0, pre_activation<0>(col, first), p);
    if constexpr (kKind == LayerKind::Gated)
      return activated(pre_activation<0>(col, first), pre_activation<1>(col, second), p);
  }

  /// The same of FC1 from its rounded sums, a of gate and u of up.
  __device__ float activated(float a, float u, float p) const {
    return activate<Element, kFormula>(layer.activation, a, u) * p;
  }

  /// Returns one element of FC1's rounded sums: of gate and up for Gated, else the first only counts.
  template <int kWhich>
  __device__ float pre_activation(int col, float sum) const {
    const float* const bias = kWhich == 0 ? first_bias : second_bias;
    if (bias != nullptr) sum += bias[col];
    return round_as<Element>(sum);
  }
};

/// A formula as a value, so that it is chosen once for a tile.
template <Formula kFormula>
struct FormulaOf {
  static constexpr Formula value = kFormula;
};

/// Calls `use` with the activation's FormulaOf.
template <bool kGated, typename Use>
__device__ inline void with_formula(const Activation& activation, const Use& use) {
  if constexpr (!kGated) {
    use(FormulaOf<Formula::SquaredRelu>{});
  } else {
    switch (activation.kind) {
      case ActivationKind::Swiglu: return use(FormulaOf<Formula::Swiglu>{});
      case ActivationKind::ClampedSwiglu:
      case ActivationKind::QuickGeglu:
      case ActivationKind::ClampedQuickGeglu: return use(FormulaOf<Formula::Scaled>{});
      case ActivationKind::GegluTanh: return use(FormulaOf<Formula::GegluTanh>{});
      default: return use(FormulaOf<Formula::Other>{});
    }
  }
}

/// Calls `use` with the layer's Epilogue for an expert.
template <typename Element, LayerKind kKind, typename Use>
__device__ inline void with_epilogue(const MlpLayer& layer, int expert, const Use& use) {
  if constexpr (kKind == LayerKind::Linear)
    use(Epilogue<Element, kKind, Formula::Swiglu>(layer, expert));
  else
    with_formula<kKind == LayerKind::Gated>(layer.activation, [&](auto formula) {
      use(Epilogue<Element, kKind, decltype(formula)::value>(layer, expert));
    });
}

/// Stores 16 bytes of a row, columns `col` to `col` + 8 of `cols`. Rows that begin at multiples of 16 bytes are written
/// in one piece.
template <typename Element>
__device__ inline void store_piece(const RowsOut& out, int cols, i64 row, int col, uint4 piece) {
  Element* const to = static_cast<Element*>(out.data) + row * out.pitch + col;
  if (out.wide && col + 8 <= cols) {
    *reinterpret_cast<uint4*>(to) = piece;
    return;
  }
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (col + i < cols) {
      const auto bits = static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16));
      *reinterpret_cast<unsigned short*>(to + i) = bits;
    }
}

/// Two neighbours, rounded; the first is in the lower half.
template <typename Element>
__device__ inline uint32_t pack(float first, float second) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&both);
  } else {
    const __half2 both = __floats2half2_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
}

/// Returns both as fp32.
template <typename Element>
__device__ inline float2 unpack(uint32_t both) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>)
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000U)};
  else
    return __half22float2(*reinterpret_cast<const __half2*>(&both));
}

}  // namespace glu_ckpt
