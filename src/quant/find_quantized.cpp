#include "quant/find_quantized.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "core/checked_math.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// AWQ and GPTQ put so many codes of four bits in a word.
constexpr i64 kWordCodes = 8;

struct Cell {
  i64 rows = 1;
  i64 cols = 1;
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

std::string without_suffix(const std::string& name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
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
    const std::string& name = tensor.name;
    const bool of_bytes = tensor.dtype == Dtype::U8;
    if (is_fp8_weight(tensor)) return add_fp8(number);
    if (name.ends_with("_blocks") && of_bytes) return add_blocks(number);
    if (name.ends_with(".weight_packed") && of_bytes) return add_packed_fp4(number);
    if (name.ends_with(".weight_packed") && tensor.dtype == Dtype::I32) return add_packed_int4(number);
    if (name.ends_with(".weight") && of_bytes) return add_modelopt_fp4(number);
    if (name.ends_with(".weight") && tensor.dtype == Dtype::I8) return add_int8(number);
    if (name.ends_with(".qweight") && tensor.dtype == Dtype::I32) return add_words(number);
  }

  /// The scales of NVFP4 are FP8, too.
  static bool is_fp8_weight(const TensorRef& tensor) {
    const bool is_fp8 = tensor.dtype == Dtype::F8_E4M3 || tensor.dtype == Dtype::F8_E5M2;
    return is_fp8 && tensor.shape.size() >= 2 && !tensor.name.ends_with("_scale") && !tensor.name.ends_with(".scale");
  }

  // ---- one weight -------------------------------------------------------------------------------

