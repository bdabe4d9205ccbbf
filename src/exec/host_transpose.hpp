#pragma once
/// Single elements that lie along one axis in the source and along another in the target, in host memory.

#include <cstddef>
#include <span>
#include <vector>

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

/// The means by which a transpose is made: registers of 64 bytes, of 32, or one element at a time.
enum class TransposePath { Avx512, Avx2, Plain };

/// The paths that this processor has, the fastest first; the last is Plain.
std::span<const TransposePath> transpose_paths();

/// Writes every element of the target and nothing else, the same bytes on every path. A path that is not among
/// transpose_paths() must not be asked for.
void transpose_in_host(const HostTranspose& shape, const std::byte* src, std::byte* dst, TransposePath path);

}  // namespace glu_ckpt
