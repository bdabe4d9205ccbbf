#include "format/tensor_pieces.hpp"

#include <algorithm>
#include <cstring>

namespace glu_ckpt {
namespace {

/// Runs this long are read straight into place: a system call costs about what copying a page does.
constexpr i64 kDirectRunBytes = 4096;
/// A window may hold this many times the bytes that are wanted from it.
constexpr i64 kMaxWaste = 8;

/// A part of a piece on its way: a box whose axes may have been cut or merged.
struct Box {
  std::vector<i64> shape;
  /// Byte steps in the tensor and in the file.
  std::vector<i64> to_step;
  std::vector<i64> from_step;
  i64 to = 0;
  i64 from = 0;
};

class PieceReader {
 public:
  PieceReader(i64 element_bytes, i64 begin, std::span<std::byte> out, const ReadFile& read)
      : run_bytes_(element_bytes), begin_(begin), end_(begin + static_cast<i64>(out.size())), out_(out), read_(read) {}

  void run(Box box) {
    if (std::ranges::any_of(box.shape, [](i64 extent) { return extent == 0; })) return;
    merge_axes(box);
    cut(box, 0);
  }

 private:
  /// Folds the innermost axes into one run where both sides are dense, and neighbours that step alike.
  void merge_axes(Box& box) {
    while (!box.shape.empty() &&
           (box.shape.back() == 1 || (box.to_step.back() == run_bytes_ && box.from_step.back() == run_bytes_))) {
      run_bytes_ *= box.shape.back();
      drop_axis(box, box.shape.size() - 1);
    }
    for (std::size_t axis = box.shape.size(); axis-- > 0;)
      if (box.shape[axis] == 1) drop_axis(box, axis);
  }

  static void drop_axis(Box& box, std::size_t axis) {
    const auto at = static_cast<std::ptrdiff_t>(axis);
    box.shape.erase(box.shape.begin() + at);
    box.to_step.erase(box.to_step.begin() + at);
    box.from_step.erase(box.from_step.begin() + at);
  }

  i64 extent(const Box& box, const std::vector<i64>& steps, std::size_t first_axis) const {
    i64 bytes = run_bytes_;
    for (std::size_t axis = first_axis; axis < box.shape.size(); ++axis) bytes += (box.shape[axis] - 1) * steps[axis];
    return bytes;
  }

  /// Row-major order means that slices along an axis follow one another in the tensor, so a range cuts at
  /// most two of them.
  void cut(const Box& box, std::size_t axis) {
    const i64 low = box.to;
    const i64 high = box.to + extent(box, box.to_step, 0);
    if (high <= begin_ || low >= end_) return;
    if (low >= begin_ && high <= end_) return fetch(box);
    if (axis == box.shape.size()) return read_part_of_run(box);
    const i64 step = box.to_step[axis];
    const i64 inner = extent(box, box.to_step, axis + 1);
    const i64 first = begin_ < low + inner ? 0 : (begin_ - low - inner) / step + 1;
    const i64 last = std::min(box.shape[axis], (end_ - low + step - 1) / step);
    const i64 whole_first = std::min(last, begin_ <= low ? 0 : (begin_ - low + step - 1) / step);
    const i64 whole_last =
        std::max(whole_first, std::min(last, end_ < low + inner ? 0 : (end_ - low - inner) / step + 1));
    for (i64 i = first; i < whole_first; ++i) cut(slice(box, axis, i, 1), axis + 1);
    if (whole_last > whole_first) fetch(slice(box, axis, whole_first, whole_last - whole_first));
    for (i64 i = whole_last; i < last; ++i) cut(slice(box, axis, i, 1), axis + 1);
  }

  static Box slice(const Box& box, std::size_t axis, i64 first, i64 count) {
    Box part = box;
    part.to += first * box.to_step[axis];
    part.from += first * box.from_step[axis];
    part.shape[axis] = count;
    return part;
  }

