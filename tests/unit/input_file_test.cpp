#include "io/input_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <string>

#include "core/parallel.hpp"
#include "support/both_systems.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kPage = 4096;
constexpr i64 kFileBytes = (i64{7} << 20) + 1234;

/// Every eight bytes tell where they are.
const std::string& content() {
  static const std::string text = [] {
    std::string made(static_cast<std::size_t>(kFileBytes), '\0');
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<char>((i >> (8 * (i % 4))) * 31 + i % 251);
    return made;
  }();
  return text;
}

struct Span {
  i64 bytes = 0;
  /// Where its first byte lies in its page of memory; negative for where it lies in the file's.
  i64 phase = -1;
};

/// Reads pieces from `offset` on into memory of the phases asked for, and expects the file's bytes and nothing
/// beside.
void expect_reads(const InputFile& file, i64 offset, const std::vector<Span>& spans) {
  const std::string& text = content();
  std::vector<std::vector<char>> memory;
  std::vector<iovec> pieces;
  i64 at = offset;
  for (const Span& span : spans) {
    const i64 phase = span.phase < 0 ? at % kPage : span.phase;
    memory.emplace_back(static_cast<std::size_t>(span.bytes + 2 * kPage), '\x5a');
    const auto begin = static_cast<i64>(reinterpret_cast<std::uintptr_t>(memory.back().data()) % kPage);
    pieces.push_back({memory.back().data() + (phase - begin + kPage) % kPage, static_cast<std::size_t>(span.bytes)});
    at += span.bytes;
  }
  file.read(pieces, offset);
  at = offset;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto* const out = static_cast<char*>(pieces[i].iov_base);
    ASSERT_TRUE(std::equal(out, out + pieces[i].iov_len, text.data() + at)) << "piece " << i << " at " << at;
    ASSERT_TRUE(std::all_of(memory[i].data(), out, [](char c) { return c == '\x5a'; })) << i;
    ASSERT_TRUE(std::all_of(out + pieces[i].iov_len, memory[i].data() + memory[i].size(), [](char c) {
      return c == '\x5a';
    })) << i;
    at += static_cast<i64>(pieces[i].iov_len);
  }
}

class InputFileTest : public testing::Test {
 protected:
  InputFileTest() : scope_(disk_) {
    disk_.put("/in", content());
    disk_.set_cached(false);
  }

  MemorySystem disk_;
  SystemCallsScope scope_;
};

TEST_F(InputFileTest, WholePagesGoPastTheCache) {
  const InputFile file(File::open_read("/in"));
  expect_reads(file, 0, {{256 * 1024}});
  EXPECT_EQ(disk_.bytes_past_cache(), 256 * 1024);
  expect_reads(file, 3 * kPage, {{128 * 1024}, {64 * 1024}});
  EXPECT_EQ(disk_.bytes_past_cache(), 448 * 1024);
}

TEST_F(InputFileTest, PagesOfTwoPiecesAreReadOnce) {
  const InputFile file(File::open_read("/in"));
  expect_reads(file, 1000, {{128 * 1024}, {128 * 1024}, {128 * 1024}});
  EXPECT_EQ(disk_.bytes_past_cache(), 384 * 1024 + kPage);
  // Within one page, and up to one.
  expect_reads(file, kPage + 8, {{100}, {200}, {kPage - 308}, {256 * 1024}, {1}, {2}});
}

TEST_F(InputFileTest, WhatIsCachedComesFromThere) {
  disk_.set_cached(true);
  const InputFile file(File::open_read("/in"));
  expect_reads(file, 0, {{256 * 1024}});
  EXPECT_EQ(disk_.bytes_past_cache(), 0);
  EXPECT_TRUE(file.reads_past_cache());
  disk_.set_cached(false);
  expect_reads(file, 0, {{256 * 1024}});
  EXPECT_EQ(disk_.bytes_past_cache(), 256 * 1024);
}

/// Of what is half there, the other half is read as it would be by anybody.
TEST_F(InputFileTest, MostOfARangeHasToBeMissing) {
  const InputFile file(File::open_read("/in"));
  for (const int percent : {49, 50, 51, 99}) {
    disk_.set_cached_percent(percent);
    const i64 before = disk_.bytes_past_cache();
    expect_reads(file, 0, {{256 * 1024}});
    EXPECT_EQ(disk_.bytes_past_cache() - before, percent < 50 ? 256 * 1024 : 0) << percent;
  }
}

TEST_F(InputFileTest, WhatIsToBeReadAgainStaysInTheCache) {
  const InputFile before(File::open_read("/in")), after(File::open_read("/in"));
  before.keep_in_cache();
  expect_reads(after, 0, {{256 * 1024}});
  after.keep_in_cache();
  const i64 past_cache = disk_.bytes_past_cache();
  for (const InputFile* file : {&before, &after}) {
    EXPECT_FALSE(file->reads_past_cache());
    expect_reads(*file, 0, {{256 * 1024}});
  }
  EXPECT_EQ(disk_.bytes_past_cache(), past_cache);
}

TEST_F(InputFileTest, WhatWouldBeCopiedAnywayComesThroughTheCache) {
  const InputFile file(File::open_read("/in"));
  expect_reads(file, 0, {{256 * 1024, 8}});
  expect_reads(file, 8, {{128 * 1024}, {128 * 1024, 0}});
  // Small pieces, and little of anything.
  expect_reads(file, 8, std::vector<Span>(100, {kPage}));
  expect_reads(file, 0, {{32 * 1024}});
  EXPECT_EQ(disk_.bytes_past_cache(), 0);
}

