/// In the place of the copy kernels: their oracle, queued on the stream as a launch is.

#include "exec/move_parts.hpp"
#include "fake_cuda/fake_runtime.hpp"
#include "glu_ckpt/ops/device_copy.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/copy/strided_copy.hpp"

namespace glu_ckpt {

void device_copy(std::span<const Move> moves, std::span<const std::byte* const> srcs, std::span<std::byte* const> dsts,
                 GpuStream stream) {
  std::vector<fake_cuda::Range> used;
  for (const Move& move : moves) {
    used.emplace_back(srcs[move.src] + move.src_offset, static_cast<std::size_t>(source_window(move)));
    used.emplace_back(dsts[move.dst] + move.dst_offset, static_cast<std::size_t>(target_window(move)));
  }
  // Kernel arguments are copied when it is launched.
  const auto work = [moves = std::vector(moves.begin(), moves.end()), srcs = std::vector(srcs.begin(), srcs.end()),
                     dsts = std::vector(dsts.begin(), dsts.end())] { strided_copy_ref(moves, srcs, dsts); };
  if (const cudaError_t status = fake_cuda::launch("device_copy", stream, used, work); status != cudaSuccess)
    cuda_launch_fail(status, "device_copy", std::to_string(moves.size()) + " moves");
}

}  // namespace glu_ckpt
