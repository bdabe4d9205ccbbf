#include "glu_ckpt/ops/device_copy.hpp"

#include "core/fail.hpp"
#include "kernels/copy/strided_copy.hpp"
#include "kernels/copy/transpose_copy.hpp"

namespace glu_ckpt {

void device_copy(std::span<const Move> moves, std::span<const std::byte* const> srcs, std::span<std::byte* const> dsts,
                 GpuStream stream) {
  for (const Move& move : moves)
    if (move.src >= srcs.size() || move.dst >= dsts.size())
      fail(ErrorCode::Usage, {}, "device_copy: a move from tensor {} to {}; addresses were given of {} and {}",
           move.src, move.dst, srcs.size(), dsts.size());
  for (const CopyBatch& batch : fold_moves(moves, srcs, dsts)) {
    // Elements at odd addresses can only be moved in pieces.
    const auto transpose = find_transpose(batch.shape);
    if (transpose && copy_word_bytes(batch) == transpose->element_bytes)
      transpose_copy(*transpose, batch.pairs, stream);
    else
      strided_copy(batch, stream);
  }
}

}  // namespace glu_ckpt
