#include "exec/activation.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

namespace glu_ckpt {
namespace {

/// exp(x) to about 1e-15 of its value for |x| <= 700; farther out as at the border, which fp32 does not tell from 0 and
/// infinity. A NaN stays one.
double exp_basic(double x) {
  constexpr double kBorder = 700;
  constexpr double kLog2E = 1.4426950408889634;
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  // Added and subtracted, it rounds to an integer.
  constexpr double kRounder = 0x1.8p52;
  if (std::isnan(x)) return x;
  x = x < -kBorder ? -kBorder : x > kBorder ? kBorder : x;
  const double n = (x * kLog2E + kRounder) - kRounder;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor's series; |r| <= 0.35, so the first term left out is below 1e-16.
  constexpr int kTerms = 13;
  double sum = 1;
  for (int i = kTerms; i > 0; --i) sum = 1 + sum * r / i;
  return sum * std::bit_cast<double>((static_cast<std::int64_t>(n) + 1023) << 52);
}

float sigmoid(float v) { return static_cast<float>(1 / (1 + exp_basic(-static_cast<double>(v)))); }

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
float at_most(float v, float limit) { return v > limit ? limit : v; }
float clamp_both(float v, float limit) { return v > limit ? limit : v < -limit ? -limit : v; }
float at_least_zero(float v) { return v < 0 ? 0 : v; }

float gelu_tanh_argument(float a) {
  constexpr float kLinear = 0.79788456F;
  constexpr float kCubic = 0.03567741F;
  return 2 * (a * (kLinear + kCubic * a * a));
}

}  // namespace

float activate(const Activation& activation, float a, float u) {
  const float limit = activation.limit;
  switch (activation.kind) {
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
    case ActivationKind::SquaredRelu: return at_least_zero(u) * at_least_zero(u);
  }
  return std::nanf("");
}

}  // namespace glu_ckpt
