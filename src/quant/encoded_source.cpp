#include "quant/encoded_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/mxfp8_bits.hpp"
#include "format/model_config.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/decode_row.hpp"
#include "quant/encoded_config.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {
namespace {

/// Stored bytes that are read at once, or one row of cells.
constexpr i64 kEncodeBatchBytes = i64{4} << 20;
/// Of a larger model, errors are measured in rows of cells spread over all of its weights.
constexpr i64 kMeasuredBytes = i64{128} << 20;

enum class Made { AsStored, Codes, Scales, Second, Shape };

struct Entry {
  std::size_t stored = 0;
  Made made = Made::AsStored;
  /// Index into the weights, where it is made.
  std::size_t weight = 0;
};

std::string sibling(const std::string& weight, TensorKind kind) {
  constexpr std::string_view kWeight = ".weight";
  const KindWords& words = words_of(kind);
  if (weight.ends_with(kWeight)) return weight.substr(0, weight.size() + 1 - kWeight.size()) + std::string(words.word);
  return weight + std::string(words.suffix);
}

i64 size_of(Dtype dtype) { return dtype_bits(dtype) / 8; }

/// A weight, its cells, and the tensors that it becomes.
class Cells {
 public:
  Cells(const Encoder& encoder, const TensorRef& weight, bool turned)
      : encoder_(encoder),
        row_(encoder.row),
        weight_(weight),
        turned_(turned),
        cell_cols_(row_.cell_cols == 0 ? cols() : row_.cell_cols) {}

  const TensorRef& weight() const { return weight_; }
  bool turned() const { return turned_; }
  i64 rows() const { return weight_.shape[turned_ ? 1 : 0]; }
  i64 cols() const { return weight_.shape[turned_ ? 0 : 1]; }
  i64 cell_rows() const { return row_.cell_rows; }
  i64 cell_cols() const { return cell_cols_; }
  i64 grid_rows() const { return (rows() + cell_rows() - 1) / cell_rows(); }
  i64 grid_cols() const { return (cols() + cell_cols_ - 1) / cell_cols_; }
  Dtype scale_dtype() const { return row_.scale_dtype == Dtype::BF16 ? weight_.dtype : row_.scale_dtype; }
  i64 stored_row_bytes() const { return cols() * size_of(weight_.dtype); }
  i64 code_row_bytes() const { return code_bytes(encoder_.codes, cols()); }
  i64 scale_row_bytes() const { return grid_cols() * size_of(scale_dtype()); }

  TensorRef codes() const {
    TensorRef made = like(row_.codes);
    made.dtype = encoder_.codes == Codes::E4m3   ? Dtype::F8_E4M3
                 : encoder_.codes == Codes::E2m1 ? Dtype::U8
                                                 : Dtype::I32;
    made.shape = {rows(), code_row_bytes() / size_of(made.dtype)};
    if (row_.codes == TensorKind::Blocks) made.shape = {rows(), grid_cols(), code_row_bytes() / grid_cols()};
    made.bytes = rows() * code_row_bytes();
    return made;
  }
  TensorRef scales() const {
    TensorRef made = like(row_.scales);
    made.dtype = scale_dtype();
    made.shape = {grid_rows(), grid_cols()};
    // Its blocks have an axis of one element behind each.
    if (row_.rule == ScaleRule::ModelOpt && row_.cell_rows > 1) made.shape = {grid_rows(), 1, grid_cols(), 1};
    made.bytes = grid_rows() * scale_row_bytes();
    return made;
  }
  TensorRef second() const {
    const bool divides = row_.rule == ScaleRule::Nvfp4CompressedTensors;
    TensorRef made = like(divides ? TensorKind::GlobalScale : TensorKind::SecondScale);
    made.dtype = Dtype::F32;
    made.shape = divides ? std::vector<i64>{1} : std::vector<i64>{};
    made.bytes = 4;
    return made;
  }
  TensorRef shape() const {
    TensorRef made = like(TensorKind::WeightShape);
    made.dtype = Dtype::I64;
    made.shape = {2};
    made.bytes = 16;
    return made;
  }

 private:
  TensorRef like(TensorKind kind) const {
    TensorRef made = weight_;
    made.name = sibling(weight_.name, kind);
    return made;
  }

