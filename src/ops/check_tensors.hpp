#pragma once
/// The checks of one tensor that a framework gives, each by its description alone. All throw Usage with the name, both
/// sides and `advice`.

#include <string_view>

#include "glu_ckpt/ops/output_buffer.hpp"

namespace glu_ckpt {

void check_shape(std::string_view name, const TensorView& tensor, const std::vector<i64>& shape,
                 std::string_view advice);
void check_dtype(std::string_view name, const TensorView& tensor, Dtype dtype, std::string_view advice);
void check_device(std::string_view name, const TensorView& tensor, const std::string& device, std::string_view advice);
void check_contiguous(std::string_view name, const TensorView& tensor, std::string_view advice);
/// A tensor with elements has an address.
void check_address(std::string_view name, const TensorView& tensor);
/// The bytes of a tensor that is read do not overlap those of the output buffer `out`.
void check_no_overlap(std::string_view name, const TensorView& tensor, const TensorView& out);

}  // namespace glu_ckpt
