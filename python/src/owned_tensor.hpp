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

void bind_owned_tensor(nanobind::module_& module);

}  // namespace glu_ckpt::python
