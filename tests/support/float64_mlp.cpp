#include "support/float64_mlp.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace glu_ckpt::support {
namespace {

double logistic(double v) { return 1.0 / (1.0 + std::exp(-v)); }

std::vector<double> linear(const std::vector<double>& weight, const std::vector<double>& bias,
                           const std::vector<double>& x) {
  std::vector<double> out(weight.size() / x.size());
  for (std::size_t r = 0; r < out.size(); ++r) {
    for (std::size_t c = 0; c < x.size(); ++c) out[r] += weight[r * x.size() + c] * x[c];
    if (!bias.empty()) out[r] += bias[r];
  }
  return out;
}

/// y += factor * x
void add(std::vector<double>& y, std::size_t from, double factor, const std::vector<double>& x) {
  for (std::size_t i = 0; i < x.size(); ++i) y[from + i] += factor * x[i];
}

}  // namespace

double plain_activation(const PlainActivation& activation, double a, double u) {
  const std::string& name = activation.name;
  if (std::isnan(u) || (std::isnan(a) && name != "squared_relu")) return std::numeric_limits<double>::quiet_NaN();
  const double low_a = std::fmin(a, activation.limit);
  const double mid_u = std::fmax(-activation.limit, std::fmin(u, activation.limit));
  if (name == "swiglu") return a * logistic(a) * u;
  if (name == "clamped_swiglu") return low_a * logistic(low_a) * mid_u;
  if (name == "geglu_tanh") return 0.5 * a * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a))) * u;
  if (name == "geglu_erf") return 0.5 * a * std::erfc(-a / std::sqrt(2.0)) * u;
  if (name == "quick_geglu") return a * logistic(activation.alpha * a) * (u + activation.offset);
  if (name == "clamped_quick_geglu") return low_a * logistic(activation.alpha * low_a) * (mid_u + activation.offset);
  if (name == "reglu") return std::fmax(a, 0.0) * u;
  if (name == "glu") return logistic(a) * u;
  if (name == "situ_glu")
    return activation.alpha * std::tanh(a / activation.alpha) * logistic(a) * activation.limit *
           std::tanh(u / activation.limit);
  if (name == "squared_relu") return u > 0 ? u * u : 0;
  throw std::invalid_argument(name);
}

std::vector<double> plain_mlp(const PlainExpert& expert, const PlainActivation& activation,
                              const std::vector<double>& x, double p) {
  std::vector<double> middle = linear(expert.up, expert.up_bias, x);
  const std::vector<double> gate =
      expert.gate.empty() ? std::vector<double>(middle.size()) : linear(expert.gate, expert.gate_bias, x);
  for (std::size_t f = 0; f < middle.size(); ++f) middle[f] = plain_activation(activation, gate[f], middle[f]);
  std::vector<double> out = linear(expert.down, expert.down_bias, middle);
  for (double& value : out) value *= p;
  return out;
}

PlainTokenGrads add_plain_grads(const PlainExpert& expert, const PlainActivation& activation,
                                const std::vector<double>& x, double p, const std::vector<double>& dout,
                                PlainExpert& grads) {
  constexpr double kStep = 1e-6;
  const bool gated = !expert.gate.empty();
  const std::vector<double> u = linear(expert.up, expert.up_bias, x);
  const std::vector<double> a = gated ? linear(expert.gate, expert.gate_bias, x) : std::vector<double>(u.size());
  const std::size_t width = u.size(), hidden = x.size();
  PlainTokenGrads token{std::vector<double>(hidden)};
  for (std::size_t f = 0; f < width; ++f) {
    double g = 0;
    for (std::size_t h = 0; h < hidden; ++h) g += dout[h] * expert.down[h * width + f];
    const auto act = [&](double da, double du) { return plain_activation(activation, a[f] + da, u[f] + du); };
    const double value = act(0, 0);
    token.dp += g * value;
    for (std::size_t h = 0; h < hidden; ++h) grads.down[h * width + f] += dout[h] * value * p;
    const double du = g * p * (act(0, kStep) - act(0, -kStep)) / (2 * kStep);
    add(grads.up, f * hidden, du, x);
    for (std::size_t h = 0; h < hidden; ++h) token.dx[h] += du * expert.up[f * hidden + h];
    if (!grads.up_bias.empty()) grads.up_bias[f] += du;
    if (!gated) continue;
    const double da = g * p * (act(kStep, 0) - act(-kStep, 0)) / (2 * kStep);
    add(grads.gate, f * hidden, da, x);
    for (std::size_t h = 0; h < hidden; ++h) token.dx[h] += da * expert.gate[f * hidden + h];
    if (!grads.gate_bias.empty()) grads.gate_bias[f] += da;
  }
  if (!expert.down_bias.empty()) {
    add(grads.down_bias, 0, p, dout);
    for (std::size_t h = 0; h < hidden; ++h) token.dp += dout[h] * expert.down_bias[h];
  }
  return token;
}

}  // namespace glu_ckpt::support
