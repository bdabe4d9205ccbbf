#pragma once
/// Finds whether two checkpoints compute the same: their experts run on the same tokens, each from its own layout.

#include <filesystem>

#include "glu_ckpt/forward.hpp"
#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

struct VerifyForwardOptions {
  Activation activation;
  /// Compute wholly in fp32 instead of in the weights' dtype: it shows smaller differences.
  bool fp32 = false;
  /// Labels of layers and ranges of numbers: "3,5-7,mtp.0". Empty: all.
  std::string layers;
  /// The seed of tokens, splits and probabilities.
  u64 seed = 0;
  /// Threads that read.
  int jobs = 1;
  /// The most bytes of weights that are in memory at a time; those of one expert of one side are there in any case.
  i64 memory_bytes = i64{1} << 30;
  /// Called with bytes read, from any worker thread.
  std::function<void(i64)> on_progress = {};
};

/// Runs the weights of A and of B in each layer that either has and `layers` names, routed and shared experts, and in
/// each layer some of B's once more in a wrong layout. Of the experts of a layer one has one token and one has none
/// beside the others, but runs on its own; the others have 1 to 7. Throws LayerMissing, NoExperts, NotSupported where
/// the weights cannot be computed with, and what reading throws.
std::vector<LayerForward> verify_forward(const Model& a, const Model& b, MlpRunner& runner,
                                         const VerifyForwardOptions& options);

/// Opens two checkpoints and runs the experts of both, and nothing else. Of `options`, forward is taken for granted.
/// Throws what verify() throws.
std::vector<LayerForward> verify_forward(const std::filesystem::path& path_a, const std::filesystem::path& path_b,
                                         const VerifyOptions& options = {}, const RunOptions& run = {});

/// Bytes that verify_forward() will read. Throws LayerMissing, NoExperts and NotSupported as it does: what is wrong
/// shows before anything is read.
i64 forward_bytes(const Model& a, const Model& b, const VerifyForwardOptions& options);

}  // namespace glu_ckpt
