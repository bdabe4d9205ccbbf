#include "quant/decoded_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "format/model_config.hpp"
#include "quant/decode_row.hpp"
#include "quant/decode_words.hpp"
#include "quant/nudged_codes.hpp"
#include "quant/part_finder.hpp"
#include "quant/quantization_files.hpp"
#include "quant/quantization_text.hpp"

namespace glu_ckpt {
namespace {

/// Codes that are read at once, where a weight has more.
constexpr i64 kBatchBytes = i64{1} << 20;
/// Rows of codes that are decoded before they are turned.
constexpr i64 kTurnedRows = 64;

/// Fills the pieces of a scattered read, one after the other.
class PieceWriter {
 public:
  explicit PieceWriter(std::span<const std::span<std::byte>> pieces) : pieces_(pieces) { skip_full(); }

  /// Returns where the next `count` bytes go, if that is one place; they count as written.
  std::byte* take(i64 count) {
    if (pieces_.empty() || std::ssize(pieces_.front()) - done_ < count) return nullptr;
    std::byte* const place = pieces_.front().data() + done_;
    done_ += count;
    skip_full();
    return place;
  }

  void copy(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const i64 count = std::min(std::ssize(bytes), std::ssize(pieces_.front()) - done_);
      std::memcpy(pieces_.front().data() + done_, bytes.data(), static_cast<std::size_t>(count));
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      done_ += count;
      skip_full();
    }
  }

 private:
  void skip_full() {
    while (!pieces_.empty() && done_ == std::ssize(pieces_.front())) {
      pieces_ = pieces_.subspan(1);
      done_ = 0;
    }
  }

  std::span<const std::span<std::byte>> pieces_;
  i64 done_ = 0;
};

/// Rows [begin, end) of one matrix of a decoded tensor as it is stored once decoded, of `row_bytes` each.
struct DecodedRows {
  i64 matrix = 0;
  i64 begin = 0;
  i64 end = 0;
  i64 count() const { return end - begin; }
};

/// Turns [rows, width] to [width of `out`]: columns [first, end) become rows of `pitch` elements, of which these are
/// the ones from `at` on.
template <typename Element>
void turn(const std::byte* strip, i64 rows, i64 width, i64 first, i64 end, std::byte* out, i64 pitch, i64 at) {
  for (i64 col = first; col < end; ++col, out += pitch * static_cast<i64>(sizeof(Element)))
    for (i64 row = 0; row < rows; ++row)
      std::memcpy(out + (at + row) * static_cast<i64>(sizeof(Element)),
                  strip + (row * width + col) * static_cast<i64>(sizeof(Element)), sizeof(Element));
}

bool is_in_words(const QuantizedTensor& weight) {
  return weight.codes == Codes::Awq || weight.codes == Codes::Gptq || weight.zeros || weight.groups;
}

/// Returns whether the greatest code times such a scale may be no finite number of `dtype`.
bool may_overflow(float scale, Codes codes, Dtype dtype) {
  const float greatest = codes == Codes::E5m2 ? 57344 : codes == Codes::E4m3 ? 448 : codes == Codes::Int8 ? 128 : 16;
  return !(std::fabs(scale) * greatest < (dtype == Dtype::F16 ? 0x1p15F : 0x1p126F));
}

[[noreturn]] void fail_scale(const std::string& name, const std::string& weight, std::string_view what) {
  fail(ErrorCode::NotExact, {{}, name}, "'{}': a scale of '{}' is {}: its weights have no value", name, weight, what);
}

/// Reads and decodes one weight. One call uses it.
class WeightReader {
 public:
  /// Products are rounded to `product` before they are what is asked for. `met_special` becomes true where one may
  /// be NaN or infinite.
  WeightReader(const Source& source, const QuantizedTensor& weight, Dtype to, DecodePath path, Dtype product,
               std::atomic<bool>& met_special)
      : source_(source),
        weight_(weight),
        to_(to),
        path_(path),
        product_(product),
        met_special_(met_special),
        element_(dtype_bits(to) / 8) {}

