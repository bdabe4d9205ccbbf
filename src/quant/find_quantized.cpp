#include "quant/find_quantized.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "layout/element_grid.hpp"
#include "quant/decoder_rules.hpp"
#include "quant/part_finder.hpp"

namespace glu_ckpt {
namespace {

/// AWQ and GPTQ put so many codes of four bits in a word.
constexpr i64 kWordCodes = 8;

class Finder : private PartFinder {
 public:
  Finder(const Inventory& inventory, const QuantConfig& config, const WeightAxes& axes)
      : PartFinder(inventory, config, axes) {}

  Quantization find() {
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) find_at(i);
    config_ = &all_config_;
    judge_bytes_without_scales();
    take_cache_scales();
    check_modules();
    check_orphans();
    std::ranges::sort(found_.companions);
    auto& companions = found_.companions;
    companions.erase(std::unique(companions.begin(), companions.end()), companions.end());
    found_.formats.assign(formats_.begin(), formats_.end());
    found_.decoder = decoder_name();
    follow_decoder(found_, inventory_);
    return std::move(found_);
  }

 private:
  void find_at(std::size_t number) {
    choose_group(number);
    const TensorRef& tensor = at(number);
    const bool of_bytes = tensor.dtype == Dtype::U8;
    const auto of_blocks = weight_name(tensor.name, TensorKind::Blocks);
    if (of_blocks && (of_bytes || tensor.dtype == Dtype::F8_E4M3)) return add_blocks(number, *of_blocks);
    if (is_fp8_weight(tensor)) return add_fp8(number);
    if (const auto name = weight_name(tensor.name, TensorKind::PackedWeight)) {
      if (of_bytes) return add_packed_fp4(number, *name);
      if (tensor.dtype == Dtype::I32) return add_packed_int4(number, *name);
    }
    if (const auto name = weight_name(tensor.name, TensorKind::QWeight); name && tensor.dtype == Dtype::I32)
      return add_words(number, *name);
    const WeightName name = plain_weight_name(tensor.name);
    if (of_bytes && (name.is_layer || has_scales(name))) return add_modelopt_fp4(number, name);
    if (tensor.dtype == Dtype::I8 &&
        (name.is_layer || number_of(name, TensorKind::Scale) || number_of(name, TensorKind::PlainScale)))
      return add_int8(number, name);
  }

  /// The scales of NVFP4 are FP8, too.
  static bool is_fp8_weight(const TensorRef& tensor) {
    const bool is_fp8 = tensor.dtype == Dtype::F8_E4M3 || tensor.dtype == Dtype::F8_E5M2;
    // Without elements it holds no codes.
    const bool is_empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
    return is_fp8 && !is_empty && tensor.shape.size() >= 2 && !tensor.name.ends_with("_scale") &&
           !tensor.name.ends_with(".scale");
  }

  // ---- FP8 and INT8 -----------------------------------------------------------------------------