  void read_part_of_run(const Box& box) {
    const i64 skip = std::max<i64>(0, begin_ - box.to);
    const i64 bytes = std::min(end_, box.to + run_bytes_) - box.to - skip;
    read_(out_.subspan(static_cast<std::size_t>(box.to + skip - begin_), static_cast<std::size_t>(bytes)),
          box.from + skip);
  }

  /// A box that lies in the range altogether.
  void fetch(const Box& box) {
    i64 runs = 1;
    for (const i64 extent : box.shape) runs *= extent;
    if (runs == 1 || run_bytes_ >= kDirectRunBytes) return read_runs(box, 0, box.to, box.from);
    const i64 window = extent(box, box.from_step, 0);
    if (window <= kDirectRunBytes || (window <= kPieceWindowBytes && window <= kMaxWaste * runs * run_bytes_))
      return read_window(box, window);
    // Splitting along the axis that spreads furthest over the file makes windows smaller fastest.
    std::size_t widest = 0;
    for (std::size_t axis = 1; axis < box.shape.size(); ++axis)
      if ((box.shape[axis] - 1) * box.from_step[axis] > (box.shape[widest] - 1) * box.from_step[widest]) widest = axis;
    const i64 half = box.shape[widest] / 2;
    if (half == 0) return read_runs(box, 0, box.to, box.from);
    fetch(slice(box, widest, 0, half));
    fetch(slice(box, widest, half, box.shape[widest] - half));
  }

  void read_runs(const Box& box, std::size_t axis, i64 to, i64 from) {
    if (axis == box.shape.size())
      return read_(out_.subspan(static_cast<std::size_t>(to - begin_), static_cast<std::size_t>(run_bytes_)), from);
    for (i64 i = 0; i < box.shape[axis]; ++i)
      read_runs(box, axis + 1, to + i * box.to_step[axis], from + i * box.from_step[axis]);
  }

  void read_window(const Box& box, i64 window) {
    window_.resize(static_cast<std::size_t>(window));
    read_(window_, box.from);
    scatter(box, 0, box.to - begin_, 0);
  }

  void scatter(const Box& box, std::size_t axis, i64 to, i64 from) {
    if (axis == box.shape.size()) {
      std::memcpy(out_.data() + to, window_.data() + from, static_cast<std::size_t>(run_bytes_));
      return;
    }
    for (i64 i = 0; i < box.shape[axis]; ++i)
      scatter(box, axis + 1, to + i * box.to_step[axis], from + i * box.from_step[axis]);
  }

  i64 run_bytes_;
  i64 begin_;
  i64 end_;
  std::span<std::byte> out_;
  const ReadFile& read_;
  std::vector<std::byte> window_;
};

i64 linear_offset(const TensorPiece& piece, const std::vector<i64>& to_step) {
  i64 offset = 0;
  for (std::size_t axis = 0; axis < to_step.size(); ++axis) offset += piece.start[axis] * to_step[axis];
  return offset;
}

}  // namespace

std::vector<i64> dense_strides(const std::vector<i64>& shape, i64 element_bytes) {
  std::vector<i64> strides(shape.size());
  i64 step = element_bytes;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    step *= shape[axis];
  }
  return strides;
}

void read_piece(const TensorPiece& piece, const std::vector<i64>& shape, i64 element_bytes, i64 begin,
                std::span<std::byte> out, const ReadFile& read) {
  if (out.empty()) return;
  Box box{piece.shape, dense_strides(shape, element_bytes), piece.strides, 0, piece.offset};
  box.to = linear_offset(piece, box.to_step);
  PieceReader(element_bytes, begin, out, read).run(std::move(box));
}

std::pair<i64, i64> piece_extent(const TensorPiece& piece, const std::vector<i64>& shape, i64 element_bytes) {
  const std::vector<i64> step = dense_strides(shape, element_bytes);
  const i64 first = linear_offset(piece, step);
  i64 last = first + element_bytes;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (piece.shape[axis] == 0) return {first, first};
    last += (piece.shape[axis] - 1) * step[axis];
  }
  return {first, last};
}

}  // namespace glu_ckpt
