#include "quant/part_finder.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_set>

#include "core/checked_math.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

i64 cells_in(i64 extent, i64 cell) { return (extent + cell - 1) / cell; }

/// The last words of a fused FC1's names, where no naming is recognized.
constexpr std::array<std::string_view, 4> kFusedWords = {"gate_up_proj", "w13", "w13_EFD", "linear_fc1"};

std::vector<i64> squeezed(std::vector<i64> shape) {
  std::erase(shape, 1);
  return shape;
}

/// Parts of a module that are about its inputs or outputs, or about the cache of keys and values.
constexpr std::array<std::string_view, 13> kOfActivations = {
    "input_scale",       "input_global_scale", "input_zero_point", "activation_scale", "output_scale",
    "output_zero_point", "input_scale_inv",    "k_scale",          "v_scale",          "q_scale",
    "kv_scale",          "k_zero_point",       "v_zero_point"};

/// Returns the text behind the name of the module, or of the parameter, that the tensor is a part of; empty where it is
/// of none.
std::string_view part_of_module(std::string_view name, const std::unordered_set<std::string_view>& modules) {
  const std::size_t last = std::min(name.rfind('.'), name.size());
  for (std::size_t cut = name.find_first_of("._"); cut != std::string_view::npos;
       cut = name.find_first_of("._", cut + 1))
    if ((name[cut] == '.' || cut > last) && modules.contains(name.substr(0, cut))) return name.substr(cut + 1);
  return {};
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
  if (config.has_unread_block)
    fail(ErrorCode::QuantConfigContradicts, {},
         "quantization_config has a block size ('weight_block_size' or 'block_structure') that is not two whole "
         "numbers from 1 to 2147483648, such as [128, 128]; without it scales cannot be told apart. Correct it in "
         "config.json");
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
      const bool has_parts =
          (axes || in == Axes::OutIn) && extents.rows > 2 && extents.rows % 2 == 0 && is_fused(weight.weight, name);
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

bool PartFinder::are_of_parts(const QuantizedTensor& weight, std::size_t values) const {
  if (!is_fused(weight.weight, plain_weight_name(weight.name))) return false;
  std::vector<i64> two = leading_axes(weight.shape);
  two.push_back(2);
  std::vector<i64> two_in_column = two;
  two_in_column.push_back(1);
  const std::vector<i64>& stored = at(values).shape;
  const i64 outputs = weight.in_out ? weight.cols : weight.rows;
  return outputs > 2 && outputs % 2 == 0 && (stored == two || stored == two_in_column);
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

void PartFinder::choose_group(std::size_t weight) {
  config_ = &all_config_;
  if (all_config_.groups.empty()) return;
  std::string module = at(weight).name;
  for (const TensorKind kind : {TensorKind::Weight, TensorKind::PackedWeight})
    if (const auto name = weight_name(at(weight).name, kind)) module = name->base;
  const std::vector<i64>& shape = at(weight).shape;
  if (const QuantConfig* const group = group_finder_.of_weight(module, shape.size() > 2 ? shape.front() : 0))
    config_ = group;
  else
    require_known_blocks(at(weight));
}

void PartFinder::require_known_blocks(const TensorRef& tensor) const {
  const bool is_fp8 = tensor.dtype == Dtype::F8_E4M3 || tensor.dtype == Dtype::F8_E5M2;
  if (!is_fp8 || tensor.shape.size() < 2 || tensor.name.ends_with("scale")) return;
  std::string blocks;
  for (const QuantConfig& group : all_config_.groups) {
    if (group.type == "int" ||
        (group.block_rows == all_config_.block_rows && group.block_cols == all_config_.block_cols))
      continue;
    blocks += fmt::format("{}'{}' has {}", blocks.empty() ? "" : ", ", group.group,
                          group.block_rows ? fmt::format("{}x{}", *group.block_rows, *group.block_cols) : "none");
  }
  if (blocks.empty()) return;
  fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
       "'{}' is {} {}, and the targets of quantization_config do not tell which group it is in, by whose blocks its "
       "scales are read: group {}. Decode the checkpoint as it was written, before experts are moved",
       tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), blocks);
}

