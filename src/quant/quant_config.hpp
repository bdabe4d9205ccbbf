#pragma once
/// Reads what config.json says of how weights were quantized.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"
#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// `quantization_config` as far as it is about weights; what it does not say is empty.
struct QuantConfig {
  /// "fp8", "compressed-tensors", "modelopt", "mxfp4", "awq", "gptq", ... in small letters; empty where there is no
  /// such object. auto-round's packing_format says whether it is "awq" or "gptq" that it wrote.
  std::string method;
  /// compressed-tensors' format and ModelOpt's quant_algo: "pack-quantized", "NVFP4".
  std::string format;
  /// "e4m3" or "e5m2" of FP8 (`fmt`).
  std::string fp8_format;
  /// The modules that are said to be left as they are: names, parts of names and patterns.
  std::vector<std::string> skipped;
  /// "gemm" of AWQ; checkpoint_format of GPTQ, or else its `format`. In small letters.
  std::string version;
  std::optional<i64> block_rows;
  std::optional<i64> block_cols;
  /// What the first field says that is of another type than can be read, or out of its range: the sentence of the
  /// refusal, since scales cannot be told apart without it.
  std::string fault;
  /// -1 of GPTQ and AWQ: one group over all columns.
  std::optional<i64> group_size;
  std::optional<i64> bits;
  /// False: weights have zero points. Of AWQ it is said by `zero_point`, of GPTQ by `sym`.
  std::optional<bool> symmetric;
  /// Groups of modules of compressed-tensors differ: some have zero points, some have codes of other widths.
  bool some_asymmetric = false;
  bool bits_differ = false;
  /// Some modules are said to have another format than the rest (moe_quant_algo, store_dtype, quantized_layers).
  bool is_mixed = false;
  /// The columns of some weights were reordered: GPTQ's `desc_act`, compressed-tensors' `actorder`.
  bool some_reordered = false;
  /// The words by which programs multiply inputs or outputs when they run (run_time_words()).
  std::string run_time_words;
  /// "tensor", "channel", "group", "block"; where several groups of weights differ, that of none.
  std::string strategy;
  /// "float" or "int": the type of compressed-tensors' weights.
  std::string type;
  /// Groups of modules whose weights differ, each with all that is said of it; empty where all are alike.
  std::vector<QuantConfig> groups;
  /// The name of the group, or of the only one, and the targets by which it names modules.
  std::string group;
  std::vector<std::string> targets;
};

/// Returns the rows of blocks that all groups with blocks have.
std::optional<i64> block_rows_of(const QuantConfig& config);

/// Returns whether a file beside config.json says how weights are quantized: ModelOpt's hf_quant_config.json, the
/// quantize_config.json of AutoGPTQ and GPTQModel, and AutoAWQ's quant_config.json. A model that was decoded or encoded
/// must not have it.
bool is_quantization_file(std::string_view name);

/// Takes files that say how weights are quantized out of those that an output gets; they have decided about its
/// tensors.
void take_out_quantization_files(CheckpointInfo& info);

/// `config` is the text of a config.json, or empty.
QuantConfig read_quant_config(const std::string& config);

/// Returns `config` with what such a file of that name and text says where config.json says nothing: some exports have
/// only that file. Throws QuantConfigContradicts where the two differ in what changes the numbers, ConfigJson for a
/// text that is no JSON object.
QuantConfig with_quantization_file(QuantConfig config, std::string_view name, const std::string& text);

/// The text without its `quantization_config`, or `compression_config`, wherever it is; all other bytes stay.
std::string without_quantization(std::string_view config);

/// The text of a config.json, or of a file beside it of that name, says that weights are quantized by this method: the
/// word for it, or "?" where it names none; empty where it does not say so. One that quantizes the cache alone does
/// not.
std::string stated_method(std::string_view name, const std::string& text);

/// The text of a model whose weights were decoded: without its `quantization_config`, and with their dtype where the
/// model or its language model names one (`torch_dtype`, `dtype`).
std::string decoded_config(std::string_view config, Dtype dtype);
/// The text with that dtype where it names one.
std::string config_of_dtype(std::string_view config, Dtype dtype);
/// Returns the text without it for weights of `dtype` that were never codes; torch_dtype says so where it named codes.
std::string unquantized_config(std::string_view config, Dtype dtype);

/// Returns whether any tensor is stored as codes, of whatever format: only then may a quantization_config be about it.
bool holds_any_codes(const Inventory& inventory);

/// The field that says how many rows blocks of scales have: "weight_block_size", or compressed-tensors'
/// "block_structure". Empty where the format has no field for it.
std::string_view block_rows_field(const QuantConfig& config);

/// The text of which that field says that blocks of scales have so many rows.
std::string with_block_rows(std::string_view config, i64 rows);

/// The text whose `quantization_config` is that of MXFP8, with the list of modules that are not quantized as it was.
std::string with_mxfp8(std::string_view config);

/// Finds words of quantization_config by which a program multiplies the inputs or outputs of modules when it runs, or
/// adds low-rank parts to their weights, so that the stored weights alone are not the model's. Returns the name of the
/// word and what it says, as in "transform_config has a transform 'R4' at location 'input'"; empty where there is none,
/// where words are empty, and where all transforms are inside the stored weights (locations that begin with `weight_`).
std::string run_time_words(const JsonValue& config);

}  // namespace glu_ckpt
