#pragma once
/// Finds weights that are stored as codes without the scales that make numbers of them.

#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Returns whether weights of this dtype are codes. Floats of 16 bits and more are numbers, and no format has codes of
/// 64 bits: those are indices.
constexpr bool holds_codes(Dtype dtype) {
  switch (dtype) {
    case Dtype::F16:
    case Dtype::BF16:
    case Dtype::F32:
    case Dtype::F64:
    case Dtype::BOOL:
    case Dtype::C64:
    case Dtype::I64:
    case Dtype::U64: return false;
    default: return true;
  }
}

/// Returns the weights, sorted, that are codes and whose names no scale has: those of the model's
/// experts, its other matrices, and what else is called `weight`.
std::vector<std::size_t> bare_codes(const Inventory& inventory, const Recognition& model);

/// Returns one sentence for each dtype of bare_codes().
std::vector<std::string> bare_code_texts(const Inventory& inventory, const Recognition& model);

/// Throws ScaleMissing for bare codes, NoSpelling for others, where the matrices outside of the experts get the names
/// of `naming`, which has none for scales; `with_rest` is false where only experts do.
void check_codes_are_named(const Inventory& inventory, const Recognition& model, const std::string& naming,
                           bool with_rest);

}  // namespace glu_ckpt
