#include "forward/activation.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/float_rows.hpp"
#include "core/simd.hpp"

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

namespace glu_ckpt {
namespace {

/// exp(x) to about 1e-15 of its value for |x| <= 700; farther out as at the border, which fp32 does not tell from 0 and
/// infinity. A NaN stays one. Without a branch, so that the compiler can take several at a time.
ALWAYS_INLINE double exp_basic(double x) {
  constexpr double kBorder = 700;
  constexpr double kLog2E = 1.4426950408889634;
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  // Added and subtracted, it rounds to an integer, which is also what the sum's bits are more than its own.
  constexpr double kRounder = 0x1.8p52;
  const double inside = x < -kBorder ? -kBorder : x > kBorder ? kBorder : x;
  const double shifted = inside * kLog2E + kRounder;
  const double n = shifted - kRounder;
  const double r = (inside - n * kLn2High) - n * kLn2Low;
  // Taylor's series; |r| <= 0.35, so the first term left out is below 1e-16.
  double sum = 1 + r / 13;
  sum = 1 + sum * r / 12;
  sum = 1 + sum * r / 11;
  sum = 1 + sum * r / 10;
  sum = 1 + sum * r / 9;
  sum = 1 + sum * r / 8;
  sum = 1 + sum * r / 7;
  sum = 1 + sum * r / 6;
  sum = 1 + sum * r / 5;
  sum = 1 + sum * r / 4;
  sum = 1 + sum * r / 3;
  sum = 1 + sum * r / 2;
  sum = 1 + sum * r;
  const i64 exponent = std::bit_cast<i64>(shifted) - std::bit_cast<i64>(kRounder);
  const double result = sum * std::bit_cast<double>(static_cast<u64>(exponent + 1023) << 52);
  return std::isnan(x) ? x : result;
}

ALWAYS_INLINE float sigmoid(float v) { return static_cast<float>(1 / (1 + exp_basic(-static_cast<double>(v)))); }

/// tanh(x). Near 0 exp(2 x) - 1 has few good bits, and the series is exact to 1e-16 of its value.
ALWAYS_INLINE double tanh_basic(double x) {
  constexpr double kNear = 1e-3;
  const double power = exp_basic(2 * x);
  const double far = (power - 1) / (power + 1);
  const double square = x * x;
  const double near = x * (1 - square * (1.0 / 3 - square * (2.0 / 15)));
  return x < kNear && x > -kNear ? near : far;
}

/// bound tanh(v / bound) and its derivative.
struct SmoothBound {
  float value, slope;
};
ALWAYS_INLINE SmoothBound smooth_bound(float v, float bound) {
  const double t = tanh_basic(static_cast<double>(v) / static_cast<double>(bound));
  return {static_cast<float>(static_cast<double>(bound) * t), static_cast<float>((1 - t) * (1 + t))};
}

/// 1 - Phi(|a|), the tail of the normal distribution, for |a| / sqrt(2) = y.
double normal_tail(double y) {
  constexpr double kSqrtPi = 1.7724538509055160;
  constexpr double kNear = 2.5;
  constexpr double kFar = 27;
  if (y > kFar) return 0;
  if (y > kNear) {
    // Laplace's continued fraction, from far inside.
    constexpr int kLevels = 60;
    double fraction = y;
    for (int i = kLevels; i > 0; --i) fraction = y + 0.5 * i / fraction;
    return 0.5 * exp_basic(-y * y) / (kSqrtPi * fraction);
  }
  // erf(y) = 2 / sqrt(pi) exp(-y^2) sum of 2^n y^(2n+1) / (2n+1)!!, whose terms are all positive.
  constexpr int kTerms = 60;
  double sum = 1;
  for (int n = kTerms; n > 0; --n) sum = 1 + sum * 2 * y * y / (2 * n + 1);
  return 0.5 - y * sum * exp_basic(-y * y) / kSqrtPi;
}

float normal_distribution(float a) {
  constexpr double kSqrtHalf = 0.70710678118654752;
  if (std::isnan(a)) return a;
  const double tail = normal_tail(std::fabs(static_cast<double>(a)) * kSqrtHalf);
  return static_cast<float>(a < 0 ? tail : 1 - tail);
}

// Written so that every comparison with a NaN keeps it.
ALWAYS_INLINE float at_most(float v, float limit) { return v > limit ? limit : v; }
ALWAYS_INLINE float clamp_both(float v, float limit) { return v > limit ? limit : v < -limit ? -limit : v; }
ALWAYS_INLINE float at_least_zero(float v) { return v < 0 ? 0 : v; }

ALWAYS_INLINE float gelu_tanh_argument(float a) {
  constexpr float kLinear = 0.79788456F;
  constexpr float kCubic = 0.03567741F;
  return 2 * (a * (kLinear + kCubic * a * a));
}

ALWAYS_INLINE float activate_one(ActivationKind kind, const Activation& activation, float a, float u) {
  const float limit = activation.limit;
  switch (kind) {
    case ActivationKind::Swiglu: return a * sigmoid(a) * u;
    case ActivationKind::ClampedSwiglu: {
      const float ac = at_most(a, limit);
      return ac * sigmoid(ac) * clamp_both(u, limit);
    }
    case ActivationKind::GegluTanh: return a * sigmoid(gelu_tanh_argument(a)) * u;
    case ActivationKind::GegluErf: return a * normal_distribution(a) * u;
    case ActivationKind::QuickGeglu: return a * sigmoid(activation.alpha * a) * (u + activation.offset);
    case ActivationKind::ClampedQuickGeglu: {
      const float ac = at_most(a, limit);
      return ac * sigmoid(activation.alpha * ac) * (clamp_both(u, limit) + activation.offset);
    }
    case ActivationKind::Reglu: return at_least_zero(a) * u;
    case ActivationKind::Glu: return sigmoid(a) * u;
    case ActivationKind::SituGlu:
      return smooth_bound(a, activation.alpha).value * sigmoid(a) * smooth_bound(u, activation.limit).value;
    case ActivationKind::SquaredRelu: return at_least_zero(u) * at_least_zero(u);
  }
  return std::nanf("");
}

/// The density of the normal distribution.
float normal_density(float a) {
  constexpr double kInverseSqrt2Pi = 0.39894228040143268;
  const auto wide = static_cast<double>(a);
  return static_cast<float>(kInverseSqrt2Pi * exp_basic(-0.5 * wide * wide));
}

/// The derivative of v s(slope_of_v) where s is a sigmoid whose argument has this derivative. It is s where s (1 - s)
/// is 0, also where the derivative is infinite.
float gated_slope(float a, float s, float argument_slope) {
  const float bend = a * s * (1 - s);
  return bend == 0 ? s : s + bend * argument_slope;
}

/// One row's arguments.
struct Row {
  const Activation& activation;
  const float* a;
  const float* u;
  float scale;
  float* out;
  i64 count;
};

using RowFunction = void(const Row&);

template <ActivationKind kKind>
ALWAYS_INLINE void run_kind(const Row& row) {
  const float* const a = row.a == nullptr ? row.u : row.a;
  for (i64 i = 0; i < row.count; ++i) row.out[i] = activate_one(kKind, row.activation, a[i], row.u[i]) * row.scale;
}

ALWAYS_INLINE void run_row(const Row& row) {
  switch (row.activation.kind) {
    case ActivationKind::Swiglu: return run_kind<ActivationKind::Swiglu>(row);
    case ActivationKind::ClampedSwiglu: return run_kind<ActivationKind::ClampedSwiglu>(row);
    case ActivationKind::GegluTanh: return run_kind<ActivationKind::GegluTanh>(row);
    case ActivationKind::GegluErf: return run_kind<ActivationKind::GegluErf>(row);
    case ActivationKind::QuickGeglu: return run_kind<ActivationKind::QuickGeglu>(row);
    case ActivationKind::ClampedQuickGeglu: return run_kind<ActivationKind::ClampedQuickGeglu>(row);
    case ActivationKind::Reglu: return run_kind<ActivationKind::Reglu>(row);
    case ActivationKind::Glu: return run_kind<ActivationKind::Glu>(row);
    case ActivationKind::SituGlu: return run_kind<ActivationKind::SituGlu>(row);
    case ActivationKind::SquaredRelu: return run_kind<ActivationKind::SquaredRelu>(row);
  }
}

GLU_CKPT_AVX512 void row_avx512(const Row& row) { run_row(row); }
GLU_CKPT_AVX2 void row_avx2(const Row& row) { run_row(row); }
void row_plain(const Row& row) { run_row(row); }

}  // namespace

float activate(const Activation& activation, float a, float u) {
  return activate_one(activation.kind, activation, a, u);
}

ActivationGrad activation_grad(const Activation& activation, float a, float u) {
  const float value = activate(activation, a, u);
  const float limit = activation.limit;
  switch (activation.kind) {
    case ActivationKind::Swiglu: {
      const float s = sigmoid(a);
      return {value, gated_slope(a, s, 1) * u, a * s};
    }
    case ActivationKind::ClampedSwiglu:
    case ActivationKind::ClampedQuickGeglu:
    case ActivationKind::QuickGeglu: {
      const bool clamps = activation.kind != ActivationKind::QuickGeglu;
      const float alpha = activation.kind == ActivationKind::ClampedSwiglu ? 1 : activation.alpha;
      const float offset = activation.kind == ActivationKind::ClampedSwiglu ? 0 : activation.offset;
      const float ac = clamps ? at_most(a, limit) : a;
      const float uc = clamps ? clamp_both(u, limit) : u;
      const float s = sigmoid(alpha * ac);
      return {value, clamps && a > limit ? 0 : gated_slope(ac, s, alpha) * (uc + offset),
              clamps && (u > limit || u < -limit) ? 0 : ac * s};
    }
    case ActivationKind::GegluTanh: {
      constexpr float kLinear = 0.79788456F;
      constexpr float kThreeCubics = 0.10703223F;
      const float s = sigmoid(gelu_tanh_argument(a));
      return {value, gated_slope(a, s, 2 * (kLinear + kThreeCubics * a * a)) * u, a * s};
    }
    case ActivationKind::GegluErf: {
      const float phi = normal_distribution(a);
      const float bend = std::isinf(a) ? 0 : a * normal_density(a);
      return {value, (phi + bend) * u, a * phi};
    }
    case ActivationKind::Reglu: return {value, a > 0 ? u : a <= 0 ? 0 : a, at_least_zero(a)};
    case ActivationKind::Glu: {
      const float s = sigmoid(a);
      return {value, s * (1 - s) * u, s};
    }
    case ActivationKind::SituGlu: {
      const float s = sigmoid(a);
      const SmoothBound gate = smooth_bound(a, activation.alpha), linear = smooth_bound(u, limit);
      return {value, (gate.slope * s + gate.value * s * (1 - s)) * linear.value, gate.value * s * linear.slope};
    }
    case ActivationKind::SquaredRelu: return {value, 0, 2 * at_least_zero(u)};
  }
  return {};
}

void activate_row(const Activation& activation, std::span<const float> a, std::span<const float> u, float scale,
                  Dtype dtype, std::span<float> out) {
  static RowFunction* const function = fastest(row_avx512, row_avx2, row_plain);
  function({activation, a.empty() ? nullptr : a.data(), u.data(), scale, out.data(), static_cast<i64>(u.size())});
  round_row(out, dtype);
}

}  // namespace glu_ckpt
