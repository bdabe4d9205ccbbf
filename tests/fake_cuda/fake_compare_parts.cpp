/// In the place of the kernel that compares elements: the host's function, part by part.

#include <algorithm>
#include <vector>

#include "kernels/copy/compare_parts.hpp"
#include "verify/compare_elements.hpp"

namespace glu_ckpt {

struct PartComparer::State {
  std::vector<PartDiff> parts;
};

PartComparer::PartComparer(int) : state_(std::make_unique<State>()) {}
PartComparer::~PartComparer() = default;

std::span<const PartDiff> PartComparer::compare(Dtype dtype_a, const std::byte* a, Dtype dtype_b, const std::byte* b,
                                                i64 count, i64 group) {
  const auto bytes = [](const std::byte* side, Dtype dtype, i64 begin, i64 elements) {
    const i64 unit = counted_bytes(dtype);
    return std::span(side + begin * unit, static_cast<std::size_t>(elements * unit));
  };
  state_->parts.clear();
  for (i64 begin = 0; begin < count;) {
    const i64 in_group = begin % group;
    const i64 elements = std::min({kPartElements, group - in_group, count - begin});
    const ElementDiff found =
        compare_elements(dtype_a, bytes(a, dtype_a, begin, elements), dtype_b, bytes(b, dtype_b, begin, elements));
    state_->parts.push_back({found.differing, found.first, found.max_abs, found.max_rel, found.sum_squares,
                             found.squares_a, found.squares_b, found.nan_in_one});
    begin += elements;
  }
  return state_->parts;
}

}  // namespace glu_ckpt