  const Encoder& encoder_;
  const EncoderRow& row_;
  const TensorRef& weight_;
  bool turned_;
  i64 cell_cols_;
};

/// Sums over weights that were encoded and decoded again.
struct Errors {
  double squares = 0;
  double error_squares = 0;
  /// The greatest error, as a part of the greatest magnitude of its cell.
  double greatest = 0;
  i64 weights = 0;
  i64 lost = 0;

  /// Sums are kept apart for every fourth weight, so that a compiler takes many at a time.
  void add_cell(std::span<const float> cell, std::span<const float> decoded, float greatest_weight) {
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
    if (greatest_weight > 0)
      greatest = std::max(greatest, std::ranges::max(most) / static_cast<double>(greatest_weight));
  }

  void add(const Errors& other) {
    squares += other.squares;
    error_squares += other.error_squares;
    greatest = std::max(greatest, other.greatest);
    weights += other.weights;
    lost += other.lost;
  }
};

/// Encodes rows of cells of one weight. One call uses it.
class CellEncoder {
 public:
  CellEncoder(const Source& source, const Encoder& encoder, const EncodedWeight& weight, EncodePath path, float second)
      : source_(source),
        encoder_(encoder),
        tensor_(weight.tensor),
        cells_(encoder, source.inventory().tensors[weight.tensor], weight.turned),
        path_(path),
        second_(second) {}

  /// Reads rows of cells [begin, end) and makes their scales.
  void load(i64 begin, i64 end) {
    first_row_ = begin * cells_.cell_rows();
    rows_ = std::min(end * cells_.cell_rows(), cells_.rows()) - first_row_;
    stored_.resize(static_cast<std::size_t>(rows_ * cells_.stored_row_bytes()));
    if (cells_.turned())
      read_turned();
    else
      source_.read(tensor_, first_row_ * cells_.stored_row_bytes(), stored_);
    greatest_.assign(static_cast<std::size_t>((end - begin) * cells_.grid_cols()), 0);
    scales_.resize(greatest_.size());
    factors_.resize(greatest_.size());
    for (i64 row = 0; row < rows_; ++row)
      raise_greatest(stored_.data() + row * cells_.stored_row_bytes(), cells_.cols(), dtype(), cells_.cell_cols(),
                     greatest_.data() + row / cells_.cell_rows() * cells_.grid_cols());
    set_scales();
    check_decoded();
  }

  /// A turned matrix is read whole for each batch, so it is one.
  i64 batch() const {
    if (cells_.turned()) return cells_.grid_rows();
    return std::max<i64>(kEncodeBatchBytes / std::max<i64>(cells_.cell_rows() * cells_.stored_row_bytes(), 1), 1);
  }

  void put_scales(std::byte* out) const {
    const i64 size = size_of(cells_.scale_dtype());
    for (const u32 scale : scales_) {
      std::memcpy(out, &scale, static_cast<std::size_t>(size));
      out += size;
    }
  }

  /// The codes of a row of the weight, which was loaded.
  void put_codes(i64 row, std::byte* out) const {
    const i64 of_row = row - first_row_;
    const std::byte* const weights = stored_.data() + of_row * cells_.stored_row_bytes();
    const float* const factors = factors_.data() + of_row / cells_.cell_rows() * cells_.grid_cols();
    if (path_ == EncodePath::Plain)
      encode_row_by_search(encoder_, weights, cells_.cols(), dtype(), factors, cells_.cell_cols(), out);
    else
      encode_row(encoder_, weights, cells_.cols(), dtype(), factors, cells_.cell_cols(), out);
  }

