#include "glu_ckpt/ops/output_buffer.hpp"

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "ops/check_tensors.hpp"

namespace glu_ckpt {
namespace {

/// One spelling for one device.
std::string canonical(const std::string& device) {
  return device == "cpu" ? device : fmt::format("cuda:{}", cuda_index(device));
}

i64 checked_elements(std::string_view name, const std::vector<i64>& shape) {
  for (const i64 extent : shape)
    if (extent < 0) fail(ErrorCode::Usage, {}, "{}: shape {}: extents are not negative", name, shape_text(shape));
  const auto elements = checked_product(shape);
  if (!elements) fail(ErrorCode::ShapeOverflow, {}, "{}: shape {}: too many elements", name, shape_text(shape));
  return *elements;
}

i64 checked_bytes(std::string_view name, const std::vector<i64>& shape, Dtype dtype) {
  const auto bits = checked_mul(checked_elements(name, shape), dtype_bits(dtype));
  if (!bits)
    fail(ErrorCode::ShapeOverflow, {}, "{}: shape {} of {}: too many bytes", name, shape_text(shape),
         dtype_name(dtype));
  return (*bits + 7) / 8;
}

}  // namespace

void check_shape(std::string_view name, const TensorView& tensor, const std::vector<i64>& shape,
                 std::string_view advice) {
  if (tensor.shape != shape)
    fail(ErrorCode::Usage, {}, "{}: shape {}, expected {}; {}", name, shape_text(tensor.shape), shape_text(shape),
         advice);
}

void check_dtype(std::string_view name, const TensorView& tensor, Dtype dtype, std::string_view advice) {
  if (tensor.dtype != dtype)
    fail(ErrorCode::Usage, {}, "{}: dtype {}, expected {}; {}", name, dtype_name(tensor.dtype), dtype_name(dtype),
         advice);
}

void check_device(std::string_view name, const TensorView& tensor, const std::string& device, std::string_view advice) {
  if (canonical(tensor.device) != canonical(device))
    fail(ErrorCode::Usage, {}, "{}: on {}, expected on {}; {}", name, tensor.device, device, advice);
}

void check_contiguous(std::string_view name, const TensorView& tensor, std::string_view advice) {
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size())
    fail(ErrorCode::Usage, {}, "{}: {} strides for {} extents; give one per extent, or none for a dense tensor", name,
         tensor.strides.size(), tensor.shape.size());
  if (!is_contiguous(tensor))
    fail(ErrorCode::Usage, {}, "{}: shape {} with strides {} is not contiguous; {}", name, shape_text(tensor.shape),
         shape_text(tensor.strides), advice);
}

void check_address(std::string_view name, const TensorView& tensor) {
  if (tensor.data == nullptr && checked_elements(name, tensor.shape) > 0)
    fail(ErrorCode::Usage, {}, "{}: shape {} without an address", name, shape_text(tensor.shape));
}

void check_no_overlap(std::string_view name, const TensorView& tensor, const TensorView& out) {
  const i64 out_bytes = checked_bytes("output buffer", out.shape, out.dtype);
  const i64 bytes = checked_bytes(name, tensor.shape, tensor.dtype);
  if (out_bytes == 0 || bytes == 0) return;
  const std::less<const std::byte*> before;
  if (before(out.data, tensor.data + bytes) && before(tensor.data, out.data + out_bytes))
    fail(ErrorCode::Usage, {}, "output buffer: its {} bytes overlap the {} of {}; give it memory of its own", out_bytes,
         bytes, name);
}

namespace {

/// All extents but the last, in one.
i64 token_rows(const std::vector<i64>& shape) {
  i64 rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  return rows;
}

void check_x(const GroupedMlp& mlp, const TensorView& x, const std::string& device) {
  check_dtype("x", x, mlp.compute, "convert it, or compute in its dtype");
  check_device("x", x, device, "move it there");
  check_contiguous("x", x, "make a contiguous copy of it");
  if (x.shape.empty() || x.shape.back() != mlp.hidden)
    fail(ErrorCode::Usage, {}, "x: shape {}, expected [..., {}]; the last axis is the experts' hidden size",
         shape_text(x.shape), mlp.hidden);
  checked_bytes("x", x.shape, x.dtype);
  check_address("x", x);
}

/// Splits or probabilities.
void check_vector(std::string_view name, const TensorView& tensor, Dtype dtype, i64 length, const std::string& device) {
  check_dtype(name, tensor, dtype, "convert them");
  check_device(name, tensor, device, "move them there");
  check_contiguous(name, tensor, "make a contiguous copy of them");
  check_shape(name, tensor, {length}, name == "splits" ? "give one per expert" : "give one per row of x");
  check_address(name, tensor);
  const i64 element_bytes = dtype_bits(dtype) / 8;
  if (const auto rest = reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(element_bytes))
    fail(ErrorCode::Usage, {}, "{}: {} bytes past a multiple of {}; align them to their dtype", name, rest,
         element_bytes);
}

/// The tensor to write to, once everything is known to be right.
TensorView output_of(const GroupedMlp& mlp, const MlpTensors& tensors, const std::string& device,
                     const AllocateOutput& allocate) {
  TensorView out = validate_or_alloc(tensors.out, tensors.x.shape, mlp.compute, device, allocate);
  if (tensors.out == nullptr) return out;
  check_no_overlap("x", tensors.x, out);
  check_no_overlap("splits", tensors.splits, out);
  check_no_overlap("probs", tensors.probs, out);
  return out;
}

}  // namespace

