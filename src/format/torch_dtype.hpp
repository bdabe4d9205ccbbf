#pragma once
/// PyTorch's names of the dtypes.

#include <optional>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

struct TorchDtype {
  Dtype dtype = Dtype::U8;
  /// The name in module torch: "bfloat16".
  std::string_view name;
  /// The storage class in module torch: "BFloat16Storage". Empty for dtypes that are stored untyped and rebuilt by
  /// torch._utils._rebuild_tensor_v3, which is given the dtype.
  std::string_view storage;
  int element_bytes = 1;
  /// Values in one element, for packed dtypes: safetensors counts values, torch elements.
  int values = 1;
};

/// Returns null where torch has no such dtype (F6) or no safetensors reader would know it (complex128, quantized).
const TorchDtype* torch_dtype(Dtype dtype);
const TorchDtype* torch_dtype_named(std::string_view name);
const TorchDtype* torch_dtype_of_storage(std::string_view storage);

}  // namespace glu_ckpt