  /// The errors of all rows that were loaded.
  Errors measure() const {
    Errors errors;
    std::vector<std::byte> codes(static_cast<std::size_t>(cells_.code_row_bytes()));
    std::vector<float> weights(static_cast<std::size_t>(cells_.cols())), scales(weights.size()),
        decoded(weights.size());
    for (i64 row = 0; row < rows_; ++row) {
      put_codes(first_row_ + row, codes.data());
      widen_row(stored_.data() + row * cells_.stored_row_bytes(), dtype(), weights);
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

 private:
  Dtype dtype() const { return cells_.weight().dtype; }

  /// Rows are columns of what is stored.
  void read_turned() {
    const i64 size = size_of(dtype());
    std::vector<std::byte> matrix(static_cast<std::size_t>(cells_.weight().bytes));
    source_.read(tensor_, 0, matrix);
    const std::byte* const first = matrix.data() + first_row_ * size;
    if (size == 2)
      turn<std::uint16_t>(first, cells_.rows(), rows_, cells_.cols(), stored_.data());
    else
      turn<u32>(first, cells_.rows(), rows_, cells_.cols(), stored_.data());
  }

  /// Rows of `to` are columns of `from`, whose rows begin `step` elements apart. In tiles, so that lines of both stay
  /// in the cache.
  template <typename Bits>
  static void turn(const std::byte* from, i64 step, i64 rows, i64 cols, std::byte* to) {
    constexpr i64 kTile = 32;
    constexpr auto kSize = static_cast<i64>(sizeof(Bits));
    for (i64 first_row = 0; first_row < rows; first_row += kTile)
      for (i64 first_col = 0; first_col < cols; first_col += kTile)
        for (i64 row = first_row; row < std::min(first_row + kTile, rows); ++row)
          for (i64 col = first_col; col < std::min(first_col + kTile, cols); ++col)
            std::memcpy(to + (row * cols + col) * kSize, from + (col * step + row) * kSize, sizeof(Bits));
  }

  void set_scales() {
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

  /// What multiplies the codes of a cell.
  float scale_of(std::size_t cell) const {
    const float factor = factors_[cell];
    if (encoder_.row.divides) return factor;
    if (cells_.scale_dtype() == Dtype::F32) return std::bit_cast<float>(scales_[cell]);
    return factor == 0 ? 0 : 1 / factor;
  }

  /// Refuses a finite weight whose code and scale are more than its dtype has. Of lesser ones none can be: a code is at
  /// most half as much again as its weight.
  void check_decoded() const {
    constexpr float kLeast = 0x1p126F;
    for (std::size_t cell = 0; cell < greatest_.size(); ++cell) {
      if (greatest_[cell] < kLeast) continue;
      const auto grid_cols = static_cast<std::size_t>(cells_.grid_cols());
      const i64 begin = static_cast<i64>(cell / grid_cols) * cells_.cell_rows();
      for (i64 row = begin; row < std::min(begin + cells_.cell_rows(), rows_); ++row)
        check_decoded(row, static_cast<i64>(cell % grid_cols) * cells_.cell_cols(), scale_of(cell));
    }
  }

  /// Does so for the part of a row, of those that were loaded, that a cell has from a column on.
  void check_decoded(i64 row, i64 first, float scale) const {
    std::vector<std::byte> codes(static_cast<std::size_t>(cells_.code_row_bytes()));
    put_codes(first_row_ + row, codes.data());
    const std::vector<float> scales(static_cast<std::size_t>(cells_.cols()), scale);
    const i64 size = size_of(dtype());
    std::vector<std::byte> decoded(scales.size() * static_cast<std::size_t>(size));
    decode_row({encoder_.codes, codes.data(), cells_.cols(), scales.data()}, dtype(), decoded.data());
    for (i64 col = first; col < std::min(first + cells_.cell_cols(), cells_.cols()); ++col)
      if (!std::isfinite(widen_element(decoded.data() + col * size, dtype())))
        fail(
            ErrorCode::NotExact, {{}, cells_.weight().name},
            "'{}': element [{}, {}] is {}, and decodes to infinity as {} encodes it to {}: its code times the scale {} "
            "is more than {} has; find out what wrote such a weight, or take --encode fp8:128x128 or another "
            "--encode-as",
            cells_.weight().name, first_row_ + row, col,
            widen_element(stored_.data() + row * cells_.stored_row_bytes() + col * size, dtype()), encoder_.row.program,
            encoder_.row.word, scale, dtype_name(dtype()));
  }

  [[noreturn]] void fail_special(i64 cell) const {
    const i64 size = size_of(dtype());
    const i64 begin = cell / cells_.grid_cols() * cells_.cell_rows(), end = std::min(begin + cells_.cell_rows(), rows_);
    const i64 first = cell % cells_.grid_cols() * cells_.cell_cols();
    for (i64 row = begin; row < end; ++row)
      for (i64 col = first; col < std::min(first + cells_.cell_cols(), cells_.cols()); ++col) {
        const float value = widen_element(stored_.data() + row * cells_.stored_row_bytes() + col * size, dtype());
        if (std::isfinite(value)) continue;
        fail(ErrorCode::NotExact, {{}, cells_.weight().name},
             "'{}': element [{}, {}] is {}, and no program's codes have a value for the others of its cell then; find "
             "out what wrote it",
             cells_.weight().name, first_row_ + row, col, std::isnan(value) ? "NaN" : "infinite");
      }
    fail(ErrorCode::NotExact, {{}, cells_.weight().name}, "'{}': a weight is no finite number", cells_.weight().name);
  }

  const Source& source_;
  const Encoder& encoder_;
  std::size_t tensor_;
  Cells cells_;
  EncodePath path_;
  float second_;
  i64 first_row_ = 0;
  i64 rows_ = 0;
  std::vector<std::byte> stored_;
  std::vector<u32> scales_;
  std::vector<float> factors_;
  std::vector<float> greatest_;
};

class EncodedSource final : public Source {
 public:
  EncodedSource(const Source& source, const Encoder& encoder, std::vector<EncodedWeight> weights, EncodePath path)
      : source_(&source), encoder_(encoder), weights_(std::move(weights)), path_(path), seconds_(weights_.size()) {
    info_ = source_->info();
    info_.inventory = {{}, source_->inventory().files, false};
    replace_tensors();
    replace_config();
    describe();
  }

  const CheckpointInfo& info() const override { return info_; }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    const Entry& entry = entries_.at(tensor);
    if (entry.made == Made::AsStored) return source_->read_scattered(entry.stored, offset, pieces);
    if (pieces.size() == 1) return read_made(entry, offset, pieces.front());
    // Pieces may be rows, and a turned matrix is read whole for any part of it.
    std::size_t bytes = 0;
    for (const std::span<std::byte> piece : pieces) bytes += piece.size();
    std::vector<std::byte> made(bytes);
    read_made(entry, offset, made);
    auto next = made.begin();
    for (const std::span<std::byte> piece : pieces) {
      std::copy_n(next, piece.size(), piece.begin());
      next += std::ssize(piece);
    }
  }

  /// Weights that are not finite are refused.
  bool may_have_read_nan_or_infinity() const override { return false; }
  const ContentCheck* content_check() const override { return source_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }

  void own(std::unique_ptr<Source> source) { owned_ = std::move(source); }

 private:
  const TensorRef& stored(std::size_t weight) const { return source_->inventory().tensors[weights_[weight].tensor]; }

  Cells cells_of(std::size_t weight) const { return {encoder_, stored(weight), weights_[weight].turned}; }

  void replace_tensors() {
    const std::vector<TensorRef>& tensors = source_->inventory().tensors;
    std::size_t next = 0;
    const auto add = [&](TensorRef tensor, Made made, std::size_t from) {
      entries_.push_back({from, made, next});
      info_.inventory.tensors.push_back(std::move(tensor));
    };
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (next >= weights_.size() || weights_[next].tensor != i) {
        add(tensors[i], Made::AsStored, i);
        note_left(tensors[i]);
        continue;
      }
      const Cells cells(encoder_, tensors[i], weights_[next].turned);
      add(cells.codes(), Made::Codes, i);
      add(cells.scales(), Made::Scales, i);
      if (has_second_scale(encoder_.row)) add(cells.second(), Made::Second, i);
      if (encoder_.codes == Codes::Int4) add(cells.shape(), Made::Shape, i);
      ++info_.recast_tensors;
      ++next;
    }
  }

  void note_left(const TensorRef& tensor) {
    constexpr std::string_view kWeight = ".weight";
    if (!tensor.name.ends_with(kWeight)) return;
    std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    const bool is_linear = tensor.shape.size() == 2 && !module.ends_with("embed_tokens");
    (is_linear ? left_ : others_).push_back(std::move(module));
  }

  void replace_config() {
    // The head of a tied model is a module all the same.
    constexpr std::string_view kHead = "lm_head";
    const auto is_head = [&](const std::string& module) { return module.ends_with(kHead); };
    if (std::ranges::none_of(left_, is_head)) left_.emplace_back(kHead);
    std::erase_if(info_.extra_files, [](const ExtraFile& file) { return is_quantization_file(file.name); });
    const std::string object = quantization_object(encoder_, left_, others_);
    edit_config(info_, [object](std::string_view text) { return with_quantization(text, object); });
  }

  void describe() {
    info_.record.erase("digest");
    info_.record.erase("source_digest");
    info_.record["encoded_as"] = encoder_.row.word;
    info_.record["encoder"] = encoder_.row.program;
    // The side that proves the other one has no record of its own.
    if (path_ == EncodePath::Fast) info_.record["encode_error"] = measure();
  }

  /// SNR and the greatest error for each role, in order of the names.
  std::string measure() const {
    i64 bytes = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) bytes += stored(i).bytes;
    const double share =
        std::min(1.0, static_cast<double>(kMeasuredBytes) / static_cast<double>(std::max<i64>(bytes, 1)));
    std::map<std::string, Errors> by_role;
    Errors all;
    double due = 1;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      CellEncoder encoder(*source_, encoder_, weights_[i], EncodePath::Fast, second_of(i));
      const Cells cells = cells_of(i);
      // A part of a turned matrix takes as long as all of it.
      const i64 step = share < 1 && !cells.turned() ? 1 : encoder.batch();
      for (i64 begin = 0; begin < cells.grid_rows(); begin += step) {
        if (share < 1 && (due += share) < 1) continue;
        if (share < 1) due -= 1;
        encoder.load(begin, std::min(begin + step, cells.grid_rows()));
        const Errors errors = encoder.measure();
        by_role[weights_[i].role].add(errors);
        all.add(errors);
      }
    }
    std::string text;
    for (const auto& [role, errors] : by_role)
      text += fmt::format("{}{}: SNR {}, greatest error {:.4f} of its cell's greatest weight", text.empty() ? "" : "; ",
                          role, snr_text(errors), errors.greatest);
    if (all.lost > 0)
      text += fmt::format("; {} became 0", all.lost == 1 ? "1 weight" : fmt::format("{} weights", all.lost));
    if (share < 1) text += fmt::format("; measured on {} of the weights", all.weights);
    return text;
  }

