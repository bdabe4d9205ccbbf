#pragma once
/// Experts with random weights, spelled in memory in any order of rows, and what they should compute.

#include <random>
#include <string>
#include <vector>

#include "glu_ckpt/forward.hpp"
#include "support/float64_mlp.hpp"

namespace glu_ckpt::support {

inline constexpr ActivationKind kActivationKinds[] = {
    ActivationKind::Swiglu,     ActivationKind::ClampedSwiglu,     ActivationKind::GegluTanh, ActivationKind::GegluErf,
    ActivationKind::QuickGeglu, ActivationKind::ClampedQuickGeglu, ActivationKind::Reglu,     ActivationKind::Glu,
    ActivationKind::SituGlu,    ActivationKind::SquaredRelu};
inline constexpr Dtype kFloatDtypes[] = {Dtype::BF16, Dtype::F16, Dtype::F32};

/// Constants that are nobody's default, and a limit that clamps much.
inline Activation some_activation(ActivationKind kind) { return {kind, 1.3F, 0.75F, 0.5F}; }

/// How an expert's FC1 lies in memory.
struct Fc1Order {
  std::string name;
  /// Gate and up in one tensor, in blocks of so many rows; 0: two tensors.
  i64 block_rows = 0;
  /// [in, out], of FC2 as well.
  bool transposed = false;
  /// The fused tensor is cut in the middle into two.
  bool halved = false;
};

/// The orders that F rows can be in.
std::vector<Fc1Order> fc1_orders(i64 width);

struct MlpShape {
  i64 hidden = 8;
  /// F of each expert.
  std::vector<i64> widths = {8, 8};
  Dtype dtype = Dtype::BF16;
  Activation activation;
  bool bias = false;
};

/// Weights that have the values of their dtype exactly, in double.
std::vector<PlainExpert> random_experts(const MlpShape& shape, std::mt19937& random);

/// The same in memory.
class StoredExperts {
 public:
  StoredExperts(const MlpShape& shape, const std::vector<PlainExpert>& experts, const Fc1Order& order);
  const std::vector<ExpertWeights>& experts() const { return experts_; }
  /// What the experts' matrices lie in.
  const std::vector<std::vector<std::byte>>& buffers() const { return buffers_; }

 private:
  /// Matrices [rows, cols] one after the other in one new buffer.
  StoredMatrix store(const std::vector<double>& values, i64 rows, bool transposed);
  void store_fused(const PlainExpert& expert, ExpertWeights& weights, const Fc1Order& order, i64 width, bool bias);
  const std::byte* keep(const std::vector<double>& values);

  Dtype dtype_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<ExpertWeights> experts_;
};

/// Values of `dtype`, rounded to nearest, as bytes; and back.
std::vector<std::byte> to_bytes(const std::vector<double>& values, Dtype dtype);
std::vector<double> to_doubles(std::span<const std::byte> bytes, Dtype dtype);

/// The values of a matrix in memory, dense; none where it is not there.
std::vector<double> stored_values(const StoredMatrix& matrix);
/// All matrices of one expert.
PlainExpert stored_values(const ExpertWeights& expert);
/// Experts of the same sizes whose every value is `value`.
std::vector<PlainExpert> filled_like(const std::vector<PlainExpert>& experts, double value);

/// Gradients of one call.
struct PlainGrads {
  /// [rows, hidden] and [rows].
  std::vector<double> dx, dprobs;
  std::vector<PlainExpert> experts;
};

/// Calls use(name, a, b) for each matrix that an expert can have.
template <typename Use>
void for_each_matrix(const PlainExpert& a, const PlainExpert& b, const Use& use) {
  use("gate", a.gate, b.gate);
  use("up", a.up, b.up);
  use("down", a.down, b.down);
  use("gate bias", a.gate_bias, b.gate_bias);
  use("up bias", a.up_bias, b.up_bias);
  use("down bias", a.down_bias, b.down_bias);
}

/// Experts, tokens and probabilities of one call.
struct MlpCall {
  /// The same for the same arguments.
  MlpCall(const MlpShape& mlp_shape, std::vector<i64> token_splits, unsigned seed);
  /// What the formulas give in double, [rows, hidden].
  std::vector<double> expected() const;
  /// What they give for the gradient of an output [rows, hidden].
  PlainGrads expected_grads(const std::vector<double>& dout) const;

  std::mt19937 random;
  MlpShape shape;
  std::vector<i64> splits;
  std::vector<PlainExpert> experts;
  /// Sum of the splits.
  i64 rows = 0;
  std::vector<double> x;
  std::vector<float> probs;
};

double rms(const std::vector<double>& values);
/// rms of the difference, in units of that of b.
double distance(const std::vector<double>& a, const std::vector<double>& b);

/// Normal deviates that `dtype` has.
std::vector<double> random_values(std::size_t count, double scale, Dtype dtype, std::mt19937& random);

}  // namespace glu_ckpt::support
