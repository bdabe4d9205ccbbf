#include "quant/find_quantized.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/decoder_rules.hpp"

namespace glu_ckpt {
namespace {

/// AWQ and GPTQ put so many codes of four bits in a word.
constexpr i64 kWordCodes = 8;

struct Cell {
  i64 rows = 1;
  i64 cols = 1;
  bool operator==(const Cell&) const = default;
};

i64 cells_in(i64 extent, i64 cell) { return (extent + cell - 1) / cell; }

/// Axes of one element tell nothing: [N], [N, 1] and [n, 1, k, 1] occur for the same scales.
std::vector<i64> squeezed(std::vector<i64> shape) {
  std::erase(shape, 1);
  return shape;
}

std::vector<i64> leading_axes(const std::vector<i64>& shape) { return {shape.begin(), shape.end() - 2}; }

i64 product(const std::vector<i64>& shape) {
  i64 total = 1;
  for (const i64 extent : shape) total *= extent;
  return total;
}

/// The text that a weight's tensors are named after: a linear layer, `a.down_proj` of `a.down_proj.weight_packed`, or a
/// parameter, `a.down_proj` of `a.down_proj_packed`, as grouped experts are.
struct WeightName {
  std::string base;
  bool is_layer = true;

  std::string of(TensorKind kind) const {
    const KindWords& words = words_of(kind);
    return base + (is_layer ? "." + std::string(words.word) : std::string(words.suffix));
  }
};

/// The name of the weight whose tensor of this kind is called so.
std::optional<WeightName> weight_name(const std::string& name, TensorKind kind) {
  const KindWords& words = words_of(kind);
  const auto before = [&](std::size_t bytes) { return name.substr(0, name.size() - bytes); };
  if (name.ends_with("." + std::string(words.word))) return WeightName{before(words.word.size() + 1), true};
  if (!words.suffix.empty() && name.ends_with(words.suffix)) return WeightName{before(words.suffix.size()), false};
  return std::nullopt;
}

/// Returns the weight's name where it may be a parameter without a suffix.
WeightName plain_weight_name(const std::string& name) {
  return weight_name(name, TensorKind::Weight).value_or(WeightName{name, false});
}

class Finder {
 public:
  Finder(const Inventory& inventory, const QuantConfig& config) : inventory_(inventory), config_(config) {
    for (std::size_t i = 0; i < inventory.tensors.size(); ++i) numbers_.emplace(inventory.tensors[i].name, i);
  }

  Quantization find() {
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) find_at(i);
    check_orphans();
    std::ranges::sort(found_.companions);
    auto& companions = found_.companions;
    companions.erase(std::unique(companions.begin(), companions.end()), companions.end());
    found_.formats.assign(formats_.begin(), formats_.end());
    found_.decoder = decoder_name();
    follow_decoder(found_);
    return std::move(found_);
  }

 private:
  const TensorRef& at(std::size_t number) const { return inventory_.tensors[number]; }

  std::optional<std::size_t> number_of(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }

  void find_at(std::size_t number) {
    const TensorRef& tensor = at(number);
    const bool of_bytes = tensor.dtype == Dtype::U8;
    if (is_fp8_weight(tensor)) return add_fp8(number);
    if (const auto name = weight_name(tensor.name, TensorKind::Blocks); name && of_bytes)
      return add_blocks(number, *name);
    if (const auto name = weight_name(tensor.name, TensorKind::PackedWeight)) {
      if (of_bytes) return add_packed_fp4(number, *name);
      if (tensor.dtype == Dtype::I32) return add_packed_int4(number, *name);
    }
    if (const auto name = weight_name(tensor.name, TensorKind::QWeight); name && tensor.dtype == Dtype::I32)
      return add_words(number, *name);
    const WeightName name = plain_weight_name(tensor.name);
    if (of_bytes && (name.is_layer || number_of(name.of(TensorKind::PlainScale))))
      return add_modelopt_fp4(number, name);
    if (tensor.dtype == Dtype::I8 && (name.is_layer || number_of(name.of(TensorKind::Scale))))
      return add_int8(number, name);
  }