  static std::string snr_text(const Errors& errors) {
    if (errors.error_squares == 0) return "without end";
    return fmt::format("{:.2f} dB", 10 * std::log10(errors.squares / errors.error_squares));
  }

  float second_of(std::size_t weight) const {
    if (!has_second_scale(encoder_.row)) return 1;
    const std::lock_guard lock(mutex_);
    std::optional<float>& known = seconds_[weight];
    // What is in memory may be other weights at the next call.
    if (!known || info_.files.empty()) {
      std::size_t greatest_in = weights_[weight].tensor;
      float greatest = greatest_of(greatest_in);
      for (const std::size_t other : weights_[weight].shares_with)
        if (const float own = greatest_of(other); own > greatest) {
          greatest = own;
          greatest_in = other;
        }
      known = second_scale(encoder_.row, greatest, stored(weight).dtype);
      const std::string& name = source_->inventory().tensors[greatest_in].name;
      if (!std::isfinite(greatest))
        fail(
            ErrorCode::NotExact, {{}, name},
            "'{}': a weight is NaN or infinite, and no program's codes have a value for the others then; find out what "
            "wrote it",
            name);
      if (!std::isfinite(*known) || *known == 0)
        fail(ErrorCode::NotExact, {{}, name},
             "'{}': its greatest weight is {}, so that its second scale would be {} and its codes NaN", name, greatest,
             *known);
    }
    return *known;
  }