TEST_F(InputFileTest, TheEndIsNoWholePage) {
  const InputFile file(File::open_read("/in"));
  const i64 begin = kFileBytes / kPage * kPage - 128 * 1024;
  expect_reads(file, begin, {{kFileBytes - begin}});
  EXPECT_EQ(disk_.bytes_past_cache(), 128 * 1024);
  expect_reads(file, begin + 8, {{64 * 1024}, {kFileBytes - begin - 64 * 1024 - 8}});
  std::vector<char> memory(256 * 1024);
  const iovec piece{memory.data(), memory.size()};
  EXPECT_THROW(file.read({&piece, 1}, kFileBytes - 128 * 1024), Error);
}

TEST_F(InputFileTest, WithoutSuchAccessItReadsAsOthersDo) {
  disk_.allow_direct(false);
  const InputFile file(File::open_read("/in"));
  EXPECT_FALSE(file.reads_past_cache());
  expect_reads(file, 8, {{256 * 1024}});
}

/// Of pages that are read aside there is room for so many.
TEST_F(InputFileTest, ManyPiecesThatMeetWithinPages) {
  constexpr i64 kPiece = 9 * kPage, kMostAside = 128;
  const InputFile file(File::open_read("/in"));
  for (const i64 pieces : {kMostAside - 1, kMostAside, kMostAside + 40}) {
    const i64 before = disk_.bytes_past_cache();
    expect_reads(file, 8, std::vector<Span>(static_cast<std::size_t>(pieces), {kPiece}));
    EXPECT_EQ(disk_.bytes_past_cache() - before, pieces < kMostAside ? pieces * kPiece + kPage : 0) << pieces;
  }
}

/// A filesystem that takes the flag and refuses the read is asked once.
TEST_F(InputFileTest, AfterAFailureItReadsAsOthersDo) {
  const InputFile file(File::open_read("/in"));
  EXPECT_TRUE(file.reads_past_cache());
  disk_.reset();
  disk_.fail(CallKind::Read, 1, EINVAL);
  expect_reads(file, 0, {{256 * 1024}});
  EXPECT_FALSE(file.reads_past_cache());
  expect_reads(file, 0, {{256 * 1024}});
  EXPECT_EQ(disk_.calls(CallKind::Read), 3);
  EXPECT_EQ(disk_.bytes_past_cache(), 0);
}

TEST_F(InputFileTest, TheLastDescriptorsAreForOthers) {
  for (const i64 spare : {1, 10, 64, 65, 1000}) {
    disk_.set_free_descriptors(spare + 1);
    const InputFile file(File::open_read("/in"));
    EXPECT_EQ(file.reads_past_cache(), spare > 64) << spare;
    EXPECT_EQ(disk_.open_descriptors(), spare > 64 ? 2 : 1);
    expect_reads(file, 0, {{256 * 1024}});
  }
}

TEST_F(InputFileTest, AFileInItsPlaceIsNotRead) {
  const InputFile file(File::open_read("/in"));
  ASSERT_EQ(disk_.rename("/in", "/moved"), 0);
  disk_.put("/in", std::string(static_cast<std::size_t>(kFileBytes), 'x'));
  EXPECT_FALSE(file.reads_past_cache());
  expect_reads(file, 0, {{256 * 1024}});
}

/// Each call fails once: another way is found, or the failure is told; never are other bytes given.
TEST_F(InputFileTest, NoFailureGivesOtherBytes) {
  int told = 0, healed = 0;
  for (const int error : {EIO, EINVAL, EMFILE})
    for (i64 n = 1; n < 40; ++n) {
      try {
        const InputFile file(File::open_read("/in"));
        disk_.reset();
        disk_.fail(n, error);
        expect_reads(file, 8, {{128 * 1024}, {128 * 1024}});
        expect_reads(file, kFileBytes - 200 * 1024, {{200 * 1024}});
        ++healed;
      } catch (const Error&) {
        ++told;
      }
      disk_.reset();
    }
  EXPECT_GT(told, 0);
  EXPECT_GT(healed, 6);
}

class InputFileOnBoth : public BothSystems {};
GLU_CKPT_ON_BOTH(InputFileOnBoth);

TEST_P(InputFileOnBoth, RandomPieces) {
  std::mt19937 random(5);
  put_text(dir_ / "in", content());
  File::open_write(dir_ / "in").sync();
  const auto below = [&](i64 end) { return static_cast<i64>(random() % static_cast<u64>(end)); };
  for (int round = 0; round < 400; ++round) {
    const InputFile file(File::open_read(dir_ / "in"));
    if (round % 5 != 0) file.file().drop_cache();
    memory_.set_cached(round % 5 == 0);
    memory_.set_transfer(round % 7 == 0 ? Transfer::Half : Transfer::Whole);
    i64 at = below(kFileBytes - 1);
    const i64 offset = at;
    std::vector<Span> spans;
    const i64 largest = std::array<i64, 3>{300, 20'000, 300'000}[random() % 3];
    while (at < kFileBytes && spans.size() < 40) {
      const i64 bytes = std::min(kFileBytes - at, 1 + below(largest));
      spans.push_back({bytes, round % 11 == 0 ? below(kPage) : -1});
      at += bytes;
    }
    expect_reads(file, offset, spans);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
  if (GetParam() == On::Memory) {
    EXPECT_GT(memory_.bytes_past_cache(), i64{20} << 20);
  }
}

TEST_F(InputFileTest, ManyThreads) {
  const InputFile file(File::open_read("/in"));
  parallel_for(64, 4, [&](std::size_t i, int) {
    expect_reads(file, static_cast<i64>(i) * 1000, {{100'000}, {200'000}});
  });
  EXPECT_GT(disk_.bytes_past_cache(), i64{64} * 300'000);
}

}  // namespace
}  // namespace glu_ckpt
