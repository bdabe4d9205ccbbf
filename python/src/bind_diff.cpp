/// diff of two tensors.

#include <nanobind/stl/optional.h>

#include "borrowed_tensor.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/tensor_diff.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

nb::dict diff(nb::handle a, nb::handle b, std::optional<std::int64_t> stream) {
  const BorrowedTensor left(a, "a", stream), right(b, "b", stream);
  for (const TensorView* view : {&left.view(), &right.view()})
    if (!is_contiguous(*view))
      fail(ErrorCode::Usage, {}, "shape {} with strides {} is not contiguous; make a contiguous copy of it",
           shape_text(view->shape), shape_text(view->strides));
  if (left.view().shape != right.view().shape || left.view().dtype != right.view().dtype ||
      left.view().device != right.view().device)
    fail(ErrorCode::Usage, {},
         "a is {} of {} on {}, b is {} of {} on {}; compare tensors of one shape, dtype and device",
         shape_text(left.view().shape), dtype_name(left.view().dtype), left.view().device,
         shape_text(right.view().shape), dtype_name(right.view().dtype), right.view().device);
  i64 count = 1;
  for (const i64 extent : left.view().shape) count *= extent;
  const Dtype dtype = left.view().dtype;
  DiffStats stats;
  {
    const nb::gil_scoped_release without_gil;
    if (left.view().device == "cpu") {
      stats = diff_stats_host(left.view().data, right.view().data, count, dtype);
    } else {
      const OnCudaDevice on(cuda_index(left.view().device));
      stats = diff_stats(left.view().data, right.view().data, count, dtype, stream_of(stream));
    }
  }
  nb::dict found;
  found["equal"] = stats.differing == 0;
  found["elements"] = stats.elements;
  found["differing"] = stats.differing;
  found["first"] = stats.first < 0 ? nb::none() : nb::object(nb::cast(stats.first));
  found["max_abs"] = stats.max_abs;
  found["max_rel"] = stats.max_rel;
  found["nan_in_one"] = stats.nan_in_one;
  found["nan_in_both"] = stats.nan_in_both;
  return found;
}

}  // namespace

void bind_diff(nb::module_& module) {
  module.def("diff_tensors", &diff, nb::arg("a"), nb::arg("b"), nb::arg("stream").none(),
             "Compares two tensors element by element, by their bits.");
}

}  // namespace glu_ckpt::python
