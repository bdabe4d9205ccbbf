/// The grouped MLP and the grouped linear layer with their gradients, on addresses: what glu_ckpt.torch's operators are
/// made of. Python has checked devices and contiguity.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <bit>

#include "addresses.hpp"
#include "borrowed_tensor.hpp"
#include "core/fail.hpp"
#include "core/usable_cores.hpp"
#include "expert_stacks.hpp"
#include "glu_ckpt/ops/grouped_linear.hpp"
#include "glu_ckpt/ops/grouped_mlp_backward.hpp"
#include "run_cache.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace glu_ckpt::python {
namespace {

Dtype computed_dtype(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) fail(ErrorCode::NotSupported, {}, "{}: only BF16, F16 and F32 can be computed with", name);
  return *dtype;
}

/// Addresses, dtype, rows and columns.
using PyStack = std::tuple<std::vector<Address>, std::string, i64, i64>;

ExpertStack stack_of(const PyStack& given) {
  const auto& [addresses, dtype, rows, cols] = given;
  if (addresses.empty()) return {};
  return {addresses, computed_dtype(dtype), rows, cols};
}

void add_to(std::vector<Address>& key, const ExpertStack& stack) {
  key.insert(key.end(), {std::ssize(stack.addresses), static_cast<Address>(stack.dtype), stack.rows, stack.cols});
  key.insert(key.end(), stack.addresses.begin(), stack.addresses.end());
}

void add_to(std::vector<Address>& key, const ExpertStacks& stacks) {
  key.insert(key.end(), {stacks.experts, stacks.block_rows});
  for (const ExpertStack* stack : {&stacks.fc1, &stacks.fc2, &stacks.fc1_bias, &stacks.fc2_bias}) add_to(key, *stack);
}

/// The experts of a layer, as a call of Python describes them.
struct MlpCall {
  MlpCall(const std::string& dtype, i64 experts, i64 hidden_size, i64 block_rows, const std::string& kind,
          std::optional<double> alpha, std::optional<double> limit, std::optional<double> offset, const PyStack& fc1,
          const PyStack& fc2, const PyStack& fc1_bias, const PyStack& fc2_bias)
      : compute(computed_dtype(dtype)),
        hidden(hidden_size),
        activation(activation_of(kind, {alpha, limit, offset})),
        stacks{stack_of(fc1), stack_of(fc2), stack_of(fc1_bias), stack_of(fc2_bias), experts, block_rows} {}

  std::vector<ExpertWeights> experts() const { return experts_of(stacks, activation.is_gated()); }
  GroupedMlp mlp(std::span<const ExpertWeights> made) const { return {hidden, compute, activation, made}; }

  std::vector<Address> key() const {
    std::vector<Address> key{static_cast<Address>(compute),
                             hidden,
                             static_cast<Address>(activation.kind),
                             std::bit_cast<std::int32_t>(activation.alpha),
                             std::bit_cast<std::int32_t>(activation.limit),
                             std::bit_cast<std::int32_t>(activation.offset)};
    add_to(key, stacks);
    return key;
  }

  Dtype compute;
  i64 hidden;
  Activation activation;
  ExpertStacks stacks;
};

/// Where the gradients of weights and biases go; what has no address is not wanted.
struct MlpGrads {
  MlpGrads(const MlpCall& call, const PyStack& fc1, const PyStack& fc2, const PyStack& fc1_bias,
           const PyStack& fc2_bias, bool accumulate_weights)
      : stacks{stack_of(fc1),      stack_of(fc2),       stack_of(fc1_bias),
               stack_of(fc2_bias), call.stacks.experts, call.stacks.block_rows},
        accumulate(accumulate_weights) {}

  MlpBackward backward(const GroupedMlp& mlp, std::span<const ExpertWeights> made) const {
    return {mlp, made, accumulate, false};
  }
  std::vector<ExpertWeights> experts(bool gated) const {
    const bool wanted =
        stacks.fc1.is_there() || stacks.fc2.is_there() || stacks.fc1_bias.is_there() || stacks.fc2_bias.is_there();
    return wanted ? experts_of(stacks, gated) : std::vector<ExpertWeights>{};
  }

