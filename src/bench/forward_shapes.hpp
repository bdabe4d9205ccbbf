#pragma once
/// The layers that forward passes are timed on.

#include <span>
#include <string>
#include <vector>

#include "bench/bench.hpp"
#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {

/// The bytes of an element of weights and tokens.
inline constexpr i64 kBf16 = 2;

/// K of FC1's rows.
inline constexpr i64 kBenchBlockRows = 32;

/// Returns the shapes of `model`, or of `otherwise` where it is empty; all where both are. Throws Usage with the names
/// there are.
std::vector<ForwardShape> shapes_named(const std::string& model, const std::string& otherwise);

/// `tokens`, or `otherwise` where there are none. Throws Usage for counts below 1.
std::vector<i64> token_counts(const std::vector<i64>& tokens, const std::vector<i64>& otherwise);

/// Experts in FC1 [E, 2F, H], interleaved:32, and FC2 [E, H, F], both bf16.
std::vector<ExpertWeights> grouped_experts(const ForwardShape& shape, const std::byte* fc1, const std::byte* fc2);

}  // namespace glu_ckpt
