#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/parse_number.hpp"
#include "families/architecture.hpp"
#include "format/model_config.hpp"
#include "layout/tensor_kinds.hpp"
#include "model/laid_out_source.hpp"
#include "model/part_config.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"
#include "model/stored_codes.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kPaddedFrom = "padded_from";
constexpr i64 kPadBatchBytes = i64{4} << 20;

/// A tensor [rows, cols] that gets, or loses, rows or columns at its end.
struct Padding {
  i64 old_rows = 0;
  i64 old_cols = 0;
  i64 rows = 0;
  i64 cols = 0;
  /// The new one; rows and cols, but for an axis of the bytes of a cell.
  std::vector<i64> shape{};
  i64 element_bytes = 1;
  /// One new element, or one for each line that gets new ones.
  std::vector<std::byte> fill{};
  /// The bits of an element that goes which must be those of `fill`; none of a scale's.
  std::vector<std::byte> fixed_bits{};
  /// All new bytes, of a tensor that says rows and columns.
  std::vector<std::byte> whole{};

  i64 old_row_bytes() const { return old_cols * element_bytes; }
  i64 row_bytes() const { return cols * element_bytes; }
  /// What an element behind the others is.
  const std::byte* fill_of(i64 row, i64 col) const {
    if (std::ssize(fill) == element_bytes) return fill.data();
    const bool has_new_cols = cols != old_cols;
    // What has one column has an element of its own in each new row.
    const i64 line = has_new_cols ? row : cols > 1 ? col : row - std::min(rows, old_rows);
    return fill.data() + line * element_bytes;
  }
};

class PaddedSource final : public WrappedSource {
 public:
  PaddedSource(CheckpointInfo info, std::map<std::size_t, Padding> paddings)
      : WrappedSource(std::move(info)), paddings_(std::move(paddings)) {}

  std::vector<u32> files_of(std::size_t tensor) const override { return stored().files_of(tensor); }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    const auto padding = paddings_.find(tensor);
    if (padding == paddings_.end()) return stored().read_scattered(tensor, offset, pieces);
    for (const std::span<std::byte> piece : pieces) {
      const std::vector<std::byte>& whole = padding->second.whole;
      if (whole.empty())
        read_padded(tensor, padding->second, offset, piece);
      else
        std::copy_n(whole.begin() + offset, piece.size(), piece.begin());
      offset += std::ssize(piece);
    }
  }

 private:
  /// Whole rows are read of which `out` has a part, as many at once as fit in a batch.
  void read_padded(std::size_t tensor, const Padding& padding, i64 offset, std::span<std::byte> out) const {
    const i64 row_bytes = padding.row_bytes(), end = offset + std::ssize(out);
    const i64 batch = std::max<i64>(kPadBatchBytes / std::max(row_bytes, padding.old_row_bytes()), 1);
    std::vector<std::byte> read, made;
    for (i64 row = offset / row_bytes; row * row_bytes < end;) {
      const i64 rows = std::min(batch, (end + row_bytes - 1) / row_bytes - row);
      const i64 stored = std::clamp<i64>(padding.old_rows - row, 0, rows);
      made.resize(static_cast<std::size_t>(rows * row_bytes));
      for (i64 i = 0; i < rows; ++i)
        for (i64 col = row + i < padding.old_rows ? padding.old_cols : 0; col < padding.cols; ++col)
          std::memcpy(made.data() + i * row_bytes + col * padding.element_bytes, padding.fill_of(row + i, col),
                      static_cast<std::size_t>(padding.element_bytes));
      read.resize(static_cast<std::size_t>(stored * padding.old_row_bytes()));
      if (stored > 0) WrappedSource::stored().read(tensor, row * padding.old_row_bytes(), read);
      const i64 kept = std::min(row_bytes, padding.old_row_bytes());
      for (i64 i = 0; i < stored; ++i)
        std::memcpy(made.data() + i * row_bytes, read.data() + i * padding.old_row_bytes(),
                    static_cast<std::size_t>(kept));
      const i64 first = std::max(row * row_bytes, offset), last = std::min((row + rows) * row_bytes, end);
      std::memcpy(out.data() + (first - offset), made.data() + (first - row * row_bytes),
                  static_cast<std::size_t>(last - first));
      row += rows;
    }
  }

  std::map<std::size_t, Padding> paddings_;
};

bool is_fp8(Dtype dtype) { return dtype == Dtype::F8_E4M3 || dtype == Dtype::F8_E5M2; }

