#include "core/file_hash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/hash.hpp"

namespace glu_ckpt {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 56);
  return bytes;
}

/// libxxhash's own.
Hash128 expected(std::span<const std::byte> bytes) {
  StreamHash hash;
  hash.update(bytes);
  return hash.finish();
}

Hash128 chained(std::span<const std::byte> bytes, HashPath path) {
  const auto count = static_cast<i64>(bytes.size());
  std::vector<BlockSum> sums(static_cast<std::size_t>(chained_blocks(count)));
  sum_blocks(bytes, sums, path);
  BlockChain chain;
  // In two halves: the chain goes on where it stopped.
  chain.add(std::span(sums).first(sums.size() / 2));
  chain.add(std::span(sums).subspan(sums.size() / 2));
  return chain.finish(count, bytes.last(static_cast<std::size_t>(hash_tail_bytes(count))));
}

TEST(FileHash, IsLibxxhashsForEveryShortLength) {
  const auto bytes = random_bytes(5000, 1);
  for (const HashPath path : hash_paths())
    for (std::size_t count = 0; count <= bytes.size(); ++count)
      ASSERT_EQ(chained(std::span(bytes).first(count), path), expected(std::span(bytes).first(count))) << count;
}

TEST(FileHash, IsLibxxhashsAroundWholeBlocks) {
  const auto bytes = random_bytes((std::size_t{3} << 20) + 200, 2);
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    const std::size_t blocks = 1 + random() % 3071;
    for (const int off : {-65, -64, -63, -1, 0, 1, 63, 64, 65}) {
      const auto part = std::span(bytes).first(static_cast<std::size_t>(static_cast<int>(blocks * 1024) + off));
      for (const HashPath path : hash_paths()) ASSERT_EQ(chained(part, path), expected(part)) << part.size();
    }
  }
}

TEST(FileHash, AddressesNeedNoAlignment) {
  const auto bytes = random_bytes(9000, 4);
  for (std::size_t from = 0; from < 70; ++from)
    for (const HashPath path : hash_paths()) {
      const auto part = std::span(bytes).subspan(from, 8500);
      ASSERT_EQ(chained(part, path), expected(part)) << from;
    }
}

TEST(FileHash, PathsAgreeOnEverySum) {
  const auto bytes = random_bytes(std::size_t{64} << 10, 5);
  std::vector<BlockSum> plain(64);
  sum_blocks(bytes, plain, HashPath::Plain);
  EXPECT_EQ(hash_paths().back(), HashPath::Plain);
  for (const HashPath path : hash_paths()) {
    std::vector<BlockSum> sums(64);
    sum_blocks(bytes, sums, path);
    EXPECT_TRUE(sums == plain);
  }
}

/// Zeros mean "not known", so a file of zeros must not look like that.
TEST(FileHash, ABlockOfZerosHasASum) {
  const std::vector<std::byte> zeros(1024);
  std::vector<BlockSum> sums(1);
  EXPECT_FALSE(BlockSum{}.is_known());
  sum_blocks(zeros, sums);
  EXPECT_TRUE(sums[0].is_known());
}

}  // namespace
}  // namespace glu_ckpt
