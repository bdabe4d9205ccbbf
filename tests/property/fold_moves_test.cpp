/// What a launch is made of, over random moves: the same bytes go to the same places.

#include <gtest/gtest.h>

#include "kernels/copy/strided_copy.hpp"
#include "kernels/copy/transpose_copy.hpp"
#include "support/copy_cases.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr unsigned kCases = 4000;

void expect_folds(const CopyCase& item) {
  HostTensors want(item), got(item), turned(item);
  strided_copy_ref(item.moves, want.srcs, want.dsts);
  copy_folded(item, got, false);
  ASSERT_EQ(got.dst, want.dst);
  copy_folded(item, turned, true);
  ASSERT_EQ(turned.dst, want.dst);
}

TEST(FoldMoves, CopyWhatPlansSay) {
  for (const CopyCase& item : copy_cases()) {
    SCOPED_TRACE(item.name);
    expect_folds(item);
  }
}

TEST(FoldMoves, CopyWhatRandomMovesSay) {
  int transposes = 0, high_across = 0, high_down = 0, folded = 0;
  for (unsigned seed = 1; seed <= kCases; ++seed) {
    SCOPED_TRACE(seed);
    const CopyCase item = random_copy_case(seed);
    expect_folds(item);
    if (HasFatalFailure()) return;
    HostTensors got(item);
    for (const CopyBatch& batch : fold_moves(item.moves, got.srcs, got.dsts)) {
      folded += batch.pairs.size() < item.moves.size() ? 1 : 0;
      if (const auto transpose = find_transpose(batch.shape)) {
        ++transposes;
        high_across += transpose->across.high_count > 1 ? 1 : 0;
        high_down += transpose->down.high_count > 1 ? 1 : 0;
      }
    }
  }
  // The cases would show nothing if these did not come up. How often depends on where the tensors come to lie, too.
  EXPECT_GT(folded, 500);
  EXPECT_GT(transposes, 100);
  EXPECT_GT(high_across, 5);
  EXPECT_GT(high_down, 5);
}

}  // namespace
}  // namespace glu_ckpt
