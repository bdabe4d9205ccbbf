#pragma once
/// The scale of YaRN's cosine and sine, as Megatron-Core and transformers compute it, and what Megatron-Core has for
/// Llama 3's scaling (models/common/embeddings/rotary_pos_embedding.py): the numbers of Llama 3.1.

#include <cmath>

namespace glu_ckpt {

inline constexpr double kLlama3Factor = 8.0;
inline constexpr double kLlama3Low = 1.0;
inline constexpr double kLlama3High = 4.0;
inline constexpr int kLlama3Positions = 8192;

inline double yarn_scale(double factor, double mscale) {
  constexpr double kSlope = 0.1;
  return factor <= 1.0 ? 1.0 : kSlope * mscale * std::log(factor) + 1.0;
}

}  // namespace glu_ckpt
