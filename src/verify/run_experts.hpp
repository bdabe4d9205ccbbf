#pragma once
/// Running the experts of two checkpoints, as verify() and convert() do.

#include <vector>

#include "glu_ckpt/verify_forward.hpp"
#include "model/open_checkpoint.hpp"
#include "model/stage.hpp"

namespace glu_ckpt {

/// Opens what runs the experts on the run's device. "auto" is the CPU: with a few tokens for each expert the weights
/// pass through once, and the CPU has to read them anyway.
std::unique_ptr<MlpRunner> open_runner(const RunOptions& run);

/// The way to run the experts of both. Their config.json must not disagree about it; where only one has a config.json,
/// that speaks for both. Throws Usage, and what choose_activation() and forward_bytes() throw.
VerifyForwardOptions forward_options(const ExpertCompute& compute, const VerifySubset& subset, const RunOptions& run,
                                     const Checkpoint& a, const Checkpoint& b);

/// verify_forward() as a stage; the observer is told how fast.
std::vector<LayerForward> run_experts(const RunOptions& run, const Checkpoint& a, const Checkpoint& b,
                                      MlpRunner& runner, VerifyForwardOptions forward);

}  // namespace glu_ckpt