bool is_contiguous(const TensorView& tensor) {
  if (tensor.strides.empty()) return true;
  if (tensor.strides.size() != tensor.shape.size()) return false;
  for (const i64 extent : tensor.shape)
    if (extent == 0) return true;
  i64 dense = 1;
  for (std::size_t axis = tensor.shape.size(); axis-- > 0;) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != dense) return false;
    const auto next = checked_mul(dense, tensor.shape[axis]);
    if (!next) return false;
    dense = *next;
  }
  return true;
}

void check_output_buffer(const TensorView& buffer, const std::vector<i64>& shape, Dtype dtype,
                         const std::string& device) {
  constexpr std::string_view kName = "output buffer";
  check_shape(kName, buffer, shape, "allocate it with that shape, or give none");
  check_dtype(kName, buffer, dtype, "allocate it with the dtype that is computed in, or give none");
  check_device(kName, buffer, device, "allocate it where the input is, or give none");
  check_contiguous(kName, buffer, "allocate it dense and row-major, or give none");
  if (buffer.requires_grad)
    fail(ErrorCode::Usage, {},
         "{}: shape {} requires a gradient, expected that it does not; give buffer.detach(), at every step anew", kName,
         shape_text(buffer.shape));
}

TensorView validate_or_alloc(const TensorView* buffer, const std::vector<i64>& shape, Dtype dtype,
                             const std::string& device, const AllocateOutput& allocate) {
  if (buffer != nullptr) {
    check_output_buffer(*buffer, shape, dtype, device);
    check_address("output buffer", *buffer);
    return *buffer;
  }
  const i64 bytes = checked_bytes("output", shape, dtype);
  TensorView made{nullptr, dtype, shape, {}, canonical(device), false};
  made.data = bytes > 0 ? allocate(bytes, made.device) : nullptr;
  if (bytes > 0 && made.data == nullptr)
    fail(ErrorCode::NoMemory, {}, "output: shape {} of {} takes {} bytes on {}, which were not given",
         shape_text(shape), dtype_name(dtype), bytes, made.device);
  return made;
}

i64 check_mlp_tensors(const GroupedMlp& mlp, const MlpTensors& tensors, const std::string& device) {
  check_x(mlp, tensors.x, device);
  const i64 rows = token_rows(tensors.x.shape);
  check_vector("splits", tensors.splits, Dtype::I64, std::ssize(mlp.experts), device);
  check_vector("probs", tensors.probs, Dtype::F32, rows, device);
  return rows;
}

TensorView grouped_mlp_into(const GroupedMlp& mlp, const MlpTensors& tensors, const AllocateOutput& allocate,
                            int jobs) {
  const i64 rows = check_mlp_tensors(mlp, tensors, "cpu");
  const std::span<const i64> splits(reinterpret_cast<const i64*>(tensors.splits.data), mlp.experts.size());
  check_grouped_mlp(mlp, rows, splits);
  const TensorView out = output_of(mlp, tensors, "cpu", allocate);
  grouped_mlp_host(mlp, tensors.x.data, rows, splits, reinterpret_cast<const float*>(tensors.probs.data), out.data,
                   jobs);
  return out;
}

TensorView grouped_mlp_into(const DeviceGroupedMlp& run, const GroupedMlp& mlp, const MlpTensors& tensors,
                            const AllocateOutput& allocate, GpuStream stream) {
  if (tensors.x.device == "cpu")
    fail(ErrorCode::Usage, {}, "x: on cpu, expected on the GPU that holds the experts; move it there");
  const i64 rows = check_mlp_tensors(mlp, tensors, tensors.x.device);
  const TensorView out = output_of(mlp, tensors, tensors.x.device, allocate);
  run.run(tensors.x.data, rows, reinterpret_cast<const i64*>(tensors.splits.data),
          reinterpret_cast<const float*>(tensors.probs.data), out.data, stream);
  return out;
}

}  // namespace glu_ckpt