void PartFinder::require_type(const TensorRef& tensor, std::string_view type, i64 bits) const {
  if (config_->group.empty()) return;
  const bool other_type = !config_->type.empty() && config_->type != type;
  if (!other_type && config_->bits.value_or(bits) == bits) return;
  fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
       "'{}' is {} {}, but group '{}' of quantization_config, whose targets mean it ({}), has weights of {} bits, type "
       "'{}'",
       tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), config_->group,
       fmt::join(config_->targets, ", "), config_->bits.value_or(bits), config_->type);
}

void PartFinder::require_strategy(const QuantizedTensor& weight) const {
  if (config_->group.empty() || config_->strategy.empty()) return;
  const std::string& strategy = config_->strategy;
  const auto has_grid = [&](i64 rows, i64 cols) {
    if (weight.restart_rows > 0) return rows == weight.cell_rows && cols == weight.cell_cols;
    return cells_in(weight.rows, rows) == weight.grid_rows() && cells_in(weight.cols, cols) == weight.grid_cols();
  };
  const bool of_blocks = strategy == "block" && config_->block_rows;
  const bool of_groups = (strategy == "group" || strategy == "tensor_group") && group_size();
  const i64 group = group_size().value_or(1);
  const bool fits = (strategy == "tensor" && has_grid(weight.rows, weight.cols)) ||
                    (strategy == "channel" && (weight.in_out ? has_grid(weight.rows, 1) : has_grid(1, weight.cols))) ||
                    (of_groups && (weight.in_out ? has_grid(group, 1) : has_grid(1, group))) ||
                    (of_blocks && has_grid(*config_->block_rows, *config_->block_cols));
  if (fits || (strategy != "tensor" && strategy != "channel" && !of_groups && !of_blocks)) return;
  const TensorRef& scales = at(weight.scales);
  fail(ErrorCode::QuantConfigContradicts, {{}, scales.name},
       "'{}': {} scales for '{}' of {}, but group '{}' of quantization_config, whose targets mean it ({}), has one "
       "scale "
       "for each {}{}",
       scales.name, shape_text(scales.shape), weight.name, shape_text(weight.shape), config_->group,
       fmt::join(config_->targets, ", "), strategy,
       of_blocks   ? fmt::format(" of {} x {}", *config_->block_rows, *config_->block_cols)
       : of_groups ? fmt::format(" of {}", group)
                   : "");
}

void PartFinder::require_meant(const TensorRef& tensor, const QuantFormat& format) const {
  const auto contradicts = [&](const std::string& what) {
    fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name}, "'{}' is {} {}, but quantization_config says {}",
         tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), what);
  };
  // AWQ and GPTQ have no codes but those of integers in words.
  const bool is_of_words = format.versions.begin() != format.versions.end();
  if (!is_of_words && format_of_words(config_->method) != nullptr)
    contradicts(fmt::format("'{}', which stores weights in words of integers only", config_->method));
  if (config_->method == "modelopt" && !config_->is_mixed && !format.other_algorithm.empty() &&
      config_->format.starts_with(format.other_algorithm))
    contradicts(fmt::format("quant_algo '{}', which does not store weights so", config_->format));
  const bool in_words = tensor.dtype == Dtype::I32;
  require_type(tensor, format.type, in_words ? config_->bits.value_or(format.bits) : format.bits);
  if (in_words && config_->bits.value_or(format.bits) != format.bits)
    fail(ErrorCode::NotSupported, {{}, tensor.name}, "'{}': weights of {} bits cannot be decoded; {} can", tensor.name,
         *config_->bits, format.bits);
  const bool is_e4m3 = tensor.dtype == Dtype::F8_E4M3;
  if ((is_e4m3 && config_->fp8_format == "e5m2") || (tensor.dtype == Dtype::F8_E5M2 && config_->fp8_format == "e4m3"))
    contradicts(fmt::format("fmt '{}'", config_->fp8_format));
}

