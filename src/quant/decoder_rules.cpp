#include "quant/decoder_rules.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

enum class CodeFormat { Fp8, Int8, MxFp4, NvFp4, Int4, Awq, Gptq };

struct DecoderRule {
  std::string_view decoder;
  CodeFormat format = CodeFormat::Fp8;
  bool positive_zero = false;
  bool rounds_scale = false;
};

/// The rules follow the programs: DeepSeek's inference code (V3's fp8_cast_bf16.py, V4's convert.py), NVIDIA's ModelOpt
/// 0.47 (FP8QTensor, MXFP4QTensor, NVFP4QTensor), compressed-tensors 0.20, OpenAI's gpt-oss (weights.py), transformers
/// 5 (Fp8Dequantize, the MXFP4 loader), AutoAWQ, GPTQModel.
constexpr std::array kRules = std::to_array<DecoderRule>({
    {"deepseek", CodeFormat::Fp8, false, false},
    {"deepseek", CodeFormat::MxFp4, true, false},
    {"transformers", CodeFormat::Fp8, false, false},
    {"transformers", CodeFormat::MxFp4, false, false},
    {"modelopt", CodeFormat::Fp8, false, true},
    {"modelopt", CodeFormat::MxFp4, false, false},
    {"modelopt", CodeFormat::NvFp4, true, false},
    {"compressed-tensors", CodeFormat::Fp8, false, false},
    {"compressed-tensors", CodeFormat::Int8, false, false},
    {"compressed-tensors", CodeFormat::MxFp4, false, false},
    {"compressed-tensors", CodeFormat::NvFp4, false, false},
    {"compressed-tensors", CodeFormat::Int4, false, false},
    {"gpt-oss", CodeFormat::MxFp4, false, false},
    {"awq", CodeFormat::Awq, false, false},
    {"gptq", CodeFormat::Gptq, false, false},
});

CodeFormat format_of(const QuantizedTensor& weight) {
  switch (weight.codes) {
    case Codes::E4m3:
    case Codes::E5m2: return CodeFormat::Fp8;
    case Codes::Int8: return CodeFormat::Int8;
    case Codes::E2m1: return weight.global ? CodeFormat::NvFp4 : CodeFormat::MxFp4;
    case Codes::Int4: return CodeFormat::Int4;
    case Codes::Awq: return CodeFormat::Awq;
    case Codes::Gptq: return CodeFormat::Gptq;
  }
  return CodeFormat::Fp8;
}

const DecoderRule* find_rule(std::string_view decoder, CodeFormat format) {
  const auto rule = std::ranges::find_if(
      kRules, [&](const DecoderRule& one) { return one.decoder == decoder && one.format == format; });
  return rule == kRules.end() ? nullptr : &*rule;
}

/// The rule of a weight that is not of the format that the checkpoint's method stands for, such as NVFP4 experts of a
/// model whose other weights are FP8: that of the program that writes it.
const DecoderRule* find_own_rule(const QuantizedTensor& weight) {
  const CodeFormat format = format_of(weight);
  const DecoderRule* const rule = weight.global_divides ? find_rule("compressed-tensors", format) : nullptr;
  return rule != nullptr ? rule : &*std::ranges::find(kRules, format, &DecoderRule::format);
}

void follow(const DecoderRule& rule, QuantizedTensor& weight) {
  weight.positive_zero = rule.positive_zero;
  weight.rounds_scale = rule.rounds_scale;
  // It multiplies in the dtype of its scales, others in F32.
  weight.rounds_product = rule.decoder == "compressed-tensors";
}

}  // namespace

std::vector<std::string> known_decoders() {
  std::vector<std::string> names;
  for (const DecoderRule& rule : kRules)
    if (names.empty() || names.back() != rule.decoder) names.emplace_back(rule.decoder);
  return names;
}

void follow_decoder(Quantization& found, const Inventory& stored) {
  std::set<std::string_view> names;
  for (QuantizedTensor& weight : found.tensors) {
    const DecoderRule* rule = find_rule(found.decoder, format_of(weight));
    // DeepSeek-V4 keeps its FP4 as I8; bytes that are U8 are not of its software.
    if (found.decoder == "deepseek" && weight.codes == Codes::E2m1 && stored.tensors[weight.weight].dtype == Dtype::U8)
      rule = find_rule("gpt-oss", format_of(weight));
    if (rule == nullptr) rule = find_own_rule(weight);
    follow(*rule, weight);
    names.insert(rule->decoder);
  }
  if (!names.empty()) found.decoder = fmt::format("{}", fmt::join(names, ", "));
}

void name_decoder(Quantization& found, const std::string& name) {
  if (std::ranges::find(kRules, name, &DecoderRule::decoder) == kRules.end())
    fail(ErrorCode::Usage, {}, "no decoder is called '{}'; known: {}", name, fmt::join(known_decoders(), ", "));
  for (QuantizedTensor& weight : found.tensors) {
    const CodeFormat format = format_of(weight);
    std::vector<std::string_view> others;
    for (const DecoderRule& rule : kRules)
      if (rule.format == format) others.push_back(rule.decoder);
    const DecoderRule* const rule = find_rule(name, format);
    if (rule == nullptr)
      fail(ErrorCode::NotSupported, {{}, weight.name},
           "'{}': {} decodes no weights of its format; --decode-as takes {} for it", weight.name, name,
           fmt::join(others, ", "));
    follow(*rule, weight);
  }
  if (!found.tensors.empty()) found.decoder = name;
}

}  // namespace glu_ckpt