  void read(i64 offset, std::span<const std::span<std::byte>> pieces) {
    i64 left = 0;
    for (const auto& piece : pieces) left += std::ssize(piece);
    PieceWriter out(pieces);
    const i64 row_bytes = weight_.shape.back() * element_;
    const i64 matrix_rows = weight_.shape[weight_.shape.size() - 2];
    while (left > 0) {
      const i64 row = offset / row_bytes, skip = offset % row_bytes;
      const i64 matrix = row / matrix_rows, begin = row % matrix_rows;
      const i64 wanted = (skip + left + row_bytes - 1) / row_bytes;
      const DecodedRows rows{matrix, begin, std::min({matrix_rows, begin + wanted, begin + batch_rows()})};
      const i64 bytes = std::min(rows.count() * row_bytes - skip, left);
      const bool whole = skip == 0 && bytes == rows.count() * row_bytes;
      if (std::byte* const place = whole ? out.take(bytes) : nullptr; place != nullptr) {
        decode(rows, place);
      } else {
        decoded_.resize(static_cast<std::size_t>(rows.count() * row_bytes));
        decode(rows, decoded_.data());
        out.copy(std::span(decoded_).subspan(static_cast<std::size_t>(skip), static_cast<std::size_t>(bytes)));
      }
      offset += bytes;
      left -= bytes;
    }
  }

 private:
  bool in_words() const { return is_in_words(weight_); }

  /// A turned matrix is read whole for each batch, so the batches are as large as what is asked for.
  i64 batch_rows() const {
    if (weight_.transposed || in_words()) return weight_.shape[weight_.shape.size() - 2];
    return std::max<i64>(kBatchBytes / std::max<i64>(code_bytes(weight_.codes, weight_.cols), 1), 1);
  }

  void decode(const DecodedRows& rows, std::byte* out) {
    if (weight_.transposed) return decode_turned(rows, out);
    if (in_words()) return decode_word_rows(word_matrix(rows.matrix), rows.begin, rows.end, out);
    decode_straight(rows, out);
  }

  const TensorRef& tensor(std::size_t number) const { return source_.inventory().tensors[number]; }

  /// Bytes [offset, offset + count) of a stored tensor.
  void fetch(std::size_t number, i64 offset, i64 count, std::vector<std::byte>& bytes) const {
    bytes.resize(static_cast<std::size_t>(count));
    source_.read(number, offset, bytes);
  }

  /// Returns the second scale of the rows of a matrix that are of gate (0), or of up (1), where each has its own.
  std::optional<float> global_scale(i64 matrix, i64 part) const {
    if (!weight_.global) return std::nullopt;
    std::byte bytes[4];
    source_.read(*weight_.global, (weight_.scales_of_parts ? 2 * matrix + part : weight_.global_of(matrix)) * 4, bytes);
    const float scale = scale_value(Dtype::F32, bytes);
    if (std::isnan(scale)) fail_scale(tensor(*weight_.global).name, weight_.name, "NaN");
    return scale;
  }

  /// Gate and up have one scale each, and no other.
  bool has_two_scales() const { return weight_.scales_of_parts && !weight_.global; }
  /// Rows of scales of one matrix, and the one that is for a row of codes.
  i64 scale_rows() const { return has_two_scales() ? 2 : weight_.grid_rows(); }
  i64 scale_row_of(i64 row) const {
    if (has_two_scales()) return weight_.in_out ? 0 : weight_.part_of(row);
    return weight_.grid_row_of(row);
  }
  /// 0 or 1: whose second scale multiplies a scale of the grid.
  i64 part_of_scale(i64 grid_row, i64 grid_col) const {
    if (!weight_.global) return 0;
    return weight_.part_of(weight_.in_out ? grid_col * weight_.cell_cols : grid_row * weight_.cell_rows);
  }

