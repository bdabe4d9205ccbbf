/// Interleaves in place by following the cycles of the permutation. A thread carries one word of each block along a
/// segment of a cycle: it reads ahead a few blocks, then writes them one place on. Every byte is read once and written
/// once, as out of place; the starts of segments, which the segment before overwrites, are saved first.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/common/cuda_check.hpp"
#include "kernels/copy/in_place_cycles.hpp"

namespace glu_ckpt {

namespace {

constexpr int kThreads = 128;
/// Blocks read ahead of the writes. Four times 2048 threads times 16 bytes a multiprocessor are in flight.
constexpr u32 kAhead = 4;
/// The most blocks of a grid along y and z.
constexpr i64 kMostGridBlocks = 65'535;

struct Blocks {
  std::byte* data = nullptr;
  const CycleSegment* segments = nullptr;
  std::byte* saved = nullptr;
  i64 expert_step = 0;
  i64 block_bytes = 0;
  i64 slots = 0;
  u32 half = 0;
};

template <typename Word>
__device__ __forceinline__ Word* word_of(std::byte* block, i64 word) {
  return reinterpret_cast<Word*>(block) + word;
}

/// Grid: words of a block, segments, experts.
template <typename Word>
__global__ void __launch_bounds__(kThreads) save_starts_kernel(const Blocks blocks) {
  const i64 word = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  const CycleSegment segment = blocks.segments[blockIdx.y];
  if (segment.slot < 0 || word * static_cast<i64>(sizeof(Word)) >= blocks.block_bytes) return;
  std::byte* const from = blocks.data + blockIdx.z * blocks.expert_step + segment.start * blocks.block_bytes;
  std::byte* const to = blocks.saved + (blockIdx.z * blocks.slots + segment.slot) * blocks.block_bytes;
  *word_of<Word>(to, word) = *word_of<Word>(from, word);
}

template <typename Word, bool kInterleave>
__global__ void __launch_bounds__(kThreads) follow_cycles_kernel(const Blocks blocks) {
  const i64 word = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  if (word * static_cast<i64>(sizeof(Word)) >= blocks.block_bytes) return;
  const CycleSegment segment = blocks.segments[blockIdx.y];
  std::byte* const expert = blocks.data + blockIdx.z * blocks.expert_step;
  const auto at = [&](u32 block) { return word_of<Word>(expert + block * blocks.block_bytes, word); };

  Word carried =
      segment.slot < 0
          ? __ldcs(at(segment.start))
          : *word_of<Word>(blocks.saved + (blockIdx.z * blocks.slots + segment.slot) * blocks.block_bytes, word);
  u32 place = segment.start;
  u32 left = segment.steps;
  while (left > 0) {
    const u32 steps = min(left, kAhead);
    Word* to[kAhead];
    Word next[kAhead];
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
      if (i >= steps) break;
      place = next_block(place, blocks.half, kInterleave);
      to[i] = at(place);
      // The word that the last step overwrites was read already: it is the first of the cycle, or a saved one.
      if (left - i > 1) next[i] = __ldcs(to[i]);
    }
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
      if (i >= steps) break;
      __stcs(to[i], carried);
      carried = next[i];
    }
    left -= steps;
  }
}

std::string describe(const InPlaceGlu& glu) {
  return std::to_string(glu.experts) + " x [" + std::to_string(glu.rows) + ", " + std::to_string(glu.row_bytes) +
         " bytes], interleaved:" + std::to_string(glu.block_rows);
}

/// Calls `launch` with the grids that cover all segments.
template <typename Launch>
void for_segments(const InPlaceSchedule& schedule, const Blocks& blocks, i64 words, i64 experts, const Launch& launch) {
  const i64 segments = static_cast<i64>(schedule.segments.size());
  for (i64 first = 0; first < segments; first += kMostGridBlocks) {
    Blocks part = blocks;
    part.segments += first;
    launch(dim3(static_cast<unsigned>((words + kThreads - 1) / kThreads),
                static_cast<unsigned>(std::min(kMostGridBlocks, segments - first)), static_cast<unsigned>(experts)),
           part);
  }
}

