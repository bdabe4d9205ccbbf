#include "adapters/merged_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "adapters/add_product.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/kept.hpp"
#include "core/weight_device.hpp"
#include "format/both_checks.hpp"
#include "layout/adapter_names.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

/// A tensor of the adapter as fp32.
struct Widened {
  std::vector<float> values;
  i64 bytes() const { return std::ssize(values) * i64{sizeof(float)}; }
};

/// The factors of one matrix, for lines along its stored rows: those of the output [rank, out] and of the input
/// [rank, in], and the coefficients of each line, [lines, rank]. DoRA has a number for each row besides.
struct Lines {
  std::vector<float> vectors;
  std::vector<float> coefficients;
  std::vector<float> row_scales = {};
  i64 bytes() const {
    return (std::ssize(vectors) + std::ssize(coefficients) + std::ssize(row_scales)) * i64{sizeof(float)};
  }
};

class MergedSource final : public Source {
 public:
  MergedSource(const Source& source, std::unique_ptr<Source> adapter, std::vector<MergedMatrix> matrices,
               const std::string& program, MergePath path, SimdLevel level, std::vector<std::string> warnings)
      : source_(&source),
        adapter_(std::move(adapter)),
        matrices_(std::move(matrices)),
        path_(path),
        level_(level),
        checks_(source, *adapter_) {
    info_ = source.info();
    std::ranges::move(warnings, std::back_inserter(info_.warnings));
    std::size_t first = 0;
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      if (matrices_[i].matrix.tensor != matrices_[first].matrix.tensor) first = i;
      of_tensor_[matrices_[first].matrix.tensor] = {first, i + 1};
    }
    info_.recast_tensors += std::ssize(of_tensor_);
    info_.record.erase("digest");
    info_.record.erase("source_digest");
    std::string& merged = info_.record["merged"];
    if (!merged.empty())
      info_.warnings.push_back(fmt::format(
          "the record says that the adapter '{}' is merged already; the products of '{}' are added to those", merged,
          adapter_->path().filename().string()));
    merged += (merged.empty() ? "" : ", ") + adapter_->path().filename().string();
    info_.record["merged_as"] = program;
    info_.record.emplace("merged_into", source.path().string());
    for (const ExtraFile& file : adapter_->extra_files())
      if (file.name == kAdapterConfigName) info_.deciding_files.push_back(file.path);
    const std::vector<OpenedFile>& files = adapter_->info().files;
    info_.files.insert(info_.files.end(), files.begin(), files.end());
  }

  const CheckpointInfo& info() const override { return info_; }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    source_->read_scattered(tensor, offset, pieces);
    const auto found = of_tensor_.find(tensor);
    if (found == of_tensor_.end()) return;
    const i64 size = matrices_[found->second.first].matrix.element_bytes;
    for (const std::span<std::byte> piece : pieces) {
      const i64 end = offset + std::ssize(piece), begin = offset - offset % size;
      if (begin == offset && end % size == 0) {
        merge(found->second, offset, piece);
      } else {
        std::vector<std::byte> whole(static_cast<std::size_t>((end + size - 1) / size * size - begin));
        source_->read(tensor, begin, whole);
        merge(found->second, begin, whole);
        std::memcpy(piece.data(), whole.data() + (offset - begin), piece.size());
      }
      offset = end;
    }
  }

  bool may_have_read_nan_or_infinity() const override { return true; }
  bool is_cheap_in_parts() const override { return false; }
  const ContentCheck* content_check() const override { return checks_.get(); }
  const FileBacked* file_backed() const override { return nullptr; }
  void compute_on(const std::weak_ptr<WeightDevice>& device) override {
    // The plain path proves what the other one gave, so it has nothing in common with it.
    if (path_ == MergePath::Fast) device_ = device;
  }

  void own(std::unique_ptr<Source> source) { owned_ = std::move(source); }

 private:
  /// Adds what belongs to the bytes [offset, offset + out.size()) of a tensor. Throws NotExact where a finite weight
  /// becomes infinite or NaN.
  void merge(const std::pair<std::size_t, std::size_t>& range, i64 offset, std::span<std::byte> out) const {
    for (std::size_t i = range.first; i < range.second; ++i) {
      const Matrix& matrix = matrices_[i].matrix;
      const i64 last = row_offset(matrix.place, matrix.rows - 1) + (matrix.cols - 1) * matrix.place.col_step;
      if (matrix.rows == 0 || matrix.cols == 0 || last + matrix.element_bytes <= offset ||
          matrix.place.offset >= offset + std::ssize(out))
        continue;
      const auto lines = lines_.get(i, [&] { return lines_of(matrices_[i]); });
      is_transposed(matrix) ? merge_columns(matrices_[i], *lines, offset, out)
                            : merge_rows(matrices_[i], *lines, offset, out);
    }
    const Matrix& first = matrices_[range.first].matrix;
    if (count_not_finite(out, first.dtype) > 0) check_finite(first.tensor, offset, out);
  }

  /// Weights that are not finite by themselves are moved as they are.
  void check_finite(std::size_t tensor, i64 offset, std::span<const std::byte> out) const {
    const TensorRef& weights = info_.inventory.tensors[tensor];
    const i64 size = dtype_bits(weights.dtype) / 8;
    std::vector<std::byte> before(out.size());
    source_->read(tensor, offset, before);
    for (i64 at = 0; at < std::ssize(out); at += size) {
      const float weight = widen_element(before.data() + at, weights.dtype);
      const float sum = widen_element(out.data() + at, weights.dtype);
      if (std::isfinite(sum) || !std::isfinite(weight)) continue;
      std::vector<i64> index(weights.shape.size());
      i64 rest = (offset + at) / size;
      for (std::size_t axis = index.size(); axis-- > 0; rest /= weights.shape[axis])
        index[axis] = rest % weights.shape[axis];
      const std::string adapter = adapter_->path().filename().string();
      const std::string why =
          std::isnan(sum) ? "a factor or a magnitude of the adapter is no finite number, or the norm of a row is 0"
                          : fmt::format("the sum is more than {} has", dtype_name(weights.dtype));
      fail(ErrorCode::NotExact, {{}, weights.name},
           "'{}': element [{}] is {}, and {} with the adapter '{}' merged: {}. Find out what wrote such numbers{}",
           weights.name, fmt::join(index, ", "), weight, std::isnan(sum) ? "NaN" : "infinite", adapter, why,
           std::isnan(sum) || weights.dtype == Dtype::F32 ? "" : ", or merge into a model of --dtype '*=f32'");
    }
  }

  /// Does what add() does, on the device where one takes the lines.
  void add_anywhere(const MergedMatrix& merged, const Lines& lines, std::span<const ProductLine> to, i64 begin,
                    i64 count) const {
    const Dtype dtype = merged.matrix.dtype;
    if (const std::shared_ptr<WeightDevice> device = device_.lock())
      if (const auto place = device->take_place();
          place != nullptr && place->add_product(to, vectors_of(merged, lines, begin), merged.merging, dtype, count))
        return;
    add(merged, lines, to, begin, dtype, count);
  }

  static ProductVectors vectors_of(const MergedMatrix& merged, const Lines& lines, i64 begin) {
    const i64 rank = merged.factors.rank;
    return {lines.vectors.data() + begin, rank, std::ssize(lines.vectors) / rank};
  }

  /// Adds to lines, of which each is `count` elements from the `begin`-th on.
  void add(const MergedMatrix& merged, const Lines& lines, std::span<const ProductLine> to, i64 begin, Dtype dtype,
           i64 count) const {
    const ProductVectors vectors = vectors_of(merged, lines, begin);
    if (path_ == MergePath::Fast)
      add_product(to, vectors, merged.merging, dtype, count, level_);
    else
      add_product_one_by_one(to, vectors, merged.merging, dtype, count);
  }

  static const float* coefficients_of(const MergedMatrix& merged, const Lines& lines, i64 line) {
    return lines.coefficients.data() + line * merged.factors.rank;
  }

  static RowScales scales_of(const Lines& lines, i64 row, i64 step) {
    return lines.row_scales.empty() ? RowScales() : RowScales{lines.row_scales.data() + row, step};
  }

  /// Reads the weights of a matrix in rows, fp32, each with its product, and makes of each row's norm the number that
  /// gives it its magnitude.
  void scale_rows(const MergedMatrix& merged, Lines& lines) const {
    const Matrix& matrix = merged.matrix;
    const i64 size = matrix.element_bytes;
    const bool by_columns = is_transposed(matrix);
    const auto magnitudes = factor(*merged.magnitudes);
    std::vector<double> squares(static_cast<std::size_t>(matrix.rows));
    const i64 count = by_columns ? matrix.cols : matrix.rows, length = by_columns ? matrix.rows : matrix.cols;
    const i64 span =
        by_columns ? row_offset(matrix.place, matrix.rows - 1) - matrix.place.offset + size : length * size;
    std::vector<std::byte> stored(static_cast<std::size_t>(span));
    std::vector<float> sums(static_cast<std::size_t>(length));
    for (i64 line = 0; line < count; ++line) {
      const i64 first =
          by_columns ? matrix.place.offset + line * matrix.place.col_step : row_offset(matrix.place, line);
      source_->read(matrix.tensor, first, stored);
      if (by_columns)
        for (i64 row = 1; row < length; ++row)
          std::memmove(stored.data() + row * size,
                       stored.data() + (row_offset(matrix.place, row) - matrix.place.offset),
                       static_cast<std::size_t>(size));
      widen_row(stored.data(), matrix.dtype, sums);
      const ProductLine one{coefficients_of(merged, lines, line), reinterpret_cast<std::byte*>(sums.data())};
      add(merged, lines, {&one, 1}, 0, Dtype::F32, length);
      for (i64 at = 0; at < length; ++at) {
        const double sum = static_cast<double>(sums[static_cast<std::size_t>(at)]);
        squares[static_cast<std::size_t>(by_columns ? at : line)] += sum * sum;
      }
    }
    for (std::size_t row = 0; row < squares.size(); ++row)
      lines.row_scales.push_back(magnitudes->values[row] / static_cast<float>(std::sqrt(squares[row])));
  }

  void merge_rows(const MergedMatrix& merged, const Lines& lines, i64 offset, std::span<std::byte> out) const {
    const Matrix& matrix = merged.matrix;
    const i64 size = matrix.element_bytes;
    // All rows but the first and the last are whole.
    std::vector<ProductLine> alike;
    i64 begin = 0, end = 0;
    const auto add_alike = [&] {
      if (!alike.empty()) add_anywhere(merged, lines, alike, begin, end - begin);
      alike.clear();
    };
    for (i64 row = 0; row < matrix.rows; ++row) {
      const i64 start = row_offset(matrix.place, row);
      const i64 first = std::clamp<i64>((offset - start) / size, 0, matrix.cols);
      const i64 last = std::clamp<i64>((offset + std::ssize(out) - start) / size, 0, matrix.cols);
      if (offset + std::ssize(out) <= start || first >= last) continue;
      if (first != begin || last != end) add_alike();
      begin = first;
      end = last;
      alike.push_back({coefficients_of(merged, lines, row), out.data() + (start + begin * size - offset),
                       scales_of(lines, row, 0)});
    }
    add_alike();
  }

  /// Does the same for weights [in, out], whose lines are columns: an input's weights of all outputs.
  void merge_columns(const MergedMatrix& merged, const Lines& lines, i64 offset, std::span<std::byte> out) const {
    const Matrix& matrix = merged.matrix;
    const i64 size = matrix.element_bytes, end = offset + std::ssize(out), bytes = matrix.rows * size;
    std::vector<i64> places(static_cast<std::size_t>(matrix.rows));
    for (i64 row = 0; row < matrix.rows; ++row)
      places[static_cast<std::size_t>(row)] = row_offset(matrix.place, row) - offset;
    std::vector<i64> columns;
    for (i64 col = 0; col < matrix.cols; ++col) {
      const i64 shift = offset + col * matrix.place.col_step;
      if (places.front() + shift < end && places.back() + shift + size > offset) columns.push_back(col);
    }
    constexpr std::size_t kAtOnce = 16;
    std::vector<std::byte> gathered(kAtOnce * static_cast<std::size_t>(bytes));
    for (std::size_t first = 0; first < columns.size(); first += kAtOnce) {
      const auto some = std::span(columns).subspan(first, std::min(kAtOnce, columns.size() - first));
      // Calls use(its element in `gathered`, its element in `out`) for each weight of these columns that is in `out`.
      const auto for_each = [&](const auto& use) {
        std::byte* line = gathered.data();
        for (const i64 col : some) {
          const i64 shift = col * matrix.place.col_step;
          for (i64 row = 0; row < matrix.rows; ++row, line += size) {
            const i64 at = places[static_cast<std::size_t>(row)] + shift;
            if (at >= 0 && at < std::ssize(out)) use(line, out.data() + at);
          }
        }
      };
      std::vector<ProductLine> to;
      for (const i64 col : some)
        to.push_back(
            {coefficients_of(merged, lines, col), gathered.data() + std::ssize(to) * bytes, scales_of(lines, 0, 1)});
      for_each(
          [&](std::byte* one, const std::byte* stored) { std::memcpy(one, stored, static_cast<std::size_t>(size)); });
      add_anywhere(merged, lines, to, 0, matrix.rows);
      for_each(
          [&](const std::byte* one, std::byte* stored) { std::memcpy(stored, one, static_cast<std::size_t>(size)); });
    }
  }

  std::shared_ptr<const Widened> factor(std::size_t tensor) const {
    return factors_.get(tensor, [&] {
      const TensorRef& stored = adapter_->inventory().tensors[tensor];
      std::vector<std::byte> bytes(static_cast<std::size_t>(stored.bytes));
      adapter_->read(tensor, 0, bytes);
      Widened widened{std::vector<float>(bytes.size() / static_cast<std::size_t>(dtype_bits(stored.dtype) / 8))};
      widen_row(bytes.data(), stored.dtype, widened.values);
      return widened;
    });
  }

  Lines lines_of(const MergedMatrix& merged) const {
    const Factors& factors = merged.factors;
    const Matrix& matrix = merged.matrix;
    const i64 rank = factors.rank;
    const Matrix in_a = matrix_of_a(factors), in_b = matrix_of_b(factors);
    const auto a = factor(in_a.tensor), b = factor(in_b.tensor);
    const bool by_columns = is_transposed(matrix);
    // Writes [rows, cols] of a factor, or turned to [cols, rows].
    const auto write = [](const Matrix& stored, const Widened& from, i64 rows, i64 cols, bool turned, float* to) {
      const i64 step = stored.place.col_step / stored.element_bytes;
      for (i64 row = 0; row < rows; ++row) {
        const float* const first = from.values.data() + row_offset(stored.place, row) / stored.element_bytes;
        for (i64 col = 0; col < cols; ++col) to[turned ? col * rows + row : row * cols + col] = first[col * step];
      }
    };
    // A is [rank, in], B [out, rank].
    Lines lines;
    lines.vectors.resize(static_cast<std::size_t>(rank * (by_columns ? matrix.rows : matrix.cols)));
    lines.coefficients.resize(static_cast<std::size_t>(rank * (by_columns ? matrix.cols : matrix.rows)));
    write(in_a, *a, rank, matrix.cols, by_columns, by_columns ? lines.coefficients.data() : lines.vectors.data());
    write(in_b, *b, matrix.rows, rank, by_columns, by_columns ? lines.vectors.data() : lines.coefficients.data());
    if (merged.magnitudes) scale_rows(merged, lines);
    return lines;
  }

  const Source* source_;
  std::unique_ptr<Source> owned_;
  std::unique_ptr<Source> adapter_;
  std::vector<MergedMatrix> matrices_;
  MergePath path_;
  SimdLevel level_;
  BothChecks checks_;
  std::weak_ptr<WeightDevice> device_;
  CheckpointInfo info_;
  /// The first of a tensor's matrices, and the one behind its last.
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> of_tensor_;
  mutable Kept<Widened> factors_{kFactorBytes};
  mutable Kept<Lines> lines_{kFactorBytes};
};

}  // namespace

void merge_source(std::unique_ptr<Source>& source, std::unique_ptr<Source> adapter, std::vector<MergedMatrix> matrices,
                  const std::string& program, MergePath path, SimdLevel level, std::vector<std::string> warnings) {
  auto merged = std::make_unique<MergedSource>(*source, std::move(adapter), std::move(matrices), program, path, level,
                                               std::move(warnings));
  merged->own(std::move(source));
  source = std::move(merged);
}

}  // namespace glu_ckpt