  /// The scales of NVFP4 are FP8, too.
  static bool is_fp8_weight(const TensorRef& tensor) {
    const bool is_fp8 = tensor.dtype == Dtype::F8_E4M3 || tensor.dtype == Dtype::F8_E5M2;
    return is_fp8 && tensor.shape.size() >= 2 && !tensor.name.ends_with("_scale") && !tensor.name.ends_with(".scale");
  }

  // ---- one weight -------------------------------------------------------------------------------

  /// The scales of a weight by any of the names that writers give them.
  std::size_t scales_of(std::size_t weight, const std::vector<std::string>& names) {
    std::optional<std::size_t> found;
    for (const std::string& name : names) {
      const auto number = number_of(name);
      if (number && found)
        fail(ErrorCode::ScaleOrphan, {{}, name},
             "'{}': '{}' has scales in '{}' already, and nothing says which of the two are meant", name,
             at(weight).name, at(*found).name);
      if (number) found = number;
    }
    if (found) return take(*found);
    const TensorRef& tensor = at(weight);
    fail(ErrorCode::ScaleMissing, {{}, tensor.name},
         "'{}': {} codes without scales: '{}' is not there. Without them the weight is lost; is the download complete?",
         tensor.name, dtype_name(tensor.dtype), names.front());
  }

  std::size_t take(std::size_t number) {
    found_.companions.push_back(number);
    return number;
  }

  void take_if_there(const std::string& name) {
    if (const auto number = number_of(name)) take(*number);
  }

  [[noreturn]] void fail_axes(std::size_t number) const {
    fail(ErrorCode::SizeMismatch, {{}, at(number).name}, "'{}': {}; a quantized weight has two axes or more",
         at(number).name, shape_text(at(number).shape));
  }

  /// The shape with the last axis as long as the codes in it.
  std::vector<i64> widened(std::size_t number, i64 codes) const {
    std::vector<i64> shape = at(number).shape;
    if (shape.size() < 2) fail_axes(number);
    shape.back() = checked_mul(shape.back(), codes).value_or(0);
    return shape;
  }

  /// [.., rows, cols] as decoded.
  QuantizedTensor weight_of(std::size_t number, std::string name, std::vector<i64> shape, Codes codes) const {
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
    weight.matrices = product(leading_axes(shape));
    weight.shape = std::move(shape);
    return weight;
  }

  /// The weight has no numbers here; moved as it is, it needs none.
  void cannot_decode(std::size_t number, ErrorCode code, std::string why) {
    if (!found_.undecodable) found_.undecodable = Undecodable{code, at(number).name, std::move(why)};
  }