template <typename Word>
void launch(const InPlaceGlu& glu, const InPlaceSchedule& schedule, const Blocks& blocks, i64 experts,
            cudaStream_t stream) {
  const i64 words = schedule.block_bytes / static_cast<i64>(sizeof(Word));
  // All starts are saved before any segment moves.
  if (schedule.slots > 0)
    for_segments(schedule, blocks, words, experts, [&](dim3 grid, const Blocks& part) {
      save_starts_kernel<Word><<<grid, kThreads, 0, stream>>>(part);
      check_launch("save_starts", [&] { return describe(glu); });
    });
  for_segments(schedule, blocks, words, experts, [&](dim3 grid, const Blocks& part) {
    if (glu.interleave)
      follow_cycles_kernel<Word, true><<<grid, kThreads, 0, stream>>>(part);
    else
      follow_cycles_kernel<Word, false><<<grid, kThreads, 0, stream>>>(part);
    check_launch("follow_cycles", [&] { return describe(glu); });
  });
}

void launch_words(const InPlaceGlu& glu, const InPlaceSchedule& schedule, const Blocks& blocks, i64 experts,
                  cudaStream_t stream) {
  const u64 bits = reinterpret_cast<std::uintptr_t>(blocks.data) | static_cast<u64>(blocks.expert_step) |
                   static_cast<u64>(blocks.block_bytes);
  if (bits % 16 == 0) return launch<uint4>(glu, schedule, blocks, experts, stream);
  if (bits % 4 == 0) return launch<u32>(glu, schedule, blocks, experts, stream);
  if (bits % 2 == 0) return launch<std::uint16_t>(glu, schedule, blocks, experts, stream);
  launch<std::uint8_t>(glu, schedule, blocks, experts, stream);
}

}  // namespace

struct InPlacePermutation::State {
  InPlaceGlu glu;
  InPlaceSchedule schedule;
  std::byte* scratch = nullptr;
};

InPlacePermutation::InPlacePermutation(const InPlaceGlu& glu, std::byte* scratch, i64 scratch_bytes, GpuStream stream)
    : state_(std::make_unique<State>(State{glu, in_place_schedule(glu, scratch_bytes), scratch})) {
  const InPlaceSchedule& schedule = state_->schedule;
  check_in_place_scratch(schedule, scratch, scratch_bytes);
  CUDA_CHECK(cudaMemcpyAsync(scratch, schedule.segments.data(), schedule.segments.size() * sizeof(CycleSegment),
                             cudaMemcpyHostToDevice, stream));
}
InPlacePermutation::~InPlacePermutation() = default;
InPlacePermutation::InPlacePermutation(InPlacePermutation&&) noexcept = default;
InPlacePermutation& InPlacePermutation::operator=(InPlacePermutation&&) noexcept = default;

void InPlacePermutation::run(std::byte* data, GpuStream stream) const {
  const InPlaceSchedule& schedule = state_->schedule;
  run_in_place(state_->glu, schedule, reinterpret_cast<const CycleSegment*>(state_->scratch),
               state_->scratch + schedule.table_bytes, data, stream);
}

void run_in_place(const InPlaceGlu& glu, const InPlaceSchedule& schedule, const CycleSegment* table, std::byte* saved,
                  std::byte* data, GpuStream stream) {
  if (glu.experts <= 0 || schedule.block_bytes == 0 || schedule.segments.empty()) return;
  Blocks blocks;
  blocks.segments = table;
  blocks.saved = saved;
  blocks.expert_step = glu.experts == 1 ? 0 : glu.expert_step;
  blocks.block_bytes = schedule.block_bytes;
  blocks.slots = schedule.slots;
  blocks.half = static_cast<u32>(glu.rows / (2 * glu.block_rows));
  const i64 at_once = std::min(schedule.experts_at_once, kMostGridBlocks);
  for (i64 first = 0; first < glu.experts; first += at_once) {
    blocks.data = data + first * glu.expert_step;
    launch_words(glu, schedule, blocks, std::min(at_once, glu.experts - first), stream);
  }
}

}  // namespace glu_ckpt
