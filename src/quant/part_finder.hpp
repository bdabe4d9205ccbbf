#pragma once
/// The steps by which the tensors of one quantized weight are found among the others, and the checks that all formats
/// share. find_quantized.cpp has the formats.

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "layout/element_grid.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/formats/quant_format.hpp"
#include "quant/group_finder.hpp"
#include "quant/quant_config.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// The weights of one scale; a block may be greater than the matrix.
struct ScaleCell {
  i64 rows = 1;
  i64 cols = 1;
  i64 restart_rows = 0;
  /// One for gate and one for up.
  bool of_parts = false;
  bool operator==(const ScaleCell&) const = default;
};

/// The text that a weight's tensors are named after: a linear layer, `a.down_proj` of `a.down_proj.weight_packed`, or a
/// parameter, `a.down_proj` of `a.down_proj_packed`, as grouped experts are.
struct WeightName {
  std::string base;
  bool is_layer = true;

  std::string of(TensorKind kind) const {
    const KindWords& words = words_of(kind);
    std::string name = base;
    if (is_layer) name += '.';
    return name += is_layer ? words.word : words.suffix;
  }
  /// All names that writers give such a tensor: ModelOpt's of a parameter is `down_proj_weight_scale`.
  std::vector<std::string> all_of(TensorKind kind) const {
    std::vector<std::string> names = {of(kind)};
    if (!is_layer && names.front() != base + "_" + std::string(words_of(kind).word))
      names.push_back(base + "_" + std::string(words_of(kind).word));
    return names;
  }
};

/// The name of the weight whose tensor of this kind is called so.
std::optional<WeightName> weight_name(const std::string& name, TensorKind kind);
/// The weight's name where it may be a parameter without a suffix.
WeightName plain_weight_name(const std::string& name);

/// The axes in front of a matrix.
std::vector<i64> leading_axes(const std::vector<i64>& shape);

class PartFinder {
 protected:
  PartFinder(const Inventory& inventory, const QuantConfig& config, const WeightAxes& axes);

  const TensorRef& at(std::size_t number) const { return inventory_.tensors[number]; }
  std::optional<std::size_t> number_of(const std::string& name) const;
  std::optional<std::size_t> number_of(const WeightName& name, TensorKind kind) const;
  /// The axes in which the naming stores the weight; none where nothing tells.
  std::optional<Axes> axes_of(std::size_t weight, const WeightName& name) const;

  /// Says whether a weight is gate and up in one tensor, by its naming, or by its name where none is recognized.
  bool is_fused(std::size_t weight, const WeightName& name) const;

  /// The scales of a weight by any of the names that writers give them.
  std::size_t scales_of(std::size_t weight, const std::vector<std::string>& names);
  std::size_t take(std::size_t number);
  std::optional<std::size_t> taken(const std::string& name);
  void take_if_there(const std::string& name);
  void take_if_there(const WeightName& name, TensorKind kind);
  [[noreturn]] void fail_axes(std::size_t number) const;
  /// [.., rows, cols] as decoded.
  QuantizedTensor weight_of(std::size_t number, std::string name, std::vector<i64> shape, Codes codes) const;
  /// The weight has no numbers here; moved as it is, it needs none.
  void cannot_decode(std::size_t number, ErrorCode code, std::string why);
  void add(QuantizedTensor weight);

  /// Turns what is decoded, where the codes have the axes of their format and the naming has others.
  void turn(QuantizedTensor& weight) const;
  /// Finds the weights that each scale is for: by the one reading of the format's rows and of what quantization_config
  /// says that the shape has. Refuses a shape that has none, or several that differ.
  void read_scales(QuantizedTensor& weight, TensorKind codes, const std::optional<Axes>& axes);
  /// Returns 1 where each matrix has a second scale, 2 where gate and up of a fused FC1 have one each (its layout alone
  /// says which rows each is for), 0 where the shape fits neither.
  i64 second_scale_parts(const QuantizedTensor& weight, TensorKind codes, const FormatPart& part) const;
  bool can_have_parts(const QuantizedTensor& weight, i64 outputs) const;
  /// Refuses a part whose dtype or shape is not that of its format for the groups of the weight.
  void check_part(const QuantizedTensor& weight, std::size_t number, TensorKind codes, const FormatPart& part) const;

  /// Lets config_ be what is said of this weight: by its group, or else what all groups agree on. Refuses FP8 whose
  /// group is not known where groups have blocks of several sizes.
  void choose_group(std::size_t weight);
  /// Refuse a weight that its group has in another form.
  void require_known_blocks(const TensorRef& tensor) const;
  void require_type(const TensorRef& tensor, std::string_view type, i64 bits) const;
  void require_strategy(const QuantizedTensor& weight) const;
  /// Refuses what quantization_config says the codes are not. Codes tell their format themselves; ModelOpt says
  /// MIXED_PRECISION where weights of several formats are meant.
  void require_meant(const TensorRef& tensor, const QuantFormat& format) const;
  /// The first of these forms that has scales of their dtype. Refuses other dtypes.
  FormRef form_of(std::size_t scales, std::size_t weight, const std::vector<FormRef>& forms) const;
  /// Takes what says how to quantize inputs and outputs of decoded modules. What else such a module has but a bias, and
  /// what its configuration lets programs multiply, would be arithmetic that the decoded model lacks.
  void check_modules();
  /// Refuses codes or scales among the tensors that are left.
  void check_orphans();
  /// Beside decoded weights, nothing reads the scales of a quantized cache of keys and values.
  void take_cache_scales();

  const Inventory& inventory_;
  const QuantConfig& all_config_;
  const GroupFinder group_finder_;
  /// The configuration of the weight at hand: that of its group, where groups differ and it is known to be in one.
  const QuantConfig* config_;
  std::optional<i64> group_size() const {
    return config_->group_size && *config_->group_size > 0 ? config_->group_size : std::nullopt;
  }
  const WeightAxes& axes_;
  std::unordered_map<std::string, std::size_t> numbers_;
  std::set<std::string> formats_;
  Quantization found_;

 private:
  struct Reading : GridReading {
    StoredWeight of;
    /// Those in which writers store such scales: the first has all axes, others lack axes of one.
    std::vector<std::vector<i64>> shapes;
    ScaleCell cell;
    bool is_padded = false;
  };

  std::vector<Reading> readings_of(const QuantizedTensor& weight, TensorKind codes,
                                   const std::optional<Axes>& axes) const;
  static std::vector<std::vector<i64>> shapes_of(TensorKind kind, const GridReading& reading, const StoredWeight& of,
                                                 const std::vector<i64>& leading);
  /// Says whether quantization_config and the name of the scales allow a reading.
  bool is_meant(const Reading& reading, const std::vector<Reading>& all, bool is_plain) const;
  static void apply(QuantizedTensor& weight, const Reading& reading, const std::optional<Axes>& axes);
  std::string format_text(const QuantizedTensor& weight) const;
  /// Refuses scales whose weight is there, as codes that no decoder takes.
  void refuse_foreign_codes(std::size_t scales, std::span<const TensorKind> kinds);
  /// Says why a tensor that no weight takes is no part of a decoded model; empty where it may be one.
  static std::string why_left_over(const TensorRef& tensor);
  /// Only compressed-tensors' patterns are tried; of other methods' words programs differ in what they match.
  void require_not_skipped(const QuantizedTensor& weight) const;

  /// Patterns of modules that are not quantized, as they are written and as they are tried.
  std::vector<std::pair<std::string, ModuleTarget>> skipped_patterns_;
};

}  // namespace glu_ckpt
