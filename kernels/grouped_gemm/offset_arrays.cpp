/// The parts of glu_ckpt/offsets.hpp that allocate or wait.

#include "core/fail.hpp"
#include "glu_ckpt/ops/offsets.hpp"
#include "kernels/common/device_buffer.hpp"

namespace glu_ckpt {

OffsetArrays::OffsetArrays(i64 num_splits, std::span<const OffsetSpec> specs) {
  const OffsetArraysLayout layout = offset_arrays_layout(num_splits, specs);
  const auto buffer = std::make_shared<DeviceBuffer>(layout.bytes);
  for (std::size_t i = 0; i < specs.size(); ++i)
    outputs_.push_back(
        {specs[i], buffer->data() + layout.starts[i], offsets_length(num_splits, specs[i].leading_zero)});
  if (!specs.empty()) flags_ = reinterpret_cast<u32*>(buffer->data() + layout.flags_start);
  memory_ = buffer;
}

void check_offset_flags(std::span<const OffsetOutput> outputs, const u32* device_flags, GpuStream stream) {
  if (outputs.empty()) return;
  if (device_flags == nullptr) fail(ErrorCode::Usage, {}, "the pointer to {} flags is null", outputs.size());
  std::vector<u32> flags(outputs.size());
  CUDA_CHECK(cudaMemcpyAsync(flags.data(), device_flags, flags.size() * sizeof(u32), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  check_offset_flags(outputs, flags);
}

}  // namespace glu_ckpt