  /// Rows [begin, end) of the scales of a matrix.
  void fetch_scales(i64 matrix, i64 begin, i64 end) {
    const Dtype dtype = tensor(weight_.scales).dtype;
    const i64 size = dtype_bits(dtype) / 8, cols = weight_.grid_cols();
    const i64 first = weight_.scales_of(matrix) * scale_rows() + begin;
    fetch(weight_.scales, first * cols * size, (end - begin) * cols * size, raw_);
    CombinedScale rules[2] = {{global_scale(matrix, 0), weight_.global_divides, weight_.rounds_scale}, {}};
    rules[1] = rules[0];
    if (weight_.scales_of_parts) rules[1].global = global_scale(matrix, 1);
    scales_.resize(static_cast<std::size_t>((end - begin) * cols));
    for (std::size_t i = 0; i < scales_.size(); ++i) {
      const float scale = scale_value(dtype, raw_.data() + static_cast<i64>(i) * size);
      if (std::isnan(scale)) fail_scale(tensor(weight_.scales).name, weight_.name, "NaN");
      const i64 at = static_cast<i64>(i);
      // A second scale goes with scales of single outputs.
      scales_[i] = rules[part_of_scale(begin + at / cols, at % cols)].of(scale, to_);
      if (may_overflow(scales_[i], weight_.codes, product_)) met_special_ = true;
    }
  }

  /// `scales` are those of the cells, each for cell_cols codes; the same as the last time if `same_scales`.
  void decode_one(const std::byte* codes, i64 count, const float* scales, bool same_scales, std::byte* out) {
    if (!same_scales) {
      expanded_.resize(static_cast<std::size_t>(count));
      const bool by_part = has_two_scales() && weight_.in_out && weight_.part_rows > 0;
      const i64 width = by_part ? weight_.part_rows : weight_.cell_cols;
      for (i64 first = 0, cell = 0; first < count; first += width, ++cell)
        std::fill_n(expanded_.begin() + first, std::min(width, count - first),
                    scales[by_part ? weight_.part_of(first) : cell]);
    }
    const CodeRow row{weight_.codes, codes, count, expanded_.data(), weight_.positive_zero};
    if (has_special_code(row)) met_special_ = true;
    const auto decode_to = [&](Dtype to, std::byte* place) {
      path_ == DecodePath::Plain ? decode_row_by_table(row, to, place) : decode_row(row, to, place);
    };
    if (product_ == Dtype::F32 || product_ == to_) return decode_to(to_, out);
    products_.resize(static_cast<std::size_t>(count));
    decode_to(Dtype::F32, reinterpret_cast<std::byte*>(products_.data()));
    round_row(products_, product_);
    narrow_row(products_, to_, out);
  }

  /// Rows [begin, end) of the codes of a matrix, one behind the other.
  void fetch_codes(i64 matrix, i64 begin, i64 end) {
    const i64 stored = code_bytes(weight_.codes, weight_.cols);
    if (!weight_.pairs_of_rows)
      return fetch(weight_.weight, (matrix * weight_.rows + begin) * stored, (end - begin) * stored, codes_);
    const i64 first = begin / 2, pairs = (end + 1) / 2 - first;
    fetch(weight_.weight, (matrix * (weight_.rows / 2) + first) * weight_.cols, pairs * weight_.cols, paired_);
    codes_.resize(static_cast<std::size_t>((end - begin) * stored));
    std::byte* out = codes_.data();
    for (i64 row = begin; row < end; ++row) {
      const std::byte* const bytes = paired_.data() + (row / 2 - first) * weight_.cols;
      const int shift = row % 2 == 0 ? 0 : 4;
      for (i64 col = 0; col < weight_.cols; col += 2)
        *out++ = (bytes[col] >> shift & std::byte{15}) | (bytes[col + 1] >> shift & std::byte{15}) << 4;
    }
  }

