#pragma once
/// Option values as typed, and the options that they mean.

#include <string>

#include "cli/options.hpp"

namespace glu_ckpt::cli {

/// Option values as typed, before they mean anything.
struct OptionTexts {
  std::string target, scope = "model", unknown = "refuse", naming, experts, bias_experts, glu, shared_glu;
  std::string from_naming, from_glu, from_shared_glu, from_optimizer_glu, decode, encode;
  std::string to_naming, to_glu, to_shared_glu, to_optimizer_glu;
  std::string max_shard, max_memory, device_memory, verify = "digest", progress = "auto", reflink = "auto",
                                                    format = "keep", optimizer = "keep", activation,
                                                    compute = "weights", bench_size, sample, part;
  /// These were typed.
  bool has_seed = false;
  bool has_tensors = false;
};

/// Fills in what the texts mean. `compute` is what the parser knows of running experts, of whichever command does.
/// Throws Usage, UnknownNaming and the errors of find_input().
void interpret(const OptionTexts& texts, ExpertCompute compute, Options& options);

}  // namespace glu_ckpt::cli
