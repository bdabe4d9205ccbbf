#include "quant/part_finder.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "core/checked_math.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// The last words of a fused FC1's names, where no naming is recognized.
constexpr std::array<std::string_view, 4> kFusedWords = {"gate_up_proj", "w13", "w13_EFD", "linear_fc1"};

std::vector<i64> squeezed(std::vector<i64> shape) {
  std::erase(shape, 1);
  return shape;
}

}  // namespace

std::optional<WeightName> weight_name(const std::string& name, TensorKind kind) {
  const KindWords& words = words_of(kind);
  const auto before = [&](std::size_t bytes) { return name.substr(0, name.size() - bytes); };
  const std::string_view whole = name;
  const bool is_layer = whole.ends_with(words.word) && whole.substr(0, whole.size() - words.word.size()).ends_with('.');
  if (is_layer) return WeightName{before(words.word.size() + 1), true};
  if (!words.suffix.empty() && name.ends_with(words.suffix)) return WeightName{before(words.suffix.size()), false};
  return std::nullopt;
}

WeightName plain_weight_name(const std::string& name) {
  return weight_name(name, TensorKind::Weight).value_or(WeightName{name, false});
}

std::vector<i64> leading_axes(const std::vector<i64>& shape) { return {shape.begin(), shape.end() - 2}; }

PartFinder::PartFinder(const Inventory& inventory, const QuantConfig& config, const WeightAxes& axes)
    : inventory_(inventory), all_config_(config), group_finder_(config), config_(&config), axes_(axes) {
  if (!config.fault.empty()) fail(ErrorCode::ConfigJson, {}, "{}", config.fault);
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i) numbers_.emplace(inventory.tensors[i].name, i);
  if (config.method != "compressed-tensors") return;
  for (const std::string& text : config.skipped)
    if (text.starts_with("re:")) skipped_patterns_.emplace_back(text, ModuleTarget(text));
}

