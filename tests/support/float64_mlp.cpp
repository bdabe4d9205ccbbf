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

}  // namespace glu_ckpt::support
