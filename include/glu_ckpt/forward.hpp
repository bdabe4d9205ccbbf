#pragma once
/// Runs the experts of a checkpoint: out = p * (act(x W1^T + b1) W2^T + b2), from weights as they are stored.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"
#include "glu_ckpt/ops/grouped_mlp.hpp"
#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// The activation of a model's experts. Nothing is guessed: constants that neither the user, config.json nor the
/// family settles throw UnknownActivation, constants that the activation does not have throw Usage.
Activation choose_activation(const ModelHints& hints, const ActivationAnswers& answers, bool gated);

/// Runs a grouped MLP on some device. Everything that is passed lies in host memory. Several threads may call one
/// object at the same time.
class MlpRunner {
 public:
  virtual ~MlpRunner() = default;
  /// Computes what grouped_mlp_host() describes, with an order of its own for every sum, and waits for the result.
  /// `jobs` are threads of the CPU, where that computes. Throws what grouped_mlp_host() throws, and NoMemory,
  /// DeviceFailed.
  virtual void run(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs,
                   void* out, int jobs) = 0;
  /// Bytes of weights that are a good batch for a call with `jobs` threads.
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
  /// The most bytes of weights that are in memory at a time; one expert's are there in any case.
  i64 memory_bytes = i64{1} << 30;
  /// Called with bytes read, from any worker thread.
  std::function<void(i64)> on_progress = {};
  /// The device that computes; null: the CPU with `jobs` threads.
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

/// One layer's experts on given tokens, from a file to a file.
struct ForwardRequest {
  std::filesystem::path checkpoint;
  SourceAnswers from;
  /// The layer's label: "3", "mtp.0".
  std::string layer;
  /// A safetensors file with x [T, H], index [T, top_k] I64 and weights [T, top_k].
  std::filesystem::path tokens;
  /// The safetensors file that y [T, H] is written to.
  std::filesystem::path output;
  ExpertCompute compute;
  /// Replace the output file.
  bool overwrite = false;
};

struct ForwardWritten {
  std::string layer;
  i64 num_experts = 0;
  /// The shape of y: [T, H].
  std::vector<i64> shape;
  Dtype dtype = Dtype::BF16;
  Activation activation;
  std::string device;
};

/// Runs the routed experts of one layer, shared experts not included, and writes y in the compute dtype. Throws
/// LayerMissing, NoExperts, UnknownGlu, UnknownActivation, TokensInvalid, OutputExists, errors of the files and of the
/// machine, Interrupted.
ForwardWritten forward(const ForwardRequest& request, const RunOptions& run = {});

}  // namespace glu_ckpt
