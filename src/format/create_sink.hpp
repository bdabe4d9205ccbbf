#pragma once
/// What the sinks of all formats check alike.

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Throws Io where [offset, offset + count) is not within the tensor: the plan and the executor disagree.
void check_write_range(const OutputTensor& tensor, i64 offset, i64 count);

/// Elements of all tensors: an index's total_parameters.
i64 count_parameters(const std::vector<OutputTensor>& tensors);

}  // namespace glu_ckpt
