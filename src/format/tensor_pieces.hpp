#pragma once
/// Tensors that lie in pieces: chunks of a distributed checkpoint, views with strides into a storage.

#include <functional>
#include <span>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// A box of a tensor and where its elements are.
struct TensorPiece {
  /// First element of the box in the tensor, and its extents; as many as the tensor has axes.
  std::vector<i64> start;
  std::vector<i64> shape;
  /// Bytes from one element to the next along each axis; not negative.
  std::vector<i64> strides;
  /// Position of the box's first element in the file or storage.
  i64 offset = 0;
};

/// The strides of a dense row-major box.
std::vector<i64> dense_strides(const std::vector<i64>& shape, i64 element_bytes);

/// Fills a span from a position of the piece's file.
using ReadFile = std::function<void(std::span<std::byte>, i64)>;

/// Copies those elements of `piece` that are in bytes [begin, begin + out.size()) of the row-major tensor of
/// `shape` to their places in `out`, which stands for these bytes. Reads at most kPieceWindowBytes at once
/// beside what goes straight into `out`.
void read_piece(const TensorPiece& piece, const std::vector<i64>& shape, i64 element_bytes, i64 begin,
                std::span<std::byte> out, const ReadFile& read);
inline constexpr i64 kPieceWindowBytes = i64{4} << 20;

/// The bytes of the row-major tensor between which all of the piece lies: [first, second).
std::pair<i64, i64> piece_extent(const TensorPiece& piece, const std::vector<i64>& shape, i64 element_bytes);

}  // namespace glu_ckpt
