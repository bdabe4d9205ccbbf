#include "verify/diagnose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "layout/placement.hpp"
#include "verify/item_rows.hpp"

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
    if (std::string text = read_in_another_order(); !text.empty()) return text;
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
      return fmt::format("B's FC1 holds the rows as {}, not as {}", order_text(block_rows, matrix.rows),
                         to_string(y_.block->glu));
    }
    return {};
  }

  /// B's gate and up are as they come out of A's FC1 if that is written in one order and read in another: the layout of
  /// B is right, and an earlier conversion, or a trainer, was told a wrong one.
  std::string read_in_another_order() const {
    const FirstLayer a = first_layer(a_, x_), b = first_layer(b_, y_);
    const i64 rows = x_.matrix->rows;
    if (a.gate.empty() || a.gate.size() != b.gate.size() || rows != y_.matrix->rows) return {};
    const auto same_rows = [&](i64 written, i64 read) {
      const auto row_bytes = static_cast<std::size_t>(static_cast<i64>(a.gate.size()) / rows);
      for (i64 p = 0; p < 2 * rows; ++p) {
        const i64 from = contiguous_row(p, written, rows), to = contiguous_row(p, read, rows);
        const std::byte* const in_a = (from < rows ? a.gate : a.up).data();
        const std::byte* const in_b = (to < rows ? b.gate : b.up).data();
        if (std::memcmp(in_a + static_cast<std::size_t>(from % rows) * row_bytes,
                        in_b + static_cast<std::size_t>(to % rows) * row_bytes, row_bytes) != 0)
          return false;
      }
      return true;
    };
    // The contiguous order comes first: of 2K rows, both ways round give the same.
    for (i64 written = rows; written >= 1; --written)
      for (i64 read = rows; read >= 1; --read) {
        if (written == read || rows % written != 0 || rows % read != 0 || !same_rows(written, read)) continue;
        return fmt::format("B's gate and up are as from an FC1 in {} order that was read as {}{}",
                           order_text(written, rows), order_text(read, rows),
                           read == rows ? "; it may have been interleaved twice" : "");
      }
    return {};
  }

  struct FirstLayer {
    Bytes gate;
    Bytes up;
  };

  /// Both halves of the item's expert; empty where they are not two, or not weights.
  FirstLayer first_layer(const Model& model, const Item& item) const {
    FirstLayer halves;
    if (item.matrix->kind != TensorKind::Weight) return halves;
    for (const Matrix& matrix : item.block->matrices) {
      if (matrix.expert != item.matrix->expert || matrix.kind != TensorKind::Weight || !comparable(matrix)) continue;
      if (matrix.role == Role::Gate) halves.gate = read(model, matrix);
      if (matrix.role == Role::Up) halves.up = read(model, matrix);
    }
    return halves.gate.size() == halves.up.size() ? halves : FirstLayer();
  }

  /// The row of [gate; up] that stands in row `p` of the FC1 with blocks of so many rows.
  static i64 contiguous_row(i64 p, i64 block_rows, i64 rows) {
    return p / block_rows % 2 * rows + p / (2 * block_rows) * block_rows + p % block_rows;
  }

  static std::string order_text(i64 block_rows, i64 rows) {
    return block_rows == rows ? "contiguous" : fmt::format("interleaved:{}", block_rows);
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

/// Returns whether gate and up alternate in one tensor, in blocks; contiguous is one block each.
bool is_fused(const StoredMatrix& gate, const StoredMatrix& up) {
  const Placement& place = gate.first.place;
  return gate.first.data != nullptr && gate.first.data == up.first.data && gate.tail_row == gate.rows &&
         up.tail_row == up.rows && place.block_step == 2 * place.block_rows * place.row_step;
}

/// 0 where there is no other block size.
i64 other_block_rows(i64 block_rows, i64 width) {
  constexpr i64 kUsual = 32;
  if (block_rows < width) return width;
  if (kUsual < width && width % kUsual == 0) return kUsual;
  for (i64 rows = width / 2; rows > 0; --rows)
    if (width % rows == 0) return rows;
  return 0;
}

void take_blocks(StoredMatrix& gate, StoredMatrix& up, i64 block_rows) {
  Placement place = gate.first.place;
  place.block_rows = block_rows;
  place.block_step = 2 * block_rows * place.row_step;
  gate.first.place = place;
  place.offset += block_rows * place.row_step;
  up.first.place = place;
}

/// Row r is read where r + 1 stands, the last where row 0 does. Only for a matrix of one part and one block.
void shift_rows(StoredMatrix& matrix) {
  matrix.tail = matrix.first;
  matrix.tail_row = matrix.rows - 1;
  matrix.tail.place.offset -= matrix.tail_row * matrix.tail.place.row_step;
  matrix.first.place.offset += matrix.first.place.row_step;
}

}  // namespace

std::string diagnose(const Model& a, const Item& x, const Model& b, const Item& y, const Backend& backend) {
  return Diagnosis(a, x, b, y, backend).run();
}

std::vector<ExpertWeights> wrong_layouts(const ExpertWeights& expert) {
  std::vector<ExpertWeights> layouts;
  if (!expert.gate.is_there()) {
    ExpertWeights shifted = expert;
    if (expert.up.rows > 1) {
      shift_rows(shifted.up);
      if (expert.up_bias.is_there()) shift_rows(shifted.up_bias);
      layouts.push_back(shifted);
    } else if (expert.down.rows > 1) {
      shift_rows(shifted.down);
      layouts.push_back(shifted);
    }
    return layouts;
  }
  if (is_fused(expert.gate, expert.up)) {
    const i64 rows = other_block_rows(expert.gate.first.place.block_rows, expert.gate.rows);
    ExpertWeights reordered = expert;
    if (rows > 0) {
      take_blocks(reordered.gate, reordered.up, rows);
      if (is_fused(expert.gate_bias, expert.up_bias)) take_blocks(reordered.gate_bias, reordered.up_bias, rows);
      layouts.push_back(reordered);
    }
  }
  ExpertWeights exchanged = expert;
  std::swap(exchanged.gate, exchanged.up);
  std::swap(exchanged.gate_bias, exchanged.up_bias);
  layouts.push_back(exchanged);
  return layouts;
}

}  // namespace glu_ckpt
