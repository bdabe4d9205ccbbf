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

/// `config` is the text of a config.json, or empty.
QuantConfig read_quant_config(const std::string& config);

/// Returns whether any tensor is stored as codes, of whatever format: only then may a quantization_config be about it.
bool holds_any_codes(const Inventory& inventory);

/// The field that says how many rows blocks of scales have: "weight_block_size", or compressed-tensors'
/// "block_structure". Empty where the format has no field for it.
std::string_view block_rows_field(const QuantConfig& config);

/// Finds words of quantization_config by which a program multiplies the inputs or outputs of modules when it runs, or
/// adds low-rank parts to their weights, so that the stored weights alone are not the model's. Returns the name of the
/// word and what it says, as in "transform_config has a transform 'R4' at location 'input'"; empty where there is none,
/// where words are empty, and where all transforms are inside the stored weights (locations that begin with `weight_`).
std::string run_time_words(const JsonValue& config);

}  // namespace glu_ckpt
