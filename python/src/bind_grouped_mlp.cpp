/// grouped_mlp.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "borrowed_tensor.hpp"
#include "core/fail.hpp"
#include "core/usable_cores.hpp"
#include "expert_stacks.hpp"
#include "glu_ckpt/ops/output_buffer.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

/// A grouped tensor [E, rows, cols], or a bias [E, rows].
void check_grouped(const TensorView& view, const char* name, std::size_t axes, const TensorView& x) {
  if (view.shape.size() != axes || !is_contiguous(view))
    fail(ErrorCode::Usage, {}, "{}: shape {} with strides {}; a contiguous tensor with {} axes is needed", name,
         shape_text(view.shape), shape_text(view.strides), axes);
  if (view.device != x.device) fail(ErrorCode::Usage, {}, "{}: on {}, but x is on {}", name, view.device, x.device);
}

ExpertStack stack_of(const TensorView& view) {
  return {{reinterpret_cast<std::int64_t>(view.data)},
          view.dtype,
          view.shape[1],
          view.shape.size() > 2 ? view.shape[2] : 1};
}

/// The shapes of tensors of all experts.
void check_shapes(const TensorView& fc1, const TensorView& fc2, const TensorView* fc1_bias,
                  const TensorView* fc2_bias) {
  const i64 experts = fc1.shape[0];
  const auto check_bias = [&](const TensorView* bias, const char* name, i64 rows) {
    if (bias != nullptr && (bias->shape[0] != experts || bias->shape[1] != rows))
      fail(ErrorCode::Usage, {}, "{}: shape {}, expected [{}, {}]", name, shape_text(bias->shape), experts, rows);
  };
  if (fc2.shape[0] != experts)
    fail(ErrorCode::Usage, {}, "fc2: shape {}, but fc1 has {} experts", shape_text(fc2.shape), experts);
  check_bias(fc1_bias, "fc1_bias", fc1.shape[1]);
  check_bias(fc2_bias, "fc2_bias", fc2.shape[1]);
}

std::byte* no_allocation(i64, const std::string&) { return nullptr; }

void grouped_mlp(nb::handle x, nb::handle splits, nb::handle fc1, nb::handle fc2, nb::handle probs, nb::handle out,
                 nb::handle fc1_bias, nb::handle fc2_bias, i64 block_rows, const std::string& activation,
                 std::optional<double> alpha, std::optional<double> limit, std::optional<double> offset, int jobs,
                 std::optional<std::int64_t> stream) {
  const BorrowedTensor tokens(x, "x", stream), sizes(splits, "splits", stream), first(fc1, "fc1", stream),
      second(fc2, "fc2", stream), weights(probs, "probs", stream), result(out, "out", stream);
  std::optional<BorrowedTensor> first_bias, second_bias;
  if (!fc1_bias.is_none()) first_bias.emplace(fc1_bias, "fc1_bias", stream);
  if (!fc2_bias.is_none()) second_bias.emplace(fc2_bias, "fc2_bias", stream);
  check_grouped(first.view(), "fc1", 3, tokens.view());
  check_grouped(second.view(), "fc2", 3, tokens.view());
  if (first_bias) check_grouped(first_bias->view(), "fc1_bias", 2, tokens.view());
  if (second_bias) check_grouped(second_bias->view(), "fc2_bias", 2, tokens.view());
  GroupedMlp mlp;
  mlp.hidden = first.view().shape[2];
  mlp.compute = tokens.view().dtype;
  mlp.activation = activation_of(activation, {alpha, limit, offset});
  const TensorView* const up_bias = first_bias ? &first_bias->view() : nullptr;
  const TensorView* const down_bias = second_bias ? &second_bias->view() : nullptr;
  check_shapes(first.view(), second.view(), up_bias, down_bias);
  const ExpertStacks stacks{stack_of(first.view()),
                            stack_of(second.view()),
                            up_bias != nullptr ? stack_of(*up_bias) : ExpertStack{},
                            down_bias != nullptr ? stack_of(*down_bias) : ExpertStack{},
                            first.view().shape[0],
                            block_rows};
  const auto experts = experts_of(stacks, mlp.activation.is_gated());
  mlp.experts = experts;
  const MlpTensors tensors{tokens.view(), sizes.view(), weights.view(), &result.writable()};
  const nb::gil_scoped_release without_gil;
  if (tokens.view().device == "cpu") {
    grouped_mlp_into(mlp, tensors, no_allocation, jobs > 0 ? jobs : usable_cores());
    return;
  }
  const OnCudaDevice on(cuda_index(tokens.view().device));
  const i64 rows = check_mlp_tensors(mlp, tensors, tokens.view().device);
  const DeviceGroupedMlp run(mlp, rows, stream_of(stream));
  grouped_mlp_into(run, mlp, tensors, no_allocation, stream_of(stream));
  // It waits for the stream, so that the run's memory may go.
  run.check_splits(stream_of(stream));
}

}  // namespace

void bind_grouped_mlp(nb::module_& module) {
  module.def("grouped_mlp", &grouped_mlp, nb::arg("x"), nb::arg("splits"), nb::arg("fc1"), nb::arg("fc2"),
             nb::arg("probs"), nb::arg("out"), nb::arg("fc1_bias").none(), nb::arg("fc2_bias").none(),
             nb::arg("block_rows"), nb::arg("activation"), nb::arg("alpha").none(), nb::arg("limit").none(),
             nb::arg("offset").none(), nb::arg("jobs"), nb::arg("stream").none(),
             "Runs the experts on rows that are sorted by expert.");
}

}  // namespace glu_ckpt::python
