/// grouped_mlp.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "borrowed_tensor.hpp"
#include "core/fail.hpp"
#include "core/usable_cores.hpp"
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

/// Rows of one expert, `block_rows` at a time; `role` 0 is the gate, 1 is up. Without a gate there is one role.
StoredMatrix rows_of(const TensorView& view, i64 expert, i64 rows, i64 block_rows, i64 role, i64 roles) {
  const i64 cols = view.shape.size() > 2 ? view.shape[2] : 1;
  const i64 element_bytes = dtype_bits(view.dtype) / 8, row_bytes = cols * element_bytes;
  const Placement place{role * block_rows * row_bytes, block_rows, roles * block_rows * row_bytes, row_bytes,
                        element_bytes};
  return {view.dtype, rows, cols, {view.data + expert * view.shape[1] * row_bytes, place}, {}, rows};
}

struct MlpWeights {
  const TensorView& fc1;
  const TensorView& fc2;
  const TensorView* fc1_bias;
  const TensorView* fc2_bias;
};

std::vector<ExpertWeights> experts_of(const MlpWeights& weights, i64 block_rows, bool gated) {
  const TensorView& fc1 = weights.fc1;
  const i64 experts = fc1.shape[0], roles = gated ? 2 : 1, width = fc1.shape[1] / roles;
  const i64 k = !gated || block_rows == 0 ? width : block_rows;
  if (fc1.shape[1] % roles != 0 || k < 1 || width % k != 0)
    fail(ErrorCode::NotDivisible, {}, "fc1: shape {}: {} rows; interleaved:{} needs a multiple of {}",
         shape_text(fc1.shape), fc1.shape[1], k, 2 * k);
  const auto check_bias = [&](const TensorView* bias, const char* name, i64 rows) {
    if (bias != nullptr && (bias->shape[0] != experts || bias->shape[1] != rows))
      fail(ErrorCode::Usage, {}, "{}: shape {}, expected [{}, {}]", name, shape_text(bias->shape), experts, rows);
  };
  if (weights.fc2.shape[0] != experts)
    fail(ErrorCode::Usage, {}, "fc2: shape {}, but fc1 has {} experts", shape_text(weights.fc2.shape), experts);
  check_bias(weights.fc1_bias, "fc1_bias", fc1.shape[1]);
  check_bias(weights.fc2_bias, "fc2_bias", weights.fc2.shape[1]);
  std::vector<ExpertWeights> made(static_cast<std::size_t>(experts));
  for (i64 e = 0; e < experts; ++e) {
    ExpertWeights& expert = made[static_cast<std::size_t>(e)];
    if (gated) expert.gate = rows_of(fc1, e, width, k, 0, roles);
    expert.up = rows_of(fc1, e, width, k, roles - 1, roles);
    expert.down = rows_of(weights.fc2, e, weights.fc2.shape[1], weights.fc2.shape[1], 0, 1);
    if (weights.fc1_bias != nullptr) {
      if (gated) expert.gate_bias = rows_of(*weights.fc1_bias, e, width, k, 0, roles);
      expert.up_bias = rows_of(*weights.fc1_bias, e, width, k, roles - 1, roles);
    }
    if (weights.fc2_bias != nullptr)
      expert.down_bias = rows_of(*weights.fc2_bias, e, weights.fc2_bias->shape[1], weights.fc2_bias->shape[1], 0, 1);
  }
  return made;
}

struct Constants {
  std::optional<double> alpha, limit, offset;
};

Activation activation_of(const std::string& kind, const Constants& constants) {
  Activation activation;
  activation.kind = parse_activation(kind);
  if (constants.alpha) activation.alpha = static_cast<float>(*constants.alpha);
  if (constants.limit) activation.limit = static_cast<float>(*constants.limit);
  if (constants.offset) activation.offset = static_cast<float>(*constants.offset);
  return activation;
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
  const auto experts = experts_of({first.view(), second.view(), first_bias ? &first_bias->view() : nullptr,
                                   second_bias ? &second_bias->view() : nullptr},
                                  block_rows, mlp.activation.is_gated());
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