  void add(QuantizedTensor weight, const std::string& format) {
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

  /// Takes the first of the cells whose grid has the shape of the scales.
  Cell cell_of(const QuantizedTensor& weight, const std::vector<Cell>& cells) const {
    const TensorRef& scales = at(weight.scales);
    const std::vector<i64> stored = squeezed(scales.shape);
    std::string fits;
    for (const Cell& cell : cells) {
      std::vector<i64> grid = leading_axes(weight.transposed ? at(weight.weight).shape : weight.shape);
      if (weight.transposed) grid = {weight.matrices};
      grid.push_back(cells_in(weight.rows, cell.rows));
      grid.push_back(cells_in(weight.cols, cell.cols));
      if (squeezed(grid) == stored) return cell;
      fits += fmt::format("{}{}", fits.empty() ? "" : " or ", shape_text(grid));
    }
    fail(ErrorCode::SizeMismatch, {{}, scales.name}, "'{}': {} scales for '{}' of {}; expected {}", scales.name,
         shape_text(scales.shape), weight.name, shape_text(weight.shape), fits);
  }

  void set_cell(QuantizedTensor& weight, const std::vector<Cell>& cells) const {
    const Cell cell = cell_of(weight, cells);
    weight.cell_rows = cell.rows;
    weight.cell_cols = cell.cols;
  }

  // ---- FP8 and INT8 -----------------------------------------------------------------------------

  void add_fp8(std::size_t number) {
    const TensorRef& tensor = at(number);
    require_method(tensor, {"fp8", "compressed-tensors", "modelopt", "mxfp8", "fbgemm_fp8"});
    require_algorithm_is_not(tensor, "NVFP4");
    const std::string_view other_format = tensor.dtype == Dtype::F8_E4M3 ? "e5m2" : "e4m3";
    if (config_.fp8_format == other_format)
      fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name}, "'{}' is {}, but quantization_config says fmt '{}'",
           tensor.name, dtype_name(tensor.dtype), other_format);
    const WeightName name = plain_weight_name(tensor.name);
    QuantizedTensor weight =
        weight_of(number, tensor.name, tensor.shape, tensor.dtype == Dtype::F8_E4M3 ? Codes::E4m3 : Codes::E5m2);
    std::vector<std::string> scales = {name.of(TensorKind::Scale), name.of(TensorKind::PlainScale)};
    if (name.is_layer) scales.push_back(name.base + ".scale");
    weight.scales = scales_of(number, scales);
    take_if_there(name.of(TensorKind::InputScale));
    take_if_there(name.base + (name.is_layer ? ".activation_scale" : "_activation_scale"));
    const Dtype scale_dtype = at(weight.scales).dtype;
    require_scale_dtype(weight, {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E8M0, Dtype::U8});
    const Cell block{config_.block_rows.value_or(128), config_.block_cols.value_or(128)};
    std::vector<Cell> cells = {{weight.rows, weight.cols}, {1, weight.cols}};
    // Two scales of a fused FC1 must not pass for those of two blocks: blocks are named so, or configured.
    // ModelOpt's have axes of one element beside theirs: [n, 1, k, 1].
    const std::vector<i64>& shape = at(weight.scales).shape;
    const bool is_modelopt_grid =
        shape.size() == weight.shape.size() + 2 && shape[shape.size() - 1] == 1 && shape[shape.size() - 3] == 1;
    if (at(weight.scales).name != name.of(TensorKind::PlainScale) || is_modelopt_grid) cells.push_back(block);
    if (scale_dtype == Dtype::U8) cells = {{1, 32}};
    if (scale_dtype == Dtype::F8_E8M0) cells = {block, {1, 32}};
    // A scale for each row and one block of the columns is no different from one for each row.
    if (config_.block_rows && scale_dtype != Dtype::U8) cells = {block};
    weight.scales_of_parts = is_float(scale_dtype) && cells.back() != block && are_of_parts(weight, weight.scales);
    if (weight.scales_of_parts) {
      weight.cell_rows = weight.rows;
      weight.cell_cols = weight.cols;
    } else {
      set_cell(weight, cells);
    }
    add(weight, fp8_format(weight));
  }

  /// One value for gate and one for up of a fused FC1: which rows each is for only its layout says.
  bool are_of_parts(const QuantizedTensor& weight, std::size_t values) const {
    std::vector<i64> two = leading_axes(weight.shape);
    two.push_back(2);
    std::vector<i64> two_in_column = two;
    two_in_column.push_back(1);
    const std::vector<i64>& stored = at(values).shape;
    return weight.rows > 2 && weight.rows % 2 == 0 && (stored == two || stored == two_in_column);
  }

  static std::string fp8_format(const QuantizedTensor& weight) {
    if (weight.cell_rows == 1 && weight.cell_cols == 32) return "MXFP8";
    if (weight.cell_rows == weight.rows && weight.cell_cols == weight.cols) return "FP8 per tensor";
    if (weight.cell_rows == 1 && weight.cell_cols == weight.cols) return "FP8 per channel";
    return fmt::format("FP8 in {}x{} blocks", weight.cell_rows, weight.cell_cols);
  }

