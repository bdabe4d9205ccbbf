#pragma once
/// Tensors of a checkpoint, one at a time.

#include <nanobind/nanobind.h>

namespace glu_ckpt::python {

void bind_reader(nanobind::module_& module);

}  // namespace glu_ckpt::python
