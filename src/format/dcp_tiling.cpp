/// check_tiling(): whether boxes tile a tensor, without comparing every two of them.

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "core/fail.hpp"
#include "format/dcp_metadata.hpp"

namespace glu_ckpt {
namespace {

/// Steps that a tensor may take for each of its chunks: tilings that occur need a few, and no file may make it minutes.
constexpr i64 kStepsPerChunk = 128;
constexpr i64 kFreeSteps = i64{1} << 20;

bool is_empty(const DcpChunk& chunk) {
  return std::ranges::any_of(chunk.shape, [](i64 extent) { return extent == 0; });
}

/// Looks for chunks that overlap, and for the first hole in the order of elements. It cuts the tensor wherever a plane
/// runs between chunks, until each part has one chunk. Chunks that no plane parts (a pinwheel) are compared with their
/// neighbours, and their volumes added up.
class TilingCheck {
 public:
  TilingCheck(const DcpTensor& tensor, const InputPart& part) : tensor_(tensor), part_(part) {
    for (u32 i = 0; i < tensor.chunks.size(); ++i)
      if (!is_empty(tensor.chunks[i])) order_.push_back(i);
  }

  void run() {
    if (std::ranges::any_of(tensor_.shape, [](i64 extent) { return extent == 0; })) return;
    // A stack of its own: a hostile file may nest parts as deep as it has chunks.
    parts_.push_back({0, order_.size(), std::vector<i64>(tensor_.shape.size(), 0), tensor_.shape});
    while (!parts_.empty()) {
      const Part part = std::move(parts_.back());
      parts_.pop_back();
      check(part);
    }
    if (hole_) fail_hole(*hole_);
  }

 private:
  /// order_[first, last) are the chunks in the box [low, high).
  struct Part {
    std::size_t first;
    std::size_t last;
    std::vector<i64> low;
    std::vector<i64> high;
  };

  const DcpChunk& chunk(std::size_t at) const { return tensor_.chunks[order_[at]]; }
  static i64 end_of(const DcpChunk& chunk, std::size_t axis) { return chunk.start[axis] + chunk.shape[axis]; }

  void check(const Part& part) {
    has_gap_ = false;
    if (part.first == part.last) return add_hole(part.low);
    if (part.last - part.first == 1) return check_fills(part);
    for (std::size_t axis = 0; axis < part.low.size(); ++axis)
      if (split(part, axis)) return;
    check_pairs(part);
    check_volume(part);
  }

  void check_fills(const Part& part) {
    const DcpChunk& only = chunk(part.first);
    for (std::size_t axis = 0; axis < part.low.size(); ++axis) {
      if (only.start[axis] != part.low[axis]) add_hole(part.low);
      if (end_of(only, axis) != part.high[axis]) add_hole(at_axis(part.low, axis, end_of(only, axis)));
    }
  }

  /// Sorts the part's chunks along the axis and cuts at every plane that none of them crosses.
  bool split(const Part& part, std::size_t axis) {
    spend(static_cast<i64>(part.last - part.first));
    sort_along(part, axis);
    std::size_t first = part.first;
    i64 end = part.low[axis];
    for (std::size_t i = part.first; i < part.last; ++i) {
      const i64 start = chunk(i).start[axis];
      if (start > end) add_hole(at_axis(part.low, axis, end));
      if (i > first && start >= end) {
        push_part(part, axis, first, i, end);
        first = i;
      }
      end = std::max(end, end_of(chunk(i), axis));
    }
    if (end != part.high[axis]) add_hole(at_axis(part.low, axis, end));
    if (first == part.first) return false;
    push_part(part, axis, first, part.last, end);
    return true;
  }

  void push_part(const Part& whole, std::size_t axis, std::size_t first, std::size_t last, i64 end) {
    parts_.push_back({first, last, at_axis(whole.low, axis, chunk(first).start[axis]), at_axis(whole.high, axis, end)});
  }

  void sort_along(const Part& part, std::size_t axis) {
    std::sort(order_.begin() + static_cast<std::ptrdiff_t>(part.first),
              order_.begin() + static_cast<std::ptrdiff_t>(part.last), [&](u32 a, u32 b) {
                const i64 start_a = tensor_.chunks[a].start[axis];
                const i64 start_b = tensor_.chunks[b].start[axis];
                return start_a != start_b ? start_a < start_b : a < b;
              });
  }

