#include "glu_ckpt/ranks.hpp"

#include <gtest/gtest.h>

#include "support/ranks_contract.hpp"
#include "support/thread_ranks.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

TEST(SingleRank, DoesWhatRanksDo) {
  const auto ranks = make_single_rank();
  EXPECT_EQ(ranks->rank(), 0);
  EXPECT_EQ(ranks->size(), 1);
  expect_broadcasts(*ranks);
  expect_gathers(*ranks);
  expect_takes(*ranks, 4, 1000);
  expect_queue(*ranks, 4, 1000);
}

/// Each worker stays at a file. Whoever has none left goes where nobody is, and then to where most is left.
TEST(SingleRank, GivesEachWorkerAFile) {
  const auto ranks = make_single_rank();
  //                                  0  1  2  3  4  5  6  7  8
  const std::vector<std::size_t> files{0, 1, 2, 0, 1, 2, 1, 1, 1};
  TaskQueue queue(*ranks, std::vector<i64>(files.size(), 1), files);
  EXPECT_EQ(queue.next(0), 0);
  EXPECT_EQ(queue.next(1), 1);
  EXPECT_EQ(queue.next(0), 3);
  EXPECT_EQ(queue.next(0), 2);
  EXPECT_EQ(queue.next(0), 5);
  EXPECT_EQ(queue.next(0), 4);
  EXPECT_EQ(queue.next(1), 6);
  EXPECT_EQ(queue.next(0), 7);
  EXPECT_EQ(queue.next(1), 8);
  EXPECT_EQ(queue.next(1), -1);
  EXPECT_EQ(queue.next(0), -1);
}

TEST(SingleRank, GivesTasksInOrderWhereNoFilesAreGiven) {
  const auto ranks = make_single_rank();
  TaskQueue queue(*ranks, std::vector<i64>(6, 1));
  for (i64 task = 0; task < 6; ++task) EXPECT_EQ(queue.next(static_cast<int>(task % 3)), task);
  EXPECT_EQ(queue.next(0), -1);
}

TEST(SingleRank, StopsItself) {
  const auto ranks = make_single_rank();
  TaskQueue queue(*ranks, std::vector<i64>(10, 1));
  EXPECT_EQ(queue.next(0), 0);
  ranks->stop();
  EXPECT_EQ(queue.next(0), -1);
  EXPECT_EQ(ranks->take(), -1);
  ranks->restart();
  EXPECT_EQ(ranks->take(), 0);
}

/// Its failures are told by the program as they were thrown.
TEST(SingleRank, ThrowsWhatTheStepThrew) {
  const auto ranks = make_single_rank();
  try {
    together(*ranks, [] { fail(ErrorCode::NoSpace, {}, "full"); });
    FAIL();
  } catch (const RankError&) {
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NoSpace);
  }
  EXPECT_THROW(together(*ranks, [] { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST(ThreadRanks, DoWhatRanksDo) {
  run_thread_ranks(4, [](Ranks& ranks) {
    expect_broadcasts(ranks);
    expect_gathers(ranks);
    expect_takes(ranks, 4, 1000);
    expect_queue(ranks, 4, 1000);
    expect_failures(ranks);
  });
}

}  // namespace
}  // namespace glu_ckpt
