#pragma once
/// Compares elements in host memory on a GPU, part by part, in the order of sums that the CPU has.

#include <cstddef>
#include <memory>
#include <span>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Elements that are summed together, and the lanes in which they are: element i of a part belongs to lane
/// i % kPartLanes. Lanes are summed in the order of their elements, a part in the order of its lanes.
inline constexpr i64 kPartElements = 1024;
inline constexpr int kPartLanes = 8;

/// The result for one part, as ElementDiff's fields of the same names say; `first` counts from the part's first
/// element.
struct PartDiff {
  i64 differing = 0;
  i64 first = -1;
  double max_abs = 0;
  double max_rel = 0;
  double sum_squares = 0;
  double squares_a = 0;
  double squares_b = 0;
  i64 nan_in_one = 0;
};

/// One thread uses it.
class PartComparer {
 public:
  /// Throws NoDevice, DeviceFailed.
  explicit PartComparer(int device);
  ~PartComparer();
  PartComparer(const PartComparer&) = delete;
  PartComparer& operator=(const PartComparer&) = delete;

  /// Compares `count` elements that lie in groups of `group`, the last of which may be shorter; each group is cut into
  /// parts of kPartElements and a rest. Returns the parts in order, valid until the next call. Dtypes that are not
  /// equal are both F64, F32, F16 or BF16. Throws NoMemory, DeviceFailed.
  std::span<const PartDiff> compare(Dtype dtype_a, const std::byte* a, Dtype dtype_b, const std::byte* b, i64 count,
                                    i64 group);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glu_ckpt