std::optional<std::size_t> PartFinder::number_of(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::size_t> PartFinder::number_of(const WeightName& name, TensorKind kind) const {
  for (const std::string& one : name.all_of(kind))
    if (const auto number = number_of(one)) return number;
  return std::nullopt;
}

std::optional<Axes> PartFinder::axes_of(std::size_t weight, const WeightName& name) const {
  if (const auto known = axes_.find(weight); known != axes_.end()) return known->second.axes;
  return name.is_layer ? std::optional(Axes::OutIn) : std::nullopt;
}

bool PartFinder::is_fused(std::size_t weight, const WeightName& name) const {
  if (const auto known = axes_.find(weight); known != axes_.end()) return known->second.is_fused;
  std::string word = name.base.substr(name.base.rfind('.') + 1);
  if (word.ends_with("_weight")) word.resize(word.size() - std::string_view("_weight").size());
  return std::ranges::find(kFusedWords, word) != kFusedWords.end();
}

std::size_t PartFinder::scales_of(std::size_t weight, const std::vector<std::string>& names) {
  std::optional<std::size_t> found;
  for (const std::string& name : names) {
    const auto number = number_of(name);
    if (number && found)
      fail(ErrorCode::ScaleOrphan, {{}, name},
           "'{}': '{}' has scales in '{}' already, and nothing says which of the two are meant", name, at(weight).name,
           at(*found).name);
    if (number) found = number;
  }
  if (found) return take(*found);
  const TensorRef& tensor = at(weight);
  fail(ErrorCode::ScaleMissing, {{}, tensor.name},
       "'{}': {} codes without scales: '{}' is not there. Without them the weight is lost; is the download complete?",
       tensor.name, dtype_name(tensor.dtype), names.front());
}

std::size_t PartFinder::take(std::size_t number) {
  found_.companions.push_back(number);
  return number;
}

void PartFinder::take_if_there(const std::string& name) {
  if (const auto number = number_of(name)) take(*number);
}

void PartFinder::fail_axes(std::size_t number) const {
  fail(ErrorCode::SizeMismatch, {{}, at(number).name}, "'{}': {}; a quantized weight has two axes or more",
       at(number).name, shape_text(at(number).shape));
}

std::optional<std::size_t> PartFinder::taken(const std::string& name) {
  const auto number = number_of(name);
  return number ? std::optional(take(*number)) : std::nullopt;
}

void PartFinder::take_if_there(const WeightName& name, TensorKind kind) {
  if (const auto number = number_of(name, kind)) take(*number);
}

QuantizedTensor PartFinder::weight_of(std::size_t number, std::string name, std::vector<i64> shape, Codes codes) const {
  if (shape.size() < 2) fail_axes(number);
  // Decoded, an element has four bytes at most.
  std::vector<i64> bytes = shape;
  bytes.push_back(4);
  const auto total = checked_product(bytes);
  if (!total || *total == 0)
    fail(ErrorCode::SizeMismatch, {{}, at(number).name}, "'{}': a quantized weight of {} elements", at(number).name,
         shape_text(shape));
  QuantizedTensor weight;
  weight.name = std::move(name);
  weight.codes = codes;
  weight.weight = number;
  weight.rows = shape[shape.size() - 2];
  weight.cols = shape.back();
  // A factor of `total`, which did not overflow.
  weight.matrices = *checked_product(leading_axes(shape));
  weight.shape = std::move(shape);
  return weight;
}

void PartFinder::cannot_decode(std::size_t number, ErrorCode code, std::string why) {
  if (!found_.undecodable) found_.undecodable = Undecodable{code, at(number).name, std::move(why)};
}

std::string cell_text(const QuantizedTensor& weight) {
  const auto is_cell = [&](i64 rows, i64 cols) { return weight.cell_rows == rows && weight.cell_cols == cols; };
  if (weight.scales_of_parts && !weight.global) return "each gate and up";
  if (weight.grid == GridRow::Kind::Matrix || is_cell(weight.rows, weight.cols))
    return weight.one_for_all ? "all matrices of a tensor" : "each matrix";
  if (is_cell(1, weight.cols)) return "each row";
  if (is_cell(weight.rows, 1)) return "each column";
  return fmt::format("{} x {} weights", weight.cell_rows, weight.cell_cols);
}

std::string PartFinder::format_text(const QuantizedTensor& weight) const {
  // Of words, those of AWQ and GPTQ have zero points always.
  const std::string_view zeros = weight.codes == Codes::Int4 && weight.zeros ? ", asymmetric" : "";
  switch (weight.grid) {
    case GridRow::Kind::Fixed: return std::string(weight.format->name);
    case GridRow::Kind::Matrix: return fmt::format("{} per tensor", weight.format->name);
    case GridRow::Kind::Outputs: return fmt::format("{} per channel{}", weight.format->name, zeros);
    case GridRow::Kind::Blocks:
      return fmt::format("{} in {}x{} blocks", weight.format->name, config_->block_rows.value_or(kFp8Blocks.rows),
                         config_->block_cols.value_or(kFp8Blocks.cols));
    case GridRow::Kind::Groups: break;
  }
  return fmt::format("{} in groups of {}{}", weight.format->name, weight.cell_cols, zeros);
}

void PartFinder::add(QuantizedTensor weight) {
  require_not_skipped(weight);
  // AWQ of ModelOpt divides the columns of a weight by what multiplies its inputs.
  const WeightName name = plain_weight_name(weight.name);
  if (const auto inputs = number_of(name.base + (name.is_layer ? ".pre_quant_scale" : "_pre_quant_scale")))
    cannot_decode(
        *inputs, ErrorCode::NotSupported,
        fmt::format("multiplies the inputs of '{}' where it is quantized; --decode has no rule for it", weight.name));
  formats_.insert(format_text(weight));
  found_.tensors.push_back(std::move(weight));
}

void PartFinder::turn(QuantizedTensor& weight) const {
  std::swap(weight.shape[weight.shape.size() - 2], weight.shape.back());
  weight.transposed = true;
}

std::vector<PartFinder::Reading> PartFinder::readings_of(const QuantizedTensor& weight, TensorKind codes,
                                                         const std::optional<Axes>& axes) const {
  const TensorRef& scales = at(weight.scales);
  const WeightName name = plain_weight_name(weight.name);
  const auto is_called = [&](TensorKind kind) { return number_of(name, kind) == weight.scales; };
  TensorKind kind = is_called(TensorKind::PlainScale) ? TensorKind::PlainScale : TensorKind::Scale;
  if (is_called(TensorKind::Scales)) kind = TensorKind::Scales;
  const std::vector<i64> leading = leading_axes(weight.shape);
  std::span<const i64> of_one = scales.shape;
  of_one = of_one.subspan(std::min(leading.size(), of_one.size()));
  const i64 stated_group = group_size().value_or(codes == TensorKind::QWeight ? weight.cols : 0);
  std::vector<Reading> readings;
  for (const Axes in : {Axes::OutIn, Axes::InOut})
    for (const i64 parts : {1, 2}) {
      const MatrixExtents extents =
          in == Axes::OutIn ? MatrixExtents{weight.rows, weight.cols} : MatrixExtents{weight.cols, weight.rows};
      const bool has_parts = (axes || in == Axes::OutIn) && can_have_parts(weight, extents.rows);
      if ((axes && axes != in) || (parts == 2 && !has_parts)) continue;
      const StoredWeight of{codes,
                            at(weight.weight).dtype,
                            extents,
                            parts,
                            in,
                            config_->block_rows.value_or(kFp8Blocks.rows),
                            config_->block_cols.value_or(kFp8Blocks.cols),
                            stated_group};
      for (const GridReading& grid : grid_readings(kind, scales.dtype, of_one, of)) {
        // Blocks of gate and of up are those of all rows, unless those of up begin anew, below those of gate; one for
        // each is a scale for each.
        const MatrixExtents anew = element_extents(grid.grid, extents, 2);
        const bool restarts = grid.grid.restarts && in == Axes::OutIn && anew != MatrixExtents{2, 1} &&
                              anew != element_extents(grid.grid, extents, 1);
        if (parts == 2 ? grid.kind != GridRow::Kind::Matrix && !restarts : grid.grid.restarts) continue;
        const bool is_of_codes = grid.form.form == nullptr || grid.form.form->codes == weight.codes;
        if (!grid.grid.keeps_axis || !is_of_codes) continue;
        const i64 rows = in == Axes::OutIn ? grid.grid.rows : grid.grid.cols;
        const i64 cols = in == Axes::OutIn ? grid.grid.cols : grid.grid.rows;
        Reading reading{grid, of, shapes_of(kind, grid, of, leading), {}};
        reading.cell = {rows == 0 ? weight.rows : rows, cols == 0 ? weight.cols : cols, restarts ? weight.rows / 2 : 0,
                        grid.kind == GridRow::Kind::Matrix && parts == 2};
        const MatrixExtents elements = element_extents(grid.grid, extents, parts);
        // TransformerEngine pads the scales of MXFP8 to tiles. They can be moved.
        reading.is_padded = padded(grid.grid, elements) != elements;
        readings.push_back(std::move(reading));
      }
    }
  return readings;
}

std::vector<std::vector<i64>> PartFinder::shapes_of(TensorKind kind, const GridReading& reading, const StoredWeight& of,
                                                    const std::vector<i64>& leading) {
  std::vector<std::vector<i64>> shapes;
  const auto add = [&](const std::vector<i64>& of_one) {
    shapes.push_back(leading);
    shapes.back().insert(shapes.back().end(), of_one.begin(), of_one.end());
  };
  const MatrixExtents elements = stored_extents(reading.grid, of.extents, of.parts);
  const bool is_one = elements == MatrixExtents{1, 1};
  if (is_one) add({1, 1});
  add(shape_by_grid(kind, reading.grid, of));
  const bool is_of_outputs = reading.kind == GridRow::Kind::Outputs || reading.kind == GridRow::Kind::Matrix;
  const bool is_group_of_row = of.kind != TensorKind::QWeight && reading.grid.rows == 1 && elements.cols == 1;
  if (is_of_outputs || is_group_of_row) add({elements.rows});
  // transformers gives the columns of Llama-4's FC2 such scales: [E, H, 1] for codes of [E, F, H].
  if (is_of_outputs && of.axes == Axes::InOut) add({elements.rows, 1});
  if (is_one) add({1}), add({});
  if (is_one && checked_product(leading) == 1) shapes.insert(shapes.end(), {{1}, {}});
  return shapes;
}

bool PartFinder::is_meant(const Reading& reading, const std::vector<Reading>& all, bool is_plain) const {
  const auto any_of = [&](GridRow::Kind kind) { return std::ranges::find(all, kind, &Reading::kind) != all.end(); };
  const bool of_rows_only = config_->strategy == "channel";
  switch (reading.kind) {
    // Two scales of a fused FC1 must not pass for those of two blocks: blocks are named so, or configured.
    case GridRow::Kind::Blocks: return config_->block_rows || reading.grid.has_unit_axes || !is_plain;
    // Scales of rows under a configuration of groups are those of another weight, or what is left of them.
    case GridRow::Kind::Outputs:
      if (any_of(GridRow::Kind::Groups)) return of_rows_only || !group_size();
      break;
    // Two codes share a byte.
    case GridRow::Kind::Groups: return !of_rows_only && (reading.grid.cols % 2 == 0);
    default: break;
  }
  return !config_->block_rows || !any_of(GridRow::Kind::Blocks);
}

void PartFinder::apply(QuantizedTensor& weight, const Reading& reading, const std::optional<Axes>& axes) {
  const bool in_out = reading.of.axes == Axes::InOut;
  weight.cell_rows = reading.cell.rows;
  weight.cell_cols = reading.cell.cols;
  weight.scales_of_parts = reading.cell.of_parts;
  weight.restart_rows = reading.cell.restart_rows;
  // Of a square without a naming, scales of columns tell.
  weight.in_out = axes ? in_out : in_out && reading.kind == GridRow::Kind::Outputs;
  if (reading.form.format != nullptr) weight.format = reading.form.format;
  weight.grid = reading.kind;
}

void PartFinder::read_scales(QuantizedTensor& weight, TensorKind codes, const std::optional<Axes>& axes) {
  const TensorRef& scales = at(weight.scales);
  const std::vector<Reading> all = readings_of(weight, codes, axes);
  const bool is_plain = number_of(plain_weight_name(weight.name), TensorKind::PlainScale) == weight.scales;
  // A shape that lacks an axis of one may be another cell's that lacks its own.
  bool is_exact = false;
  std::vector<const Reading*> fitting, without_ones;
  std::vector<std::string> expected;
  for (const Reading& reading : all) {
    if (!is_meant(reading, all, is_plain)) continue;
    const bool is_of_one = reading.kind == GridRow::Kind::Matrix && !reading.cell.of_parts;
    const bool is_for_all = is_of_one && weight.matrices > 1 && checked_product(scales.shape) == 1;
    const std::vector<i64>& whole = reading.shapes.front();
    is_exact = is_exact || whole == scales.shape;
    if (is_for_all || std::ranges::find(reading.shapes, scales.shape) != reading.shapes.end())
      fitting.push_back(&reading);
    if (!reading.grid.has_unit_axes && squeezed(whole) == squeezed(scales.shape)) without_ones.push_back(&reading);
    const std::string text = shape_text(whole);
    if (!reading.is_padded && !reading.cell.of_parts && std::ranges::find(expected, text) == expected.end())
      expected.push_back(text);
  }
  if (fitting.empty())
    fail(ErrorCode::SizeMismatch, {{}, scales.name}, "'{}': {} scales for '{}' of {}{}; expected {}", scales.name,
         shape_text(scales.shape), weight.name, shape_text(weight.shape),
         group_size() ? fmt::format(" in groups of {}", *group_size()) : "", fmt::join(expected, " or "));
  const Reading& found = *fitting.front();
  const auto text_of = [&](const Reading& reading) {
    QuantizedTensor read = weight;
    apply(read, reading, axes);
    return cell_text(read);
  };
  const auto cell_of = [&](const Reading& reading) {
    ScaleCell cell = reading.cell;
    cell.rows = std::min(cell.rows, weight.rows);
    cell.cols = std::min(cell.cols, weight.cols);
    return cell;
  };
  if (!is_exact) std::ranges::copy(without_ones, std::back_inserter(fitting));
  for (const Reading* other : fitting)
    if (cell_of(*other) != cell_of(found))
      fail(ErrorCode::SizeMismatch, {{}, scales.name},
           "'{}': {} scales for '{}' of {}, one for {} or one for {}, and neither quantization_config "
           "(weight_block_size), nor a naming that is known here, nor the shape without all of its axes tells which",
           scales.name, shape_text(scales.shape), weight.name, shape_text(weight.shape), text_of(found),
           text_of(*other));
  if (found.is_padded)
    cannot_decode(weight.scales, ErrorCode::NotSupported,
                  fmt::format("{} scales for '{}' of {}, padded to tiles, which --decode has no rule for",
                              shape_text(scales.shape), weight.name, shape_text(weight.shape)));
  apply(weight, found, axes);
  weight.one_for_all = found.kind == GridRow::Kind::Matrix && !found.cell.of_parts && weight.matrices > 1 &&
                       checked_product(scales.shape) == 1;
}

i64 PartFinder::second_scale_parts(const QuantizedTensor& weight, TensorKind codes, const FormatPart& part) const {
  const TensorRef& second = at(*weight.global);
  if (!part.dtypes.contains(second.dtype)) return 0;
  StoredWeight of{codes, at(weight.weight).dtype, {weight.rows, weight.cols}};
  if (weight.in_out) of = {codes, of.dtype, {weight.cols, weight.rows}, 1, Axes::InOut};
  const i64 most = can_have_parts(weight, of.extents.rows) ? 2 : 1;
  for (of.parts = 1; of.parts <= most; ++of.parts)
    for (const GridReading& reading : grid_readings(part.kind, second.dtype, {}, of))
      for (const std::vector<i64>& shape : shapes_of(part.kind, reading, of, leading_axes(weight.shape)))
        if (squeezed(shape) == squeezed(second.shape)) return of.parts;
  return 0;
}

bool PartFinder::can_have_parts(const QuantizedTensor& weight, i64 outputs) const {
  return outputs > 2 && outputs % 2 == 0 && is_fused(weight.weight, plain_weight_name(weight.name));
}

void PartFinder::check_part(const QuantizedTensor& weight, std::size_t number, TensorKind codes,
                            const FormatPart& part) const {
  const TensorRef& tensor = at(number);
  StoredWeight of{codes, at(weight.weight).dtype, {weight.rows, weight.cols}};
  of.group_cols = weight.cell_cols;
  std::string expected;
  // The order of columns may be that of gate and that of up.
  for (of.parts = 1; of.parts <= (part.use == PartUse::Order ? 2 : 1); ++of.parts)
    for (const GridReading& reading : grid_readings(part.kind, *part.dtypes.begin(), {}, of)) {
      std::vector<i64> shape = leading_axes(weight.shape);
      std::ranges::copy(shape_by_grid(part.kind, reading.grid, of), std::back_inserter(shape));
      if (part.dtypes.contains(tensor.dtype) && tensor.shape == shape) return;
      if (expected.empty() || shape.size() == tensor.shape.size()) expected = shape_text(shape);
    }
  fail(ErrorCode::SizeMismatch, {{}, tensor.name}, "'{}': {} {} for '{}' of {} in groups of {}; expected {} {}",
       tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), weight.name, shape_text(weight.shape),
       weight.cell_cols, dtype_name(*part.dtypes.begin()), expected);
}

FormRef PartFinder::form_of(std::size_t number, std::size_t weight, const std::vector<FormRef>& forms) const {
  const TensorRef &scales = at(number), &codes = at(weight);
  std::vector<std::string_view> known;
  for (const FormRef& each : forms) {
    if (each.form->has_scales(scales.dtype)) return each;
    for (const FormatPart& part : each.form->parts)
      if (part.use == PartUse::Scales)
        for (const Dtype dtype : part.dtypes)
          if (std::ranges::find(known, dtype_name(dtype)) == known.end()) known.push_back(dtype_name(dtype));
  }
  fail(ErrorCode::NotSupported, {{}, scales.name}, "'{}': {} scales for '{}' of {} cannot be decoded; {} can",
       scales.name, dtype_name(scales.dtype), codes.name, shape_text(codes.shape), fmt::join(known, ", "));
}

}  // namespace glu_ckpt