  /// The scales of a weight by any of the names that writers give them.
  std::size_t scales_of(std::size_t weight, std::initializer_list<std::string> names) {
    for (const std::string& name : names)
      if (const auto number = number_of(name)) return take(*number);
    const TensorRef& tensor = at(weight);
    fail(ErrorCode::ScaleMissing, {{}, tensor.name},
         "'{}': {} codes without scales: '{}' is not there. Without them the weight is lost; is the download complete?",
         tensor.name, dtype_name(tensor.dtype), *names.begin());
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

  void add(QuantizedTensor weight, const std::string& format) {
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
    const std::string& name = tensor.name;
    require_method(tensor, {"fp8", "compressed-tensors", "modelopt", "mxfp8", "fbgemm_fp8"});
    const std::string stem = name.ends_with(".weight") ? without_suffix(name, "weight") : name + "_";
    QuantizedTensor weight =
        weight_of(number, name, tensor.shape, tensor.dtype == Dtype::F8_E4M3 ? Codes::E4m3 : Codes::E5m2);
    const bool has_module = name.ends_with(".weight");
    weight.scales = has_module ? scales_of(number, {name + "_scale_inv", name + "_scale", stem + "scale"})
                               : scales_of(number, {name + "_scale_inv", name + "_scale"});
    take_if_there(stem + "input_scale");
    take_if_there(stem + "activation_scale");
    const Dtype scale_dtype = at(weight.scales).dtype;
    require_scale_dtype(weight, {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E8M0, Dtype::U8});
    const Cell block{config_.block_rows.value_or(128), config_.block_cols.value_or(128)};
    std::vector<Cell> cells = {{weight.rows, weight.cols}, {1, weight.cols}, block};
    if (scale_dtype == Dtype::U8) cells = {{1, 32}};
    if (scale_dtype == Dtype::F8_E8M0) cells = {block, {1, 32}};
    // A scale for each row and one block of the columns is no different from one for each row.
    if (config_.block_rows && scale_dtype != Dtype::U8) cells = {block};
    set_cell(weight, cells);
    add(weight, fp8_format(weight));
  }

  static std::string fp8_format(const QuantizedTensor& weight) {
    if (weight.cell_rows == 1 && weight.cell_cols == 32) return "MXFP8";
    if (weight.cell_rows == weight.rows && weight.cell_cols == weight.cols) return "FP8 per tensor";
    if (weight.cell_rows == 1 && weight.cell_cols == weight.cols) return "FP8 per channel";
    return fmt::format("FP8 in {}x{} blocks", weight.cell_rows, weight.cell_cols);
  }

  /// DeepSeek-V4 keeps two codes of FP4 in a byte that it calls I8, which the shape of the scales tells from INT8.
  void add_int8(std::size_t number) {
    const TensorRef& tensor = at(number);
    const std::string stem = without_suffix(tensor.name, "weight");
    const auto of_fp4 = number_of(stem + "scale");
    if (of_fp4 && at(*of_fp4).dtype == Dtype::F8_E8M0) return add_fp4_bytes(number, tensor.name, {stem + "scale"});
    require_method(tensor, {"compressed-tensors"});
    QuantizedTensor weight = weight_of(number, tensor.name, tensor.shape, Codes::Int8);
    weight.scales = scales_of(number, {stem + "weight_scale"});
    take_if_there(stem + "input_scale");
    require_scale_dtype(weight, {Dtype::F32, Dtype::BF16, Dtype::F16});
    set_cell(weight, {{1, weight.cols}, {weight.rows, weight.cols}});
    add(weight, weight.cell_rows == 1 ? "INT8 per channel" : "INT8 per tensor");
  }

  // ---- FP4 --------------------------------------------------------------------------------------

  /// Bytes of two codes, with a power of two for each 32 of a row.
  void add_fp4_bytes(std::size_t number, const std::string& name, std::initializer_list<std::string> scales) {
    QuantizedTensor weight = weight_of(number, name, widened(number, 2), Codes::E2m1);
    weight.scales = scales_of(number, scales);
    require_scale_dtype(weight, {Dtype::U8, Dtype::F8_E8M0});
    set_cell(weight, {{1, 32}});
    add(weight, "MXFP4");
  }

  /// gpt-oss: [experts, out, in / 32, 16], decoded as [experts, in, out].
  void add_blocks(std::size_t number) {
    const TensorRef& tensor = at(number);
    const std::string name = without_suffix(tensor.name, "_blocks");
    if (tensor.shape.size() != 4 || tensor.shape[3] != 16) return;
    require_method(tensor, {"mxfp4"});
    const i64 experts = tensor.shape[0], out = tensor.shape[1], in = 32 * tensor.shape[2];
    QuantizedTensor weight = weight_of(number, name, {experts, out, in}, Codes::E2m1);
    weight.shape = {experts, in, out};
    weight.transposed = true;
    weight.scales = scales_of(number, {name + "_scales"});
    require_scale_dtype(weight, {Dtype::U8, Dtype::F8_E8M0});
    set_cell(weight, {{1, 32}});
    add(weight, "MXFP4");
  }

  void add_packed_fp4(std::size_t number) {
    const TensorRef& tensor = at(number);
    require_method(tensor, {"compressed-tensors"});
    const std::string stem = without_suffix(tensor.name, "weight_packed");
    const auto scales = number_of(stem + "weight_scale");
    if (scales && at(*scales).dtype == Dtype::F8_E4M3)
      return add_nvfp4(number, stem, "weight_global_scale", {"input_global_scale"});
    add_fp4_bytes(number, stem + "weight", {stem + "weight_scale"});
  }

  void add_modelopt_fp4(std::size_t number) {
    const TensorRef& tensor = at(number);
    const std::string stem = without_suffix(tensor.name, "weight");
    const auto scales = number_of(stem + "weight_scale");
    if (!scales) return;
    require_method(tensor, {"modelopt", "quark"});
    if (at(*scales).dtype == Dtype::F8_E4M3) return add_nvfp4(number, stem, "weight_scale_2", {"input_scale"});
    add_fp4_bytes(number, tensor.name, {stem + "weight_scale"});
  }

  void add_nvfp4(std::size_t number, const std::string& stem, std::string_view global,
                 std::initializer_list<std::string_view> of_inputs) {
    QuantizedTensor weight = weight_of(number, stem + "weight", widened(number, 2), Codes::E2m1);
    weight.scales = scales_of(number, {stem + "weight_scale"});
    require_scale_dtype(weight, {Dtype::F8_E4M3});
    weight.global = scales_of(number, {stem + std::string(global)});
    weight.global_divides = global == "weight_global_scale";
    weight.positive_zero = !weight.global_divides;
    for (const std::string_view name : of_inputs) take_if_there(stem + std::string(name));
    const TensorRef& second = at(*weight.global);
    if (second.dtype != Dtype::F32 || product(second.shape) != weight.matrices)
      fail(ErrorCode::SizeMismatch, {{}, second.name},
           "'{}': {} {} for '{}' of {}; expected F32 and one value a matrix", second.name, dtype_name(second.dtype),
           shape_text(second.shape), weight.name, shape_text(weight.shape));
    set_cell(weight, {{1, 16}});
    add(weight, "NVFP4");
  }

  // ---- INT4 -------------------------------------------------------------------------------------

  void add_packed_int4(std::size_t number) {
    const TensorRef& tensor = at(number);
    require_method(tensor, {"compressed-tensors"});
    require_four_bits(tensor);
    const std::string stem = without_suffix(tensor.name, "weight_packed");
    QuantizedTensor weight = weight_of(number, stem + "weight", widened(number, kWordCodes), Codes::Int4);
    weight.scales = scales_of(number, {stem + "weight_scale"});
    require_scale_dtype(weight, {Dtype::BF16, Dtype::F16, Dtype::F32});
    take_if_there(stem + "weight_shape");
    refuse_if_there(stem + "weight_g_idx", weight, "columns in another order (actorder)");
    refuse_if_there(stem + "weight_zero_point", weight, "zero points (asymmetric)");
    set_cell(weight, {{1, group_size(weight)}, {1, weight.cols}});
    add(weight,
        weight.cell_cols == weight.cols ? "INT4 per channel" : fmt::format("INT4 in groups of {}", weight.cell_cols));
  }

  /// The columns of a group, by the scales where the configuration does not say it.
  i64 group_size(const QuantizedTensor& weight) const {
    const std::vector<i64>& scales = at(weight.scales).shape;
    const i64 groups = scales.empty() || scales.back() <= 0 ? 1 : scales.back();
    const i64 size = config_.group_size ? *config_.group_size : weight.cols / groups;
    // Two codes share a byte.
    return std::max<i64>(size / 2 * 2, 2);
  }

  void add_words(std::size_t number) {
    const TensorRef& tensor = at(number);
    const std::string stem = without_suffix(tensor.name, "qweight");
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
    require_axes(tensor, 2);
    QuantizedTensor weight =
        awq ? weight_of(number, stem + "weight", {widened(number, kWordCodes)[1], tensor.shape[0]}, Codes::Awq)
            : weight_of(number, stem + "weight",
                        {tensor.shape[1], checked_mul(tensor.shape[0], kWordCodes).value_or(0)}, Codes::Gptq);
    weight.scales = scales_of(number, {stem + "scales"});
    require_scale_dtype(weight, {Dtype::F16, Dtype::BF16, Dtype::F32});
    if (const auto zeros = number_of(stem + "qzeros")) weight.zeros = take(*zeros);
    if (!awq && weight.zeros) weight.zero_offset = config_.version == "gptq_v2" ? 0 : 1;
    if (const auto groups = number_of(stem + "g_idx"); groups && !awq) weight.groups = take(*groups);
    check_words(weight);
    add(weight, fmt::format("{} in groups of {}", awq ? "AWQ" : "GPTQ", weight.cell_cols));
  }

  /// Scales are [groups, out], zeros [groups, out / 8].
  void check_words(QuantizedTensor& weight) const {
    const TensorRef& scales = at(weight.scales);
    require_axes(scales, 2);
    const i64 groups = scales.shape[0];
    const i64 size = config_.group_size.value_or(weight.cols);
    weight.cell_cols = size;
    const auto check = [&](const TensorRef& tensor, const std::vector<i64>& expected) {
      if (tensor.shape != expected)
        fail(ErrorCode::SizeMismatch, {{}, tensor.name}, "'{}': {} for '{}' of {} in groups of {}; expected {}",
             tensor.name, shape_text(tensor.shape), weight.name, shape_text(weight.shape), size, shape_text(expected));
    };
    check(scales, {cells_in(weight.cols, size), weight.rows});
    if (weight.zeros) check(at(*weight.zeros), {groups, weight.rows / kWordCodes});
    if (weight.groups) check(at(*weight.groups), {weight.cols});
  }

  // ---- checks -----------------------------------------------------------------------------------

  void require_axes(const TensorRef& tensor, std::size_t axes) const {
    if (tensor.shape.size() != axes)
      fail(ErrorCode::SizeMismatch, {{}, tensor.name}, "'{}': {}; expected {} axes", tensor.name,
           shape_text(tensor.shape), axes);
  }

  void require_method(const TensorRef& tensor, std::initializer_list<std::string_view> methods) const {
    if (config_.method.empty() || std::ranges::find(methods, config_.method) != methods.end()) return;
    fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
         "'{}' is {} {}, but quantization_config says '{}', which does not store weights so", tensor.name,
         dtype_name(tensor.dtype), shape_text(tensor.shape), config_.method);
  }

