#pragma once
/// The experts' function in double, from the formulas alone: shares nothing with what it judges.

#include <string>
#include <vector>

namespace glu_ckpt::support {

/// One expert, all matrices dense and [out, in]; an empty vector is a matrix that is not there.
struct PlainExpert {
  std::vector<double> gate, up, down;
  std::vector<double> gate_bias, up_bias, down_bias;
};

struct PlainActivation {
  /// The contract's name.
  std::string name;
  double alpha = 1.702;
  double limit = 7;
  double offset = 0;
};

/// act(a, u); a NaN in either gives a NaN.
double plain_activation(const PlainActivation& activation, double a, double u);

/// p * (act(W1 x + b1) W2^T + b2) of one token.
std::vector<double> plain_mlp(const PlainExpert& expert, const PlainActivation& activation,
                              const std::vector<double>& x, double p);

/// The gradients of sum over h of dout[h] times plain_mlp()[h]. Those of the experts are added to `grads`, whose
/// vectors are as long as the expert's. The activation's derivatives are central differences of plain_activation().
struct PlainTokenGrads {
  std::vector<double> dx;
  double dp = 0;
};
PlainTokenGrads add_plain_grads(const PlainExpert& expert, const PlainActivation& activation,
                                const std::vector<double>& x, double p, const std::vector<double>& dout,
                                PlainExpert& grads);

}  // namespace glu_ckpt::support
