#include "exec/decode_on_gpu.hpp"

#include <algorithm>
#include <vector>

#include "core/checked_math.hpp"
#include "glu_ckpt/ops/device_copy.hpp"
#include "kernels/common/device_buffer.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kScratchBytes = i64{256} << 20;
/// Weights begin at multiples of this, where the decoder and the copies are fast.
constexpr i64 kInputAlignment = 256;

/// The moves of some inputs, and the room for those of them that are decoded.
class Batch {
 public:
  Batch(std::span<const MoveInput> inputs, Dtype to, std::span<const TensorView> out, GpuStream stream)
      : inputs_(inputs), to_(to), stream_(stream), srcs_(inputs.size()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) srcs_[i] = inputs[i].data;
    for (const TensorView& view : out) dsts_.push_back(view.data);
  }

  void add(std::span<const Move> moves) {
    const std::size_t src = moves.front().src;
    const MoveInput& input = inputs_[src];
    if (!input.coded) {
      moves_.insert(moves_.end(), moves.begin(), moves.end());
      return;
    }
    if (std::byte* const place = only_place(moves, input.bytes); place != nullptr)
      return decode_codes(*input.coded, to_, place, stream_);
    const i64 room = round_up(input.bytes, kInputAlignment);
    if (used_ > 0 && used_ + room > kScratchBytes) run();
    decoded_.push_back({src, used_});
    used_ += room;
    moves_.insert(moves_.end(), moves.begin(), moves.end());
  }

  void run() {
    // What an older batch had there is read before this one is written, as both are on one stream.
    if (scratch_.bytes() < used_) {
      scratch_ = {};
      scratch_ = DeviceBuffer(std::max(used_, std::min(kScratchBytes, total_bytes())));
    }
    for (const auto& [src, offset] : decoded_) {
      decode_codes(*inputs_[src].coded, to_, scratch_.data() + offset, stream_);
      srcs_[src] = scratch_.data() + offset;
    }
    if (!moves_.empty()) device_copy(moves_, srcs_, dsts_, stream_);
    moves_.clear();
    decoded_.clear();
    used_ = 0;
  }

 private:
  struct Decoded {
    std::size_t src = 0;
    i64 offset = 0;
  };

  /// Returns where the whole input goes, if that is one place.
  std::byte* only_place(std::span<const Move> moves, i64 bytes) const {
    const Move& move = moves.front();
    const bool is_whole = moves.size() == 1 && move.runs() == 1 && move.run_bytes == bytes;
    return is_whole ? dsts_[move.dst] + move.dst_offset : nullptr;
  }

  i64 total_bytes() const {
    i64 bytes = 0;
    for (const MoveInput& input : inputs_)
      if (input.coded) bytes += round_up(input.bytes, kInputAlignment);
    return bytes;
  }

  std::span<const MoveInput> inputs_;
  Dtype to_;
  GpuStream stream_;
  std::vector<const std::byte*> srcs_;
  std::vector<std::byte*> dsts_;
  std::vector<Move> moves_;
  std::vector<Decoded> decoded_;
  DeviceBuffer scratch_;
  i64 used_ = 0;
};

i64 bytes_of(const TensorView& view) {
  i64 bits = dtype_bits(view.dtype);
  for (const i64 extent : view.shape) bits *= extent;
  return bits / 8;
}

}  // namespace

std::vector<std::byte> bytes_off_gpu(std::span<const TensorView> tensors, const std::string& device, GpuStream stream) {
  std::vector<Move> moves;
  std::vector<const std::byte*> srcs;
  i64 total = 0;
  for (const TensorView& view : tensors) {
    const i64 bytes = bytes_of(view);
    if (bytes > 0) moves.push_back({.src = srcs.size(), .dst_offset = total, .run_bytes = bytes});
    srcs.push_back(view.data);
    total += bytes;
  }
  std::vector<std::byte> gathered(static_cast<std::size_t>(total));
  if (total == 0) return gathered;
  const OnCudaDevice on(cuda_index(device));
  const DeviceBuffer room(total);
  std::byte* const dst = room.data();
  device_copy(moves, srcs, std::span(&dst, 1), stream);
  CUDA_CHECK(cudaMemcpyAsync(gathered.data(), dst, gathered.size(), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return gathered;
}

void decode_and_move(const Plan& plan, std::span<const MoveInput> inputs, Dtype to, std::span<const TensorView> out,
                     const std::string& device, GpuStream stream) {
  std::vector<Move> moves;
  std::ranges::copy_if(plan.moves, std::back_inserter(moves),
                       [&](const Move& m) { return out[m.dst].data != nullptr; });
  std::ranges::stable_sort(moves, {}, &Move::src);
  const OnCudaDevice on(cuda_index(device));
  Batch batch(inputs, to, out, stream);
  for (auto begin = moves.begin(); begin != moves.end();) {
    const auto end = std::find_if(begin, moves.end(), [&](const Move& move) { return move.src != begin->src; });
    batch.add({begin, end});
    begin = end;
  }
  batch.run();
}

}  // namespace glu_ckpt