  void add_fp8(std::size_t number) {
    const TensorRef& tensor = at(number);
    require_no_words(tensor);
    require_algorithm_is_not(tensor, "NVFP4");
    require_type(tensor, "float", 8);
    const std::string_view other_format = tensor.dtype == Dtype::F8_E4M3 ? "e5m2" : "e4m3";
    if (config_->fp8_format == other_format)
      fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name}, "'{}' is {}, but quantization_config says fmt '{}'",
           tensor.name, dtype_name(tensor.dtype), other_format);
    const WeightName name = plain_weight_name(tensor.name);
    QuantizedTensor weight =
        weight_of(number, tensor.name, tensor.shape, tensor.dtype == Dtype::F8_E4M3 ? Codes::E4m3 : Codes::E5m2);
    const std::optional<Axes> axes = axes_of(number, name);
    weight.in_out = axes == Axes::InOut;
    std::vector<std::string> scales = name.all_of(TensorKind::Scale);
    std::ranges::copy(name.all_of(TensorKind::PlainScale), std::back_inserter(scales));
    if (name.is_layer) scales.push_back(name.base + ".scale");
    weight.scales = scales_of(number, scales);
    take_if_there(name, TensorKind::InputScale);
    take_if_there(name.base + (name.is_layer ? ".activation_scale" : "_activation_scale"));
    form_of(weight);
    set_fp8_cell(weight, name, axes);
    require_strategy(weight);
    add(weight, fp8_format(weight));
  }

  void set_fp8_cell(QuantizedTensor& weight, const WeightName& name, const std::optional<Axes>& axes) {
    const Dtype scale_dtype = at(weight.scales).dtype;
    if (is_float(scale_dtype) && !config_->block_rows && find_one_for_all(weight, weight.scales)) return;
    const ScaleCell block{config_->block_rows.value_or(128), config_->block_cols.value_or(128)};
    std::vector<ScaleCell> cells = channel_cells(weight, axes);
    cells.insert(cells.begin(), {weight.rows, weight.cols});
    // Two scales of a fused FC1 must not pass for those of two blocks: blocks are named so, or configured.
    // ModelOpt's have axes of one element beside theirs: [n, 1, k, 1].
    const std::vector<i64>& shape = at(weight.scales).shape;
    const bool is_modelopt_grid =
        shape.size() == weight.shape.size() + 2 && shape[shape.size() - 1] == 1 && shape[shape.size() - 3] == 1;
    const bool is_plain = number_of(name, TensorKind::PlainScale) == weight.scales;
    if (!is_plain) cells.push_back(block);
    if (is_modelopt_grid) cells = {block};
    // MXFP8 has its scales along the inputs, which are the rows of what is turned; TransformerEngine's second copy has
    // them along the outputs.
    if (scale_dtype == Dtype::U8) cells = {{1, 32}, {32, 1}};
    if (scale_dtype == Dtype::F8_E8M0) cells = {block, {1, 32}, {32, 1}};
    // A scale for each row and one block of the columns is no different from one for each row.
    if (config_->block_rows && scale_dtype != Dtype::U8) cells = {block};
    weight.scales_of_parts =
        is_float(scale_dtype) && are_of_parts(weight, weight.scales) && (cells.back() != block || !config_->block_rows);
    if (weight.scales_of_parts && cells.back() == block) require_no_blocks(weight, block);
    if (weight.scales_of_parts) {
      weight.cell_rows = weight.rows;
      weight.cell_cols = weight.cols;
    } else {
      const bool may_restart = is_fused(weight.weight, name) && axes != Axes::InOut;
      if (may_restart && std::ranges::find(cells, block) != cells.end()) find_restart(weight, block);
      if (weight.restart_rows == 0 && !has_padded_scales(weight)) set_cell(weight, cells);
    }
    weight.in_out = weight.in_out || (!axes && weight.cell_rows == weight.rows && weight.cell_cols == 1);
  }

  /// TransformerEngine pads the scales of MXFP8 to tiles. They can be moved, and --decode has no rule for them.
  bool has_padded_scales(QuantizedTensor& weight) {
    const TensorRef& scales = at(weight.scales);
    for (const ElementGrid& grid : kMxGrids) {
      const MatrixExtents stored = stored_extents(grid, {weight.rows, weight.cols}, 1);
      std::vector<i64> shape = leading_axes(weight.shape);
      shape.insert(shape.end(), {stored.rows, stored.cols});
      const bool is_padded = stored != element_extents(grid, {weight.rows, weight.cols}, 1);
      if (!is_padded || scales.shape != shape || !can_be_mx(at(weight.weight).dtype, scales.dtype)) continue;
      cannot_decode(weight.scales, ErrorCode::NotSupported,
                    fmt::format("{} scales for '{}' of {}, padded to tiles, which --decode has no rule for",
                                shape_text(scales.shape), weight.name, shape_text(weight.shape)));
      weight.cell_rows = grid.rows;
      weight.cell_cols = grid.cols;
      return true;
    }
    return false;
  }

  /// Two scales of a fused FC1 whose configuration has no blocks are gate's and up's, as transformers stores FP8 per
  /// tensor, unless they are as many as those of two blocks.
  void require_no_blocks(const QuantizedTensor& weight, const ScaleCell& block) const {
    if ((weight.rows + block.rows - 1) / block.rows != 2 || weight.cols > block.cols) return;
    const TensorRef& scales = at(weight.scales);
    fail(ErrorCode::SizeMismatch, {{}, scales.name},
         "'{}': {} scales for '{}' of {} are one for gate and one for up, or those of two blocks of {} x {}, and "
         "quantization_config does not tell which. If they are blocks', say it there: weight_block_size [{}, {}]",
         scales.name, shape_text(scales.shape), weight.name, shape_text(weight.shape), block.rows, block.cols,
         block.rows, block.cols);
  }

  static std::string fp8_format(const QuantizedTensor& weight) {
    const auto is_cell = [&](i64 rows, i64 cols) { return weight.cell_rows == rows && weight.cell_cols == cols; };
    if (is_cell(1, 32) || is_cell(32, 1)) return "MXFP8";
    if (is_cell(weight.rows, weight.cols)) return "FP8 per tensor";
    if (is_cell(1, weight.cols) || is_cell(weight.rows, 1)) return "FP8 per channel";
    return fmt::format("FP8 in {}x{} blocks", weight.cell_rows, weight.cell_cols);
  }

  /// DeepSeek-V4 keeps two codes of FP4 in a byte that it calls I8, which the shape of the scales tells from INT8.
  void add_int8(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    for (const std::string& scales : {name.base + ".scale", name.of(TensorKind::Scale)})
      if (const auto of_fp4 = number_of(scales); of_fp4 && at(*of_fp4).dtype == Dtype::F8_E8M0)
        return add_fp4(number, name, {scales});
    require_no_words(tensor);
    require_type(tensor, "int", 8);
    QuantizedTensor weight = weight_of(number, tensor.name, tensor.shape, Codes::Int8);
    const std::optional<Axes> axes = axes_of(number, name);
    weight.scales = scales_of(number, name.all_of(TensorKind::PlainScale));
    take_if_there(name, TensorKind::InputScale);
    if (const auto zeros = number_of(name.of(TensorKind::ZeroPoint)))
      cannot_decode(take(*zeros), ErrorCode::NotSupported, "--decode has no rule for INT8 with zero points");
    else if (config_->some_asymmetric)
      cannot_decode(number, ErrorCode::ScaleMissing, missing_zeros(name.of(TensorKind::ZeroPoint)));
    form_of(weight);
    weight.in_out = axes == Axes::InOut;
    weight.scales_of_parts = are_of_parts(weight, weight.scales);
    if (weight.scales_of_parts) {
      weight.cell_rows = weight.rows;
      weight.cell_cols = weight.cols;
    } else if (!find_one_for_all(weight, weight.scales)) {
      std::vector<ScaleCell> cells = channel_cells(weight, axes);
      cells.push_back({weight.rows, weight.cols});
      set_cell(weight, cells);
    }
    const bool per_tensor = weight.cell_rows == weight.rows && weight.cell_cols == weight.cols;
    weight.in_out = weight.in_out || (!axes && weight.cell_cols == 1 && !per_tensor);
    require_strategy(weight);
    add(weight, per_tensor ? "INT8 per tensor" : "INT8 per channel");
  }

  // ---- FP4 --------------------------------------------------------------------------------------

  /// Bytes of two codes of a row, with a scale for a group of them. ModelOpt turns the bytes and the scales of some
  /// namings: then a byte has two codes of a column.
  void set_fp4_cell(QuantizedTensor& weight, const CodeForm& form) const {
    const std::size_t number = weight.weight;
    const i64 group = form.part(PartUse::Scales)->grids.begin()->grid.cols;
    const std::optional<Axes> axes = axes_of(number, plain_weight_name(at(number).name));
    std::vector<i64> turned = at(number).shape;
    i64& rows = turned[turned.size() - 2];
    rows = checked_mul(rows, 2).value_or(0);
    std::vector<i64> of_turned = turned;
    of_turned[turned.size() - 2] = rows / group;
    if (axes == Axes::OutIn || rows % group != 0 || at(weight.scales).shape != of_turned) {
      set_cell(weight, {{1, group}});
      if (axes == Axes::InOut) turn(weight);
      return;
    }
    if (turned.back() % 2 != 0)
      fail(ErrorCode::NotSupported, {{}, at(number).name},
           "'{}': {}, turned codes of an odd number of columns, which --decode has no rule for", at(number).name,
           shape_text(at(number).shape));
    const std::size_t scales = weight.scales;
    weight = weight_of(number, weight.name, std::move(turned), form.codes);
    weight.scales = scales;
    weight.in_out = weight.pairs_of_rows = true;
    weight.cell_rows = group;
  }

  /// Bytes of two codes: the dtype of their scales tells the format, and whether there is a second scale.
  void add_fp4(std::size_t number, const WeightName& name, const std::vector<std::string>& scales) {
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), widened(number, 2), Codes::E2m1);
    weight.scales = scales_of(number, scales);
    const auto [format, form] = form_of(weight);
    if (form->has_second_scale()) require_algorithm_is_not(at(number), "FP8");
    set_fp4_cell(weight, *form);
    weight.format = format;
    require_strategy(weight);
    for (const FormatPart& part : form->parts) {
      if (part.use == PartUse::Inputs) take_if_there(name, part.kind);
      if (part.use == PartUse::Multiplier || part.use == PartUse::Divisor) add_second_scale(weight, name, part);
    }
    add(weight, std::string(format->name));
  }

  void add_second_scale(QuantizedTensor& weight, const WeightName& name, const FormatPart& part) {
    weight.global = scales_of(weight.weight, name.all_of(part.kind));
    weight.global_divides = part.use == PartUse::Divisor;
    const TensorRef& second = at(*weight.global);
    weight.scales_of_parts = are_of_parts(weight, *weight.global);
    const i64 wanted =
        find_one_for_all(weight, *weight.global) ? 1 : weight.matrices * (weight.scales_of_parts ? 2 : 1);
    if (second.dtype != Dtype::F32 || checked_product(second.shape) != wanted)
      fail(ErrorCode::SizeMismatch, {{}, second.name},
           "'{}': {} {} for '{}' of {}; expected F32 and one value a matrix", second.name, dtype_name(second.dtype),
           shape_text(second.shape), weight.name, shape_text(weight.shape));
  }

  /// gpt-oss: [experts, out, in / 32, 16], decoded as [experts, in, out]; without the first axis where each expert has
  /// tensors of its own. A block of MXFP8, which --encode makes, has 32 bytes.
  void add_blocks(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    const std::size_t axes = tensor.shape.size();
    const bool is_fp4 = tensor.dtype == Dtype::U8;
    if (axes < 3 || axes > 4 || tensor.shape.back() != (is_fp4 ? 16 : 32)) return;
    require_no_words(tensor);
    std::vector<i64> shape(tensor.shape.begin(), tensor.shape.end() - 1);
    shape.back() = checked_mul(shape.back(), 32).value_or(0);
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), shape, is_fp4 ? Codes::E2m1 : Codes::E4m3);
    weight.has_block_axis = true;
    weight.scales = scales_of(number, {name.of(TensorKind::Scales)});
    const QuantFormat& format = *form_of(weight).format;
    set_cell(weight, {{1, 32}});
    // Another family's names may be given to them here.
    if (axes_of(number, {name.base, false}) != Axes::OutIn) turn(weight);
    add(weight, std::string(format.name));
  }

  void add_packed_fp4(std::size_t number, const WeightName& name) {
    require_no_words(at(number));
    require_type(at(number), "float", 4);
    add_fp4(number, name, name.all_of(TensorKind::PlainScale));
  }

  void add_modelopt_fp4(std::size_t number, const WeightName& name) {
    if (!has_scales(name)) {
      if (!config_->method.empty() && at(number).shape.size() >= 2) bytes_without_scales_.push_back(number);
      return;
    }
    require_no_words(at(number));
    add_fp4(number, name, name.all_of(TensorKind::PlainScale));
  }

  /// Bytes beside a second scale are codes that have lost their first.
  bool has_scales(const WeightName& name) const {
    return number_of(name, TensorKind::PlainScale) || number_of(name, TensorKind::SecondScale);
  }

  /// Bytes may be codes whose scales are not there, or those of another program. They are codes where bytes of another
  /// module of that word are.
  void judge_bytes_without_scales() {
    const auto word_of = [&](std::size_t number) {
      const std::string base = plain_weight_name(at(number).name).base;
      return base.substr(base.rfind('.') + 1);
    };
    std::set<std::string> words;
    for (const QuantizedTensor& weight : found_.tensors)
      if (at(weight.weight).dtype == Dtype::U8) words.insert(word_of(weight.weight));
    for (const std::size_t number : bytes_without_scales_) {
      const TensorRef& tensor = at(number);
      if (words.contains(word_of(number)))
        scales_of(number, {plain_weight_name(tensor.name).of(TensorKind::PlainScale)});
      const bool is_known = config_->method == "modelopt" || config_->method == "quark";
      cannot_decode(
          number, is_known ? ErrorCode::ScaleMissing : ErrorCode::NotSupported,
          fmt::format("U8 {} without scales; --decode has no rule for it under quantization by '{}'{}",
                      shape_text(tensor.shape), config_->method, is_known ? "; is the download complete?" : ""));
    }
  }

  // ---- INT4 -------------------------------------------------------------------------------------

  void add_packed_int4(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    require_no_words(tensor);
    require_type(tensor, "int", config_->bits.value_or(4));
    require_four_bits(tensor);
    if (config_->bits_differ)
      cannot_decode(
          number, ErrorCode::NotSupported,
          "quantization_config has groups of modules with other numbers of bits, and which of them this weight "
          "is in is not looked up");
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), widened(number, kWordCodes), Codes::Int4);
    weight.scales = scales_of(number, {name.of(TensorKind::PlainScale)});
    form_of(weight);
    weight.stated_shape = number_of(name.of(TensorKind::WeightShape));
    if (weight.stated_shape) take(*weight.stated_shape);
    set_int4_cell(weight);
    require_strategy(weight);
    const i64 words = (weight.rows + kWordCodes - 1) / kWordCodes;
    if (const auto zeros = number_of(name.of(TensorKind::ZeroPoint))) {
      weight.zeros = take(*zeros);
      check_part(weight, *zeros, Dtype::I32, {words, weight.grid_cols()});
    } else if (config_->symmetric == false) {
      scales_of(number, {name.of(TensorKind::ZeroPoint)});
    } else if (config_->some_asymmetric) {
      cannot_decode(number, ErrorCode::ScaleMissing, missing_zeros(name.of(TensorKind::ZeroPoint)));
    }
    if (const auto groups = number_of(name.of(TensorKind::PackedGroupIndex))) {
      weight.groups = take(*groups);
      const bool of_two = at(*groups).shape.size() == weight.shape.size();
      check_part(weight, *groups, Dtype::I32,
                 of_two ? std::vector<i64>{2, weight.cols} : std::vector<i64>{weight.cols});
    } else if (config_->some_reordered && weight.grid_cols() > 1) {
      cannot_decode(number, ErrorCode::ScaleMissing,
                    fmt::format("quantization_config says that columns were reordered ('actorder'), and '{}' is not "
                                "there",
                                name.of(TensorKind::PackedGroupIndex)));
    }
    if (axes_of(number, name) == Axes::InOut) turn(weight);
    const std::string of = weight.zeros ? ", asymmetric" : "";
    add(weight, weight.cell_cols == weight.cols ? "INT4 per channel" + of
                                                : fmt::format("INT4 in groups of {}{}", weight.cell_cols, of));
  }

  /// Scales of rows under a configuration of groups are those of another weight, or what is left of them.
  void set_int4_cell(QuantizedTensor& weight) const {
    const ScaleCell of_groups{1, group_size(weight)}, of_rows{1, weight.cols};
    if (config_->strategy == "channel")
      set_cell(weight, {of_rows});
    else if (config_->group_size)
      set_cell(weight, {of_groups});
    else
      set_cell(weight, {of_groups, of_rows});
  }

  /// The columns of a group, by the scales where the configuration does not say it.
  i64 group_size(const QuantizedTensor& weight) const {
    const std::vector<i64>& scales = at(weight.scales).shape;
    const i64 groups = scales.empty() || scales.back() <= 0 ? 1 : scales.back();
    const i64 size = config_->group_size ? *config_->group_size : weight.cols / groups;
    // Two codes share a byte.
    return std::max<i64>(size / 2 * 2, 2);
  }

  /// The format of words that quant_method means.
  FormRef form_of_words(const TensorRef& tensor) const {
    for (const FormRef& each : forms_of(TensorKind::QWeight, tensor.dtype))
      if (std::ranges::find(each.format->methods, config_->method, &MethodRow::word) != each.format->methods.end())
        return each;
    fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
         "'{}' is AWQ's or GPTQ's, which only quantization_config tells apart, and it says {}{}", tensor.name,
         config_->method.empty() ? "nothing" : "'" + config_->method + "'",
         config_->version.empty() ? "" : fmt::format(" ('{}')", config_->version));
  }

  void add_words(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    const auto [format, form] = form_of_words(tensor);
    require_four_bits(tensor);
    if (!config_->version.empty() && !format->versions.contains(config_->version))
      fail(ErrorCode::NotSupported, {{}, tensor.name}, "'{}': {} of version '{}' cannot be decoded; '{}' can",
           tensor.name, config_->method, config_->version, fmt::join(format->versions, "' and '"));
    if (tensor.shape.size() < 2) fail_axes(number);
    std::vector<i64> shape = leading_axes(tensor.shape);
    const i64 in = tensor.shape[shape.size()], out = tensor.shape.back();
    shape.push_back(checked_mul(out, form->packing.rows).value_or(0));
    shape.push_back(checked_mul(in, form->packing.cols).value_or(0));
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), shape, form->codes);
    weight.scales = scales_of(number, {name.of(TensorKind::Scales)});
    form_of(weight);
    weight.cell_cols = config_->group_size.value_or(weight.cols);
    check_part(weight, weight.scales, at(weight.scales).dtype, {weight.grid_cols(), weight.rows});
    if (const auto zeros = number_of(name.of(TensorKind::QZeros))) {
      weight.zeros = take(*zeros);
      check_part(weight, *zeros, Dtype::I32, {weight.grid_cols(), (weight.rows + kWordCodes - 1) / kWordCodes});
    } else if (!config_->symmetric.value_or(false)) {
      scales_of(number, {name.of(TensorKind::QZeros)});
    }
    if (weight.rows % kWordCodes != 0)
      cannot_decode(
          number, ErrorCode::NotSupported,
          fmt::format("{} rows, no multiple of the {} that share a word of zero points", weight.rows, kWordCodes));
    const bool is_first = config_->version.empty() || config_->version == *format->versions.begin();
    if (weight.zeros && is_first) weight.zero_offset = format->zero_offset;
    weight.zeros_are_said_8 = weight.zeros && config_->symmetric == true;
    const bool orders = form->part(PartUse::Order) != nullptr;
    if (const auto groups = number_of(name.of(TensorKind::GroupIndex)); groups && orders) {
      weight.groups = take(*groups);
      const bool of_two = at(*groups).shape.size() == weight.shape.size();
      check_part(weight, *groups, Dtype::I32,
                 of_two ? std::vector<i64>{weight.cols, 2} : std::vector<i64>{weight.cols});
    } else if (orders && config_->some_reordered && weight.grid_cols() > 1) {
      scales_of(number, {name.of(TensorKind::GroupIndex)});
    }
    if (axes_of(number, name) == Axes::InOut) turn(weight);
    add(weight, fmt::format("{} in groups of {}", format->name, weight.cell_cols));
  }

  static std::string missing_zeros(const std::string& name) {
    return fmt::format(
        "quantization_config has groups of modules with zero points ('symmetric': false), and '{}' is "
        "not there",
        name);
  }

  std::string decoder_name() const {
    for (const QuantFormat* format : quant_formats())
      for (const MethodRow& method : format->methods)
        if (method.word == config_->method) return std::string(method.decoder);
    return config_->method;
  }

  std::vector<std::size_t> bytes_without_scales_;
};

}  // namespace

WeightAxes weight_axes(const std::vector<ExpertBlock>& blocks) {
  WeightAxes axes;
  for (const ExpertBlock& block : blocks)
    for (const Matrix& matrix : block.matrices)
      if (matrix.kind == block.codes && !block.is_optimizer_state()) {
        WeightPlace& place = axes.emplace(matrix.tensor, block.axes).first->second;
        place.is_fused = place.is_fused || matrix.role == Role::GateUp || (block.fused && matrix.role == Role::Gate);
      }
  return axes;
}

Quantization find_quantized(const Inventory& inventory, const QuantConfig& config, const WeightAxes& axes) {
  return Finder(inventory, config, axes).find();
}

}  // namespace glu_ckpt