  ExpertStacks stacks;
  bool accumulate;
};

/// One step's tensors; 0 is for what is not there.
struct StepAddresses {
  i64 rows = 0;
  Address x = 0, splits = 0, probs = 0, out = 0, z = 0, dout = 0, dx = 0, dprobs = 0;

  MlpBackwardStep backward() const {
    return {rows,         at<const void>(x), at<const float>(probs), at<const void>(dout), at<const void>(z),
            at<void>(dx), at<float>(dprobs)};
  }
};

void mlp_host(const MlpCall& call, i64 rows, Address x, Address splits, Address probs, Address out, Address z) {
  const nb::gil_scoped_release without_gil;
  const auto experts = call.experts();
  grouped_mlp_host(call.mlp(experts), at<const void>(x), rows, {at<const i64>(splits), experts.size()},
                   at<const float>(probs), at<void>(out), usable_cores(), at<void>(z));
}

void mlp_backward_host(const MlpCall& call, const MlpGrads& grads, i64 rows, Address x, Address splits, Address probs,
                       Address dout, Address z, Address dx, Address dprobs) {
  const nb::gil_scoped_release without_gil;
  const auto experts = call.experts();
  const auto grad_experts = grads.experts(call.activation.is_gated());
  const StepAddresses step{rows, x, splits, probs, 0, z, dout, dx, dprobs};
  grouped_mlp_backward_host(grads.backward(call.mlp(experts), grad_experts), step.backward(),
                            {at<const i64>(splits), experts.size()}, usable_cores());
}

/// An object of the cache, for one call.
template <typename Run>
struct CachedRun {
  std::shared_ptr<typename RunCache<Run>::Entry> entry;
  RunPlace place;

  /// `use(run, stream)` launches.
  template <typename Use>
  void launch(const Use& use) const {
    const nb::gil_scoped_release without_gil;
    const OnCudaDevice on(place.device);
    const std::lock_guard lock(entry->launching);
    use(*entry->run, place.stream);
  }
};

template <typename Run, typename Make>
CachedRun<Run> cached(std::vector<Address> key, int device, std::int64_t stream, const Make& make) {
  const nb::gil_scoped_release without_gil;
  const OnCudaDevice on(device);
  const RunPlace place{device, stream_of(stream)};
  return {run_cache<Run>().find_or_make(std::move(key), place, make), place};
}

using MlpRun = CachedRun<DeviceGroupedMlp>;
using MlpBackwardRun = CachedRun<DeviceGroupedMlpBackward>;
using LinearRun = CachedRun<DeviceGroupedLinear>;
using HostSplitsRun = CachedRun<GroupedLinearHostSplits>;

MlpRun device_mlp(const MlpCall& call, int device, std::int64_t stream) {
  return cached<DeviceGroupedMlp>(call.key(), device, stream, [&](GpuStream made_on) {
    const auto experts = call.experts();
    return DeviceGroupedMlp(call.mlp(experts), 0, made_on);
  });
}

void run_mlp(const MlpRun& run, i64 rows, Address x, Address splits, Address probs, Address out, Address z,
             Address workspace) {
  run.launch([&](const DeviceGroupedMlp& mlp, GpuStream stream) {
    mlp.run(at<const void>(x), rows, at<const i64>(splits), at<const float>(probs), at<void>(out), stream, at<void>(z),
            at<void>(workspace));
  });
}

MlpBackwardRun device_mlp_backward(const MlpCall& call, const MlpGrads& grads, int device, std::int64_t stream) {
  std::vector<Address> key = call.key();
  add_to(key, grads.stacks);
  key.push_back(grads.accumulate ? 1 : 0);
  return cached<DeviceGroupedMlpBackward>(std::move(key), device, stream, [&](GpuStream made_on) {
    const auto experts = call.experts();
    const auto grad_experts = grads.experts(call.activation.is_gated());
    return DeviceGroupedMlpBackward(grads.backward(call.mlp(experts), grad_experts), made_on);
  });
}

void run_mlp_backward(const MlpBackwardRun& run, i64 rows, Address x, Address splits, Address probs, Address dout,
                      Address z, Address dx, Address dprobs, Address workspace) {
  const StepAddresses step{rows, x, splits, probs, 0, z, dout, dx, dprobs};
  run.launch([&](const DeviceGroupedMlpBackward& backward, GpuStream stream) {
    backward.run(step.backward(), at<const i64>(splits), at<void>(workspace), stream);
  });
}