  void decode_straight(const DecodedRows& rows, std::byte* out) {
    const i64 stored = code_bytes(weight_.codes, weight_.cols), grid_cols = weight_.grid_cols();
    const i64 first_scale = has_two_scales() ? 0 : scale_row_of(rows.begin);
    fetch_codes(rows.matrix, rows.begin, rows.end);
    fetch_scales(rows.matrix, first_scale, has_two_scales() ? 2 : scale_row_of(rows.end - 1) + 1);
    for (i64 row = rows.begin; row < rows.end; ++row)
      decode_one(codes_.data() + (row - rows.begin) * stored, weight_.cols,
                 scales_.data() + (scale_row_of(row) - first_scale) * grid_cols,
                 row > rows.begin && scale_row_of(row) == scale_row_of(row - 1),
                 out + (row - rows.begin) * weight_.cols * element_);
  }

  /// A row of the decoded matrix is a column of codes. The blocks of columns that hold some of those asked for are
  /// decoded, row by row, and turned; of words all columns.
  void decode_turned(const DecodedRows& rows, std::byte* out) {
    const i64 cell = in_words() ? weight_.cols : weight_.cell_cols;
    const i64 first_cell = rows.begin / cell, end_cell = (rows.end + cell - 1) / cell;
    const i64 first = first_cell * cell, width = std::min(end_cell * cell, weight_.cols) - first;
    std::vector<std::byte> strip(static_cast<std::size_t>(kTurnedRows * width * element_));
    const WordMatrix words = in_words() ? word_matrix(rows.matrix) : WordMatrix{};
    for (i64 begin = 0; begin < weight_.rows; begin += kTurnedRows) {
      const i64 end = std::min(begin + kTurnedRows, weight_.rows);
      if (in_words())
        decode_word_rows(words, begin, end, strip.data());
      else
        decode_strip({rows.matrix, begin, end}, first_cell, width, strip.data());
      const auto turn_strip = element_ == 2 ? turn<std::uint16_t> : turn<u32>;
      turn_strip(strip.data(), end - begin, width, rows.begin - first, rows.end - first, out, weight_.rows, begin);
    }
  }

  /// `width` columns of rows, from a cell of columns on.
  void decode_strip(const DecodedRows& rows, i64 first_cell, i64 width, std::byte* strip) {
    const i64 stored = code_bytes(weight_.codes, weight_.cols), first = first_cell * weight_.cell_cols;
    fetch_codes(rows.matrix, rows.begin, rows.end);
    fetch_scales(rows.matrix, rows.begin, rows.end);
    for (i64 row = 0; row < rows.count(); ++row)
      decode_one(codes_.data() + row * stored + code_bytes(weight_.codes, first), width,
                 scales_.data() + row * weight_.grid_cols() + first_cell, false, strip + row * width * element_);
  }

  /// The bytes of one matrix, which is held whole.
  WordMatrix word_matrix(i64 matrix) {
    fetch_matrix(weight_.weight, matrix, codes_);
    fetch_matrix(weight_.scales, matrix, raw_);
    check_numbers(raw_, tensor(weight_.scales).dtype);
    if (weight_.zeros) fetch_matrix(*weight_.zeros, matrix, zeros_);
    return {.codes = weight_.codes,
            .rows = weight_.rows,
            .cols = weight_.cols,
            .words = codes_.data(),
            .scales = raw_.data(),
            .scale_dtype = tensor(weight_.scales).dtype,
            .zeros = weight_.zeros ? zeros_.data() : nullptr,
            .zero_offset = weight_.zero_offset,
            .groups = weight_.grid_cols(),
            .group_of = column_groups(matrix)};
  }

  void decode_word_rows(const WordMatrix& matrix, i64 begin, i64 end, std::byte* out) const {
    if (path_ == DecodePath::Plain)
      decode_words_one_by_one(matrix, begin, end, to_, out);
    else
      decode_words(matrix, begin, end, to_, out);
  }

  void check_numbers(std::span<const std::byte> scales, Dtype dtype) const {
    const i64 size = dtype_bits(dtype) / 8;
    for (i64 at = 0; at < std::ssize(scales); at += size) {
      const float scale = widen_element(scales.data() + at, dtype);
      if (std::isnan(scale)) fail_scale(tensor(weight_.scales).name, weight_.name, "NaN");
      if (may_overflow(scale, weight_.codes, dtype)) met_special_ = true;
    }
  }

