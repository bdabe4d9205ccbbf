/// interleave and its relatives, on tensors of any library and, without DLPack, on addresses.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "borrowed_tensor.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/glu_order.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace glu_ckpt::python {
namespace {

void change(nb::handle tensor, nb::handle out, i64 block_rows, bool interleave, std::optional<int> axis,
            std::optional<std::int64_t> stream, int jobs) {
  const BorrowedTensor from(tensor, "tensor", stream), to(out, "out", stream);
  const GluChange wanted{block_rows, interleave, axis};
  const TensorView& target = to.writable();
  const nb::gil_scoped_release without_gil;
  change_glu_order(from.view(), target, wanted, {jobs, stream_of(stream)});
}

void change_in_place(nb::handle tensor, i64 block_rows, bool interleave, std::optional<int> axis,
                     std::optional<std::int64_t> stream, int jobs) {
  const BorrowedTensor borrowed(tensor, "tensor", stream);
  const TensorView& target = borrowed.writable();
  const nb::gil_scoped_release without_gil;
  change_glu_order_in_place(target, {block_rows, interleave, axis}, {jobs, stream_of(stream)});
}

/// A tensor of which only the bytes count.
TensorView view_at(std::int64_t address, std::vector<i64> shape, std::vector<i64> strides, i64 element_bytes,
                   int device) {
  TensorView view;
  view.data = reinterpret_cast<std::byte*>(address);
  view.shape = std::move(shape);
  view.strides = std::move(strides);
  switch (element_bytes) {
    case 1: view.dtype = Dtype::U8; break;
    case 2: view.dtype = Dtype::U16; break;
    case 4: view.dtype = Dtype::U32; break;
    case 8: view.dtype = Dtype::U64; break;
    default: fail(ErrorCode::NotSupported, {}, "elements of {} bytes are not supported", element_bytes);
  }
  if (device >= 0) view.device = "cuda:" + std::to_string(device);
  return view;
}

void change_at(std::int64_t from, std::optional<std::int64_t> to, std::vector<i64> shape, std::vector<i64> strides,
               i64 element_bytes, int device, i64 block_rows, bool interleave, std::optional<int> axis,
               std::int64_t stream) {
  const GluRun run{0, stream_of(stream)};
  const TensorView in = view_at(from, std::move(shape), std::move(strides), element_bytes, device);
  const nb::gil_scoped_release without_gil;
  if (!to) return change_glu_order_in_place(in, {block_rows, interleave, axis}, run);
  TensorView out = in;
  out.data = reinterpret_cast<std::byte*>(*to);
  change_glu_order(in, out, {block_rows, interleave, axis}, run);
}

}  // namespace

void bind_glu_order(nb::module_& module) {
  module.def("change_glu_order", &change, "tensor"_a, "out"_a, "block_rows"_a, "interleave"_a, "axis"_a.none(),
             "stream"_a.none(), "jobs"_a, "Writes the tensor to `out` in the other order.");
  module.def("change_glu_order_in_place", &change_in_place, "tensor"_a, "block_rows"_a, "interleave"_a, "axis"_a.none(),
             "stream"_a.none(), "jobs"_a, "Changes the order where the tensor stands.");
  module.def("change_glu_order_at", &change_at, "from_address"_a, "to_address"_a.none(), "shape"_a, "strides"_a,
             "element_bytes"_a, "device"_a, "block_rows"_a, "interleave"_a, "axis"_a.none(), "stream"_a,
             "The same for addresses: in place where `to_address` is None. Both have this shape and these strides; "
             "`device` is the index of a GPU, or -1.");
}

}  // namespace glu_ckpt::python
