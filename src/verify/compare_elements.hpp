#pragma once
/// Compares elements in memory: by bits, and where they are floats by how much.

#include <memory>
#include <span>
#include <vector>

#include "glu_ckpt/diff.hpp"

namespace glu_ckpt {

/// Returns whether elements of this dtype are numbers that compare_elements() takes differences of.
bool has_numbers(Dtype dtype);

/// Bytes in which elements of this dtype are counted: 1 where several share a byte.
i64 counted_bytes(Dtype dtype);

/// Compares as many elements of `b` with those of `a` as both hold; of one dtype, or of two with numbers. Parts that
/// are equal cost no more than memcmp. The sum is made in one order, whatever the processor.
ElementDiff compare_elements(Dtype dtype_a, std::span<const std::byte> a, Dtype dtype_b, std::span<const std::byte> b);

/// Compares many groups of elements, each as compare_elements() does. One thread uses it.
class GroupComparer {
 public:
  virtual ~GroupComparer() = default;
  /// Both sides hold groups of `group` elements, the last of which may be shorter; the results are in their order.
  virtual std::vector<ElementDiff> compare(Dtype dtype_a, std::span<const std::byte> a, Dtype dtype_b,
                                           std::span<const std::byte> b, i64 group) = 0;
};

/// Compares where the backend moves: on the thread itself, or on the worker's GPU, to the same last bit.
/// Throws NoDevice, DeviceFailed.
std::unique_ptr<GroupComparer> make_comparer(const Backend& backend, int worker);

}  // namespace glu_ckpt
