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

/// gpt-oss stores the codes of so many columns as an axis.
constexpr i64 kBlockCodes = 32;

class Finder : private PartFinder {
 public:
  Finder(const Inventory& inventory, const QuantConfig& config, const WeightAxes& axes)
      : PartFinder(inventory, config, axes) {}

  Quantization find() {
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) find_at(i);
    config_ = &all_config_;
    judge_by_siblings();
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
    for (const TensorKind kind : {TensorKind::Blocks, TensorKind::PackedWeight, TensorKind::QWeight})
      if (const auto name = weight_name(tensor.name, kind); name && !forms_of(kind, tensor.dtype).empty())
        return add_codes(number, *name, kind);
    const WeightName name = plain_weight_name(tensor.name);
    const bool of_bytes = tensor.dtype == Dtype::U8;
    const bool is_int8 = tensor.dtype == Dtype::I8 && (name.is_layer || number_of(name, TensorKind::Scale));
    if (is_fp8_weight(tensor) || is_int8 || ((of_bytes || tensor.dtype == Dtype::I8) && has_scales(name)))
      return add_codes(number, name, TensorKind::Weight);
    if (of_bytes && name.is_layer && !config_->method.empty() && tensor.shape.size() >= 2)
      bytes_without_scales_.push_back(number);
  }

  /// The scales of NVFP4 are FP8, too.
  static bool is_fp8_weight(const TensorRef& tensor) {
    const bool is_fp8 = tensor.dtype == Dtype::F8_E4M3 || tensor.dtype == Dtype::F8_E5M2;
    // Without elements it holds no codes.
    const bool is_empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
    return is_fp8 && !is_empty && tensor.shape.size() >= 2 && !tensor.name.ends_with("_scale") &&
           !tensor.name.ends_with(".scale");
  }

  /// The form of the codes, by the dtype of the scales that are there, and the names that those may have.
  struct ChosenForm {
    FormRef of;
    std::vector<std::string> scales;
  };

  ChosenForm choose_form(std::size_t number, const WeightName& name, TensorKind kind) const {
    const TensorRef& tensor = at(number);
    std::vector<FormRef> forms = forms_of(kind, tensor.dtype);
    if (kind == TensorKind::QWeight) forms = {form_of_words(tensor)};
    ChosenForm chosen{forms.front(), {}};
    // DeepSeek-V4's word.
    bool has_v4_word = false;
    const auto add = [&](std::string scales) {
      if (std::ranges::find(chosen.scales, scales) == chosen.scales.end()) chosen.scales.push_back(std::move(scales));
    };
    for (const FormRef& each : forms)
      for (const FormatPart& part : each.form->parts) {
        if (part.use != PartUse::Scales) continue;
        for (std::string& scales : name.all_of(part.kind)) add(std::move(scales));
        has_v4_word = has_v4_word || (part.kind == TensorKind::Scale && name.is_layer);
      }
    if (has_v4_word) add(name.base + ".scale");
    for (const std::string& scales : chosen.scales)
      if (const auto found = number_of(scales)) chosen.of = form_of(*found, number, forms);
    return chosen;
  }

  /// Of codes in words, the shape of the weight is that of its format: AWQ and GPTQ store [in, out].
  std::vector<i64> decoded_shape(std::size_t number, TensorKind kind, const ElementGrid& packing) const {
    std::vector<i64> shape = at(number).shape;
    if (kind == TensorKind::Blocks) shape.pop_back();
    i64 &rows = shape[shape.size() - 2], &cols = shape.back();
    if (stored_axes(kind, kind, Axes::OutIn) == Axes::InOut) std::swap(rows, cols);
    rows = checked_mul(rows, i64{packing.rows}).value_or(0);
    // gpt-oss's blocks are those of a scale.
    cols = checked_mul(cols, kind == TensorKind::Blocks ? kBlockCodes : i64{packing.cols}).value_or(0);
    return shape;
  }

  /// Says that the scales are those of a format that is known by their names alone; empty where they are not.
  std::string words_of_foreign_scales(std::size_t number, const WeightName& name,
                                      const std::vector<std::string>& scales) const {
    const auto is_there = [&](const std::string& one) { return number_of(one).has_value(); };
    if (std::ranges::any_of(scales, is_there)) return {};
    for (const QuantFormat* format : quant_formats())
      for (const std::string_view word : format->foreign_scales)
        for (const std::string& base : {name.base, at(number).name})
          if (const std::string found = fmt::format("{}.{}", base, word); is_there(found))
            return fmt::format("{} {}, with scales in '{}', as {} stores them: --decode has no rule for them",
                               dtype_name(at(number).dtype), shape_text(at(number).shape), found, format->name);
    return {};
  }

  void add_codes(std::size_t number, const WeightName& name, TensorKind kind) {
    const TensorRef& tensor = at(number);
    const bool in_words = tensor.dtype == Dtype::I32;
    // Blocks of other sizes are another program's.
    if (kind == TensorKind::Blocks &&
        (tensor.shape.size() < 3 || tensor.shape.size() > 4 ||
         tensor.shape.back() != (tensor.dtype == Dtype::U8 ? kBlockCodes / 2 : kBlockCodes)))
      return;
    if (tensor.shape.size() < 2) fail_axes(number);
    const auto [of, scales] = choose_form(number, name, kind);
    const auto& [format, form] = of;
    if (const std::string why = words_of_foreign_scales(number, name, scales); !why.empty())
      return cannot_decode(number, ErrorCode::NotSupported, why);
    require_meant(tensor, *format);
    if (kind == TensorKind::PackedWeight && in_words && config_->bits_differ)
      cannot_decode(
          number, ErrorCode::NotSupported,
          "quantization_config has groups of modules with other numbers of bits, and which of them this weight "
          "is in is not looked up");
    QuantizedTensor weight =
        weight_of(number, name.of(TensorKind::Weight), decoded_shape(number, kind, form->packing), form->codes);
    weight.format = format;
    weight.has_block_axis = kind == TensorKind::Blocks;
    weight.scales = scales_of(number, scales);
    for (const FormatPart& part : form->parts)
      if (part.use == PartUse::Inputs) take_if_there(name, part.kind);
    take_if_there(name.base + (name.is_layer ? ".activation_scale" : "_activation_scale"));
    const bool by_naming = kind == TensorKind::Weight;
    const std::optional<Axes> axes = by_naming ? axes_of(number, name) : Axes::OutIn;
    const bool was_turned = by_naming && form->packing == kNibbles && axes != Axes::OutIn && find_turned(weight, *form);
    if (!was_turned) read_scales(weight, kind, form->packing == kNibbles ? Axes::OutIn : axes);
    for (const FormatPart& part : form->parts)
      if (part.use == PartUse::Multiplier || part.use == PartUse::Divisor) add_second_scale(weight, name, kind, part);
    require_strategy(weight);
    if (weight.codes == Codes::Int8) check_no_zeros(weight, name);
    if (const FormatPart* part = form->part(PartUse::StatedShape)) weight.stated_shape = taken(name.of(part->kind));
    if (const FormatPart* part = form->part(PartUse::Zeros)) add_zeros(weight, name, kind, *part);
    if (const FormatPart* part = form->part(PartUse::Order)) add_order(weight, name, kind, *part);
    // Another family's names may be given to gpt-oss's blocks.
    const std::optional<Axes> of_naming = axes_of(number, {name.base, name.is_layer && !weight.has_block_axis});
    const bool turns = weight.has_block_axis ? of_naming != Axes::OutIn : of_naming == Axes::InOut;
    if (!was_turned && turns && (!by_naming || form->packing == kNibbles)) turn(weight);
    add(std::move(weight));
  }

  /// ModelOpt turns the bytes and the scales of some namings: then a byte has two codes of a column.
  bool find_turned(QuantizedTensor& weight, const CodeForm& form) const {
    const std::size_t number = weight.weight, scales = weight.scales;
    std::vector<i64> turned = at(number).shape;
    i64& rows = turned[turned.size() - 2];
    rows = checked_mul(rows, 2).value_or(0);
    const std::vector<i64>& of_turned = at(scales).shape;
    if (of_turned.size() != turned.size() || leading_axes(of_turned) != leading_axes(turned)) return false;
    const StoredWeight of{TensorKind::Weight, at(number).dtype, {turned.back(), rows}, 1, Axes::InOut};
    const auto grid = find_grid(form.part(PartUse::Scales)->kind, at(scales).dtype, std::span(of_turned).last(2), of);
    if (!grid || rows % grid->cols != 0) return false;
    const i64 group = grid->cols;
    if (turned.back() % 2 != 0)
      fail(ErrorCode::NotSupported, {{}, at(number).name},
           "'{}': {}, turned codes of an odd number of columns, which --decode has no rule for", at(number).name,
           shape_text(at(number).shape));
    const QuantFormat* format = weight.format;
    weight = weight_of(number, weight.name, std::move(turned), form.codes);
    weight.format = format;
    weight.scales = scales;
    weight.in_out = weight.pairs_of_rows = true;
    weight.cell_rows = group;
    return true;
  }

  void add_second_scale(QuantizedTensor& weight, const WeightName& name, TensorKind codes, const FormatPart& part) {
    weight.global = scales_of(weight.weight, name.all_of(part.kind));
    weight.global_divides = part.use == PartUse::Divisor;
    const TensorRef& second = at(*weight.global);
    weight.one_for_all = weight.matrices > 1 && checked_product(second.shape) == 1;
    const i64 parts = second_scale_parts(weight, codes, part);
    weight.scales_of_parts = parts == 2;
    if (!part.dtypes.contains(second.dtype) || (parts == 0 && !weight.one_for_all))
      fail(ErrorCode::SizeMismatch, {{}, second.name},
           "'{}': {} {} for '{}' of {}; expected F32 and one value a matrix", second.name, dtype_name(second.dtype),
           shape_text(second.shape), weight.name, shape_text(weight.shape));
  }

  void check_no_zeros(const QuantizedTensor& weight, const WeightName& name) {
    const std::string zeros = name.of(TensorKind::ZeroPoint);
    if (const auto found = taken(zeros))
      cannot_decode(*found, ErrorCode::NotSupported, "--decode has no rule for INT8 with zero points");
    else if (config_->some_asymmetric)
      cannot_decode(weight.weight, ErrorCode::ScaleMissing, missing_zeros(zeros));
  }

  void add_zeros(QuantizedTensor& weight, const WeightName& name, TensorKind codes, const FormatPart& part) {
    const bool is_qzeros = part.kind == TensorKind::QZeros;
    weight.zeros = taken(name.of(part.kind));
    if (weight.zeros)
      check_part(weight, *weight.zeros, codes, part);
    else if (is_qzeros ? config_->symmetric != true : config_->symmetric == false)
      scales_of(weight.weight, {name.of(part.kind)});
    else if (config_->some_asymmetric && !is_qzeros)
      cannot_decode(weight.weight, ErrorCode::ScaleMissing, missing_zeros(name.of(part.kind)));
    if (!is_qzeros) return;
    if (const i64 word = part.grids.begin()->grid.rows; weight.rows % word != 0)
      cannot_decode(weight.weight, ErrorCode::NotSupported,
                    fmt::format("{} rows, no multiple of the {} that share a word of zero points", weight.rows, word));
    const bool is_first = config_->version.empty() || config_->version == *weight.format->versions.begin();
    if (weight.zeros && is_first) weight.zero_offset = weight.format->zero_offset;
    weight.zeros_are_said_8 = weight.zeros && config_->symmetric == true;
  }

  void add_order(QuantizedTensor& weight, const WeightName& name, TensorKind codes, const FormatPart& part) {
    weight.groups = taken(name.of(part.kind));
    if (weight.groups) return check_part(weight, *weight.groups, codes, part);
    if (!config_->some_reordered || weight.grid_cols() <= 1) return;
    if (part.kind == TensorKind::GroupIndex) scales_of(weight.weight, {name.of(part.kind)});
    cannot_decode(
        weight.weight, ErrorCode::ScaleMissing,
        fmt::format("quantization_config says that columns were reordered ('actorder'), and '{}' is not there",
                    name.of(part.kind)));
  }

  /// The format of words that quant_method means.
  FormRef form_of_words(const TensorRef& tensor) const {
    for (const FormRef& each : forms_of(TensorKind::QWeight, tensor.dtype)) {
      if (each.format != format_of_words(config_->method)) continue;
      const auto& versions = each.format->versions;
      if (!config_->version.empty() && !versions.contains(config_->version))
        fail(ErrorCode::NotSupported, {{}, tensor.name}, "'{}': {} of version '{}' cannot be decoded; '{}' can",
             tensor.name, config_->method, config_->version, fmt::join(versions, "' and '"));
      return each;
    }
    fail(ErrorCode::QuantConfigContradicts, {{}, tensor.name},
         "'{}' is AWQ's or GPTQ's, which only quantization_config tells apart, and it says {}{}", tensor.name,
         config_->method.empty() ? "nothing" : "'" + config_->method + "'",
         config_->version.empty() ? "" : fmt::format(" ('{}')", config_->version));
  }

  /// Bytes beside a second scale are codes that have lost their first.
  bool has_scales(const WeightName& name) const {
    return number_of(name, TensorKind::PlainScale) || number_of(name, TensorKind::SecondScale);
  }

  /// The last word of a module's name.
  std::string word_of(std::size_t number) const {
    std::string base = at(number).name;
    for (const TensorKind kind : {TensorKind::Weight, TensorKind::PackedWeight})
      if (const auto name = weight_name(base, kind)) base = name->base;
    return base.substr(base.rfind('.') + 1);
  }

  /// Where configurations do not tell, other modules of a word do. Bytes may be codes whose scales are not there, or
  /// those of another program; codes of four bits may have had zero points.
  void judge_by_siblings() {
    std::set<std::pair<std::string, bool>> words;
    for (const QuantizedTensor& weight : found_.tensors)
      if (at(weight.weight).dtype == Dtype::U8 || weight.zeros)
        words.emplace(word_of(weight.weight), weight.zeros.has_value());
    for (const QuantizedTensor& weight : found_.tensors)
      if (weight.codes == Codes::Int4 && !weight.zeros && !all_config_.symmetric && all_config_.groups.empty() &&
          words.contains({word_of(weight.weight), true}))
        scales_of(weight.weight,
                  {weight_name(at(weight.weight).name, TensorKind::PackedWeight)->of(TensorKind::ZeroPoint)});
    for (const std::size_t number : bytes_without_scales_) {
      const TensorRef& tensor = at(number);
      if (words.contains({word_of(number), false}))
        scales_of(number, {plain_weight_name(tensor.name).of(TensorKind::PlainScale)});
      const bool is_known = config_->method == "modelopt" || config_->method == "quark";
      cannot_decode(
          number, is_known ? ErrorCode::ScaleMissing : ErrorCode::NotSupported,
          fmt::format("U8 {} without scales; --decode has no rule for it under quantization by '{}'{}",
                      shape_text(tensor.shape), config_->method, is_known ? "; is the download complete?" : ""));
    }
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