  void require_four_bits(const TensorRef& tensor) const {
    if (config_.bits.value_or(4) != 4)
      fail(ErrorCode::NotSupported, {{}, tensor.name}, "'{}': weights of {} bits cannot be decoded; 4 can", tensor.name,
           *config_.bits);
  }

  void require_scale_dtype(const QuantizedTensor& weight, std::initializer_list<Dtype> dtypes) const {
    const TensorRef& scales = at(weight.scales);
    if (std::ranges::find(dtypes, scales.dtype) != dtypes.end()) return;
    fail(ErrorCode::NotSupported, {{}, scales.name}, "'{}': {} scales for '{}' cannot be decoded", scales.name,
         dtype_name(scales.dtype), weight.name);
  }

  void refuse_if_there(const std::string& name, const QuantizedTensor& weight, std::string_view what) const {
    if (number_of(name))
      fail(ErrorCode::NotSupported, {{}, name}, "'{}': {} of '{}' cannot be decoded by this version", name, what,
           weight.name);
  }

  void check_orphans() const {
    constexpr std::array<std::string_view, 9> kOfScales = {
        ".weight_scale_inv", ".weight_scale", ".weight_scale_2", ".weight_global_scale", ".input_scale",
        ".scales",           ".qzeros",       "_proj_scales",    "_proj_scale_inv"};
    const std::set<std::size_t> used(found_.companions.begin(), found_.companions.end());
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      const std::string& name = at(i).name;
      const bool is_scale = std::ranges::any_of(kOfScales, [&](std::string_view end) { return name.ends_with(end); });
      if (is_scale && !used.contains(i))
        fail(ErrorCode::ScaleOrphan, {{}, name}, "'{}': scales of no quantized weight that is there", name);
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
