/// What quantization_config says of the weights and their parts, against what is stored.

#include <fmt/ranges.h>

#include <algorithm>

#include "core/fail.hpp"
#include "quant/part_finder.hpp"

namespace glu_ckpt {
namespace {

i64 cells_in(i64 extent, i64 cell) { return (extent + cell - 1) / cell; }

}  // namespace

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

}  // namespace glu_ckpt