  float greatest_of(std::size_t tensor) const {
    const TensorRef& weight = source_->inventory().tensors[tensor];
    const i64 size = size_of(weight.dtype);
    std::vector<std::byte> bytes;
    float greatest = 0;
    for (i64 done = 0; done < weight.bytes; done += std::ssize(bytes)) {
      bytes.resize(static_cast<std::size_t>(std::min(weight.bytes - done, kEncodeBatchBytes)));
      source_->read(tensor, done, bytes);
      const i64 count = std::ssize(bytes) / size;
      raise_greatest(bytes.data(), count, weight.dtype, count, &greatest);
    }
    return greatest;
  }

  void read_made(const Entry& entry, i64 offset, std::span<std::byte> out) const {
    if (entry.made == Made::Second) {
      const float second = second_of(entry.weight);
      std::memcpy(out.data(), std::as_bytes(std::span(&second, 1)).data() + offset, out.size());
      return;
    }
    if (entry.made == Made::Shape) {
      const i64 shape[] = {cells_of(entry.weight).rows(), cells_of(entry.weight).cols()};
      std::memcpy(out.data(), std::as_bytes(std::span(shape)).data() + offset, out.size());
      return;
    }
    const Cells cells = cells_of(entry.weight);
    CellEncoder encoder(*source_, encoder_, weights_[entry.weight], path_, second_of(entry.weight));
    // Rows of codes, or of scales, of which some are made for one row of cells.
    const bool is_codes = entry.made == Made::Codes;
    const i64 row_bytes = is_codes ? cells.code_row_bytes() : cells.scale_row_bytes();
    const i64 rows_of_cell = is_codes ? cells.cell_rows() : 1;
    std::vector<std::byte> made;
    while (!out.empty()) {
      const i64 row = offset / row_bytes, skip = offset % row_bytes;
      const i64 end_row = (offset + std::ssize(out) + row_bytes - 1) / row_bytes;
      const i64 begin = row / rows_of_cell;
      const i64 end = std::min(begin + encoder.batch(), (end_row + rows_of_cell - 1) / rows_of_cell);
      const i64 last = std::min(end * rows_of_cell, end_row);
      encoder.load(begin, end);
      const i64 bytes = std::min((last - row) * row_bytes - skip, std::ssize(out));
      const bool whole = is_codes && skip == 0 && bytes == (last - row) * row_bytes;
      made.resize(whole ? 0 : static_cast<std::size_t>((end - begin) * rows_of_cell * row_bytes));
      if (is_codes) {
        std::byte* to = whole ? out.data() : made.data();
        for (i64 one = row; one < last; ++one, to += row_bytes) encoder.put_codes(one, to);
      } else {
        encoder.put_scales(made.data());
      }
      if (!whole) std::memcpy(out.data(), made.data() + skip, static_cast<std::size_t>(bytes));
      out = out.subspan(static_cast<std::size_t>(bytes));
      offset += bytes;
    }
  }

