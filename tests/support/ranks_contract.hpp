#pragma once
/// What every kind of Ranks must do. Called by all ranks together, on each of which EXPECTs count; `threads` of each
/// rank take at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/fail.hpp"
#include "ranks/task_queue.hpp"

namespace glu_ckpt::support {

/// Bytes that say where they belong.
inline std::vector<std::byte> marked_bytes(std::size_t count, int salt) {
  std::vector<std::byte> bytes(count);
  u64 value = static_cast<u64>(salt) + 1;
  for (std::byte& byte : bytes) {
    value = value * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(value >> 56);
  }
  return bytes;
}

inline std::vector<std::byte> bytes_of(const std::vector<i64>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(i64));
  if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

inline std::vector<i64> numbers_of(const std::vector<std::vector<std::byte>>& all) {
  std::vector<i64> numbers;
  for (const std::vector<std::byte>& bytes : all) {
    const std::size_t before = numbers.size();
    numbers.resize(before + bytes.size() / sizeof(i64));
    if (!bytes.empty()) std::memcpy(numbers.data() + before, bytes.data(), bytes.size());
  }
  return numbers;
}

inline void expect_broadcasts(Ranks& ranks) {
  for (const std::size_t count : {0U, 1U, 65'537U, 5'000'000U}) {
    // What the others hand in does not count, however long it is.
    const auto mine = ranks.rank() == 0 ? marked_bytes(count, 7) : marked_bytes(3, ranks.rank());
    EXPECT_EQ(ranks.broadcast(mine), marked_bytes(count, 7)) << count;
  }
}

inline void expect_gathers(Ranks& ranks) {
  // Of the last rank, of the first, and of one in the middle nothing.
  for (const int none : {ranks.size() - 1, 0, ranks.size() / 2}) {
    const auto length = [&](int rank) {
      return rank == none ? std::size_t{0} : static_cast<std::size_t>(1'000'003 * (rank + 1));
    };
    const auto all = ranks.gather(marked_bytes(length(ranks.rank()), ranks.rank()));
    if (ranks.rank() != 0) {
      EXPECT_TRUE(all.empty());
      continue;
    }
    ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks.size()));
    for (int rank = 0; rank < ranks.size(); ++rank)
      EXPECT_EQ(all[static_cast<std::size_t>(rank)], marked_bytes(length(rank), rank)) << rank;
  }
}

/// What `threads` threads get from `next(thread)` until it gives what ends it.
template <typename Next, typename Ends>
std::vector<i64> taken_by(int threads, const Next& next, const Ends& ends) {
  std::mutex mutex;
  std::vector<i64> all;
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i)
    pool.emplace_back([&, i] {
      for (i64 number = next(i); !ends(number); number = next(i)) {
        const std::lock_guard lock(mutex);
        all.push_back(number);
      }
    });
  for (std::thread& thread : pool) thread.join();
  return all;
}

/// At rank 0: all numbers from 0 to count, each from one rank.
inline void expect_each_once(Ranks& ranks, const std::vector<i64>& mine, i64 count) {
  const auto all = ranks.gather(bytes_of(mine));
  if (ranks.rank() != 0) return;
  std::vector<i64> numbers = numbers_of(all);
  std::ranges::sort(numbers);
  std::vector<i64> expected(static_cast<std::size_t>(count));
  std::iota(expected.begin(), expected.end(), i64{0});
  EXPECT_EQ(numbers, expected);
}

inline void expect_takes(Ranks& ranks, int threads, i64 count) {
  for (int round = 0; round < 2; ++round) {
    ranks.restart();
    EXPECT_FALSE(ranks.stopped());
    const auto mine = taken_by(
        threads, [&](int) { return ranks.take(); }, [&](i64 number) { return number >= count; });
    expect_each_once(ranks, mine, count);
  }
}

inline void expect_queue(Ranks& ranks, int threads, i64 count) {
  std::vector<i64> task_bytes;
  std::vector<std::size_t> files;
  for (i64 task = 0; task < count; ++task) {
    task_bytes.push_back(task % 7 * 1000);
    files.push_back(static_cast<std::size_t>(task % 5));
  }
  for (const bool by_file : {false, true}) {
    TaskQueue queue(ranks, task_bytes, by_file ? files : std::vector<std::size_t>());
    const auto mine = taken_by(
        threads, [&](int thread) { return queue.next(thread); }, [](i64 number) { return number < 0; });
    expect_each_once(ranks, mine, count);
  }
}

/// `failing` ranks throw; the others would go on for ever.
inline void expect_failure(Ranks& ranks, const std::vector<int>& failing, const std::vector<ErrorCode>& codes,
                           int expected) {
  ranks.restart();
  const auto at = std::ranges::find(failing, ranks.rank());
  bool thrown = false;
  try {
    together(ranks, [&] {
      if (at != failing.end())
        fail(codes[static_cast<std::size_t>(at - failing.begin())], {"file", "tensor"}, "rank {}", ranks.rank());
      while (!ranks.stopped()) std::this_thread::yield();
      EXPECT_EQ(ranks.take(), -1);
    });
  } catch (const RankError& error) {
    thrown = true;
    EXPECT_EQ(error.rank(), failing[static_cast<std::size_t>(expected)]);
    EXPECT_EQ(error.code(), codes[static_cast<std::size_t>(expected)]);
    EXPECT_EQ(error.what(), "rank " + std::to_string(error.rank()));
    EXPECT_EQ(error.file(), "file");
    EXPECT_EQ(error.tensor(), "tensor");
  }
  EXPECT_TRUE(thrown);
}

/// Of at least 4 ranks.
inline void expect_failures(Ranks& ranks) {
  using enum ErrorCode;
  expect_failure(ranks, {0}, {Io}, 0);
  expect_failure(ranks, {3}, {NoSpace}, 0);
  expect_failure(ranks, {1, 2}, {NoSpace, Io}, 0);
  // A stop that was asked for says less than what broke.
  expect_failure(ranks, {0, 1, 3}, {Interrupted, Interrupted, Io}, 2);
  expect_failure(ranks, {0, 1, 2, 3}, {Interrupted, Interrupted, Interrupted, Interrupted}, 0);
  ranks.restart();
  EXPECT_FALSE(ranks.stopped());
  EXPECT_NO_THROW(together(ranks, [] {}));
  int calls = 0;
  at_first_rank(ranks, [&] { ++calls; });
  EXPECT_EQ(calls, ranks.rank() == 0 ? 1 : 0);
  // Whatever is thrown is an Error on the other ranks.
  EXPECT_THROW(at_first_rank(ranks, [] { throw std::bad_alloc(); }), RankError);
}

}  // namespace glu_ckpt::support
