#pragma once
/// Memory that other libraries take by DLPack.

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt::python {

/// A dense, row-major tensor in host memory.
struct OwnedTensor {
  std::shared_ptr<void> memory;
  std::byte* data = nullptr;
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
};

/// Memory of so many bytes, not initialised, for a tensor of this dtype and shape.
OwnedTensor new_tensor(Dtype dtype, std::vector<i64> shape, i64 bytes);

/// The same memory, of unsigned integers of the same size; of fewer than 8 bits, its bytes on one axis.
OwnedTensor raw_bits(OwnedTensor tensor, i64 bytes);

void bind_owned_tensor(nanobind::module_& module);

}  // namespace glu_ckpt::python
