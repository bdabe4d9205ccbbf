#include "kernels/copy/strided_copy.hpp"

namespace glu_ckpt {

void strided_copy_ref(std::span<const Move> moves, std::span<const std::byte* const> srcs,
                      std::span<std::byte* const> dsts) {
  for (const Move& move : moves)
    for (i64 i = 0; i < move.dims[0].count; ++i)
      for (i64 j = 0; j < move.dims[1].count; ++j)
        for (i64 k = 0; k < move.dims[2].count; ++k)
          for (i64 l = 0; l < move.dims[3].count; ++l)
            for (i64 byte = 0; byte < move.run_bytes; ++byte) {
              const i64 src = move.src_offset + i * move.dims[0].src_step + j * move.dims[1].src_step +
                              k * move.dims[2].src_step + l * move.dims[3].src_step;
              const i64 dst = move.dst_offset + i * move.dims[0].dst_step + j * move.dims[1].dst_step +
                              k * move.dims[2].dst_step + l * move.dims[3].dst_step;
              dsts[move.dst][dst + byte] = srcs[move.src][src + byte];
            }
}

}  // namespace glu_ckpt
