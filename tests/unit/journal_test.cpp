#include "io/journal.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "support/both_systems.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using Entry = std::vector<std::byte>;

/// Entry n has n bytes (none, one, ...), none of which begins a record.
Entry entry_of(std::size_t n) {
  Entry entry(n);
  for (std::size_t i = 0; i < n; ++i) entry[i] = static_cast<std::byte>((n * 17 + i) | 0x80);
  return entry;
}

constexpr std::string_view kHeader = "what was asked";
constexpr std::size_t kEntries = 12;

void write_journal(const fs::path& path, std::size_t entries = kEntries) {
  Journal journal(File::create(path));
  journal.begin(kHeader);
  for (std::size_t n = 0; n < entries; ++n) journal.append(entry_of(n));
}

using JournalTest = BothSystems;
GLU_CKPT_ON_BOTH(JournalTest);

TEST_P(JournalTest, ReadsWhatWasWritten) {
  write_journal(dir_ / "j");
  const Journal journal(File::open_write(dir_ / "j"));
  EXPECT_EQ(journal.header(), kHeader);
  ASSERT_EQ(journal.entries().size(), kEntries);
  for (std::size_t n = 0; n < kEntries; ++n) EXPECT_EQ(journal.entries()[n], entry_of(n));
}

TEST_P(JournalTest, GoesOnAfterAResume) {
  write_journal(dir_ / "j", 3);
  {
    Journal journal(File::open_write(dir_ / "j"));
    journal.append(entry_of(3));
    journal.append(entry_of(4));
  }
  const Journal journal(File::open_write(dir_ / "j"));
  ASSERT_EQ(journal.entries().size(), 5u);
  for (std::size_t n = 0; n < 5; ++n) EXPECT_EQ(journal.entries()[n], entry_of(n));
}

TEST_P(JournalTest, AnEmptyOneHasNoHeader) {
  put_text(dir_ / "j", "");
  EXPECT_FALSE(Journal(File::open_write(dir_ / "j")).header());
  write_journal(dir_ / "k", 0);
  const Journal journal(File::open_write(dir_ / "k"));
  EXPECT_EQ(journal.header(), kHeader);
  EXPECT_TRUE(journal.entries().empty());
}

/// A header as long as the one before it: entries behind it would fit.
TEST_P(JournalTest, BeginForgetsWhatWasThere) {
  const std::string another(kHeader.size(), 'x');
  write_journal(dir_ / "j");
  {
    Journal journal(File::open_write(dir_ / "j"));
    journal.begin(another);
    EXPECT_TRUE(journal.entries().empty());
  }
  const Journal journal(File::open_write(dir_ / "j"));
  EXPECT_EQ(journal.header(), another);
  EXPECT_TRUE(journal.entries().empty());
}

/// Cut at any byte, it has exactly the entries that end before the cut, and goes on from there.
TEST(Journal, TornAnywhereKeepsTheWholeEntriesBefore) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  write_journal("/whole");
  const std::string whole = *memory.get("/whole");
  std::vector<std::size_t> ends;
  std::size_t end = 16 + kHeader.size();
  for (std::size_t n = 0; n < kEntries; ++n) ends.push_back(end += 16 + n);
  ASSERT_EQ(whole.size(), end);

  // What is behind the cut: nothing; zeros; the bytes of the journal's beginning, as a block that was used before.
  for (const std::string& behind : {std::string(), std::string(100, '\0'), whole})
    for (std::size_t cut = behind == whole ? 1 : 0; cut < whole.size(); ++cut) {
      SCOPED_TRACE(testing::Message() << cut << " and " << behind.size());
      const std::string head = whole.substr(0, cut);
      if (behind == whole && 0 < cut && cut < 4) continue;  // begins as no journal does
      memory.put("/torn", head + behind);
      std::size_t kept = 0;
      while (kept < kEntries && ends[kept] <= cut) ++kept;
      const bool has_header = cut >= 16 + kHeader.size();
      {
        Journal journal(File::open_write("/torn"));
        ASSERT_EQ(journal.header().has_value(), has_header);
        ASSERT_EQ(journal.entries().size(), kept);
        for (std::size_t n = 0; n < kept; ++n) EXPECT_EQ(journal.entries()[n], entry_of(n));
        if (!has_header) journal.begin(kHeader);
        journal.append(entry_of(5));
      }
      const Journal again(File::open_write("/torn"));
      ASSERT_EQ(again.entries().size(), kept + 1);
      EXPECT_EQ(again.entries().back(), entry_of(5));
    }
}

