#include "quant/decoder_rules.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/fail.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

const QuantFormat& format_of(const QuantizedTensor& weight) {
  if (weight.format != nullptr && weight.format->decoders.begin() != weight.format->decoders.end())
    return *weight.format;
  for (const QuantFormat* format : quant_formats())
    for (const CodeForm& form : format->forms)
      if (form.codes == weight.codes && form.has_second_scale() == weight.global.has_value()) return *format;
  fail(ErrorCode::NotSupported, {{}, weight.name}, "'{}': no format has its codes", weight.name);
}

const DecoderRow* find_rule(std::string_view decoder, const QuantFormat& format) {
  const auto rule = std::ranges::find(format.decoders, decoder, &DecoderRow::program);
  return rule == format.decoders.end() ? nullptr : rule;
}

/// The rule of a weight that is not of the format that the checkpoint's method stands for, such as NVFP4 experts of a
/// model whose other weights are FP8: that of the program that writes it.
const DecoderRow* find_own_rule(const QuantizedTensor& weight) {
  const auto& rules = format_of(weight).decoders;
  const auto rule = std::ranges::find(rules, weight.global_divides, &DecoderRow::divides);
  return rule == rules.end() ? rules.begin() : rule;
}

void follow(const DecoderRow& rule, QuantizedTensor& weight) {
  weight.positive_zero = rule.positive_zero;
  weight.rounds_scale = rule.rounds_scale;
  weight.rounds_product = rule.rounds_product;
}

}  // namespace

std::vector<std::string> known_decoders() {
  std::vector<std::string> names;
  for (const QuantFormat* format : quant_formats())
    for (const DecoderRow& rule : format->decoders)
      if (std::ranges::find(names, rule.program) == names.end()) names.emplace_back(rule.program);
  return names;
}

void follow_decoder(Quantization& found, const Inventory& stored) {
  std::set<std::string_view> names;
  for (QuantizedTensor& weight : found.tensors) {
    const DecoderRow* rule = find_rule(found.decoder, format_of(weight));
    if (rule != nullptr && rule->own_dtype && rule->own_dtype != stored.tensors[weight.weight].dtype)
      rule = find_rule(rule->for_others, format_of(weight));
    if (rule == nullptr) rule = find_own_rule(weight);
    follow(*rule, weight);
    names.insert(rule->program);
  }
  if (!names.empty()) found.decoder = fmt::format("{}", fmt::join(names, ", "));
}

void name_decoder(Quantization& found, const std::string& name) {
  const std::vector<std::string> known = known_decoders();
  if (std::ranges::find(known, name) == known.end())
    fail(ErrorCode::Usage, {}, "no decoder is called '{}'; known: {}", name, fmt::join(known, ", "));
  for (QuantizedTensor& weight : found.tensors) {
    const QuantFormat& format = format_of(weight);
    std::vector<std::string_view> others;
    for (const DecoderRow& rule : format.decoders) others.push_back(rule.program);
    const DecoderRow* const rule = find_rule(name, format);
    if (rule == nullptr)
      fail(ErrorCode::NotSupported, {{}, weight.name},
           "'{}': {} decodes no weights of its format; --decode-as takes {} for it", weight.name, name,
           fmt::join(others, ", "));
    follow(*rule, weight);
  }
  if (!found.tensors.empty()) found.decoder = name;
}

}  // namespace glu_ckpt