  /// DeepSeek-V4 keeps two codes of FP4 in a byte that it calls I8, which the shape of the scales tells from INT8.
  void add_int8(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    for (const std::string& scales : {name.base + ".scale", name.of(TensorKind::Scale)})
      if (const auto of_fp4 = number_of(scales); of_fp4 && at(*of_fp4).dtype == Dtype::F8_E8M0)
        return add_fp4_bytes(number, tensor.name, scales);
    require_method(tensor, {"compressed-tensors"});
    QuantizedTensor weight = weight_of(number, tensor.name, tensor.shape, Codes::Int8);
    weight.scales = scales_of(number, {name.of(TensorKind::PlainScale)});
    take_if_there(name.of(TensorKind::InputScale));
    if (const auto zeros = number_of(name.of(TensorKind::ZeroPoint)))
      cannot_decode(take(*zeros), ErrorCode::NotSupported, "--decode has no rule for INT8 with zero points");
    else if (config_.some_asymmetric)
      cannot_decode(number, ErrorCode::ScaleMissing, missing_zeros(name.of(TensorKind::ZeroPoint)));
    require_scale_dtype(weight, {Dtype::F32, Dtype::BF16, Dtype::F16});
    set_cell(weight, {{1, weight.cols}, {weight.rows, weight.cols}});
    add(weight, weight.cell_rows == 1 ? "INT8 per channel" : "INT8 per tensor");
  }

  // ---- FP4 --------------------------------------------------------------------------------------

  /// Bytes of two codes, with a power of two for each 32 of a row.
  void add_fp4_bytes(std::size_t number, const std::string& name, const std::string& scales) {
    QuantizedTensor weight = weight_of(number, name, widened(number, 2), Codes::E2m1);
    weight.scales = scales_of(number, {scales});
    require_scale_dtype(weight, {Dtype::U8, Dtype::F8_E8M0});
    set_cell(weight, {{1, 32}});
    add(weight, "MXFP4");
  }

