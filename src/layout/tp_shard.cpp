#include "core/fail.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

std::vector<RowRange> tp_shard_rows(const Glu& glu, i64 intermediate, i64 tp, i64 rank) {
  if (tp < 1 || rank < 0 || rank >= tp || intermediate < 1)
    fail(ErrorCode::Usage, {}, "rank {} of {} of an FC1 with F = {} does not exist", rank, tp, intermediate);
  if (intermediate % tp != 0)
    fail(ErrorCode::NotDivisible, {}, "F = {} is no multiple of {} tensor-parallel ranks", intermediate, tp);
  const i64 share = intermediate / tp;
  if (glu.kind != Glu::Kind::Interleaved) return {{rank * share, share}, {intermediate + rank * share, share}};
  if (share % glu.block_rows != 0)
    fail(ErrorCode::NotDivisible, {},
         "{} rows of F for each of {} tensor-parallel ranks; interleaved:{} needs a multiple of {}", share, tp,
         glu.block_rows, glu.block_rows);
  return {{2 * rank * share, 2 * share}};
}

}  // namespace glu_ckpt