void PartFinder::require_not_skipped(const QuantizedTensor& weight) const {
  const std::string module = plain_weight_name(weight.name).base;
  const auto is_listed = [&](const auto& pattern) { return pattern.second.names(module) == true; };
  const auto pattern = std::ranges::find_if(skipped_patterns_, is_listed);
  const bool by_name = std::ranges::find(all_config_.skipped, module) != all_config_.skipped.end();
  if (!by_name && pattern == skipped_patterns_.end()) return;
  fail(ErrorCode::QuantConfigContradicts, {{}, at(weight.weight).name},
       "'{}' is {} with scales, but quantization_config lists '{}' among the modules that are not quantized: programs "
       "would read the codes as weights",
       at(weight.weight).name, dtype_name(at(weight.weight).dtype), by_name ? module : pattern->first);
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

void PartFinder::take_cache_scales() {
  // Behind `self_attn` in compressed-tensors, behind k_proj and v_proj in ModelOpt; the last two are older.
  constexpr std::array<std::string_view, 6> kOfCaches = {
      ".k_scale", ".v_scale", ".kv_scale", "attn.q_scale", "k_proj.output_scale", "v_proj.output_scale"};
  if (found_.tensors.empty()) return;
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i)
    if (std::ranges::any_of(kOfCaches, [&](std::string_view end) { return at(i).name.ends_with(end); })) take(i);
}

void PartFinder::check_modules() {
  if (found_.tensors.empty()) return;
  if (!all_config_.run_time_words.empty())
    cannot_decode(found_.tensors.front().weight, ErrorCode::NotSupported,
                  fmt::format("quantization_config's {}: programs multiply by it when they run, so the decoded weights "
                              "alone would not be the model; --decode has no rule for it",
                              all_config_.run_time_words));
  std::unordered_set<std::string_view> modules;
  std::unordered_set<std::size_t> used(found_.companions.begin(), found_.companions.end());
  for (const QuantizedTensor& weight : found_.tensors) {
    const std::size_t suffix = weight.name.size() - plain_weight_name(weight.name).base.size();
    modules.insert(std::string_view(weight.name).substr(0, weight.name.size() - suffix));
    used.insert(weight.weight);
  }
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
    if (used.contains(i)) continue;
    const std::string& name = at(i).name;
    const std::string_view part = part_of_module(name, modules);
    if (part.empty() || part.ends_with("bias") || part.ends_with("_extra_state") || is_optimizer_tensor(name)) continue;
    if (std::ranges::find(kOfActivations, part) != kOfActivations.end())
      take(i);
    else
      cannot_decode(
          i, ErrorCode::NotSupported,
          fmt::format("{} {} belongs to '{}', whose weight is quantized, and --decode has no rule for it: "
                      "the decoded model would lack what it does",
                      dtype_name(at(i).dtype), shape_text(at(i).shape), name.substr(0, name.size() - part.size() - 1)));
  }
}