/// One of the three products of a grouped linear layer; `matrices` is W, or dW of the third.
struct LinearCall {
  LinearCall(int which, const std::string& dtype, i64 experts, const PyStack& given, bool accumulate)
      : matrices(stack_of(given)) {
    linear.product = static_cast<LinearProduct>(which);
    linear.dtype = computed_dtype(dtype);
    linear.grad_dtype = matrices.dtype;
    linear.num_experts = experts;
    linear.out_features = matrices.rows;
    linear.in_features = matrices.cols;
    linear.accumulate = accumulate;
    if (linear.product != LinearProduct::WeightGrad && matrices.dtype != linear.dtype)
      fail(ErrorCode::NotSupported, {}, "weight: {}, but x is {}; convert one of them", dtype_name(matrices.dtype),
           dtype_name(linear.dtype));
  }

  /// `addresses` has to stay as long as what is returned.
  GroupedLinear with_matrices(std::vector<void*>& addresses) const {
    const i64 step = matrices.rows * matrices.cols * (dtype_bits(matrices.dtype) / 8);
    for (i64 e = 0; e < linear.num_experts; ++e)
      addresses.push_back(matrices.addresses.size() == 1
                              ? at<std::byte>(matrices.addresses[0]) + e * step
                              : at<std::byte>(matrices.addresses[static_cast<std::size_t>(e)]));
    GroupedLinear made = linear;
    if (linear.product == LinearProduct::WeightGrad)
      made.grads.each = addresses;
    else
      made.weights.each = std::span<const void* const>(addresses.data(), addresses.size());
    return made;
  }

  std::vector<Address> key() const {
    std::vector<Address> key{static_cast<Address>(linear.product), static_cast<Address>(linear.dtype),
                             linear.num_experts, linear.accumulate ? 1 : 0};
    add_to(key, matrices);
    return key;
  }

  ExpertStack matrices;
  /// Without the addresses.
  GroupedLinear linear;
};

void linear_host(const LinearCall& call, i64 rows, Address x, Address dy, Address out, Address splits) {
  const nb::gil_scoped_release without_gil;
  std::vector<void*> addresses;
  grouped_linear_host(call.with_matrices(addresses), {rows, at<const void>(x), at<const void>(dy), at<void>(out)},
                      {at<const i64>(splits), static_cast<std::size_t>(call.linear.num_experts)}, usable_cores());
}

/// By the kernels of device splits, and with their bits: cuBLAS would want 32 MiB for each of these.
HostSplitsRun host_splits_linear(const LinearCall& call, int device, std::int64_t stream) {
  return cached<GroupedLinearHostSplits>(call.key(), device, stream, [&](GpuStream made_on) {
    std::vector<void*> addresses;
    return GroupedLinearHostSplits(call.with_matrices(addresses), LinearEngine::Kernels, made_on);
  });
}

LinearRun device_linear(const LinearCall& call, int device, std::int64_t stream) {
  return cached<DeviceGroupedLinear>(call.key(), device, stream, [&](GpuStream made_on) {
    std::vector<void*> addresses;
    return DeviceGroupedLinear(call.with_matrices(addresses), made_on);
  });
}

