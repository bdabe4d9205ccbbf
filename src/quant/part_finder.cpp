#include "quant/part_finder.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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

/// The shapes in which writers store one scale for each cell of the matrices of a weight. The first has all axes; one
/// scale for each row, each column or each matrix may lack its axes of one, and ModelOpt's of blocks have more.
std::vector<std::vector<i64>> scale_shapes(const QuantizedTensor& weight, const ScaleCell& cell) {
  const i64 rows = cells_in(weight.rows, cell.rows), cols = cells_in(weight.cols, cell.cols);
  std::vector<std::vector<i64>> shapes;
  const auto add = [&](std::initializer_list<i64> of_one) {
    shapes.push_back(leading_axes(weight.shape));
    shapes.back().insert(shapes.back().end(), of_one);
  };
  add({rows, cols});
  if (cell.rows == 1 && cols == 1) add({rows});
  // transformers gives the columns of Llama-4's FC2 such scales: [E, H, 1] for codes of [E, F, H].
  if (cell.cols == 1 && rows == 1) add({cols}), add({cols, 1});
  if (rows == 1 && cols == 1) {
    add({1});
    add({});
    if (weight.matrices == 1) shapes.insert(shapes.end(), {{1}, {}});
  }
  // The groups of columns of MXFP8 are shorter than any block.
  if ((weight.codes == Codes::E4m3 || weight.codes == Codes::E5m2) && cell.cols > 32) add({rows, 1, cols, 1});
  return shapes;
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

std::vector<i64> PartFinder::widened(std::size_t number, i64 codes) const {
  std::vector<i64> shape = at(number).shape;
  if (shape.size() < 2) fail_axes(number);
  shape.back() = checked_mul(shape.back(), codes).value_or(0);
  return shape;
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

void PartFinder::add(QuantizedTensor weight, const std::string& format) {
  require_not_skipped(weight);
  // AWQ of ModelOpt divides the columns of a weight by what multiplies its inputs.
  const WeightName name = plain_weight_name(weight.name);
  if (const auto inputs = number_of(name.base + (name.is_layer ? ".pre_quant_scale" : "_pre_quant_scale")))
    cannot_decode(
        *inputs, ErrorCode::NotSupported,
        fmt::format("multiplies the inputs of '{}' where it is quantized; --decode has no rule for it", weight.name));
  formats_.insert(format);
  found_.tensors.push_back(std::move(weight));
}

void PartFinder::turn(QuantizedTensor& weight) const {
  std::swap(weight.shape[weight.shape.size() - 2], weight.shape.back());
  weight.transposed = true;
}

std::vector<ScaleCell> PartFinder::channel_cells(const QuantizedTensor& weight, const std::optional<Axes>& axes) const {
  const ScaleCell of_rows{1, weight.cols}, of_columns{weight.rows, 1};
  if (axes == Axes::OutIn) return {of_rows};
  if (axes == Axes::InOut) return {of_columns};
  if (weight.rows != weight.cols) return {of_rows, of_columns};
  const TensorRef& scales = at(weight.scales);
  const std::vector<std::vector<i64>> shapes = scale_shapes(weight, of_columns);
  if (scales.shape == shapes.front()) return {of_columns};
  if (std::ranges::find(shapes, scales.shape) == shapes.end()) return {};
  fail(ErrorCode::SizeMismatch, {{}, scales.name},
       "'{}': {} scales for '{}', one for each row or each column of {}, and no naming that is known here tells which",
       scales.name, shape_text(scales.shape), weight.name, shape_text(weight.shape));
}

ScaleCell PartFinder::cell_of(const QuantizedTensor& weight, const std::vector<ScaleCell>& cells) const {
  const TensorRef& scales = at(weight.scales);
  // A shape that lacks an axis of one may be another cell's that lacks its own.
  std::vector<ScaleCell> exact, fitting, without_ones;
  std::string expected;
  for (const ScaleCell& cell : cells) {
    const std::vector<std::vector<i64>> shapes = scale_shapes(weight, cell);
    if (shapes.front() == scales.shape) exact.push_back(cell);
    if (std::ranges::find(shapes, scales.shape) != shapes.end()) fitting.push_back(cell);
    if (squeezed(shapes.front()) == squeezed(scales.shape)) without_ones.push_back(cell);
    expected += fmt::format("{}{}", expected.empty() ? "" : " or ", shape_text(shapes.front()));
  }
  if (fitting.empty())
    fail(ErrorCode::SizeMismatch, {{}, scales.name}, "'{}': {} scales for '{}' of {}; expected {}", scales.name,
         shape_text(scales.shape), weight.name, shape_text(weight.shape), expected);
  if (!exact.empty()) fitting = exact;
  const std::vector<ScaleCell>& rivals = exact.empty() ? without_ones : exact;
  const auto within = [&](const ScaleCell& cell) {
    return ScaleCell{std::min(cell.rows, weight.rows), std::min(cell.cols, weight.cols)};
  };
  const ScaleCell first = within(fitting.front());
  for (const ScaleCell& cell : rivals)
    if (const ScaleCell other = within(cell); other != first)
      fail(ErrorCode::SizeMismatch, {{}, scales.name},
           "'{}': {} scales for '{}' of {}, one for each {} x {} or one for each {} x {}, and the shape without all of "
           "its axes does not tell which. Say it in quantization_config (weight_block_size), or store the axes of one, "
           "too",
           scales.name, shape_text(scales.shape), weight.name, shape_text(weight.shape), first.rows, first.cols,
           other.rows, other.cols);
  return fitting.front();
}

void PartFinder::set_cell(QuantizedTensor& weight, const std::vector<ScaleCell>& cells) const {
  const ScaleCell cell = cell_of(weight, cells);
  weight.cell_rows = cell.rows;
  weight.cell_cols = cell.cols;
}

void PartFinder::find_restart(QuantizedTensor& weight, const ScaleCell& block) const {
  const i64 half = weight.rows / 2, blocks = 2 * cells_in(half, block.rows);
  if (weight.rows % 2 != 0 || blocks == cells_in(weight.rows, block.rows)) return;
  std::vector<i64> grid = leading_axes(weight.shape);
  grid.insert(grid.end(), {blocks, cells_in(weight.cols, block.cols)});
  if (at(weight.scales).shape != grid) return;
  weight.restart_rows = half;
  weight.cell_rows = block.rows;
  weight.cell_cols = block.cols;
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

bool PartFinder::find_one_for_all(QuantizedTensor& weight, std::size_t values) const {
  weight.one_for_all = weight.matrices > 1 && checked_product(at(values).shape) == 1;
  if (weight.one_for_all && values == weight.scales) {
    weight.cell_rows = weight.rows;
    weight.cell_cols = weight.cols;
  }
  return weight.one_for_all;
}

void PartFinder::check_part(const QuantizedTensor& weight, std::size_t number, Dtype dtype,
                            const std::vector<i64>& of_one) const {
  const TensorRef& tensor = at(number);
  std::vector<i64> expected = leading_axes(weight.shape);
  expected.insert(expected.end(), of_one.begin(), of_one.end());
  if (tensor.dtype != dtype || tensor.shape != expected)
    fail(ErrorCode::SizeMismatch, {{}, tensor.name}, "'{}': {} {} for '{}' of {} in groups of {}; expected {} {}",
         tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), weight.name, shape_text(weight.shape),
         weight.cell_cols, dtype_name(dtype), shape_text(expected));
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
  const bool of_groups = (strategy == "group" || strategy == "tensor_group") && config_->group_size;
  const i64 group = config_->group_size.value_or(1);
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

void PartFinder::require_no_words(const TensorRef& tensor) const {
  if (config_->method != "awq" && config_->method != "gptq") return;
  fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
       "'{}' is {} {}, but quantization_config says '{}', which stores weights in words of integers only", tensor.name,
       dtype_name(tensor.dtype), shape_text(tensor.shape), config_->method);
}

void PartFinder::require_algorithm_is_not(const TensorRef& tensor, std::string_view other) const {
  if (config_->method != "modelopt" || config_->is_mixed || !config_->format.starts_with(other)) return;
  fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
       "'{}' is {} {}, but quantization_config says quant_algo '{}', which does not store weights so", tensor.name,
       dtype_name(tensor.dtype), shape_text(tensor.shape), config_->format);
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

void PartFinder::require_four_bits(const TensorRef& tensor) const {
  if (config_->bits.value_or(4) != 4)
    fail(ErrorCode::NotSupported, {{}, tensor.name}, "'{}': weights of {} bits cannot be decoded; 4 can", tensor.name,
         *config_->bits);
}

FormRef PartFinder::form_of(const QuantizedTensor& weight) const {
  const TensorRef &scales = at(weight.scales), &codes = at(weight.weight);
  std::vector<FormRef> forms = forms_of(TensorKind::Weight, codes.dtype);
  for (const TensorKind kind : {TensorKind::Blocks, TensorKind::PackedWeight, TensorKind::QWeight})
    if (weight_name(codes.name, kind) && !forms_of(kind, codes.dtype).empty()) forms = forms_of(kind, codes.dtype);
  std::vector<std::string_view> known;
  for (const FormRef& each : forms) {
    if (each.form->codes != weight.codes) continue;
    if (each.form->has_scales(scales.dtype)) return each;
    for (const FormatPart& part : each.form->parts)
      if (part.use == PartUse::Scales)
        for (const Dtype dtype : part.dtypes)
          if (std::ranges::find(known, dtype_name(dtype)) == known.end()) known.push_back(dtype_name(dtype));
  }
  fail(ErrorCode::NotSupported, {{}, scales.name}, "'{}': {} scales for '{}' of {} cannot be decoded; {} can",
       scales.name, dtype_name(scales.dtype), weight.name, shape_text(weight.shape), fmt::join(known, ", "));
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
