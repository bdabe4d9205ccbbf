#pragma once
/// Addresses of tensors, as Python gives them: numbers, of which 0 is for what is not there.

#include <cstdint>

namespace glu_ckpt::python {

using Address = std::int64_t;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace glu_ckpt::python