  /// Reads one matrix's part of a tensor.
  void fetch_matrix(std::size_t number, i64 matrix, std::vector<std::byte>& bytes) const {
    const i64 count = tensor(number).bytes / weight_.matrices;
    fetch(number, matrix * count, count, bytes);
  }

  std::vector<i64> column_groups(i64 matrix) const {
    std::vector<i64> groups(static_cast<std::size_t>(weight_.cols));
    for (i64 col = 0; col < weight_.cols; ++col) groups[static_cast<std::size_t>(col)] = col / weight_.cell_cols;
    if (!weight_.groups) return groups;
    std::vector<std::byte> stored;
    fetch_matrix(*weight_.groups, matrix, stored);
    // A fused FC1 has gate's and up's: of GPTQ beside each other, of compressed-tensors one behind the other.
    const i64 parts = std::ssize(stored) / (weight_.cols * static_cast<i64>(sizeof(u32)));
    const bool behind = weight_.codes == Codes::Int4;
    const i64 col_step = behind ? 1 : parts, part_step = behind ? weight_.cols : 1;
    for (i64 col = 0; col < weight_.cols; ++col) {
      u32 group = 0, last = 0;
      const i64 first = col * col_step, second = first + (parts - 1) * part_step;
      std::memcpy(&group, stored.data() + first * static_cast<i64>(sizeof group), sizeof group);
      std::memcpy(&last, stored.data() + second * static_cast<i64>(sizeof last), sizeof last);
      if (group != last)
        fail(ErrorCode::NotSupported, {{}, tensor(*weight_.groups).name},
             "'{}': column {} is of group {} for gate and of group {} for up; split them first (--experts indexed), "
             "then decode",
             tensor(*weight_.groups).name, col, group, last);
      if (group >= weight_.grid_cols())
        fail(ErrorCode::SizeMismatch, {{}, tensor(*weight_.groups).name},
             "'{}': column {} is of group {}; there are {}", tensor(*weight_.groups).name, col, group,
             weight_.grid_cols());
      groups[static_cast<std::size_t>(col)] = group;
    }
    return groups;
  }

  const Source& source_;
  const QuantizedTensor& weight_;
  Dtype to_;
  DecodePath path_;
  Dtype product_;
  std::atomic<bool>& met_special_;
  i64 element_;
  std::vector<std::byte> codes_;
  std::vector<std::byte> paired_;
  std::vector<std::byte> raw_;
  std::vector<std::byte> zeros_;
  std::vector<float> scales_;
  /// One scale for each code of a row.
  std::vector<float> expanded_;
  std::vector<float> products_;
  std::vector<std::byte> decoded_;
};

void become_decoded(TensorRef& tensor, const QuantizedTensor& weight, Dtype to) {
  tensor.name = weight.name;
  tensor.dtype = to;
  tensor.shape = weight.shape;
  tensor.bytes = weight.matrices * weight.rows * weight.cols * (dtype_bits(to) / 8);
}

/// Calls `use` with each stored tensor that is there once weights are decoded, and the index of the weight that it is
/// the codes of, or -1.
template <typename Use>
void for_each_left(const Inventory& stored, const Quantization& found, const Use& use) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < stored.tensors.size(); ++i) {
    if (std::ranges::binary_search(found.companions, i)) continue;
    const bool is_codes = next < found.tensors.size() && found.tensors[next].weight == i;
    use(i, is_codes ? static_cast<i64>(next++) : -1);
  }
}

class DecodedSource final : public Source {
 public:
  DecodedSource(std::unique_ptr<Source> source, Quantization quantization, Dtype to, DecodePath path)
      : source_(std::move(source)), quantization_(std::move(quantization)), to_(to), path_(path) {
    info_ = source_->info();
    replace_tensors();
    replace_config();
    describe();
  }

