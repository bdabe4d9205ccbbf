#pragma once
/// Experts in MXFP8 as bf16, which holds their values exactly: a power of two times four bits.

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Knows which weights of a block become bf16 when they are loaded: those with scales of MXFP8.
class Dequantized {
 public:
  explicit Dequantized(const ExpertBlock& block);
  /// Says whether this is such a weight, or its scales.
  bool concerns(const Matrix& matrix) const;
  /// The dtype that it is computed with.
  Dtype dtype(const Matrix& matrix) const;

 private:
  /// Says for each role whether it has scales.
  std::array<bool, 4> has_scales_{};
};

/// A weight of one expert and its scales.
struct QuantizedWeight {
  const Matrix* weight = nullptr;
  const Matrix* scales = nullptr;
};
std::vector<QuantizedWeight> quantized_weights(const std::vector<const Matrix*>& matrices);

/// The placement of a weight once it is bf16, in the layout it had: all steps are twice as long. The offset counts
/// from the byte that was byte `begin` of the tensor.
Placement widened(Placement place, i64 begin);

/// Bytes of a stored tensor from byte `begin` on.
struct TensorBytes {
  const std::byte* data = nullptr;
  i64 begin = 0;
};

/// `out` is where the first byte of `weight` stands as bf16. Throws NotExact, naming `name` and the element, where a
/// value is beyond bf16: above its largest, or with bits below its least.
void dequantize_weight(const QuantizedWeight& quantized, const TensorBytes& weight, const TensorBytes& scales,
                       std::byte* out, const std::string& name);

}  // namespace glu_ckpt
