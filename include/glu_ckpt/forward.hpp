#pragma once
/// What the experts of a checkpoint compute: out = p * (act(x W1^T + b1) W2^T + b2), from weights as they are stored.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

/// Of gate a and linear term u; s(v) = 1 / (1 + exp(-v)), ac = min(a, limit), uc = clamp(u, -limit, limit).
/// A NaN comes out as a NaN, of clamps, ReLU and its square too, where TransformerEngine's kernels make a number of it.
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
  /// max(u, 0)^2: without a gate
  SquaredRelu,
};

struct Activation {
  ActivationKind kind = ActivationKind::Swiglu;
  float alpha = 1.702F;
  /// Of the clamped kinds.
  float limit = 7.0F;
  float offset = 0.0F;

  bool is_gated() const { return kind != ActivationKind::SquaredRelu; }
  bool operator==(const Activation&) const = default;
};

/// "swiglu", "clamped_quick_geglu", ...
std::string_view to_string(ActivationKind kind);
/// Throws Usage with the names that there are.
ActivationKind parse_activation(std::string_view text);

/// What a user said about the activation; empty fields come from config.json.
struct ActivationAnswers {
  std::optional<ActivationKind> kind;
  std::optional<float> alpha;
  std::optional<float> limit;
  std::optional<float> offset;
};

/// The activation of a model's experts. Nothing is guessed: constants that neither the user, config.json nor the
/// family settles throw UnknownActivation, constants that the activation does not have throw Usage.
Activation choose_activation(const ModelHints& hints, const ActivationAnswers& answers, bool gated);

/// A matrix [rows, cols] in memory, in any layout.
struct StoredMatrix {
  /// No step is negative, so the bytes that a part reaches lie between its first and its last element.
  struct Part {
    const std::byte* data = nullptr;
    /// Of the matrix's own row 0, counted from `data`.
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
/// Throws Usage for shapes, splits and constants, NotSupported for dtypes, with the numbers, before anything is
/// written.
void grouped_mlp_host(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs,
                      void* out, int jobs);

/// Where a grouped MLP is run. All that is handed over lies in host memory. Several threads may call one object at the
/// same time.
class MlpRunner {
 public:
  virtual ~MlpRunner() = default;
  /// As grouped_mlp_host() describes it, each with an order of its own for every sum; waits for the result. `jobs` are
  /// threads of the CPU, where that computes. Throws what grouped_mlp_host() throws, and NoMemory, DeviceFailed.
  virtual void run(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs,
                   void* out, int jobs) = 0;
  /// Bytes of weights that are a good meal for a call with `jobs` threads.
  virtual i64 batch_bytes(int jobs) const = 0;
  /// "cpu" or "cuda:0".
  virtual std::string name() const = 0;
};

/// "cpu", "cuda" or "cuda:N". Device memory is bounded by BackendOptions. Throws Usage, NoDevice, DeviceFailed.
std::unique_ptr<MlpRunner> make_mlp_runner(const std::string& device, const BackendOptions& options = {});

/// Tokens and the experts that a router chose for them.
struct RoutedTokens {
  i64 tokens = 0;
  i64 top_k = 0;
  /// x [tokens, H], of `x_dtype`: the compute dtype, or any of BF16, F16 and F32 where that is F32.
  Dtype x_dtype = Dtype::BF16;
  std::span<const std::byte> x;
  /// Experts and their probabilities, [tokens, top_k].
  std::span<const i64> index;
  std::span<const float> weights;
};

struct LayerOptions {
  Activation activation;
  /// Compute wholly in fp32 instead of in the weights' dtype.
  bool fp32 = false;
  int jobs = 1;
  /// At most so many bytes of weights are held at a time, but one expert at the least.
  i64 memory_bytes = i64{1} << 30;
  /// Called with bytes read, from any worker thread.
  std::function<void(i64)> on_progress = {};
  /// Where it computes; null: on the CPU with `jobs` threads.
  MlpRunner* runner = nullptr;
};

/// The dtype that a layer computes in: that of its weights, which must be one; bf16 for MXFP8, whose values it holds.
/// Throws NotSupported.
Dtype compute_dtype(const Model& model, const ExpertBlock& block, bool fp32);

/// y [tokens, H] in the compute dtype: for each token the sum over its experts, each as grouped_mlp_host() leaves it,
/// added in fp32 from the lowest expert to the highest (one expert's by position in `index`) and rounded once. Reads
/// the experts that have tokens, once each. Throws TokensInvalid for sizes, an index beyond the experts and NaNs,
/// with the numbers; NotExact where a value of an MXFP8 weight is none of bf16's.
std::vector<std::byte> forward_layer(const Model& model, const ExpertBlock& block, const RoutedTokens& tokens,
                                     const LayerOptions& options);

}  // namespace glu_ckpt