  const CheckpointInfo& info() const override { return info_; }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    const Entry& entry = entries_.at(tensor);
    if (entry.weight < 0) return source_->read_scattered(entry.stored, offset, pieces);
    const QuantizedTensor& weight = weight_of(entry);
    WeightReader(*source_, weight, to_, path_, dtype_of_products(weight), met_special_).read(offset, pieces);
  }

  bool may_have_read_nan_or_infinity() const override { return met_special_; }
  bool is_cheap_in_parts() const override {
    return source_->is_cheap_in_parts() &&
           std::ranges::none_of(quantization_.tensors,
                                [](const QuantizedTensor& weight) { return weight.transposed || is_in_words(weight); });
  }

  void read_unrounded(std::size_t tensor, i64 first, std::span<float> low, std::span<float> high) const {
    const QuantizedTensor& weight = weight_of(entries_.at(tensor));
    std::vector<float> values(low.size());
    read_nudged(weight, first, Nudge::None, values);
    read_nudged(weight, first, Nudge::Down, low);
    read_nudged(weight, first, Nudge::Up, high);
    // Scales of one byte are rounded so far themselves that the largest numbers of a cell may lie above all codes.
    const bool is_coarse = dtype_bits(source_->inventory().tensors[weight.scales].dtype) == 8;
    const float beyond = is_coarse ? 2.0F : 0.5F;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float value = values[i], down = value - low[i], up = high[i] - value;
      low[i] = value - (down == 0 ? up * beyond : down / 2);
      high[i] = value + (up == 0 ? down * beyond : up / 2);
      if (low[i] > high[i]) std::swap(low[i], high[i]);
    }
  }

  std::vector<DecodedTensor> tensors() const {
    std::vector<DecodedTensor> all;
    for (const Entry& entry : entries_)
      all.push_back(
          {entry.stored, entry.weight >= 0, entry.weight >= 0 ? device_form(weight_of(entry)) : std::nullopt});
    return all;
  }

  void check_scales(std::size_t tensor, std::span<const std::byte> scales, std::span<const std::byte> globals) const {
    const QuantizedTensor& weight = weight_of(entries_.at(tensor));
    check_numbers(weight, weight.scales, scales);
    if (weight.global) check_numbers(weight, *weight.global, globals);
  }

  const ContentCheck* content_check() const override { return source_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }
  std::vector<u32> files_of(std::size_t tensor) const override {
    const Entry& entry = entries_.at(tensor);
    return entry.weight < 0 ? source_->files_of(entry.stored) : files_of_all(*source_, weight_of(entry).parts());
  }

 private:
  struct Entry {
    std::size_t stored = 0;
    /// Index of the quantized weight; -1: the stored bytes are the tensor's.
    i64 weight = -1;
  };

  const QuantizedTensor& weight_of(const Entry& entry) const {
    return quantization_.tensors.at(static_cast<std::size_t>(entry.weight));
  }

  void check_numbers(const QuantizedTensor& weight, std::size_t scales, std::span<const std::byte> bytes) const {
    const TensorRef& tensor = source_->inventory().tensors[scales];
    const i64 size = dtype_bits(tensor.dtype) / 8;
    for (i64 at = 0; at < std::ssize(bytes); at += size)
      if (std::isnan(scale_value(tensor.dtype, bytes.data() + at))) fail_scale(tensor.name, weight.name, "NaN");
  }

  std::optional<CodedTensor> device_form(const QuantizedTensor& weight) const {
    const auto& tensors = source_->inventory().tensors;
    const Dtype scale_dtype = tensors[weight.scales].dtype, product = dtype_of_products(weight);
    const bool rounds_to_f16 = product == Dtype::F16;
    const bool in_words = is_in_words(weight);
    const bool has_one_group_a_column =
        !weight.groups || tensors[*weight.groups].bytes == weight.matrices * weight.cols * 4;
    if (weight.transposed || weight.pairs_of_rows || weight.restart_rows > 0 || weight.scales_of_parts ||
        weight.one_for_all || !has_one_group_a_column || (in_words && weight.in_out) ||
        !(product == Dtype::F32 || product == to_ || rounds_to_f16))
      return std::nullopt;
    CodedWeight form{.codes = weight.codes,
                     .matrices = weight.matrices,
                     .rows = weight.rows,
                     .cols = weight.cols,
                     .cell_rows = weight.cell_rows,
                     .cell_cols = weight.cell_cols,
                     .scale_dtype = scale_dtype,
                     .global_divides = weight.global_divides,
                     .positive_zero = weight.positive_zero,
                     .rounds_scale = weight.rounds_scale,
                     .rounds_to_f16 = rounds_to_f16 && !in_words,
                     .zero_offset = weight.zero_offset};
    return CodedTensor{form, weight.weight, weight.scales, weight.global, weight.zeros, weight.groups};
  }

  void read_nudged(const QuantizedTensor& weight, i64 first, Nudge nudge, std::span<float> values) const {
    const NudgedSource nudged(*source_, weight.weight, weight.codes, nudge);
    std::atomic<bool> met_special = false;
    const std::span<std::byte> bytes = std::as_writable_bytes(values);
    WeightReader(nudged, weight, Dtype::F32, path_, dtype_of_products(weight), met_special)
        .read(first * static_cast<i64>(sizeof(float)), std::span(&bytes, 1));
  }

  Dtype dtype_of_products(const QuantizedTensor& weight) const {
    const Dtype scales = source_->inventory().tensors[weight.scales].dtype;
    const bool is_short = scales == Dtype::F16 || scales == Dtype::BF16;
    return weight.rounds_product && is_short ? scales : Dtype::F32;
  }

  void replace_tensors() {
    info_.inventory = decoded_inventory(source_->inventory(), quantization_, to_);
    for_each_left(source_->inventory(), quantization_, [&](std::size_t stored, i64 weight) {
      if (weight >= 0) info_.decoded_weights.push_back(entries_.size());
      entries_.push_back({stored, weight});
    });
  }

  void replace_config() {
    take_out_quantization_files(info_);
    edit_config(info_, [to = to_](std::string_view text) { return decoded_config(text, to); });
  }

  /// A digest that was recorded is that of the quantized model.
  void describe() {
    info_.record.erase("digest");
    info_.record.erase("source_digest");
    std::string formats;
    for (const std::string& format : quantization_.formats) formats += (formats.empty() ? "" : ", ") + format;
    info_.record["decoded_from"] = formats;
    info_.record["decoded_as"] = quantization_.decoder;
  }

  std::unique_ptr<Source> source_;
  Quantization quantization_;
  Dtype to_;
  DecodePath path_;
  CheckpointInfo info_;
  std::vector<Entry> entries_;
  mutable std::atomic<bool> met_special_ = false;
};

}  // namespace