  const Source* source_;
  std::unique_ptr<Source> owned_;
  Encoder encoder_;
  std::vector<EncodedWeight> weights_;
  EncodePath path_;
  CheckpointInfo info_;
  std::vector<Entry> entries_;
  std::vector<std::string> left_;
  std::vector<std::string> others_;
  mutable std::mutex mutex_;
  mutable std::vector<std::optional<float>> seconds_;
};

}  // namespace

bool encodes_shape(const Encoder& encoder, const TensorRef& stored) {
  const EncoderRow& row = encoder.row;
  return !row.skips_uneven || (stored.shape[0] % row.cell_rows == 0 && stored.shape[1] % row.cell_cols == 0);
}

void check_encodable(const Encoder& encoder, const TensorRef& stored, bool turned) {
  const EncoderRow& row = encoder.row;
  if (stored.dtype != Dtype::BF16 && stored.dtype != Dtype::F32)
    fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}' is {}: the bits of {} are known for BF16 and F32 alone",
         stored.name, dtype_name(stored.dtype), row.program);
  // compressed-tensors' formula is of the sixteen bits of BF16.
  if (stored.dtype != Dtype::BF16 && row.rule == ScaleRule::PowerRounded)
    fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}' is {}: the bits of {} are known for BF16 alone", stored.name,
         dtype_name(stored.dtype), row.program);
  if (stored.shape.size() != 2)
    fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}': weights of shape {} are not encoded, only [out, in]",
         stored.name, shape_text(stored.shape));
  const i64 cols = stored.shape[turned ? 0 : 1];
  if (row.cell_rows == 1 && row.cell_cols > 0 && cols % row.cell_cols != 0)
    fail(ErrorCode::NotExact, {{}, stored.name},
         "'{}': rows of {} weights are no multiple of {}, the cell of {}; another format has other cells", stored.name,
         cols, row.cell_cols, row.word);
}

void encode_source(std::unique_ptr<Source>& source, const Encoder& encoder, std::vector<EncodedWeight> weights,
                   EncodePath path) {
  auto encoded = std::make_unique<EncodedSource>(*source, encoder, std::move(weights), path);
  encoded->own(std::move(source));
  source = std::move(encoded);
}

}  // namespace glu_ckpt
