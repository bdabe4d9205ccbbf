#pragma once
/// Moves on a GPU of weights that are stored there as codes.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/ops/decode_codes.hpp"
#include "glu_ckpt/ops/output_buffer.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Returns the bytes of tensors of one GPU, one behind the other, by one copy to host memory. Waits for the stream.
std::vector<std::byte> bytes_off_gpu(std::span<const TensorView> tensors, const std::string& device, GpuStream stream);

/// A tensor that moves come from, in memory of the GPU.
struct MoveInput {
  /// Where its bytes are; null where it is decoded first.
  const std::byte* data = nullptr;
  i64 bytes = 0;
  std::optional<CodedWeight> coded;
};

/// Fills the outputs on `device` from `inputs`, by the numbers of Move::src; an output without an address is not made.
/// Codes become numbers of `to`: in their place where an output has the weight in one piece, else in 256 MiB, or one
/// weight, of the GPU's memory, which are freed at the end. Waits for the stream where it needed those. Throws
/// NoDevice, NoMemory, DeviceFailed.
void decode_and_move(const Plan& plan, std::span<const MoveInput> inputs, Dtype to, std::span<const TensorView> out,
                     const std::string& device, GpuStream stream);

}  // namespace glu_ckpt