Inventory decoded_inventory(const Inventory& stored, const Quantization& found, Dtype to) {
  Inventory decoded{{}, stored.files, false};
  for_each_left(stored, found, [&](std::size_t number, i64 weight) {
    TensorRef tensor = stored.tensors[number];
    if (weight >= 0) become_decoded(tensor, found.tensors[static_cast<std::size_t>(weight)], to);
    decoded.tensors.push_back(std::move(tensor));
  });
  return decoded;
}

std::unique_ptr<Source> decode_source(std::unique_ptr<Source> source, Quantization found, Dtype to, DecodePath path) {
  if (found.tensors.empty()) return source;
  return std::make_unique<DecodedSource>(std::move(source), std::move(found), to, path);
}

std::vector<DecodedTensor> decoded_tensors(const Source& source) {
  const auto* decoded = dynamic_cast<const DecodedSource*>(&source);
  return decoded ? decoded->tensors() : std::vector<DecodedTensor>{};
}

void check_scales(const Source& source, std::size_t tensor, std::span<const std::byte> scales,
                  std::span<const std::byte> globals) {
  dynamic_cast<const DecodedSource&>(source).check_scales(tensor, scales, globals);
}

void read_unrounded(const Source& source, std::size_t tensor, i64 first, std::span<float> low, std::span<float> high) {
  dynamic_cast<const DecodedSource&>(source).read_unrounded(tensor, first, low, high);
}

}  // namespace glu_ckpt
