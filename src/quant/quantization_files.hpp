#pragma once
/// Files beside config.json that say how weights are quantized.

#include <string>
#include <string_view>

#include "glu_ckpt/checkpoint.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {

/// Returns whether a file beside config.json says how weights are quantized: ModelOpt's hf_quant_config.json, the
/// quantize_config.json of AutoGPTQ and GPTQModel, and AutoAWQ's quant_config.json. A model that was decoded or encoded
/// must not have it.
bool is_quantization_file(std::string_view name);

/// Takes files that say how weights are quantized out of those that an output gets; they have decided about its
/// tensors.
void take_out_quantization_files(CheckpointInfo& info);

/// Returns `config` with what such a file of that name and text says where config.json says nothing: some exports have
/// only that file. Throws QuantConfigContradicts where the two differ in what changes the numbers, ConfigJson for a
/// text that is no JSON object.
QuantConfig with_quantization_file(QuantConfig config, std::string_view name, const std::string& text);

/// The text of a config.json, or of a file beside it of that name, says that weights are quantized by this method: the
/// word for it, or "?" where it names none; empty where it does not say so. One that quantizes the cache alone does
/// not.
std::string stated_method(std::string_view name, const std::string& text);

}  // namespace glu_ckpt
