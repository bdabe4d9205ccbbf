#pragma once
/// Computes where each group of rows begins from how many rows each group has: prefix sums times a stride, several at
/// once and all on the device. Grouped GEMMs take such offsets in rows (stride 1) and in elements (stride = width of a
/// row).

#include <memory>
#include <span>
#include <vector>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// Rows of each group, in device memory, dense.
struct SplitSizes {
  const void* data = nullptr;
  /// I32 or I64.
  Dtype dtype = Dtype::I64;
  /// N, at least 1.
  i64 count = 0;
};

/// An output is made of P_i = splits[0] + ... + splits[i]. It holds P_i * stride for i = 0..N-1, after one 0 if
/// `leading_zero`.
struct OffsetSpec {
  /// It may have any sign; 0 gives zeros.
  i64 stride = 1;
  bool leading_zero = true;
  /// I32 or I64.
  Dtype dtype = Dtype::I64;
};

struct OffsetOutput {
  OffsetSpec spec;
  /// Device memory, aligned to its dtype. Outputs overlap neither each other nor the splits.
  void* data = nullptr;
  /// Elements; exactly offsets_length(N, spec.leading_zero).
  i64 length = 0;
};

/// The faults that an output can have. Arithmetic is in int64 and wraps at 64 bits; flags say where that lost
/// something.
enum OffsetFlag : u32 {
  /// A P_i * stride that an I32 output cannot hold: the element has its low 32 bits.
  kOffsetBeyondInt32 = 1,
  /// A P_i * stride beyond int64: the element has its low 64 bits. An I32 output has kOffsetBeyondInt32 as well.
  kOffsetBeyondInt64 = 2,
  /// A P_i beyond int64: its low 64 bits were used for it. Set for every output of the call.
  kOffsetSumBeyondInt64 = 4,
};

/// N, or N + 1 with a leading zero.
constexpr i64 offsets_length(i64 num_splits, bool leading_zero) { return num_splits + (leading_zero ? 1 : 0); }

/// Fills all outputs: one launch for every 8 of them, no host synchronisation, so it can be captured in a graph, which
/// then replays with whatever the splits are by then. Splits are not checked for their sign.
/// `flags`: null, or one word per output in device memory. Each run stores OffsetFlag bits, or 0, into every word, so
/// after a replay they are those of the newest run. No outputs: returns before anything is looked at.
/// Throws Usage, naming the output, for a wrong dtype or length, a null or a misaligned pointer.
void splits_to_offsets_multi(const SplitSizes& splits, std::span<const OffsetOutput> outputs, u32* flags,
                             GpuStream stream);

/// Throws NotExact, naming the first output with a flag and what to do. Both in host memory, of the same length.
void check_offset_flags(std::span<const OffsetOutput> outputs, std::span<const u32> flags);
/// Synchronizes `stream`, which must not be captured, and checks flags in device memory.
void check_offset_flags(std::span<const OffsetOutput> outputs, const u32* device_flags, GpuStream stream);

/// Bytes in one buffer.
struct OffsetArraysLayout {
  /// First byte of each output, a multiple of 16: cuDNN's grouped kernels read offsets 16 bytes at a time.
  std::vector<i64> starts;
  /// First byte of the flags, one u32 per output; a multiple of 16.
  i64 flags_start = 0;
  i64 bytes = 0;
};

/// Pure. Throws Usage unless num_splits >= 1 and dtypes are I32 or I64; ShapeOverflow.
OffsetArraysLayout offset_arrays_layout(i64 num_splits, std::span<const OffsetSpec> specs);

/// All outputs of splits_to_offsets_multi and their flags in one allocation, on the device that is current when it is
/// made. What they hold is undefined until a run fills them.
class OffsetArrays {
 public:
  /// Throws as offset_arrays_layout does; NoMemory, NoDevice.
  OffsetArrays(i64 num_splits, std::span<const OffsetSpec> specs);
  OffsetArrays(OffsetArrays&&) noexcept = default;
  OffsetArrays& operator=(OffsetArrays&&) noexcept = default;
  OffsetArrays(const OffsetArrays&) = delete;
  OffsetArrays& operator=(const OffsetArrays&) = delete;

  /// Returns the outputs in the order of the specs, as splits_to_offsets_multi takes them.
  std::span<const OffsetOutput> outputs() const { return outputs_; }
  /// Device memory, one word per output.
  u32* flags() const { return flags_; }

 private:
  /// A device buffer, whose type needs CUDA's headers.
  std::shared_ptr<void> memory_;
  std::vector<OffsetOutput> outputs_;
  u32* flags_ = nullptr;
};

}  // namespace glu_ckpt