  /// gpt-oss: [experts, out, in / 32, 16], decoded as [experts, in, out]; without the first axis where each expert has
  /// tensors of its own.
  void add_blocks(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    const std::size_t axes = tensor.shape.size();
    if (axes < 3 || axes > 4 || tensor.shape.back() != 16) return;
    require_method(tensor, {"mxfp4"});
    std::vector<i64> shape(tensor.shape.begin(), tensor.shape.end() - 1);
    shape.back() = checked_mul(shape.back(), 32).value_or(0);
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), shape, Codes::E2m1);
    std::swap(weight.shape[axes - 3], weight.shape[axes - 2]);
    weight.transposed = true;
    weight.scales = scales_of(number, {name.of(TensorKind::Scales)});
    require_scale_dtype(weight, {Dtype::U8, Dtype::F8_E8M0});
    set_cell(weight, {{1, 32}});
    add(weight, "MXFP4");
  }

  void add_packed_fp4(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    require_method(tensor, {"compressed-tensors"});
    const auto scales = number_of(name.of(TensorKind::PlainScale));
    if (scales && at(*scales).dtype == Dtype::F8_E4M3)
      return add_nvfp4(number, name, TensorKind::GlobalScale, TensorKind::InputGlobalScale);
    add_fp4_bytes(number, name.of(TensorKind::Weight), name.of(TensorKind::PlainScale));
  }

  void add_modelopt_fp4(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    const auto scales = number_of(name.of(TensorKind::PlainScale));
    if (!scales) return find_bytes_without_scales(number);
    require_method(tensor, {"modelopt", "quark"});
    if (at(*scales).dtype == Dtype::F8_E4M3)
      return add_nvfp4(number, name, TensorKind::SecondScale, TensorKind::InputScale);
    add_fp4_bytes(number, tensor.name, name.of(TensorKind::PlainScale));
  }

  /// Bytes may be codes whose scales are not there, or those of another program.
  void find_bytes_without_scales(std::size_t number) {
    const TensorRef& tensor = at(number);
    if (config_.method.empty() || tensor.shape.size() < 2) return;
    const bool is_known = config_.method == "modelopt" || config_.method == "quark";
    cannot_decode(number, is_known ? ErrorCode::ScaleMissing : ErrorCode::NotSupported,
                  fmt::format("U8 {} without scales; --decode has no rule for it under quantization by '{}'{}",
                              shape_text(tensor.shape), config_.method, is_known ? "; is the download complete?" : ""));
  }

  void add_nvfp4(std::size_t number, const WeightName& name, TensorKind global, TensorKind of_inputs) {
    require_algorithm_is_not(at(number), "FP8");
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), widened(number, 2), Codes::E2m1);
    weight.scales = scales_of(number, {name.of(TensorKind::PlainScale)});
    require_scale_dtype(weight, {Dtype::F8_E4M3});
    weight.global = scales_of(number, {name.of(global)});
    weight.global_divides = global == TensorKind::GlobalScale;
    weight.positive_zero = !weight.global_divides;
    take_if_there(name.of(of_inputs));
    const TensorRef& second = at(*weight.global);
    weight.scales_of_parts = are_of_parts(weight, *weight.global);
    if (second.dtype != Dtype::F32 || product(second.shape) != weight.matrices * (weight.scales_of_parts ? 2 : 1))
      fail(ErrorCode::SizeMismatch, {{}, second.name},
           "'{}': {} {} for '{}' of {}; expected F32 and one value a matrix", second.name, dtype_name(second.dtype),
           shape_text(second.shape), weight.name, shape_text(weight.shape));
    set_cell(weight, {{1, 16}});
    add(weight, "NVFP4");
  }

  // ---- INT4 -------------------------------------------------------------------------------------

  void add_packed_int4(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    require_method(tensor, {"compressed-tensors"});
    require_four_bits(tensor);
    if (config_.bits_differ)
      cannot_decode(
          number, ErrorCode::NotSupported,
          "quantization_config has groups of modules with other numbers of bits, and which of them this weight "
          "is in is not looked up");
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), widened(number, kWordCodes), Codes::Int4);
    weight.scales = scales_of(number, {name.of(TensorKind::PlainScale)});
    require_scale_dtype(weight, {Dtype::BF16, Dtype::F16, Dtype::F32});
    weight.stated_shape = number_of(name.of(TensorKind::WeightShape));
    if (weight.stated_shape) take(*weight.stated_shape);
    set_cell(weight, {{1, group_size(weight)}, {1, weight.cols}});
    const i64 words = (weight.rows + kWordCodes - 1) / kWordCodes;
    if (const auto zeros = number_of(name.of(TensorKind::ZeroPoint))) {
      weight.zeros = take(*zeros);
      check_part(weight, *zeros, Dtype::I32, {words, weight.grid_cols()});
    } else if (config_.symmetric == false) {
      scales_of(number, {name.of(TensorKind::ZeroPoint)});
    } else if (config_.some_asymmetric) {
      cannot_decode(number, ErrorCode::ScaleMissing, missing_zeros(name.of(TensorKind::ZeroPoint)));
    }
    if (const auto groups = number_of(name.of(TensorKind::PackedGroupIndex))) {
      weight.groups = take(*groups);
      const bool of_two = at(*groups).shape.size() == weight.shape.size();
      check_part(weight, *groups, Dtype::I32,
                 of_two ? std::vector<i64>{2, weight.cols} : std::vector<i64>{weight.cols});
    } else if (config_.some_reordered && weight.grid_cols() > 1) {
      cannot_decode(number, ErrorCode::ScaleMissing,
                    fmt::format("quantization_config says that columns were reordered ('actorder'), and '{}' is not "
                                "there",
                                name.of(TensorKind::PackedGroupIndex)));
    }
    const std::string of = weight.zeros ? ", asymmetric" : "";
    add(weight, weight.cell_cols == weight.cols ? "INT4 per channel" + of
                                                : fmt::format("INT4 in groups of {}{}", weight.cell_cols, of));
  }

  /// The columns of a group, by the scales where the configuration does not say it.
  i64 group_size(const QuantizedTensor& weight) const {
    const std::vector<i64>& scales = at(weight.scales).shape;
    const i64 groups = scales.empty() || scales.back() <= 0 ? 1 : scales.back();
    const i64 size = config_.group_size ? *config_.group_size : weight.cols / groups;
    // Two codes share a byte.
    return std::max<i64>(size / 2 * 2, 2);
  }

  void add_words(std::size_t number, const WeightName& name) {
    const TensorRef& tensor = at(number);
    if (config_.method != "awq" && config_.method != "gptq")
      fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
           "'{}' is AWQ's or GPTQ's, which only quantization_config tells apart, and it says {}", tensor.name,
           config_.method.empty() ? "nothing" : "'" + config_.method + "'");
    require_four_bits(tensor);
    const bool awq = config_.method == "awq";
    const std::string_view known = awq ? "gemm" : "gptq";
    if (!config_.version.empty() && config_.version != known && config_.version != "gptq_v2")
      fail(ErrorCode::NotSupported, {{}, tensor.name}, "'{}': {} of version '{}' cannot be decoded; '{}' can",
           tensor.name, config_.method, config_.version, known);
    if (tensor.shape.size() < 2) fail_axes(number);
    std::vector<i64> shape = leading_axes(tensor.shape);
    const i64 in = tensor.shape[shape.size()], out = tensor.shape.back();
    shape.push_back(awq ? checked_mul(out, kWordCodes).value_or(0) : out);
    shape.push_back(awq ? in : checked_mul(in, kWordCodes).value_or(0));
    QuantizedTensor weight = weight_of(number, name.of(TensorKind::Weight), shape, awq ? Codes::Awq : Codes::Gptq);
    weight.scales = scales_of(number, {name.of(TensorKind::Scales)});
    require_scale_dtype(weight, {Dtype::F16, Dtype::BF16, Dtype::F32});
    weight.cell_cols = config_.group_size.value_or(weight.cols);
    check_part(weight, weight.scales, at(weight.scales).dtype, {weight.grid_cols(), weight.rows});
    if (const auto zeros = number_of(name.of(TensorKind::QZeros))) {
      weight.zeros = take(*zeros);
      check_part(weight, *zeros, Dtype::I32, {weight.grid_cols(), (weight.rows + kWordCodes - 1) / kWordCodes});
    } else if (!config_.symmetric.value_or(false)) {
      scales_of(number, {name.of(TensorKind::QZeros)});
    }
    if (weight.rows % kWordCodes != 0)
      cannot_decode(
          number, ErrorCode::NotSupported,
          fmt::format("{} rows, no multiple of the {} that share a word of zero points", weight.rows, kWordCodes));
    if (!awq && weight.zeros) weight.zero_offset = config_.version == "gptq_v2" ? 0 : 1;
    if (const auto groups = number_of(name.of(TensorKind::GroupIndex)); groups && !awq) {
      weight.groups = take(*groups);
      const bool of_two = at(*groups).shape.size() == weight.shape.size();
      check_part(weight, *groups, Dtype::I32,
                 of_two ? std::vector<i64>{weight.cols, 2} : std::vector<i64>{weight.cols});
    } else if (!awq && config_.some_reordered && weight.grid_cols() > 1) {
      scales_of(number, {name.of(TensorKind::GroupIndex)});
    }
    add(weight, fmt::format("{} in groups of {}", awq ? "AWQ" : "GPTQ", weight.cell_cols));
  }

  /// A tensor of a weight has its leading axes, and these for each matrix.
  void check_part(const QuantizedTensor& weight, std::size_t number, Dtype dtype,
                  const std::vector<i64>& of_one) const {
    const TensorRef& tensor = at(number);
    std::vector<i64> expected = leading_axes(weight.shape);
    expected.insert(expected.end(), of_one.begin(), of_one.end());
    if (tensor.dtype != dtype || tensor.shape != expected)
      fail(ErrorCode::SizeMismatch, {{}, tensor.name}, "'{}': {} {} for '{}' of {} in groups of {}; expected {} {}",
           tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), weight.name, shape_text(weight.shape),
           weight.cell_cols, dtype_name(dtype), shape_text(expected));
  }

  static std::string missing_zeros(const std::string& name) {
    return fmt::format(
        "quantization_config has groups of modules with zero points ('symmetric': false), and '{}' is "
        "not there",
        name);
  }

  // ---- checks -----------------------------------------------------------------------------------

  void require_method(const TensorRef& tensor, std::initializer_list<std::string_view> methods) const {
    if (config_.method.empty() || std::ranges::find(methods, config_.method) != methods.end()) return;
    fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
         "'{}' is {} {}, but quantization_config says '{}', which does not store weights so", tensor.name,
         dtype_name(tensor.dtype), shape_text(tensor.shape), config_.method);
  }

  /// ModelOpt says MIXED_PRECISION where weights of several formats are meant.
  void require_algorithm_is_not(const TensorRef& tensor, std::string_view other) const {
    if (config_.method != "modelopt" || !config_.format.starts_with(other)) return;
    fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
         "'{}' is {} {}, but quantization_config says quant_algo '{}', which does not store weights so", tensor.name,
         dtype_name(tensor.dtype), shape_text(tensor.shape), config_.format);
  }

  /// Patterns and parts of names are not tried: programs differ in what they match.
  void require_not_skipped(const QuantizedTensor& weight) const {
    const std::string module = plain_weight_name(weight.name).base;
    if (std::ranges::find(config_.skipped, module) == config_.skipped.end()) return;
    fail(
        ErrorCode::QuantConfigContradicts, {{}, at(weight.weight).name},
        "'{}' is {} with scales, but quantization_config lists '{}' among the modules that are not quantized: programs "
        "would read the codes as weights",
        at(weight.weight).name, dtype_name(at(weight.weight).dtype), module);
  }

  void require_four_bits(const TensorRef& tensor) const {
    if (config_.bits.value_or(4) != 4)
      fail(ErrorCode::NotSupported, {{}, tensor.name}, "'{}': weights of {} bits cannot be decoded; 4 can", tensor.name,
           *config_.bits);
  }

  void require_scale_dtype(const QuantizedTensor& weight, std::initializer_list<Dtype> dtypes) const {
    const TensorRef& scales = at(weight.scales);
    if (std::ranges::find(dtypes, scales.dtype) != dtypes.end()) return;
    std::string known;
    for (const Dtype dtype : dtypes) known += fmt::format("{}{}", known.empty() ? "" : ", ", dtype_name(dtype));
    fail(ErrorCode::NotSupported, {{}, scales.name}, "'{}': {} scales for '{}' of {} cannot be decoded; {} can",
         scales.name, dtype_name(scales.dtype), weight.name, shape_text(weight.shape), known);
  }

  /// Refuses codes or scales among the tensors that are left.
  void check_orphans() const {
    constexpr std::array kOfCodes = {TensorKind::PackedWeight, TensorKind::QWeight};
    constexpr std::array kOfScales = {TensorKind::Scale,       TensorKind::PlainScale, TensorKind::SecondScale,
                                      TensorKind::GlobalScale, TensorKind::InputScale, TensorKind::Scales,
                                      TensorKind::QZeros};
    const auto is_any_of = [](const std::string& name, const auto& kinds) {
      return std::ranges::any_of(kinds, [&](TensorKind kind) {
        const auto of = weight_name(name, kind);
        return of && (of->is_layer || of->base.ends_with("_proj"));
      });
    };
    const std::set<std::size_t> used(found_.companions.begin(), found_.companions.end());
    std::set<std::size_t> weights;
    for (const QuantizedTensor& weight : found_.tensors) weights.insert(weight.weight);
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      const std::string& name = at(i).name;
      if (used.contains(i) || weights.contains(i)) continue;
      if (is_any_of(name, kOfScales))
        fail(ErrorCode::ScaleOrphan, {{}, name},
             "'{}': {} {}, scales of no quantized weight that is there; is the download complete?", name,
             dtype_name(at(i).dtype), shape_text(at(i).shape));
      if (is_any_of(name, kOfCodes))
        fail(ErrorCode::NotSupported, {{}, name},
             "'{}': codes in {} {} cannot be decoded; those in U8 (FP4) and I32 (INT4) can", name,
             dtype_name(at(i).dtype), shape_text(at(i).shape));
    }
  }

  std::string decoder_name() const {
    if (config_.method == "fp8" || config_.method.empty()) return "deepseek";
    if (config_.method == "mxfp4") return "gpt-oss";
    return config_.method;
  }

  const Inventory& inventory_;
  const QuantConfig& config_;
  std::unordered_map<std::string, std::size_t> numbers_;
  std::set<std::string> formats_;
  Quantization found_;
};

}  // namespace

Quantization find_quantized(const Inventory& inventory, const QuantConfig& config) {
  return Finder(inventory, config).find();
}

}  // namespace glu_ckpt