void PartFinder::check_orphans() {
  constexpr std::array kOfCodes = {TensorKind::PackedWeight, TensorKind::QWeight};
  constexpr std::array kOfScales = {TensorKind::Scale,       TensorKind::PlainScale, TensorKind::SecondScale,
                                    TensorKind::GlobalScale, TensorKind::InputScale, TensorKind::Scales,
                                    TensorKind::QZeros};
  const auto is_any_of = [](const std::string& name, const auto& kinds) {
    return std::ranges::any_of(kinds, [&](TensorKind kind) {
      const auto of = weight_name(name, kind);
      return of && (of->is_layer || of->base.ends_with("_proj") || of->base.ends_with("_proj_weight"));
    });
  };
  const std::set<std::size_t> used(found_.companions.begin(), found_.companions.end());
  std::set<std::size_t> weights;
  for (const QuantizedTensor& weight : found_.tensors) weights.insert(weight.weight);
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
    const std::string& name = at(i).name;
    if (used.contains(i) || weights.contains(i)) continue;
    if (is_any_of(name, kOfScales)) {
      refuse_foreign_codes(i, kOfScales);
      fail(ErrorCode::ScaleOrphan, {{}, name},
           "'{}': {} {}, scales of no quantized weight that is there; is the download complete?", name,
           dtype_name(at(i).dtype), shape_text(at(i).shape));
    }
    if (is_any_of(name, kOfCodes))
      fail(ErrorCode::NotSupported, {{}, name},
           "'{}': codes in {} {} cannot be decoded; those in U8 (FP4) and I32 (INT4) can", name,
           dtype_name(at(i).dtype), shape_text(at(i).shape));
    if (const std::string why = why_left_over(at(i)); !why.empty()) cannot_decode(i, ErrorCode::ScaleOrphan, why);
  }
}

void PartFinder::refuse_foreign_codes(std::size_t scales, std::span<const TensorKind> kinds) {
  constexpr std::array kForeign = {Dtype::F8_E4M3FNUZ, Dtype::F8_E5M2FNUZ, Dtype::F4, Dtype::F6_E2M3,
                                   Dtype::F6_E3M2,     Dtype::U32,         Dtype::U16};
  for (const TensorKind kind : kinds) {
    const auto name = weight_name(at(scales).name, kind);
    if (!name) continue;
    for (const std::string& weight : {name->of(TensorKind::Weight), name->base}) {
      const auto codes = std::ranges::find(inventory_.tensors, weight, &TensorRef::name);
      if (codes == inventory_.tensors.end() || std::ranges::find(kForeign, codes->dtype) == kForeign.end()) continue;
      const bool is_mlx = codes->dtype == Dtype::U32;
      fail(ErrorCode::NotSupported, {{}, weight},
           "'{}' holds codes in {} {}, with scales in '{}'{}: --decode has no rule for them{}", weight,
           dtype_name(codes->dtype), shape_text(codes->shape), at(scales).name,
           is_mlx ? ", as MLX (mlx-lm) stores quantized weights" : "",
           is_mlx ? "; mlx-lm dequantizes them (mlx_lm.convert --dequantize)"
                  : "; those in F8_E4M3, F8_E5M2, I8, U8 (FP4) and I32 (INT4) can be decoded");
    }
  }
}

std::string PartFinder::why_left_over(const TensorRef& tensor) {
  constexpr std::array kBesideCodes = {TensorKind::ZeroPoint, TensorKind::GroupIndex, TensorKind::PackedGroupIndex,
                                       TensorKind::WeightShape};
  const bool is_beside = std::ranges::any_of(kBesideCodes, [&](TensorKind kind) {
    const auto of = weight_name(tensor.name, kind);
    return of && (of->is_layer || of->base.ends_with("_proj"));
  });
  const bool is_code = tensor.dtype == Dtype::F8_E4M3 || tensor.dtype == Dtype::F8_E5M2;
  // DeepSeek-V4's word, behind the names of linear layers: others call what a norm or a router learns so.
  constexpr std::array<std::string_view, 4> kOfLayers = {"_proj.scale", ".w1.scale", ".w2.scale", ".w3.scale"};
  const bool is_scale = tensor.dtype == Dtype::F8_E8M0 || std::ranges::any_of(kOfLayers, [&](std::string_view end) {
                          return tensor.name.ends_with(end);
                        });
  if (!is_beside && !is_code && !is_scale) return {};
  const std::string_view what = is_beside  ? "belongs to codes of a weight that are not there, or that need none of it"
                                : is_scale ? "scales of no quantized weight that is there"
                                           : "codes of no weight that --decode has a rule for";
  return fmt::format("{} {}, {}; the decoded model would keep it. Is the download complete?", dtype_name(tensor.dtype),
                     shape_text(tensor.shape), what);
}

}  // namespace glu_ckpt
