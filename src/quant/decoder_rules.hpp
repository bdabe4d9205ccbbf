#pragma once
/// Programs whose decoders give other bits for the same codes and scales, and what they do differently.

#include <string>
#include <vector>

#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// The names that name_decoder() takes.
std::vector<std::string> known_decoders();

/// Makes each weight follow the decoder that `found` names, or where that has no rule for its format the one of the
/// program that writes it; `found` names all of them then.
void follow_decoder(Quantization& found, const Inventory& stored);

/// Makes `found` follow the decoder of this name. Throws NotSupported, naming a tensor, where it decodes none of its
/// format; Usage where there is no such decoder.
void name_decoder(Quantization& found, const std::string& name);

}  // namespace glu_ckpt
