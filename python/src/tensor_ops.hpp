#pragma once
/// The operators on tensors.

#include <nanobind/nanobind.h>

namespace glu_ckpt::python {

void bind_glu_order(nanobind::module_& module);
void bind_offsets(nanobind::module_& module);
void bind_diff(nanobind::module_& module);
void bind_grouped_mlp(nanobind::module_& module);
void bind_state_plan(nanobind::module_& module);
void bind_many(nanobind::module_& module);
void bind_recipes(nanobind::module_& module);
void bind_training(nanobind::module_& module);

}  // namespace glu_ckpt::python
