/// The backward of the grouped MLP on a framework's tensors.

#include <utility>

#include "core/fail.hpp"
#include "glu_ckpt/ops/grouped_mlp_backward.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "ops/check_tensors.hpp"

namespace glu_ckpt {
namespace {

/// A tensor that is only read, of the compute dtype.
void check_rows_tensor(std::string_view name, const TensorView& tensor, const std::vector<i64>& shape, Dtype dtype,
                       const std::string& device) {
  check_dtype(name, tensor, dtype, "convert it");
  check_device(name, tensor, device, "move it there");
  check_contiguous(name, tensor, "make a contiguous copy of it");
  check_shape(name, tensor, shape, "give what the forward gave");
  check_address(name, tensor);
}

/// Checks everything, and then finds the memory that is written.
class BackwardBuffers {
 public:
  BackwardBuffers(const MlpBackward& backward, const MlpBackwardTensors& tensors, const std::string& device)
      : tensors_(tensors), compute_(backward.mlp.compute), device_(device) {
    check_mlp_backward(backward);
    const MlpTensors& forward = tensors.forward;
    rows_ = check_mlp_tensors(backward.mlp, forward, device);
    check_rows_tensor("dout", tensors.dout, forward.x.shape, compute_, device);
    const i64 z_cols = check_one_width(backward.mlp) * (backward.mlp.activation.is_gated() ? 2 : 1);
    if (tensors.z != nullptr) check_rows_tensor("z", *tensors.z, {rows_, z_cols}, compute_, device);
  }

  i64 rows() const { return rows_; }

  MlpInputGrads grads(const AllocateOutput& allocate) const {
    const MlpTensors& forward = tensors_.forward;
    MlpInputGrads made;
    if (tensors_.want_dx) {
      made.dx = validate_or_alloc(forward.out, forward.x.shape, compute_, device_, allocate);
      if (forward.out != nullptr) {
        check_no_overlap("x", forward.x, made.dx);
        check_no_overlap("splits", forward.splits, made.dx);
        check_no_overlap("probs", forward.probs, made.dx);
        check_no_overlap("dout", tensors_.dout, made.dx);
        if (tensors_.z != nullptr) check_no_overlap("z", *tensors_.z, made.dx);
      }
    }
    if (tensors_.want_dprobs) made.dprobs = validate_or_alloc(nullptr, {rows_}, Dtype::F32, device_, allocate);
    return made;
  }

  MlpBackwardStep step(const MlpInputGrads& grads) const {
    return {rows_,
            tensors_.forward.x.data,
            reinterpret_cast<const float*>(tensors_.forward.probs.data),
            tensors_.dout.data,
            tensors_.z == nullptr ? nullptr : tensors_.z->data,
            grads.dx.data,
            reinterpret_cast<float*>(grads.dprobs.data)};
  }

 private:
  const MlpBackwardTensors& tensors_;
  Dtype compute_;
  const std::string& device_;
  i64 rows_ = 0;
};

}  // namespace

MlpInputGrads grouped_mlp_backward_into(const MlpBackward& backward, const MlpBackwardTensors& tensors,
                                        const AllocateOutput& allocate, int jobs) {
  const std::string device = "cpu";
  const BackwardBuffers buffers(backward, tensors, device);
  const std::span<const i64> splits(reinterpret_cast<const i64*>(tensors.forward.splits.data),
                                    backward.mlp.experts.size());
  check_grouped_mlp(backward.mlp, buffers.rows(), splits);
  MlpInputGrads grads = buffers.grads(allocate);
  grouped_mlp_backward_host(backward, buffers.step(grads), splits, jobs);
  return grads;
}

MlpInputGrads grouped_mlp_backward_into(const DeviceGroupedMlpBackward& run, const MlpBackward& backward,
                                        const MlpBackwardTensors& tensors, const AllocateOutput& allocate,
                                        const std::function<void(std::byte*)>& release, GpuStream stream) {
  const std::string& device = tensors.forward.x.device;
  if (device == "cpu")
    fail(ErrorCode::Usage, {}, "x: on cpu, expected on the GPU that holds the experts; move it there");
  const BackwardBuffers buffers(backward, tensors, device);
  MlpInputGrads grads = buffers.grads(allocate);
  const MlpBackwardStep step = buffers.step(grads);
  const i64 bytes = run.workspace_bytes(step.rows, step.z == nullptr);
  std::byte* const workspace = validate_or_alloc(nullptr, {bytes}, Dtype::U8, device, allocate).data;
  run.run(step, reinterpret_cast<const i64*>(tensors.forward.splits.data), workspace, stream);
  if (workspace != nullptr) release(workspace);
  return grads;
}

}  // namespace glu_ckpt