std::vector<std::byte> one_of_dtype(const TensorRef& scale) {
  std::vector<std::byte> one(static_cast<std::size_t>(dtype_bits(scale.dtype) / 8));
  const float value = 1;
  if (scale.dtype == Dtype::F8_E8M0 || scale.dtype == Dtype::U8)
    one[0] = std::byte{127};
  else if (scale.dtype == Dtype::F8_E4M3)
    one[0] = std::byte{0x38};
  else if (is_float(scale.dtype))
    narrow_row({&value, 1}, scale.dtype, one.data());
  else
    fail(ErrorCode::NotSupported, {{}, scale.name}, "'{}': new scales of {} are not made", scale.name,
         dtype_name(scale.dtype));
  return one;
}

/// The element of a tensor of weights that is zero, and which of its bits make it so: zeros of either sign are zero.
struct ZeroElement {
  std::vector<std::byte> bytes;
  std::vector<std::byte> fixed_bits;
};

constexpr u32 kEights = 0x88888888, kOnes = 0x11111111;
const std::vector<std::byte> kAllBits(sizeof(u32), std::byte{0xFF});

std::vector<std::byte> bytes_of(const std::vector<u32>& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

/// The words of codes that are zero in each line behind which columns are added: where one group has all columns, new
/// ones have its zero points.
std::vector<u32> zero_words(const Source& source, const QuantizedTensor& weight) {
  std::vector<u32> zeros(static_cast<std::size_t>(source.inventory().tensors[*weight.zeros].bytes) / sizeof(u32));
  source.read(*weight.zeros, 0, std::as_writable_bytes(std::span(zeros)));
  for (u32& word : zeros) word += kOnes * static_cast<u32>(weight.zero_offset);
  // AWQ has its codes in words like those of its zero points.
  if (weight.codes == Codes::Awq) return zeros;
  std::vector<u32> words;
  for (i64 row = 0; row < weight.rows; ++row)
    words.push_back((zeros[static_cast<std::size_t>(row / 8)] >> (row % 8 * 4) & 15) * kOnes);
  return words;
}

/// Returns none for codes of which that is not known.
std::optional<ZeroElement> zero_of(const TensorRef& stored, const Matrix& matrix) {
  const auto bytes = static_cast<std::size_t>(dtype_bits(stored.dtype) / 8);
  const auto each = [&](int value, int fixed) {
    return ZeroElement{std::vector(bytes, std::byte(value)), std::vector(bytes, std::byte(fixed))};
  };
  if (matrix.kind == TensorKind::Weight || matrix.kind == TensorKind::Bias)
    if (is_float(stored.dtype) || is_fp8(stored.dtype)) {
      ZeroElement zero = each(0, 0xFF);
      zero.fixed_bits.back() = std::byte{0x7F};
      return zero;
    }
  const bool is_packed = matrix.kind == TensorKind::PackedWeight || matrix.kind == TensorKind::Weight;
  // Two of FP4 in a byte; eight integers in a word, each 8 more than its value.
  if (is_packed && stored.dtype == Dtype::U8 && matrix.grid.cols == 2) return each(0, 0x77);
  if (matrix.kind == TensorKind::Blocks && stored.dtype == Dtype::U8) return each(0, 0x77);
  const bool has_codes = matrix.kind == TensorKind::PackedWeight || matrix.kind == TensorKind::QWeight;
  if (has_codes && stored.dtype == Dtype::I32 && matrix.grid.cols * matrix.grid.rows == 8) return each(0x88, 0xFF);
  return {};
}

/// Decides which tensors change.
class PaddingMaker {
 public:
  PaddingMaker(const Source& source, const ModelHints& hints, const Recognition& model, i64 width)
      : source_(source), hints_(hints), model_(model), width_(width) {
    const auto in_words = [](const ExpertBlock& block) {
      return block.codes == TensorKind::QWeight || block.codes == TensorKind::PackedWeight;
    };
    if (std::ranges::none_of(model.blocks, in_words)) return;
    found_ = find_sound(source, hints, &model);
    for (const QuantizedTensor& weight : found_.tensors)
      for (const std::size_t part : weight.parts()) weights_.emplace(part, &weight);
    const QuantConfig config = quant_config_of(source, hints);
    one_group_ = config.groups.empty() && config.group_size.value_or(-1) <= 0;
  }

  std::unique_ptr<PaddedSource> make(const std::string& said, Record record) {
    const Architecture& old = *model_.architecture;
    const std::string config = width_config(hints_.config, old, width_);
    const auto made = read_architecture(config);
    const bool has_dense = std::ranges::any_of(old.kinds, [](const LayerKind& kind) { return kind.mlp == Mlp::Dense; });
    if (made == nullptr || made->expert_width != width_ ||
        (has_dense && made->extent(Dim::DenseWidth) != old.extent(Dim::DenseWidth)))
      fail(ErrorCode::NotSupported, {source_.path().string(), {}},
           "{}: {}: config.json has no field for the width of experts alone that could become {} ({})",
           source_.path().string(), said, width_, old.expert_width_field);
    for (const ExpertBlock& block : model_.blocks) {
      if (block.is_optimizer_state())
        fail_asking({"--optimizer"}, ErrorCode::NotSupported, {source_.path().string(), {}},
                    "{}: {} is about weights, not the optimizer's states; --optimizer drop leaves those out",
                    source_.path().string(), said);
      const bool is_routed = block.set == ExpertSet::Routed;
      const i64 from = is_routed ? old.expert_width : old.shared_width;
      const i64 to = is_routed ? width_ : made->shared_width;
      if (from != to)
        for (const Matrix& matrix : block.matrices) add(block, matrix, from, to);
    }
    return std::make_unique<PaddedSource>(info(config, std::move(record)), paddings_);
  }

  /// Throws NotExact where an element that goes is not zero.
  void check_zeros() const {
    for (const auto& [tensor, padding] : paddings_)
      if (!padding.fixed_bits.empty()) check_zeros(tensor, padding);
  }

 private:
  static std::string width_config(const std::string& config, const Architecture& old, i64 width) {
    LayerPart same{.count = old.layers, .of = old.layers, .family = old.family};
    same.expert_width = width;
    same.expert_width_field = old.expert_width_field;
    return part_config(config, same);
  }

  void add(const ExpertBlock& block, const Matrix& matrix, i64 from, i64 to) {
    const TensorRef& stored = source_.inventory().tensors[matrix.tensor];
    const bool is_down = matrix.role == Role::Down;
    if (is_down && matrix.kind == TensorKind::Bias) return;
    if (matrix.kind == TensorKind::InputScale || matrix.kind == TensorKind::InputGlobalScale) return;
    const auto found = weights_.find(matrix.tensor);
    const QuantizedTensor* const weight = found == weights_.end() ? nullptr : found->second;
    const bool is_order = weight != nullptr && weight->groups == matrix.tensor;
    const bool is_zeros = weight != nullptr && weight->zeros == matrix.tensor;
    // Groups and their order are of columns.
    const bool has_one_group = is_down && one_group_ && weight != nullptr && weight->cell_cols >= weight->cols;
    if (is_order && !is_down) return;
    const bool is_of_groups = is_zeros || (weight != nullptr && weight->scales == matrix.tensor);
    if (has_one_group && is_of_groups) return;
    const i64 cell = is_down ? matrix.grid.cols : matrix.grid.rows;
    if (matrix.kind == TensorKind::WeightShape) return change_shape(matrix, is_down ? 1 : 0, from, to);
    // One element for all of them.
    if (is_scale(matrix.kind) && cell == 0) return;
    std::optional<ZeroElement> zero = zero_of(stored, matrix);
    const auto is_codes = weight != nullptr && weight->weight == matrix.tensor;
    if (is_zeros) zero = ZeroElement{bytes_of({kEights - kOnes * static_cast<u32>(weight->zero_offset)}), kAllBits};
    if (is_codes && has_one_group && weight->zeros) zero->bytes = bytes_of(zero_words(source_, *weight));
    if (is_order) zero = ZeroElement{bytes_of(group_numbers(*weight, has_one_group, from, to)), {}};
    const bool is_block_scale =
        matrix.kind == TensorKind::Scale || matrix.kind == TensorKind::PlainScale || matrix.kind == TensorKind::Scales;
    if (!zero && !is_block_scale)
      fail(ErrorCode::NotSupported, {{}, stored.name},
           "'{}' {}: numbers, FP8, FP4 and INT4 are padded, others not; --decode bf16 makes numbers of codes, and "
           "--encode beside it makes codes again",
           stored.name, dtype_name(stored.dtype));
    const bool has_one_axis = matrix.kind == TensorKind::Bias || is_order;
    const bool turned = stored_axes(matrix.kind, block.codes, block.axes) == Axes::InOut;
    // Cells of FP8 end where they may; FP4 and INT4 have whole ones.
    const bool is_whole = cell > 1 && (stored.dtype == Dtype::I32 || (is_down && matrix.grid.rows == 1));
    // Half a group has zero points that are not those of new columns.
    const bool starts_whole = is_whole && weight != nullptr && weight->zeros;
    if (is_whole && (to % cell != 0 || (starts_whole && from % cell != 0)))
      fail(ErrorCode::NotExact, {{}, stored.name},
           "'{}': a width of {} is no multiple of {}, the weights {} that have one element of it; {}", stored.name,
           to % cell != 0 ? to : from, cell, is_down ? "in a row" : "below each other",
           to % cell != 0 ? "--pad-experts wants a multiple of it"
                          : "--decode bf16 makes numbers of codes, which are padded to any width");
    // gpt-oss's blocks have the bytes of a cell as an axis.
    const bool has_blocks = stored.shape.size() == 3 && matrix.kind == TensorKind::Blocks;
    const i64 in_last = has_blocks ? stored.shape[2] : 1;
    const i64 old_count = (from + cell - 1) / cell / (is_down ? in_last : 1);
    const i64 count = (to + cell - 1) / cell / (is_down ? in_last : 1);
    const bool along_cols = !has_one_axis && is_down != turned;
    const std::size_t axis = along_cols ? 1 : 0;
    if (stored.shape.size() < (has_one_axis ? 1U : 2U) || stored.shape.size() > (has_blocks ? 3U : 2U) ||
        stored.shape[axis] != old_count)
      fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}' {}: {} along its axis {} were expected, for a width of {}",
           stored.name, shape_text(stored.shape), old_count, axis, from);
    if (old_count == count) return;
    Padding padding;
    padding.old_rows = stored.shape[0];
    padding.old_cols = stored.shape.size() >= 2 ? stored.shape[1] * in_last : 1;
    padding.rows = along_cols ? padding.old_rows : count;
    padding.cols = along_cols ? count * in_last : padding.old_cols;
    padding.element_bytes = dtype_bits(stored.dtype) / 8;
    padding.fill = zero ? std::move(zero->bytes) : one_of_dtype(stored);
    if (zero) padding.fixed_bits = std::move(zero->fixed_bits);
    padding.shape = stored.shape;
    padding.shape[axis] = count;
    paddings_[matrix.tensor] = std::move(padding);
  }

  /// The groups of new columns, whose order is theirs.
  static std::vector<u32> group_numbers(const QuantizedTensor& weight, bool has_one_group, i64 from, i64 to) {
    std::vector<u32> groups;
    for (i64 col = from; col < to; ++col)
      groups.push_back(has_one_group ? 0 : static_cast<u32>(col / weight.cell_cols));
    return groups;
  }

  /// `weight_shape` says rows and columns of the codes beside it.
  void change_shape(const Matrix& matrix, std::size_t axis, i64 from, i64 to) {
    const TensorRef& stored = source_.inventory().tensors[matrix.tensor];
    std::vector<i64> said(static_cast<std::size_t>(stored.bytes) / sizeof(i64));
    if (stored.dtype == Dtype::I64) source_.read(matrix.tensor, 0, std::as_writable_bytes(std::span(said)));
    if (stored.dtype != Dtype::I64 || said.size() != 2 || said[axis] != from)
      fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}' {} {}: it does not say that the width is {}", stored.name,
           dtype_name(stored.dtype), shape_text(stored.shape), from);
    said[axis] = to;
    const auto bytes = std::as_bytes(std::span(said));
    Padding padding{.old_rows = 2, .old_cols = 1, .rows = 2, .cols = 1, .element_bytes = sizeof(i64)};
    padding.whole.assign(bytes.begin(), bytes.end());
    padding.shape = stored.shape;
    paddings_[matrix.tensor] = std::move(padding);
  }

  CheckpointInfo info(const std::string& config, Record record) const {
    CheckpointInfo info = source_.info();
    info.record = std::move(record);
    for (const auto& [tensor, padding] : paddings_) {
      TensorRef& made = info.inventory.tensors[tensor];
      made.shape = padding.shape;
      made.bytes = padding.rows * padding.row_bytes();
    }
    info.inventory.dense = false;
    info.respelled = true;
    for (const char* key : {"digest", "source_digest", "config"}) info.record.erase(key);
    ModelHints hints = parse_config(config, source_.path().string());
    hints.config_is_made = hints_.config_is_made;
    edit_config(info, [old = model_.architecture, width = width_](std::string_view text) {
      return width_config(std::string(text), *old, width);
    });
    info.hints = std::move(hints);
    return info;
  }

  void check_zeros(std::size_t tensor, const Padding& padding) const {
    const TensorRef& stored = source_.inventory().tensors[tensor];
    // A bias, gate and up lose rows alone.
    const i64 first = padding.cols == padding.old_cols ? padding.rows : 0;
    const i64 row_bytes = padding.old_row_bytes(), batch = std::max<i64>(kPadBatchBytes / row_bytes, 1);
    std::vector<std::byte> read;
    for (i64 row = first; row < padding.old_rows; row += batch) {
      const i64 rows = std::min(batch, padding.old_rows - row);
      read.resize(static_cast<std::size_t>(rows * row_bytes));
      source_.read(tensor, row * row_bytes, read);
      for (i64 i = 0; i < rows; ++i)
        for (i64 col = first > 0 ? 0 : padding.cols; col < padding.old_cols; ++col)
          if (!is_zero(read.data() + i * row_bytes + col * padding.element_bytes, padding.fill_of(row + i, col),
                       padding.fixed_bits))
            fail(ErrorCode::NotExact, {{}, stored.name},
                 "'{}' {}: row {}, column {} is not zero, so the {} behind the first {} are no padding that could be "
                 "taken away",
                 stored.name, shape_text(stored.shape), row + i, col, first > 0 ? "rows" : "columns",
                 first > 0 ? padding.rows : padding.cols);
    }
  }

  static bool is_zero(const std::byte* element, const std::byte* zero, const std::vector<std::byte>& fixed_bits) {
    for (std::size_t i = 0; i < fixed_bits.size(); ++i)
      if (((element[i] ^ zero[i]) & fixed_bits[i]) != std::byte{0}) return false;
    return true;
  }

  const Source& source_;
  const ModelHints& hints_;
  const Recognition& model_;
  i64 width_;
  /// Codes in words, by all of their parts.
  Quantization found_;
  std::map<std::size_t, const QuantizedTensor*> weights_;
  /// A group has all columns, however many there are.
  bool one_group_ = false;
  std::map<std::size_t, Padding> paddings_;
};

}  // namespace