/// A hole in the middle: entries behind it were not whole when the run stopped, and must not come back later.
TEST(Journal, NothingBehindAHoleCounts) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  write_journal("/whole");
  const std::string whole = *memory.get("/whole");
  for (std::size_t at = 16 + kHeader.size(); at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    memory.put("/damaged", damaged);
    Journal journal(File::open_write("/damaged"));
    const std::size_t kept = journal.entries().size();
    ASSERT_LT(kept, kEntries);
    for (std::size_t n = 0; n < kept; ++n) EXPECT_EQ(journal.entries()[n], entry_of(n));
    // One as long as that which was damaged, so that the next would follow it.
    journal.append(entry_of(kept));
    EXPECT_EQ(Journal(File::open_write("/damaged")).entries().size(), kept + 1);
  }
}

TEST(Journal, WhatIsNoJournalIsLeftAlone) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  for (const char* text : {"dear diary", "GC", "GCX1", "x", "{}"}) {
    memory.put("/other", text);
    const bool could_be = std::string_view(text) == "GC";
    EXPECT_EQ(slug_of([] { Journal(File::open_write("/other")); }), could_be ? "none" : "output-exists") << text;
    if (!could_be) {
      EXPECT_EQ(memory.get("/other"), text);
    }
  }
}

TEST(Journal, ALengthThatIsTooLargeIsDamage) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/j", std::string("GCJ1\xff\xff\xff\xff", 8) + std::string(100, 'x'));
  EXPECT_FALSE(Journal(File::open_write("/j")).header());
  Journal journal(File::create("/k"));
  EXPECT_EQ(slug_of([&] { journal.append(Entry((std::size_t{64} << 20) + 1)); }), "io");
}

/// An append that failed half-way leaves no trace after the next.
TEST(Journal, GoesOnAfterAFailedAppend) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.set_transfer(Transfer::Half);
  for (i64 n = 1; n < 8; ++n) {
    (void)remove_own("/j", Own::MadeHere);
    {
      Journal journal(File::create("/j"));
      journal.begin(kHeader);
      journal.append(entry_of(3));
      memory.reset();
      memory.set_transfer(Transfer::Half);
      memory.fail(CallKind::Write, n, ENOSPC);
      const std::string failed = slug_of([&] { journal.append(entry_of(90)); });
      ASSERT_EQ(failed, n < 8 ? "no-space" : "none");
      journal.append(entry_of(4));
    }
    const Journal journal(File::open_write("/j"));
    ASSERT_EQ(journal.entries().size(), 2u);
    EXPECT_EQ(journal.entries()[1], entry_of(4));
  }
}

TEST(Journal, OneWriteForAnEntry) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  Journal journal(File::create("/j"));
  journal.begin(kHeader);
  memory.reset();
  journal.append(entry_of(100));
  EXPECT_EQ(memory.calls(), 1);
  EXPECT_EQ(memory.calls(CallKind::Write), 1);
}

TEST_P(JournalTest, ThreadsAppendWholeEntries) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kEach = 200;
  {
    Journal journal(File::create(dir_ / "j"));
    journal.begin(kHeader);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&journal, t] {
        for (std::size_t i = 0; i < kEach; ++i) journal.append(entry_of(t * kEach + i));
      });
    for (std::thread& thread : threads) thread.join();
  }
  const Journal journal(File::open_write(dir_ / "j"));
  ASSERT_EQ(journal.entries().size(), kThreads * kEach);
  std::vector<bool> seen(kThreads * kEach);
  for (const Entry& entry : journal.entries()) {
    EXPECT_EQ(entry, entry_of(entry.size()));
    EXPECT_FALSE(seen.at(entry.size()));
    seen[entry.size()] = true;
  }
}

}  // namespace
}  // namespace glu_ckpt
