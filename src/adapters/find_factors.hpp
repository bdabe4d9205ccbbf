#pragma once
/// Finds which weights of a model the factors of an adapter change; add_product.cpp adds the products to them, with the
/// bits of PEFT on a CPU.

#include <optional>
#include <span>
#include <vector>

#include "adapters/read_factors.hpp"
#include "core/simd.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// How a product becomes part of a weight.
struct Merging {
  /// alpha / r.
  float scale = 1;
  /// Round it to the weight's dtype before it is added, as PEFT's safe merge and its packed experts do.
  bool rounds_product = false;
};

/// DoRA's numbers by which sums of weights and products are multiplied: element c by values[c * step].
struct RowScales {
  const float* values = nullptr;
  i64 step = 0;
};

/// A line of a weight: where it is stored, and its coefficients, one for each of the vectors that its lines share.
struct ProductLine {
  const float* coefficients = nullptr;
  std::byte* data = nullptr;
  RowScales scales = {};
};

/// The vectors of lines: vector j from values + j * stride on.
struct ProductVectors {
  const float* values = nullptr;
  i64 rank = 0;
  i64 stride = 0;
};

/// Lines of a weight, `count` elements of `dtype` each: element c becomes itself plus scale times the sum over j of
/// coefficients[j] * values[j * stride + c], summed in fp32 with j ascending and one rounding for each j, then rounded
/// to `dtype`, to nearest even; with `scales`, multiplied by those before. Four lines at a time take the least time.
void add_product(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging, Dtype dtype,
                 i64 count, SimdLevel level = simd_levels().front());

/// Does the same for checks, one element after the other.
void add_product_one_by_one(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging,
                            Dtype dtype, i64 count);

/// How an adapter is merged.
struct MergeAnswers {
  /// As PEFT's safe merge does.
  bool two_roundings = false;
  PackedFiles files = PackedFiles::Told;
};

struct MergedMatrix {
  Matrix matrix;
  Factors factors;
  Merging merging = {};
  /// The tensor of DoRA's magnitudes, one for each row.
  std::optional<std::size_t> magnitudes = std::nullopt;
};

/// Returns the matrices of `model`, which are stored in `base`, with what the adapter adds to them, in order of their
/// tensors. Throws UnknownTensor for factors of what the model does not have,
/// SizeMismatch, NotSupported for codes, and what read_factors() throws.
std::vector<MergedMatrix> find_factors(const Source& base, const Recognition& model, const Source& adapter,
                                       const AdapterConfig& config, const MergeAnswers& answers);

}  // namespace glu_ckpt