i64 recorded_width_before_padding(const Record& record) {
  const auto found = record.find(std::string(kPaddedFrom));
  return found == record.end() ? 0 : parse_number<i64>(found->second).value_or(0);
}

namespace {

/// Records of a width that was a multiple already that nothing was added, so that --unpad takes nothing away.
void record_no_padding(std::unique_ptr<Source>& source, i64 width) {
  CheckpointInfo info = source->info();
  info.record[std::string(kPaddedFrom)] = fmt::format("{}", width);
  auto recorded = std::make_unique<PaddedSource>(std::move(info), std::map<std::size_t, Padding>());
  recorded->own(std::move(source));
  source = std::move(recorded);
}

}  // namespace

void pad_experts(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  const std::string where = source->path().string();
  const std::string said = answers.unpad ? "--unpad" : fmt::format("--pad-experts {}", answers.pad_experts);
  ModelHints hints = hints_of(*source, answers);
  Recognition model = recognize_source(*source, hints, answers);
  if (model.architecture == nullptr)
    fail_without_model(*source, hints, model, answers,
                       fmt::format("{} changes the width of experts in config.json, and", said));
  const i64 old_width = model.architecture->expert_width;
  if (model.blocks.empty() || old_width == 0)
    fail(ErrorCode::NoExperts, {where, {}}, "{}: {}: the model has no routed experts", where, said);
  const i64 before = recorded_width_before_padding(source->record());
  if (answers.unpad && before == old_width) return;  // Nothing was added.
  if (answers.unpad && (before < 1 || before >= old_width))
    fail(ErrorCode::RecordContradicts, {where, {}},
         "{}: --unpad takes away what --pad-experts added, and no record says that anything was: experts are {} wide{}",
         where, old_width, before < 1 ? "" : fmt::format(", and were {} before", before));
  const i64 unit = std::max<i64>(answers.pad_experts, 1);
  const i64 width = answers.unpad ? before : (old_width + unit - 1) / unit * unit;
  if (width == old_width) {
    if (before == 0) record_no_padding(source, width);
    return;
  }
  lay_out_apart(source, hints, model);
  hints = hints_of(*source, answers);
  model = recognize_source(*source, hints, answers);
  PaddingMaker maker(*source, hints, model, width);
  Record record = source->record();
  record.erase(std::string(kPaddedFrom));
  if (!answers.unpad) record[std::string(kPaddedFrom)] = fmt::format("{}", before > 0 ? before : old_width);
  std::unique_ptr<PaddedSource> padded = maker.make(said, std::move(record));
  if (answers.unpad) maker.check_zeros();
  padded->own(std::move(source));
  source = std::move(padded);
}

}  // namespace glu_ckpt
