#pragma once
/// Single elements that lie along one axis in the source and along another in the target, in host memory.

#include <cstddef>
#include <vector>

#include "core/simd.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// A copy of the elements (d, a), d < down.size() and a < across.size(), from down[d] + a * src_step to
/// across[a] + d * dst_step, all bytes. Any address, any step.
struct HostTranspose {
  /// 1, 2, 4 or 8.
  i64 element_bytes = 0;
  /// The first byte of each row of the source and of each row of the target, counted from their first bytes.
  std::vector<i64> down;
  std::vector<i64> across;
  i64 src_step = 0;
  i64 dst_step = 0;
};

/// Writes every element of the target and nothing else, the same bytes on every level. A level that is not among
/// simd_levels() must not be asked for.
void transpose_in_host(const HostTranspose& shape, const std::byte* src, std::byte* dst, SimdLevel level);

}  // namespace glu_ckpt
