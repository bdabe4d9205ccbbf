#pragma once
/// Texts of config.json with another statement of how weights are quantized, or with none; all other bytes stay.

#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {

/// The text without its `quantization_config`, or `compression_config`, wherever it is; all other bytes stay.
std::string without_quantization(std::string_view config);

/// The text of a model whose weights were decoded: without its `quantization_config`, and with their dtype where the
/// model or its language model names one (`torch_dtype`, `dtype`).
std::string decoded_config(std::string_view config, Dtype dtype);
/// The text with that dtype where it names one.
std::string config_of_dtype(std::string_view config, Dtype dtype);
/// Returns the text without it for weights of `dtype` that were never codes; torch_dtype says so where it named codes.
std::string unquantized_config(std::string_view config, Dtype dtype);

/// The text of which block_rows_field() says that blocks of scales have so many rows.
std::string with_block_rows(std::string_view config, i64 rows);

/// The text whose `quantization_config` is that of MXFP8, with the list of modules that are not quantized as it was.
std::string with_mxfp8(std::string_view config);

}  // namespace glu_ckpt
