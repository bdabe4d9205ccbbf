#pragma once
/// A checkpoint of numbers, seen as the quantized model that a program makes of it.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "quant/encode_row.hpp"

namespace glu_ckpt {

/// A tensor [out, in], or [in, out] where it is `turned`, that becomes codes and scales.
struct EncodedWeight {
  std::size_t tensor = 0;
  /// Its use in the model, for the report of errors: "routed experts", "attention".
  std::string role;
  /// The tensors of other weights that have one second scale with it: gate's for up.
  std::vector<std::size_t> shares_with;
  bool turned = false;
};

enum class EncodePath {
  /// Encodes by vector instructions.
  Fast,
  /// Compares each number with the values of the codes: for the side that is to prove the other one.
  Plain,
};

/// Returns whether the encoder makes codes of a weight of this shape; some programs leave uneven ones as they are.
bool encodes_shape(const Encoder& encoder, const TensorRef& stored);

/// Throws NotExact for a weight whose rows are no multiple of the cells; NotSupported for dtypes and shapes of which no
/// bits are known.
void check_encodable(const Encoder& encoder, const TensorRef& stored, bool turned = false);

/// Replaces a source by one whose `weights`, sorted by their tensors, are codes and scales; where it throws, the source
/// stays. Bytes are encoded when they are read, and nothing is kept but second scales, and
/// the scales of the weights whose codes were read last. Its quantization_config is as
/// the program of the encoder writes it, and its record has `encoded_as`, `encoder` and, on the fast path, the errors
/// (`encode_error`), of a large model those of a part of its weights. read() throws NotExact, naming the tensor, where
/// a weight is NaN or infinite, or where the program would write codes that are NaN or decode to infinity. Every level
/// of instructions gives the same bits.
void encode_source(std::unique_ptr<Source>& source, const Encoder& encoder, std::vector<EncodedWeight> weights,
                   EncodePath path, SimdLevel level = simd_levels().front());

/// The quantization_config of the model as the program of the encoder writes it. `left` are the modules with weights of
/// two axes that stay as they are, `others` those with other weights, such as norms, and embeddings.
std::string quantization_object(const Encoder& encoder, const std::vector<std::string>& left,
                                const std::vector<std::string>& others);

/// The text of a config.json with this `quantization_config` for the one that it has.
std::string with_quantization(std::string_view config, std::string_view object);

}  // namespace glu_ckpt