void bind_mlp(nb::module_& module) {
  nb::class_<MlpCall>(module, "MlpCall", "The experts of a layer: tensors as (addresses, dtype, rows, columns).")
      .def(nb::init<const std::string&, i64, i64, i64, const std::string&, std::optional<double>, std::optional<double>,
                    std::optional<double>, const PyStack&, const PyStack&, const PyStack&, const PyStack&>(),
           "dtype"_a, "experts"_a, "hidden"_a, "block_rows"_a, "activation"_a, "alpha"_a.none(), "limit"_a.none(),
           "offset"_a.none(), "fc1"_a, "fc2"_a, "fc1_bias"_a, "fc2_bias"_a);
  nb::class_<MlpGrads>(module, "MlpGrads", "Where gradients of weights and biases go.")
      .def(nb::init<const MlpCall&, const PyStack&, const PyStack&, const PyStack&, const PyStack&, bool>(), "call"_a,
           "fc1"_a, "fc2"_a, "fc1_bias"_a, "fc2_bias"_a, "accumulate"_a);
  nb::class_<MlpRun>(module, "MlpRun", "A forward on a GPU, on one stream.")
      .def(
          "workspace_bytes", [](const MlpRun& run, i64 rows) { return run.entry->run->workspace_bytes(rows); },
          "rows"_a)
      .def("run", &run_mlp, "rows"_a, "x"_a, "splits"_a, "probs"_a, "out"_a, "z"_a, "workspace"_a);
  nb::class_<MlpBackwardRun>(module, "MlpBackwardRun", "A backward on a GPU, on one stream.")
      .def(
          "workspace_bytes",
          [](const MlpBackwardRun& run, i64 rows, bool recompute) {
            return run.entry->run->workspace_bytes(rows, recompute);
          },
          "rows"_a, "recompute"_a)
      .def("run", &run_mlp_backward, "rows"_a, "x"_a, "splits"_a, "probs"_a, "dout"_a, "z"_a, "dx"_a, "dprobs"_a,
           "workspace"_a);
  module.def("mlp_host", &mlp_host, "call"_a, "rows"_a, "x"_a, "splits"_a, "probs"_a, "out"_a, "z"_a,
             "The experts on the CPU. An address of 0 is for what is not there.");
  module.def("mlp_backward_host", &mlp_backward_host, "call"_a, "grads"_a, "rows"_a, "x"_a, "splits"_a, "probs"_a,
             "dout"_a, "z"_a, "dx"_a, "dprobs"_a, "Their gradients on the CPU.");
  module.def("device_mlp", &device_mlp, "call"_a, "device"_a, "stream"_a,
             "What a forward needs, kept for later calls.");
  module.def("device_mlp_backward", &device_mlp_backward, "call"_a, "grads"_a, "device"_a, "stream"_a,
             "What a backward needs, kept for later calls.");
}

template <typename Run, typename Splits>
void run_linear(const CachedRun<Run>& run, i64 rows, Address x, Address dy, Address out, const Splits& splits) {
  run.launch([&](const Run& linear, GpuStream stream) {
    linear.run({rows, at<const void>(x), at<const void>(dy), at<void>(out)}, splits, stream);
  });
}

void bind_linear(nb::module_& module) {
  nb::class_<LinearCall>(module, "LinearCall", "A product of a grouped linear layer: 0 y, 1 dx, 2 dW.")
      .def(nb::init<int, const std::string&, i64, const PyStack&, bool>(), "product"_a, "dtype"_a, "experts"_a,
           "matrices"_a, "accumulate"_a);
  nb::class_<LinearRun>(module, "LinearRun", "A product on a GPU, with splits there.")
      .def(
          "run",
          [](const LinearRun& run, i64 rows, Address x, Address dy, Address out, Address splits) {
            run_linear(run, rows, x, dy, out, at<const i64>(splits));
          },
          "rows"_a, "x"_a, "dy"_a, "out"_a, "splits"_a);
  nb::class_<HostSplitsRun>(module, "HostSplitsRun", "A product on a GPU, with splits on the host.")
      .def(
          "run",
          [](const HostSplitsRun& run, i64 rows, Address x, Address dy, Address out, const std::vector<i64>& splits) {
            run_linear(run, rows, x, dy, out, std::span<const i64>(splits));
          },
          "rows"_a, "x"_a, "dy"_a, "out"_a, "splits"_a);
  module.def("linear_host", &linear_host, "call"_a, "rows"_a, "x"_a, "dy"_a, "out"_a, "splits"_a,
             "A product on the CPU.");
  module.def("device_linear", &device_linear, "call"_a, "device"_a, "stream"_a,
             "What a product needs, kept for later calls.");
  module.def("host_splits_linear", &host_splits_linear, "call"_a, "device"_a, "stream"_a,
             "The same for splits on the host.");
}

}  // namespace

void bind_training(nb::module_& module) {
  bind_mlp(module);
  bind_linear(module);
}

}  // namespace glu_ckpt::python
