/// splits_to_offsets.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "borrowed_tensor.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/offsets.hpp"
#include "kernels/grouped_gemm/splits_to_offsets.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

void check_vector(const TensorView& view, const char* name) {
  if (view.shape.size() != 1 || !is_contiguous(view))
    fail(ErrorCode::Usage, {}, "{}: shape {} with strides {}; a contiguous vector is needed", name,
         shape_text(view.shape), shape_text(view.strides));
}

void splits_to_offsets(nb::handle splits, const nb::list& outputs, const std::vector<i64>& strides, bool leading_zero,
                       std::optional<std::int64_t> stream) {
  const BorrowedTensor from(splits, "splits", stream);
  check_vector(from.view(), "splits");
  if (outputs.size() != strides.size())
    fail(ErrorCode::Usage, {}, "{} outputs for {} strides", outputs.size(), strides.size());
  std::vector<std::unique_ptr<BorrowedTensor>> borrowed;
  std::vector<OffsetOutput> wanted;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    borrowed.push_back(std::make_unique<BorrowedTensor>(outputs[i], "out", stream));
    const TensorView& view = borrowed.back()->writable();
    check_vector(view, "out");
    if (view.device != from.view().device)
      fail(ErrorCode::Usage, {}, "out: on {}, but the splits are on {}", view.device, from.view().device);
    wanted.push_back({{strides[i], leading_zero, view.dtype}, view.data, view.shape[0]});
  }
  const SplitSizes sizes{from.view().data, from.view().dtype, from.view().shape[0]};
  const nb::gil_scoped_release without_gil;
  if (from.view().device != "cpu") {
    const OnCudaDevice on(cuda_index(from.view().device));
    return splits_to_offsets_multi(sizes, wanted, nullptr, stream_of(stream));
  }
  std::vector<u32> flags(wanted.size());
  splits_to_offsets_multi_ref(sizes, wanted, flags.data());
  check_offset_flags(wanted, flags);
}

}  // namespace

void bind_offsets(nb::module_& module) {
  module.def("splits_to_offsets", &splits_to_offsets, nb::arg("splits"), nb::arg("outputs"), nb::arg("strides"),
             nb::arg("leading_zero"), nb::arg("stream").none(),
             "Fills each output with the prefix sums of the splits times its stride.");
}

}  // namespace glu_ckpt::python
