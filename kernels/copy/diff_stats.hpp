#pragma once
/// The check and the text that the two functions of glu_ckpt/ops/tensor_diff.hpp share.

#include <string>

#include "glu_ckpt/ops/tensor_diff.hpp"

namespace glu_ckpt {

/// Checks the contract of diff_stats. Reads nothing that is pointed to.
void check_diff_arguments(const void* a, const void* b, i64 count, Dtype dtype);

/// "1000 elements of BF16".
std::string diff_shape(i64 count, Dtype dtype);

}  // namespace glu_ckpt
