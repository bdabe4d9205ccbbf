#include "verify/diagnose.hpp"

#include <fmt/format.h>

#include <cstring>

#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

using Bytes = std::vector<std::byte>;

class Diagnosis {
 public:
  Diagnosis(const Model& a, const Item& x, const Model& b, const Item& y, const Backend& backend)
      : a_(a), x_(x), b_(b), y_(y), backend_(backend), wanted_(read(a, *x.matrix)) {}

  std::string run() const {
    if (x_.dense != nullptr) return run_dense();
    if (std::string text = other_matrix(); !text.empty()) return text;
    if (std::string text = other_block_size(); !text.empty()) return text;
    return transposed();
  }

 private:
  Bytes read(const Model& model, const Matrix& matrix) const {
    return read_rows(model, matrix, backend_, 0, matrix.rows);
  }

  std::string run_dense() const {
    if (std::string text = other_head(); !text.empty()) return text;
    for (const DenseMatrix& other : b_.recognition->dense) {
      const DenseMatrix& mine = *y_.dense;
      const bool in_place = other.stack == mine.stack && other.layer == mine.layer;
      if (&other == &mine || !in_place || !comparable(other.matrix) || read(b_, other.matrix) != wanted_) continue;
      return fmt::format("B holds A's {} as {}", to_string(mine.role), to_string(other.role));
    }
    return transposed();
  }

  /// The first head of A that is not in its place in B stands there as another head.
  std::string other_head() const {
    const i64 rows = x_.dense->head_rows;
    if (rows == 0) return {};
    const Bytes found = read(b_, *y_.matrix);
    const i64 head_bytes = rows * x_.matrix->cols * x_.matrix->element_bytes;
    const i64 heads = x_.matrix->rows / rows;
    const auto same = [&](i64 a, i64 b) {
      return std::memcmp(wanted_.data() + a * head_bytes, found.data() + b * head_bytes,
                         static_cast<std::size_t>(head_bytes)) == 0;
    };
    for (i64 a = 0; a < heads; ++a) {
      if (same(a, a)) continue;
      for (i64 b = 0; b < heads; ++b)
        if (b != a && same(a, b)) return fmt::format("A's head {} is B's head {}: the heads look reordered", a, b);
      return {};
    }
    return {};
  }

  bool comparable(const Matrix& matrix) const {
    return matrix.kind == x_.matrix->kind && matrix.rows == x_.matrix->rows && matrix.cols == x_.matrix->cols &&
           matrix.element_bytes == x_.matrix->element_bytes;
  }

  /// A's matrix stands in B as another expert's or as the other half.
  std::string other_matrix() const {
    for (const Matrix& matrix : y_.block->matrices) {
      if (&matrix == y_.matrix || !comparable(matrix) || read(b_, matrix) != wanted_) continue;
      // If A holds the same data twice, finding it elsewhere proves nothing.
      if (is_repeated_in_a(matrix)) continue;
      if (matrix.expert == x_.matrix->expert)
        return fmt::format("B holds A's {} rows as {}: gate and up look swapped", to_string(x_.matrix->role),
                           to_string(matrix.role));
      if (matrix.role == x_.matrix->role)
        return fmt::format("A's expert {} is B's expert {}: the experts look reordered", x_.matrix->expert,
                           matrix.expert);
    }
    return {};
  }

  bool is_repeated_in_a(const Matrix& there) const {
    for (const Matrix& matrix : x_.block->matrices)
      if (matrix.expert == there.expert && matrix.role == there.role && matrix.kind == there.kind)
        return read(a_, matrix) == wanted_;
    return false;
  }

  /// B's fused FC1 would give A's rows if it were read with another K.
  std::string other_block_size() const {
    const Matrix& matrix = *y_.matrix;
    const bool half = matrix.role == Role::Gate || matrix.role == Role::Up;
    if (!half || !y_.block->fused || matrix.kind != TensorKind::Weight) return {};
    for (i64 block_rows = 1; block_rows <= matrix.rows; ++block_rows) {
      if (matrix.rows % block_rows != 0 || block_rows == matrix.place.block_rows) continue;
      if (read(b_, replaced(matrix, block_rows)) != wanted_) continue;
      return fmt::format("B's FC1 holds the rows as {}, not as {}",
                         block_rows == matrix.rows ? "contiguous" : fmt::format("interleaved:{}", block_rows),
                         to_string(y_.block->glu));
    }
    return {};
  }

  Matrix replaced(const Matrix& matrix, i64 block_rows) const {
    const StoredPart part{y_.block->axes, 2 * matrix.rows, matrix.cols, matrix.element_bytes, 0};
    Matrix other = matrix;
    other.place = place_matrix(part, matrix.role, true, block_rows);
    // FC1 begins where it did, in whichever slot of its tensor.
    other.place.offset += matrix.place.offset - place_matrix(part, matrix.role, true, matrix.place.block_rows).offset;
    return other;
  }

  std::string transposed() const {
    const Matrix& matrix = *y_.matrix;
    if (matrix.rows != matrix.cols) return {};
    const Bytes found = read(b_, matrix);
    const auto size = static_cast<std::size_t>(matrix.element_bytes);
    const auto at = [&](const Bytes& bytes, i64 row, i64 col) {
      return bytes.data() + static_cast<std::size_t>(row * matrix.cols + col) * size;
    };
    for (i64 r = 0; r < matrix.rows; ++r)
      for (i64 c = 0; c < matrix.cols; ++c)
        if (std::memcmp(at(found, r, c), at(wanted_, c, r), size) != 0) return {};
    return "B's matrix is the transpose of A's";
  }

  const Model& a_;
  const Item& x_;
  const Model& b_;
  const Item& y_;
  const Backend& backend_;
  Bytes wanted_;
};

}  // namespace

std::string diagnose(const Model& a, const Item& x, const Model& b, const Item& y, const Backend& backend) {
  return Diagnosis(a, x, b, y, backend).run();
}

}  // namespace glu_ckpt
