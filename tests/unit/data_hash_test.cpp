#include "core/data_hash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/parallel.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

/// Byte i is a function of i that no two blocks share.
std::vector<std::byte> content_of(i64 bytes) {
  std::vector<std::byte> content(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + (i >> 16) * 31 + (i >> 20) * 3);
  return content;
}

struct HashedRange {
  i64 begin = 0;
  i64 bytes = 0;
};

/// Ranges that tile [0, bytes), in random order.
std::vector<HashedRange> random_ranges(i64 bytes, unsigned longest, std::mt19937& random) {
  std::vector<HashedRange> ranges;
  for (i64 at = 0; at < bytes; at += ranges.back().bytes)
    ranges.push_back({at, std::min<i64>(bytes - at, 1 + random() % (random() % 3 == 0 ? 3000 : longest))});
  std::shuffle(ranges.begin(), ranges.end(), random);
  return ranges;
}

class DataHasherTest : public testing::Test {
 protected:
  static constexpr i64 kBytes = 5 * kDataBlockBytes + 12'345;

  void add(DataHasher& hasher, const HashedRange& range) const {
    hasher.add(range.begin, std::span(content_).subspan(static_cast<std::size_t>(range.begin),
                                                        static_cast<std::size_t>(range.bytes)));
  }

  /// Finishes, and counts the bytes that are read for it.
  Hash128 finish(const DataHasher& hasher) {
    read_bytes_ = 0;
    return hasher.finish([&](std::span<std::byte> out, i64 offset) {
      std::ranges::copy(std::span(content_).subspan(static_cast<std::size_t>(offset), out.size()), out.begin());
      read_bytes_ += std::ssize(out);
    });
  }

  const std::vector<std::byte> content_ = content_of(kBytes);
  const Hash128 expected_ = hash_data(content_);
  i64 read_bytes_ = 0;
};

/// The contract's definition, written out.
TEST_F(DataHasherTest, IsTheSumOfSeededBlocks) {
  Hash128 sum;
  for (std::size_t block = 0; block < 6; ++block)
    sum += hash128(
        std::span(content_).subspan(block << 20).first(std::min<std::size_t>(1 << 20, content_.size() - (block << 20))),
        block);
  EXPECT_EQ(expected_, sum);
  EXPECT_EQ(hash_data({}), Hash128{});
  // A part of whole blocks adds what it adds to the whole.
  Hash128 parts = hash_data(std::span(content_).first(2 << 20));
  parts += hash_data(std::span(content_).subspan(2 << 20), 2);
  EXPECT_EQ(parts, expected_);
}

TEST_F(DataHasherTest, RangesInAnyOrderByAnyThreadNeedNoSecondRead) {
  std::mt19937 random(1);
  HashMemory memory(i64{64} << 20);
  for (const unsigned longest : {4000u, 300'000u, 3'000'000u}) {
    DataHasher hasher(kBytes, memory);
    const auto ranges = random_ranges(kBytes, longest, random);
    parallel_for(ranges.size(), 4, [&](std::size_t i, int) { add(hasher, ranges[i]); });
    EXPECT_EQ(finish(hasher), expected_);
    EXPECT_EQ(read_bytes_, 0);
  }
  EXPECT_TRUE(memory.try_take(i64{64} << 20)) << "all memory was given back";
}

TEST_F(DataHasherTest, RangesInOrderKeepNoBytes) {
  HashMemory memory(4096);
  DataHasher hasher(kBytes, memory);
  for (i64 at = 0; at < kBytes; at += 10'001) add(hasher, {at, std::min<i64>(10'001, kBytes - at)});
  EXPECT_EQ(finish(hasher), expected_);
  EXPECT_EQ(read_bytes_, 0);
}

/// What does not fit the memory is read again, and nothing else.
TEST_F(DataHasherTest, WithoutMemoryBlocksThatCameInPartsAreReadAgain) {
  std::mt19937 random(2);
  for (const i64 bytes : {i64{0}, i64{1024}, i64{100'000}, i64{600'000}}) {
    HashMemory memory(bytes);
    {
      DataHasher hasher(kBytes, memory);
      for (const HashedRange& range : random_ranges(kBytes, 300'000, random)) add(hasher, range);
      EXPECT_EQ(finish(hasher), expected_);
      EXPECT_EQ(finish(hasher), expected_) << "finish() changes nothing";
    }
    EXPECT_TRUE(memory.try_take(bytes));
    EXPECT_FALSE(memory.try_take(1));
  }
  HashMemory none(0);
  DataHasher hasher(kBytes, none);
  add(hasher, {100, 3 * kDataBlockBytes});
  add(hasher, {3 * kDataBlockBytes + 100, kBytes - 3 * kDataBlockBytes - 100});
  add(hasher, {0, 100});
  EXPECT_EQ(finish(hasher), expected_);
  EXPECT_EQ(read_bytes_, 2 * kDataBlockBytes);
}

TEST_F(DataHasherTest, SeveralProcessesHashOneFile) {
  HashMemory memory(i64{64} << 20);
  DataHasher first(kBytes, memory);
  add(first, {0, kDataBlockBytes + 77});
  DataHasher second(kBytes, memory);
  add(second, {kDataBlockBytes + 77, 3 * kDataBlockBytes});
  ByteWriter out;
  second.export_to(out);
  const std::vector<std::byte> exported = out.take();
  ByteReader in(exported, "hashes");
  first.import_from(in);
  in.end();
  add(first, {4 * kDataBlockBytes + 77, kBytes - 4 * kDataBlockBytes - 77});
  EXPECT_EQ(finish(first), expected_);
  EXPECT_EQ(read_bytes_, 2 * kDataBlockBytes) << "the two blocks that both processes had parts of";
  ByteReader again(exported, "hashes");
  EXPECT_EQ(slug_of([&] { first.import_from(again); }), "io");
  ByteReader cut({exported.data(), exported.size() - 1}, "hashes");
  DataHasher third(kBytes, memory);
  EXPECT_EQ(slug_of([&] { third.import_from(cut); }), "io");
  DataHasher smaller(kDataBlockBytes, memory);
  ByteReader other(exported, "hashes");
  EXPECT_EQ(slug_of([&] { smaller.import_from(other); }), "io");
}

TEST_F(DataHasherTest, NoDataHaveTheSumZero) {
  HashMemory memory(0);
  DataHasher hasher(0, memory);
  hasher.add(0, {});
  EXPECT_EQ(finish(hasher), Hash128{});
}

}  // namespace
}  // namespace glu_ckpt