  /// Compares each chunk with those that reach its start along the first axis.
  void check_pairs(const Part& part) {
    if (part.low.empty()) fail_overlap(chunk(part.first), chunk(part.first + 1));
    sort_along(part, 0);
    std::vector<u32> active;
    for (std::size_t i = part.first; i < part.last; ++i) {
      const DcpChunk& here = chunk(i);
      std::erase_if(active, [&](u32 other) { return end_of(tensor_.chunks[other], 0) <= here.start[0]; });
      spend(static_cast<i64>(active.size()) + 1);
      for (const u32 other : active)
        if (overlap(tensor_.chunks[other], here)) fail_overlap(tensor_.chunks[other], here);
      active.push_back(order_[i]);
    }
  }

  static bool overlap(const DcpChunk& a, const DcpChunk& b) {
    for (std::size_t axis = 0; axis < a.start.size(); ++axis)
      if (end_of(a, axis) <= b.start[axis] || end_of(b, axis) <= a.start[axis]) return false;
    return true;
  }

  /// Chunks that do not overlap hold no more than their part, so the sum cannot overflow.
  void check_volume(const Part& part) {
    i64 held = 0;
    for (std::size_t i = part.first; i < part.last; ++i) held += volume(chunk(i).shape);
    std::vector<i64> extents(part.low.size());
    for (std::size_t axis = 0; axis < extents.size(); ++axis) extents[axis] = part.high[axis] - part.low[axis];
    if (held != volume(extents) && !has_gap_) add_hole(part.low);
  }

  static i64 volume(const std::vector<i64>& extents) {
    return std::accumulate(extents.begin(), extents.end(), i64{1}, std::multiplies<>());
  }

  static std::vector<i64> at_axis(std::vector<i64> position, std::size_t axis, i64 value) {
    position[axis] = value;
    return position;
  }

  void spend(i64 steps) {
    steps_ += steps;
    if (steps_ > kFreeSteps + kStepsPerChunk * static_cast<i64>(order_.size()))
      fail_at(ErrorCode::NotSupported, where(tensor_.listed_at),
              "the {} chunks of '{}' are cut too irregularly to be checked; save it again with whole tensors",
              tensor_.chunks.size(), tensor_.name);
  }

  WhereAt where(u32 listed_at) const { return {part_, listed_at, tensor_.name}; }

  void add_hole(const std::vector<i64>& position) {
    has_gap_ = true;
    if (!hole_ || position < *hole_) hole_ = position;
  }

  [[noreturn]] void fail_hole(const std::vector<i64>& position) const {
    fail_at(ErrorCode::ChunkHole, where(tensor_.listed_at),
            "no chunk of '{}' {} holds what is at or after {}; a loader would leave it as it was", tensor_.name,
            shape_text(tensor_.shape), shape_text(position));
  }

  [[noreturn]] void fail_overlap(const DcpChunk& a, const DcpChunk& b) const {
    fail_at(ErrorCode::ChunkOverlap, where(b.listed_at),
            "chunks of '{}' overlap: {} at {}, and {} at {} (listed at byte {}); which of them is right is not to be "
            "known",
            tensor_.name, shape_text(b.shape), shape_text(b.start), shape_text(a.shape), shape_text(a.start),
            a.listed_at);
  }

  const DcpTensor& tensor_;
  const InputPart& part_;
  std::vector<u32> order_;
  std::vector<Part> parts_;
  std::optional<std::vector<i64>> hole_;
  /// A hole was found in the part that is being checked.
  bool has_gap_ = false;
  i64 steps_ = 0;
};

void check_bounds(const DcpTensor& tensor, const InputPart& part) {
  for (const DcpChunk& chunk : tensor.chunks) {
    bool inside = chunk.start.size() == tensor.shape.size() && chunk.shape.size() == tensor.shape.size();
    for (std::size_t axis = 0; inside && axis < tensor.shape.size(); ++axis)
      inside = chunk.start[axis] >= 0 && chunk.shape[axis] >= 0 && chunk.start[axis] <= tensor.shape[axis] &&
               chunk.shape[axis] <= tensor.shape[axis] - chunk.start[axis];
    if (!inside)
      fail_at(ErrorCode::ChunkBounds, {part, chunk.listed_at, tensor.name},
              "a chunk {} at {} does not lie within '{}' {}", shape_text(chunk.shape), shape_text(chunk.start),
              tensor.name, shape_text(tensor.shape));
  }
}

}  // namespace

void check_tiling(const DcpTensor& tensor, const InputPart& part) {
  check_bounds(tensor, part);
  const bool whole = tensor.chunks.size() == 1 && tensor.chunks[0].shape == tensor.shape;
  if (!whole) TilingCheck(tensor, part).run();
}

}  // namespace glu_ckpt
