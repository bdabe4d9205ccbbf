#pragma once
/// The scale of YaRN's cosine and sine, as Megatron-Core and transformers compute it.

#include <cmath>

namespace glu_ckpt {

inline double yarn_scale(double factor, double mscale) {
  constexpr double kSlope = 0.1;
  return factor <= 1.0 ? 1.0 : kSlope * mscale * std::log(factor) + 1.0;
}

}  // namespace glu_ckpt
