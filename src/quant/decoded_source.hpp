#pragma once
/// A checkpoint with quantized weights, seen as the unquantized model that it decodes to.

#include <memory>
#include <optional>
#include <span>
#include <vector>

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

/// The stored tensors of a weight whose codes a GPU decodes: decode_codes() with their addresses gives its numbers.
struct CodedTensor {
  /// Without addresses.
  CodedWeight form;
  std::size_t codes = 0;
  std::size_t scales = 0;
  std::optional<std::size_t> global;
  std::optional<std::size_t> zeros;
  std::optional<std::size_t> groups;
};

/// A tensor of a source that decode_source() made: the stored tensor that it is, or whose codes it is decoded from.
struct DecodedTensor {
  std::size_t stored = 0;
  bool is_decoded = false;
  /// Absent where the kernels do not know its grid, such as one that is turned or has a scale for gate and one for up.
  std::optional<CodedTensor> coded;
};

/// Returns what each tensor of `source` comes from. Returns nothing where decode_source() did not make it.
std::vector<DecodedTensor> decoded_tensors(const Source& source);

/// Throws NotExact, as reading a tensor of such a source does, where one of its scales is NaN. `scales` are the bytes
/// of its stored scales, `globals` those of its second ones, if there are any.
void check_scales(const Source& source, std::size_t tensor, std::span<const std::byte> scales,
                  std::span<const std::byte> globals);

/// Fills in between which two numbers each element of a decoded tensor was, from element `first` on, before it was
/// rounded to its code: half of the step to the code's neighbours. `source` decodes the tensor.
void read_unrounded(const Source& source, std::size_t tensor, i64 first, std::span<float> low, std::span<float> high);

}  // namespace glu_ckpt
