#pragma once
/// splits_to_offsets_multi of glu_ckpt/offsets.hpp: what kernel, launcher and oracle share.

#include "glu_ckpt/ops/offsets.hpp"

namespace glu_ckpt {

/// The most outputs of one launch: their descriptions travel as kernel arguments, their flags in one word of 4 bits
/// each.
inline constexpr int kOffsetsPerLaunch = 8;

/// Threads of the one block, a multiple of 32: one split each as long as there are no more than 1024.
constexpr int offsets_block_threads(i64 num_splits) {
  return num_splits >= 1024 ? 1024 : static_cast<int>((num_splits + 31) / 32 * 32);
}

/// Checks the arguments of splits_to_offsets_multi, for at least one output. Throws Usage; reads nothing that is
/// pointed to.
void check_offset_arguments(const SplitSizes& splits, std::span<const OffsetOutput> outputs, const u32* flags);

/// The oracle: the same in host memory, one sum after the other. The same errors.
void splits_to_offsets_multi_ref(const SplitSizes& splits, std::span<const OffsetOutput> outputs, u32* flags);

}  // namespace glu_ckpt
