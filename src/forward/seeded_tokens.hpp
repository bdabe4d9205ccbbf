#pragma once
/// The tokens of verify_forward(). They are made of counters, so that the bits are the same on every machine, whatever
/// is computed before or beside them.

#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Tokens for the experts of one block.
class SeededTokens {
 public:
  /// `block` tells the streams of blocks apart.
  SeededTokens(u64 seed, std::string_view block, i64 num_experts, i64 hidden);

  /// Tokens of an expert: 1 to 7, and one for one of three or more.
  i64 count(i64 expert) const { return counts_[static_cast<std::size_t>(expert)]; }
  /// The expert that is to run on its own, so that it is empty beside the others; -1 where there is but one.
  i64 isolated_expert() const { return isolated_; }

  /// x [count, hidden] of `dtype`: multiples of 1/64 up to 110/64 on both sides of 0, which BF16 and F16 have too, all
  /// alike likely; their variance is 0.994. And probabilities: odd multiples of 2^-24 between 0 and 1.
  void fill(i64 expert, Dtype dtype, std::byte* x, float* probs) const;

 private:
  u64 key_;
  i64 hidden_;
  i64 isolated_ = -1;
  std::vector<i64> counts_;
};

}  // namespace glu_ckpt
