#pragma once
/// Matrices and tensors read row by row, in whatever layout they are stored, and hashed.

#include <algorithm>
#include <span>
#include <vector>

#include "exec/items.hpp"
#include "exec/range_reader.hpp"
#include "glu_ckpt/verify.hpp"
#include "layout/placement.hpp"
#include "plan/matrix_moves.hpp"
#include "verify/compare_elements.hpp"

namespace glu_ckpt {

/// A row of a tensor that is no matrix.
inline constexpr i64 kOtherRowElements = 1024;

/// An item of one side as rows of elements.
class ItemRows {
 public:
  ItemRows(const Model& model, const Item& item)
      : source_(*model.source), item_(item), logical_(item), dtype_(dtype_of(item)) {
    const i64 unit = counted_bytes(dtype_);
    if (item.matrix != nullptr) {
      const Matrix& matrix = *item.matrix;
      rows_ = matrix.rows;
      elements_ = matrix.rows > 0 ? item.bytes / matrix.rows / unit : 0;
      stored_row_bytes_ = matrix.cols * matrix.element_bytes;
      moves_ = matrix_moves(matrix, dense_matrix(matrix));
    } else {
      elements_ = kOtherRowElements;
      stored_row_bytes_ = elements_ * unit;
      rows_ = (item.bytes + stored_row_bytes_ - 1) / stored_row_bytes_;
    }
  }

  static Dtype dtype_of(const Item& item) { return item.matrix != nullptr ? item.matrix->dtype : item.other->dtype; }

  i64 rows() const { return rows_; }
  /// Returns the elements of a row; the last row of a tensor that is no matrix may be shorter.
  i64 elements() const { return elements_; }
  Dtype dtype() const { return dtype_; }
  i64 stored_row_bytes() const { return stored_row_bytes_; }
  bool transposed() const { return item_.matrix != nullptr && is_transposed(*item_.matrix); }

  /// Makes elements of what read() returns.
  LogicalRows& logical() { return logical_; }

  /// Rows [first, first + count) as they are stored, valid until the next call.
  std::span<const std::byte> read(i64 first, i64 count, const Backend& backend, HostBuffer& rows, HostBuffer& scratch,
                                  i64 scratch_bytes) {
    const i64 begin = first * stored_row_bytes_, wanted = count * stored_row_bytes_;
    rows.reserve(wanted);
    if (item_.matrix == nullptr) {
      const std::span bytes(rows.data(), static_cast<std::size_t>(std::min(wanted, item_.bytes - begin)));
      source_.read(item_.tensor, begin, bytes);
      return bytes;
    }
    RangeReader reader(source_);
    gather(moves_, reader, backend, begin, begin + wanted, rows.data(), scratch, scratch_bytes);
    return {rows.data(), static_cast<std::size_t>(wanted)};
  }

 private:
  const Source& source_;
  const Item& item_;
  LogicalRows logical_;
  Dtype dtype_;
  i64 rows_ = 0;
  i64 elements_ = 0;
  i64 stored_row_bytes_ = 0;
  std::vector<Move> moves_;
};

/// Reads every byte of the model once.
void hash_items(const Model& model, const Backend& backend, const ExecuteOptions& options, std::vector<Item>& items);

Digest sum_items(const std::vector<Item>& items);

/// Rows [first, first + count) of a matrix, dense and in [out, in] order.
std::vector<std::byte> read_rows(const Model& model, const Matrix& matrix, const Backend& backend, i64 first,
                                 i64 count);

}  // namespace glu_ckpt
