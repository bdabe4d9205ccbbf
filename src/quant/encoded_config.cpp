#include <fmt/format.h>
#include <fmt/ranges.h>

#include "quant/encoded_source.hpp"
#include "quant/quantization_text.hpp"

namespace glu_ckpt {
namespace {

/// A list of texts as JSON; names of tensors have no characters that JSON would escape but these two.
std::string list_text(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    list += list.empty() ? "\"" : ", \"";
    for (const char c : text) list += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
    list += '"';
  }
  return "[" + list + "]";
}

std::vector<std::string> joined(std::vector<std::string> some, const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

/// The weights of compressed-tensors' group_0; inputs are quantized as llm-compressor's presets have it.
std::string weights_text(const Encoder& encoder, bool for_inputs) {
  const EncoderRow& row = encoder.row;
  const QuantFormat& format = *encoder.format;
  const bool is_block = row.cell_rows > 1, is_channel = row.cell_cols == 0;
  const bool is_nvfp4 = has_second_scale(row);
  std::string strategy = is_block ? "block" : is_channel ? "channel" : is_nvfp4 ? "tensor_group" : "group";
  std::string block = is_block ? fmt::format("[{}, {}]", row.cell_rows, row.cell_cols) : "null";
  std::string group = is_block || is_channel ? "null" : std::to_string(row.cell_cols);
  if (for_inputs && is_block) {
    strategy = "group";
    block = "null";
    group = std::to_string(row.cell_cols);
  }
  if (for_inputs && is_channel) strategy = "token";
  const std::string_view scale_dtype = row.scale_dtype == Dtype::U8        ? "\"torch.uint8\""
                                       : row.scale_dtype == Dtype::F8_E4M3 ? "\"torch.float8_e4m3fn\""
                                                                           : "null";
  const std::string_view dynamic = !for_inputs ? "false" : is_nvfp4 ? "\"local\"" : "true";
  return fmt::format(
      "{{\"num_bits\": {}, \"type\": \"{}\", \"symmetric\": true, \"dynamic\": {}, \"strategy\": \"{}\", "
      "\"group_size\": {}, \"block_structure\": {}, \"actorder\": null, \"observer\": {}, \"observer_kwargs\": {{}}, "
      "\"scale_dtype\": {}, \"zp_dtype\": null}}",
      format.bits, format.type, dynamic, strategy, group, block, for_inputs ? "null" : "\"minmax\"", scale_dtype);
}

std::string compressed_tensors_object(const Encoder& encoder, const std::vector<std::string>& left) {
  const EncoderRow& row = encoder.row;
  // Weights alone are codes where nothing multiplies inputs of few bits with them; NVFP4's inputs would need scales
  // that only data gives.
  const bool has_inputs = encoder.codes == Codes::E4m3;
  return fmt::format(
      "{{\"quant_method\": \"compressed-tensors\", \"format\": \"{0}\", \"config_groups\": {{\"group_0\": "
      "{{\"targets\": "
      "[\"Linear\"], \"weights\": {1}, \"input_activations\": {2}, \"output_activations\": null, \"format\": "
      "\"{0}\"}}}}, "
      "\"ignore\": {3}, \"kv_cache_scheme\": null, \"global_compression_ratio\": null, \"quantization_status\": "
      "\"compressed\"}}",
      row.config_format, weights_text(encoder, false), has_inputs ? weights_text(encoder, true) : "null",
      list_text(left));
}

}  // namespace

std::string quantization_object(const Encoder& encoder, const std::vector<std::string>& left,
                                const std::vector<std::string>& others) {
  const EncoderRow& row = encoder.row;
  if (row.method == "compressed-tensors") return compressed_tensors_object(encoder, left);
  if (row.method == "modelopt")
    return fmt::format(
        "{{\"quant_method\": \"modelopt\", \"quant_algo\": \"{}\", \"kv_cache_scheme\": null, \"group_size\": {}, "
        "\"ignore\": {}, \"producer\": {{\"name\": \"modelopt\"}}}}",
        row.config_format, row.cell_cols, list_text(left));
  // As the files of the family that has this form have it.
  if (row.codes == TensorKind::Blocks)
    return fmt::format(
        "{{\"quant_method\": \"{}\", \"modules_to_not_convert\": [\"model.layers.*.self_attn\", "
        "\"model.layers.*.mlp.router\", \"model.embed_tokens\", \"lm_head\"]}}",
        row.method);
  const bool in_powers = row.rule == ScaleRule::DeepGemmPower || row.rule == ScaleRule::TransformersPower;
  return fmt::format(
      "{{\"quant_method\": \"{}\", \"fmt\": \"e4m3\", {}\"activation_scheme\": \"dynamic\", \"weight_block_size\": "
      "[{}, "
      "{}], \"modules_to_not_convert\": {}}}",
      row.method, in_powers || row.method == "mxfp8" ? "\"scale_fmt\": \"ue8m0\", " : "", row.cell_rows, row.cell_cols,
      list_text(joined(left, others)));
}

std::string with_quantization(std::string_view config, std::string_view object) {
  std::string text = without_quantization(config);
  const std::size_t end = text.rfind('}');
  if (end == std::string::npos) return text;
  const std::size_t last = text.find_last_not_of(" \t\r\n", end - 1);
  const bool is_empty = last == std::string::npos || text[last] == '{';
  return fmt::format("{}{}\n  \"quantization_config\": {}\n{}", text.substr(0, last + 1), is_empty ? "" : ",", object,
                     text.substr(end));
}

}  // namespace glu_ckpt
