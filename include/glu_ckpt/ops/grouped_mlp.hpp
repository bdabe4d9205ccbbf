#pragma once
/// The grouped MLP of experts: out = p * (act(x W1^T + b1) W2^T + b2), from weights as they are stored.

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// The formulas of gate a and linear term u; s(v) = 1 / (1 + exp(-v)), ac = min(a, limit), uc = clamp(u, -limit,
/// limit). A NaN stays a NaN, through clamps, ReLU and its square too, where TransformerEngine's kernels make a number
/// of it.
enum class ActivationKind {
  /// (a s(a)) u
  Swiglu,
  /// (ac s(ac)) uc
  ClampedSwiglu,
  /// (a s(2 a (0.79788456 + 0.03567741 a^2))) u: 0.5 + 0.5 tanh(v) is s(2 v)
  GegluTanh,
  /// (a Phi(a)) u, Phi the normal distribution function
  GegluErf,
  /// (a s(alpha a)) (u + offset)
  QuickGeglu,
  /// (ac s(alpha ac)) (uc + offset)
  ClampedQuickGeglu,
  /// max(a, 0) u
  Reglu,
  /// s(a) u
  Glu,
  /// (b(a, alpha) s(a)) b(u, limit), b(v, c) = c tanh(v / c): clamps that are smooth, TransformerEngine's SiTU-GLU
  SituGlu,
  /// max(u, 0)^2: without a gate
  SquaredRelu,
};

struct Activation {
  ActivationKind kind = ActivationKind::Swiglu;
  /// The slope of the quick kinds' sigmoid, or SituGlu's bound of the gate.
  float alpha = 1.702F;
  /// The limit of the clamped kinds, or SituGlu's bound of the linear term.
  float limit = 7.0F;
  float offset = 0.0F;

  bool is_gated() const { return kind != ActivationKind::SquaredRelu; }
  bool operator==(const Activation&) const = default;
};

/// "swiglu", "clamped_quick_geglu", ...
std::string_view to_string(ActivationKind kind);
/// Throws Usage with the names that there are.
ActivationKind parse_activation(std::string_view text);
std::vector<std::string_view> activation_names();

/// A user's answers about the activation; empty fields come from config.json.
struct ActivationAnswers {
  std::optional<ActivationKind> kind;
  std::optional<float> alpha;
  std::optional<float> limit;
  std::optional<float> offset;
};

/// A user's answers about what experts compute and in which dtype.
struct ExpertCompute {
  ActivationAnswers activation;
  /// Wholly in fp32 instead of in the weights' dtype: that shows smaller differences.
  bool fp32 = false;
};

/// A matrix [rows, cols] in memory, in any layout.
struct StoredMatrix {
  /// No step is negative, so the bytes that a part reaches lie between its first and its last element.
  struct Part {
    const std::byte* data = nullptr;
    /// The placement of the matrix's own row 0, counted from `data`.
    Placement place;
  };
  /// BF16, F16 or F32.
  Dtype dtype = Dtype::BF16;
  i64 rows = 0;
  i64 cols = 0;
  Part first;
  /// Rows from `tail_row` on, where they lie elsewhere; else tail_row = rows.
  Part tail;
  i64 tail_row = 0;

  bool is_there() const { return first.data != nullptr || tail.data != nullptr; }
};

/// One expert: gate and up are [F, H], down is [H, F]; biases are [F, 1] and [H, 1], or not there. F may differ by
/// expert. Without a gate, `gate` is not there.
struct ExpertWeights {
  StoredMatrix gate, up, down;
  StoredMatrix gate_bias, up_bias, down_bias;
};

/// The experts of one layer and how they compute.
struct GroupedMlp {
  i64 hidden = 0;
  /// The dtype of x and out, to which intermediate values are rounded: that of all weights, or F32 for any weights.
  Dtype compute = Dtype::BF16;
  Activation activation;
  std::span<const ExpertWeights> experts;
};

/// Runs the first splits[0] rows of x [rows, H] through expert 0, the next splits[1] through expert 1, and so on.
/// `probs` [rows] are the router's. Rows of `out` [rows, H] behind the last split keep what they hold; x, probs and out
/// do not overlap. Rounded to the compute dtype, to nearest even: z = x W1^T + b1, once; p; (act(z)) p, once;
/// out = fma(b2, p, sum), once, with the p that was given. With F32 nothing is rounded but fp32 results.
///
/// Every sum is made in one order, whatever the layout, the number of tokens, the threads and the processor: 16 partial
/// sums of fp32, number l of columns l, l + 16, ... from first to last, by a multiplication and an addition that round
/// each (columns past the last count as 0); then l += l + 8, l += l + 4, l += l + 2, l += l + 1. Exponentials are made
/// of IEEE basic operations alone. So equal weights in two layouts give equal bits.
/// `z`, where it is not null, gets the rounded pre-activation for a backward: [rows, 2F], F columns of gate, then F of
/// up, whatever the order of FC1's rows ([rows, F] without a gate); all experts then have one width. Rows behind the
/// last split keep what they hold.
/// Throws Usage for shapes, splits and constants, NotSupported for dtypes, with the numbers, before anything is
/// written.
void grouped_mlp_host(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs,
                      void* out, int jobs, void* z = nullptr);

}  // namespace glu_ckpt
