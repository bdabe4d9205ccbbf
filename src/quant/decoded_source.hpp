#pragma once
/// A checkpoint with quantized weights, seen as the unquantized model that it decodes to.

#include <memory>
#include <span>

#include "glu_ckpt/checkpoint.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

enum class DecodePath {
  /// Decodes by vector instructions.
  Fast,
  /// Decodes by table, one number after the other: for the side that is to prove the other one.
  Plain,
};

/// Returns the tensors that are there once `found` is decoded to `to`.
Inventory decoded_inventory(const Inventory& stored, const Quantization& found, Dtype to);

/// Returns a Source whose quantized weights are tensors of dtype `to`, BF16 or F32, under the names that the
/// unquantized model gives them; scales and quantization_config are gone. Bytes are decoded when they are read, and
/// nothing is kept. Its record says what was found: `decoded_from`, the formats, and `decoded_as`, whose decoder is
/// followed. `found` is of this source, and was checked; where nothing is quantized the source is returned as it is.
/// read() throws NotExact, naming the tensor, where a scale is NaN.
std::unique_ptr<Source> decode_source(std::unique_ptr<Source> source, Quantization found, Dtype to, DecodePath path);

/// Fills in between which two numbers each element of a decoded tensor was, from element `first` on, before it was
/// rounded to its code: half of the step to the code's neighbours. `source` decodes the tensor.
void read_unrounded(const Source& source, std::size_t tensor, i64 first, std::span<float> low, std::span<float> high);

}  // namespace glu_ckpt
