#include "quant/cell_encoder.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/decode_row.hpp"

namespace glu_ckpt {
namespace {

/// Columns [begin, end) of a row of a weight.
struct RowPart {
  i64 row = 0;
  i64 begin = 0;
  i64 end = 0;
};

/// Looks at what codes decode to, before they are written. Throws NotExact where a code of the part, times its scale,
/// is more than the weight's dtype has. `stored` and `codes` are the whole row's.
void check_decoded(const Encoder& encoder, const TensorRef& weight, const RowPart& part, const std::byte* stored,
                   std::span<const std::byte> codes, float scale) {
  const i64 size = dtype_bits(weight.dtype) / 8;
  const std::vector<float> scales(static_cast<std::size_t>(part.end), scale);
  std::vector<std::byte> decoded(scales.size() * static_cast<std::size_t>(size));
  decode_row({encoder.codes, codes.data(), part.end, scales.data()}, weight.dtype, decoded.data());
  for (i64 col = part.begin; col < part.end; ++col)
    if (!std::isfinite(widen_element(decoded.data() + col * size, weight.dtype)))
      fail(ErrorCode::NotExact, {{}, weight.name},
           "'{}': element [{}, {}] is {}, and decodes to infinity as {} encodes it to {}: its code times the scale {} "
           "is more than {} has; find out what wrote such a weight, or take --encode fp8:128x128 or another "
           "--encode-as",
           weight.name, part.row, col, widen_element(stored + col * size, weight.dtype), encoder.row.program,
           encoder.row.word, scale, dtype_name(weight.dtype));
}

/// Stored bytes that are read at once, or one row of cells: with their codes they stay in the second cache of a core,
/// and fresh memory for more of them costs as much as reading.
constexpr i64 kEncodeBatchBytes = i64{256} << 10;

std::string sibling(const std::string& weight, TensorKind kind) {
  constexpr std::string_view kWeight = ".weight";
  const KindWords& words = words_of(kind);
  if (weight.ends_with(kWeight)) return weight.substr(0, weight.size() + 1 - kWeight.size()) + std::string(words.word);
  return weight + std::string(words.suffix);
}

i64 size_of(Dtype dtype) { return dtype_bits(dtype) / 8; }

/// Rows of `to` are columns of `from`, whose rows begin `step` elements apart. In tiles, so that lines of both stay
/// in the cache.
template <typename Bits>
void turn_columns(const std::byte* from, i64 step, i64 rows, i64 cols, std::byte* to) {
  constexpr i64 kTile = 32;
  constexpr auto kSize = static_cast<i64>(sizeof(Bits));
  for (i64 first_row = 0; first_row < rows; first_row += kTile)
    for (i64 first_col = 0; first_col < cols; first_col += kTile)
      for (i64 row = first_row; row < std::min(first_row + kTile, rows); ++row)
        for (i64 col = first_col; col < std::min(first_col + kTile, cols); ++col)
          std::memcpy(to + (row * cols + col) * kSize, from + (col * step + row) * kSize, sizeof(Bits));
}

}  // namespace

i64 WeightCells::code_row_bytes() const { return code_bytes(encoder_.codes, cols()); }

TensorRef WeightCells::codes() const {
  TensorRef made = like(row_.codes);
  made.dtype = encoder_.codes == Codes::E4m3 ? Dtype::F8_E4M3 : encoder_.codes == Codes::E2m1 ? Dtype::U8 : Dtype::I32;
  made.shape = {rows(), code_row_bytes() / size_of(made.dtype)};
  if (row_.codes == TensorKind::Blocks) made.shape = {rows(), grid_cols(), code_row_bytes() / grid_cols()};
  made.bytes = rows() * code_row_bytes();
  return made;
}

TensorRef WeightCells::scales() const {
  TensorRef made = like(row_.scales);
  made.dtype = scale_dtype();
  made.shape = {grid_rows(), grid_cols()};
  // Its blocks have an axis of one element behind each.
  if (row_.rule == ScaleRule::ModelOpt && row_.cell_rows > 1) made.shape = {grid_rows(), 1, grid_cols(), 1};
  made.bytes = grid_rows() * scale_row_bytes();
  return made;
}

TensorRef WeightCells::second() const {
  const bool divides = row_.rule == ScaleRule::Nvfp4CompressedTensors;
  TensorRef made = like(divides ? TensorKind::GlobalScale : TensorKind::SecondScale);
  made.dtype = Dtype::F32;
  made.shape = divides ? std::vector<i64>{1} : std::vector<i64>{};
  made.bytes = 4;
  return made;
}

TensorRef WeightCells::shape() const {
  TensorRef made = like(TensorKind::WeightShape);
  made.dtype = Dtype::I64;
  made.shape = {2};
  made.bytes = 16;
  return made;
}

TensorRef WeightCells::like(TensorKind kind) const {
  TensorRef made = weight_;
  made.name = sibling(weight_.name, kind);
  return made;
}

CellBatch cells_to_encode(const Encoder& encoder, const WeightCells& cells, i64 rows, float second) {
  CellBatch batch;
  batch.rule = cell_rule(encoder, cells.weight().dtype);
  batch.rows = rows;
  batch.cols = cells.cols();
  batch.cell_rows = cells.cell_rows();
  batch.cell_cols = cells.cell_cols();
  batch.scale_bytes = size_of(cells.scale_dtype());
  batch.second = second;
  return batch;
}

/// Sums are kept apart for every fourth weight, so that a compiler takes many at a time.
void EncodeErrors::add_cell(std::span<const float> cell, std::span<const float> decoded, float greatest_weight) {
  double sums[4] = {}, error_sums[4] = {}, most[4] = {};
  const auto add_one = [&](std::size_t i, std::size_t lane) {
    const double weight = static_cast<double>(cell[i]), error = static_cast<double>(decoded[i]) - weight;
    sums[lane] += weight * weight;
    error_sums[lane] += error * error;
    most[lane] = std::max(most[lane], std::fabs(error));
    lost += static_cast<i64>(cell[i] != 0) & static_cast<i64>(decoded[i] == 0);
  };
  std::size_t i = 0;
  for (; i + 4 <= cell.size(); i += 4)
    for (std::size_t lane = 0; lane < 4; ++lane) add_one(i + lane, lane);
  for (; i < cell.size(); ++i) add_one(i, 0);
  squares += sums[0] + sums[1] + sums[2] + sums[3];
  error_squares += error_sums[0] + error_sums[1] + error_sums[2] + error_sums[3];
  if (greatest_weight > 0) greatest = std::max(greatest, std::ranges::max(most) / static_cast<double>(greatest_weight));
}

void EncodeErrors::add(const EncodeErrors& other) {
  squares += other.squares;
  error_squares += other.error_squares;
  greatest = std::max(greatest, other.greatest);
  weights += other.weights;
  lost += other.lost;
}

std::byte* CellEncoder::own_memory(i64 bytes) {
  if (bytes > own_bytes_) {
    own_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    own_bytes_ = bytes;
  }
  return own_.get();
}

void CellEncoder::load(i64 begin, i64 end) {
  first_row_ = begin * cells_.cell_rows();
  rows_ = std::min(end * cells_.cell_rows(), cells_.rows()) - first_row_;
  made_.reset();
  const CellBatch batch = cells_to_encode(encoder_, cells_, rows_, second_);
  std::byte* const for_device = place_ != nullptr ? place_->weights_of(batch) : nullptr;
  weights_ = for_device != nullptr ? for_device : own_memory(rows_ * cells_.stored_row_bytes());
  read_weights();
  MadeCells made;
  if (for_device != nullptr && place_->encode(batch, made)) {
    made_ = made;
    return;
  }
  greatest_.assign(static_cast<std::size_t>((end - begin) * cells_.grid_cols()), 0);
  scales_.resize(greatest_.size());
  factors_.resize(greatest_.size());
  for (i64 row = 0; row < rows_; ++row)
    raise_greatest(stored_row(row), cells_.cols(), dtype(), cells_.cell_cols(),
                   greatest_.data() + row / cells_.cell_rows() * cells_.grid_cols(), level_);
  set_scales();
  tables_ = path_ == EncodePath::Fast
                ? CellTables(encoder_, factors_, dtype(), cells_.cell_rows() * cells_.cell_cols(), level_)
                : CellTables();
  check_cells();
}

i64 CellEncoder::batch() const {
  if (cells_.turned()) return cells_.grid_rows();
  const i64 bytes = place_ != nullptr ? device_->batch_bytes() : kEncodeBatchBytes;
  return std::max<i64>(bytes / std::max<i64>(cells_.cell_rows() * cells_.stored_row_bytes(), 1), 1);
}

void CellEncoder::put_scales(std::byte* out) const {
  if (made_) {
    std::ranges::copy(made_->scales, out);
    return;
  }
  const i64 size = size_of(cells_.scale_dtype());
  for (const u32 scale : scales_) {
    std::memcpy(out, &scale, static_cast<std::size_t>(size));
    out += size;
  }
}

void CellEncoder::put_codes(i64 row, std::byte* out) const {
  const i64 of_row = row - first_row_;
  if (made_) {
    const i64 bytes = cells_.code_row_bytes();
    std::copy_n(made_->codes.begin() + of_row * bytes, bytes, out);
    return;
  }
  const std::byte* const weights = stored_row(of_row);
  const i64 first_cell = of_row / cells_.cell_rows() * cells_.grid_cols();
  const float* const factors = factors_.data() + first_cell;
  if (!tables_.empty())
    tables_.encode_row(encoder_, weights, cells_.cols(), static_cast<std::size_t>(first_cell), cells_.cell_cols(), out);
  else if (path_ == EncodePath::Plain)
    encode_row_by_search(encoder_, weights, cells_.cols(), dtype(), factors, cells_.cell_cols(), out);
  else
    encode_row(encoder_, weights, cells_.cols(), dtype(), factors, cells_.cell_cols(), out, level_);
}

EncodeErrors CellEncoder::measure() const {
  EncodeErrors errors;
  std::vector<std::byte> codes(static_cast<std::size_t>(cells_.code_row_bytes()));
  std::vector<float> weights(static_cast<std::size_t>(cells_.cols())), scales(weights.size()), decoded(weights.size());
  for (i64 row = 0; row < rows_; ++row) {
    put_codes(first_row_ + row, codes.data());
    widen_row(stored_row(row), dtype(), weights);
    const std::size_t first = static_cast<std::size_t>(row / cells_.cell_rows() * cells_.grid_cols());
    for (i64 cell = 0; cell < cells_.grid_cols(); ++cell) {
      const i64 begin = cell * cells_.cell_cols(), count = std::min(cells_.cell_cols(), cells_.cols() - begin);
      std::fill_n(scales.begin() + begin, count, scale_of(first + static_cast<std::size_t>(cell)));
    }
    decode_row({encoder_.codes, codes.data(), cells_.cols(), scales.data()}, Dtype::F32,
               reinterpret_cast<std::byte*>(decoded.data()));
    for (i64 cell = 0; cell < cells_.grid_cols(); ++cell) {
      const auto begin = static_cast<std::size_t>(cell * cells_.cell_cols());
      const std::size_t count = std::min(static_cast<std::size_t>(cells_.cell_cols()), weights.size() - begin);
      errors.add_cell(std::span(weights).subspan(begin, count), std::span(decoded).subspan(begin, count),
                      greatest_[first + static_cast<std::size_t>(cell)]);
    }
    errors.weights += cells_.cols();
  }
  return errors;
}

void CellEncoder::read_weights() {
  if (!cells_.turned())
    return source_.read(tensor_, first_row_ * cells_.stored_row_bytes(),
                        {weights_, static_cast<std::size_t>(rows_ * cells_.stored_row_bytes())});
  // Rows are columns of what is stored.
  const i64 size = size_of(dtype());
  std::vector<std::byte> matrix(static_cast<std::size_t>(cells_.weight().bytes));
  source_.read(tensor_, 0, matrix);
  const std::byte* const first = matrix.data() + first_row_ * size;
  if (size == 2)
    turn_columns<std::uint16_t>(first, cells_.rows(), rows_, cells_.cols(), weights_);
  else
    turn_columns<u32>(first, cells_.rows(), rows_, cells_.cols(), weights_);
}

void CellEncoder::set_scales() {
  const auto is_special = [](float greatest) { return !std::isfinite(greatest); };
  const auto special = std::ranges::find_if(greatest_, is_special);
  if (special != greatest_.end()) fail_special(special - greatest_.begin());
  cell_scales(encoder_, greatest_, dtype(), second_, scales_.data(), factors_.data());
  const bool divides = encoder_.row.divides;
  const auto makes_nan = [&](float factor) { return !std::isfinite(factor) || (divides && factor == 0); };
  const auto bad = std::ranges::find_if(factors_, makes_nan);
  if (bad == factors_.end()) return;
  const i64 cell = bad - factors_.begin() + first_row_ / cells_.cell_rows() * cells_.grid_cols();
  fail(ErrorCode::NotExact, {{}, cells_.weight().name},
       "'{}': the scale of [{}, {}], whose greatest weight is {}, would be {} as {} makes it, and its codes NaN; "
       "--encode-as names another program",
       cells_.weight().name, cell / cells_.grid_cols(), cell % cells_.grid_cols(),
       greatest_[static_cast<std::size_t>(bad - factors_.begin())], divides ? *bad : 1 / *bad, encoder_.row.program);
}

/// Returns the number by which the codes of a cell are multiplied.
float CellEncoder::scale_of(std::size_t cell) const {
  const float factor = factors_[cell];
  if (encoder_.row.divides) return factor;
  if (cells_.scale_dtype() == Dtype::F32) return std::bit_cast<float>(scales_[cell]);
  return factor == 0 ? 0 : 1 / factor;
}

void CellEncoder::check_cells() const {
  std::vector<std::byte> codes;
  for (std::size_t cell = 0; cell < greatest_.size(); ++cell) {
    if (greatest_[cell] < kLeastWatched) continue;
    codes.resize(static_cast<std::size_t>(cells_.code_row_bytes()));
    const auto grid_cols = static_cast<std::size_t>(cells_.grid_cols());
    const i64 first = static_cast<i64>(cell % grid_cols) * cells_.cell_cols();
    const i64 end = std::min(first + cells_.cell_cols(), cells_.cols());
    const i64 begin = static_cast<i64>(cell / grid_cols) * cells_.cell_rows();
    for (i64 row = begin; row < std::min(begin + cells_.cell_rows(), rows_); ++row) {
      put_codes(first_row_ + row, codes.data());
      check_decoded(encoder_, cells_.weight(), {first_row_ + row, first, end}, stored_row(row), codes, scale_of(cell));
    }
  }
}

void CellEncoder::fail_special(i64 cell) const {
  const i64 size = size_of(dtype());
  const i64 begin = cell / cells_.grid_cols() * cells_.cell_rows(), end = std::min(begin + cells_.cell_rows(), rows_);
  const i64 first = cell % cells_.grid_cols() * cells_.cell_cols();
  for (i64 row = begin; row < end; ++row)
    for (i64 col = first; col < std::min(first + cells_.cell_cols(), cells_.cols()); ++col) {
      const float value = widen_element(stored_row(row) + col * size, dtype());
      if (std::isfinite(value)) continue;
      fail(ErrorCode::NotExact, {{}, cells_.weight().name},
           "'{}': element [{}, {}] is {}, and then no program has codes for the weights that share its scale; find out "
           "what wrote it",
           cells_.weight().name, first_row_ + row, col, std::isnan(value) ? "NaN" : "infinite");
    }
  fail(ErrorCode::NotExact, {{}, cells_.weight().name}, "'{}': a weight is no finite number", cells_.weight().name);
}

}  // namespace glu_ckpt
