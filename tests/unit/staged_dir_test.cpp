#include "io/staged_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <set>

#include "support/both_systems.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAsked = "what was asked";
constexpr std::string_view kJournal = StagedDir::kJournalName;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

using StagedDirTest = BothSystems;
GLU_CKPT_ON_BOTH(StagedDirTest);

TEST_P(StagedDirTest, AppearsOnCommitOnly) {
  for (const std::string_view fingerprint : {std::string_view(), kAsked}) {
    (void)remove_tree(dir_ / "out");
    StagedDir staged(dir_ / "out", false, StagedMode::Create, fingerprint);
    EXPECT_EQ(staged.path(), dir_ / "out.partial");
    EXPECT_EQ(staged.has_journal(), !fingerprint.empty());
    EXPECT_EQ(path_exists(dir_ / "out.partial" / kJournal), !fingerprint.empty());
    put_text(staged.path() / "f", "1");
    EXPECT_FALSE(path_exists(dir_ / "out"));
    staged.commit();
    EXPECT_EQ(list_directory(dir_ / "out"), std::vector<std::string>{"f"});
    EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"out"});
  }
}

TEST_P(StagedDirTest, IsRemovedWithoutCommit) {
  make_directory(dir_ / "out");
  put_text(dir_ / "out" / "f", "old");
  for (const std::string_view fingerprint : {std::string_view(), kAsked}) {
    {
      const StagedDir staged(dir_ / "out", true, StagedMode::Create, fingerprint);
      put_text(staged.path() / "f", "new");
      make_directory(staged.path() / "deep");
      put_text(staged.path() / "deep" / "f", "new");
    }
    EXPECT_EQ(get_text(dir_ / "out" / "f"), "old");
    EXPECT_FALSE(path_exists(dir_ / "out.partial"));
  }
}

TEST_P(StagedDirTest, RefusesWhatIsThere) {
  put_text(dir_ / "file", "");
  make_symlink("nowhere", dir_ / "dangling");
  make_directory(dir_ / "run.partial");
  make_symlink("run.partial", dir_ / "link.partial");
  for (const StagedMode mode : {StagedMode::Create, StagedMode::Resume}) {
    const auto staged = [&](const fs::path& path, bool overwrite = false) {
      return slug_of([&] { StagedDir(dir_ / path, overwrite, mode, kAsked); });
    };
    EXPECT_EQ(staged("file"), "output-exists");
    EXPECT_EQ(staged("dangling"), "output-exists");
    EXPECT_EQ(staged("link", true), "output-exists");
    EXPECT_EQ(staged("none/out"), "not-found");
    EXPECT_EQ(staged("file/out"), "not-found");
  }
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "run", false); }), "output-exists");
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "run", true); }), "output-exists");
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "run", true, StagedMode::Resume); }), "output-exists");
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "run", true, StagedMode::Create, kAsked); }), "output-exists");
  EXPECT_TRUE(path_exists(dir_ / "run.partial"));
}

TEST_P(StagedDirTest, DoesNotReplaceWhatAppearedMeanwhile) {
  StagedDir staged(dir_ / "out", false);
  make_directory(dir_ / "out");
  EXPECT_EQ(slug_of([&] { staged.commit(); }), "output-exists");
  memory_.allow_rename_flags(false);
  EXPECT_EQ(slug_of([&] { staged.commit(); }), "output-exists");
}

TEST_P(StagedDirTest, ReplacesADirectory) {
  for (const bool exchange : {true, false}) {
    memory_.allow_rename_flags(exchange);
    (void)remove_tree(dir_ / "out");
    make_directory(dir_ / "out");
    put_text(dir_ / "out" / "old", "");
    StagedDir staged(dir_ / "out/", true);
    put_text(staged.path() / "new", "");
    staged.commit();
    EXPECT_EQ(list_directory(dir_ / "out"), std::vector<std::string>{"new"});
    EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"out"});
  }
}

TEST_P(StagedDirTest, CommitsOneFile) {
  for (const bool exchange : {true, false}) {
    memory_.allow_rename_flags(exchange);
    (void)remove_tree(dir_ / "f.safetensors");
    for (const std::string_view fingerprint : {std::string_view(), kAsked})
      for (const bool overwrite : {false, true}) {
        if (!overwrite) (void)remove_tree(dir_ / "f.safetensors");
        StagedDir staged(dir_ / "f.safetensors", overwrite, StagedMode::Create, fingerprint);
        put_text(staged.path() / "f.safetensors", overwrite ? "2" : "1");
        staged.commit_file("f.safetensors");
        EXPECT_EQ(get_text(dir_ / "f.safetensors"), overwrite ? "2" : "1");
        EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"f.safetensors"});
      }
  }
}

TEST_P(StagedDirTest, ReplacingASymlinkLeavesItsTarget) {
  make_directory(dir_ / "target");
  put_text(dir_ / "target" / "f", "kept");
  make_symlink("target", dir_ / "out");
  StagedDir staged(dir_ / "out", true);
  staged.commit();
  EXPECT_EQ(get_text(dir_ / "target" / "f"), "kept");
  EXPECT_EQ(link_kind(dir_ / "out"), PathKind::Directory);
}

// ---- journals
// ---------------------------------------------------------------------------------------------------------

TEST_P(StagedDirTest, ResumesWhatWasKept) {
  {
    StagedDir staged(dir_ / "out", false, StagedMode::Create, kAsked);
    EXPECT_FALSE(staged.resumed());
    staged.journal().append(bytes_of("one"));
    put_text(staged.path() / "f", "1");
    staged.keep();
  }
  EXPECT_TRUE(path_exists(dir_ / "out.partial" / "f"));
  {
    StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
    EXPECT_TRUE(staged.resumed());
    ASSERT_EQ(staged.journal().entries().size(), 1u);
    EXPECT_TRUE(std::ranges::equal(staged.journal().entries()[0], bytes_of("one")));
    staged.journal().append(bytes_of("two"));
    staged.keep();
  }
  StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
  EXPECT_EQ(staged.journal().entries().size(), 2u);
  EXPECT_EQ(get_text(staged.path() / "f"), "1");
  staged.commit();
  EXPECT_EQ(list_directory(dir_ / "out"), std::vector<std::string>{"f"});
  EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"out"});
}

/// An error on the way, such as too many open files, is no reason to lose what an earlier run did.
TEST_P(StagedDirTest, AResumedOneIsRemovedOnRequestOnly) {
  StagedDir(dir_ / "out", false, StagedMode::Create, kAsked).keep();
  { const StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked); }
  EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"out.partial"});
  StagedDir(dir_ / "out", false, StagedMode::Resume, kAsked).discard();
  EXPECT_TRUE(list_directory(dir_).empty());
}

TEST_P(StagedDirTest, OneThatHasJoinedRemovesNothing) {
  StagedDir first(dir_ / "out", false, StagedMode::Create, kAsked);
  StagedDir(dir_ / "out", false, StagedMode::Join, kAsked, 1).discard();
  EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"out.partial"});
}

/// What a killed --overwrite may leave where files cannot be exchanged.
TEST_P(StagedDirTest, AReplacedOutputThatIsStillThereIsInTheWay) {
  ASSERT_TRUE(make_directory(dir_ / "out.replaced"));
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", true, StagedMode::Create, kAsked); }), "output-exists");
  EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"out.replaced"});
}

TEST_P(StagedDirTest, ResumesNothingAsCreate) {
  const StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
  EXPECT_FALSE(staged.resumed());
  EXPECT_TRUE(staged.has_journal());
  EXPECT_EQ(staged.journal().header(), kAsked);
}

TEST_P(StagedDirTest, CreateSaysThatARunCanBeResumed) {
  StagedDir(dir_ / "out", false, StagedMode::Create, kAsked).keep();
  for (const std::string_view fingerprint : {std::string_view(), kAsked}) {
    const auto create = [&] { StagedDir(dir_ / "out", false, StagedMode::Create, fingerprint); };
    EXPECT_EQ(slug_of(create), "output-exists");
    EXPECT_NE(message_of(create).find("--resume"), std::string::npos);
  }
  EXPECT_TRUE(path_exists(dir_ / "out.partial" / kJournal));
}

TEST_P(StagedDirTest, AnotherQuestionIsNotResumed) {
  {
    StagedDir staged(dir_ / "out", false, StagedMode::Create, kAsked);
    put_text(staged.path() / "f", "1");
    staged.keep();
  }
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", false, StagedMode::Resume, "else"); }), "resume-mismatch");
  EXPECT_EQ(get_text(dir_ / "out.partial" / "f"), "1");
  EXPECT_TRUE(StagedDir(dir_ / "out", false, StagedMode::Resume, kAsked).resumed());
}

TEST_P(StagedDirTest, OneRunAtATime) {
  const StagedDir first(dir_ / "out", false, StagedMode::Create, kAsked);
  put_text(first.path() / "f", "1");
  for (const StagedMode mode : {StagedMode::Create, StagedMode::Resume}) {
    EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", false, mode, kAsked); }), "output-busy");
    EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", true, mode, "else"); }), "output-busy");
  }
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", false); }), "output-busy");
  EXPECT_EQ(get_text(dir_ / "out.partial" / "f"), "1");
}

/// Nothing comes before the header, so a directory without one is begun anew, whatever is in it.
TEST_P(StagedDirTest, WhatHasNoHeaderBeginsAnew) {
  for (const std::string& torn : {std::string(), std::string("GCJ"), std::string(50, '\0'), std::string("GCJ1\x05")}) {
    make_directory(dir_ / "out.partial");
    put_text(dir_ / "out.partial" / kJournal, torn);
    StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
    EXPECT_FALSE(staged.resumed());
    EXPECT_EQ(staged.journal().header(), kAsked);
    EXPECT_EQ(list_directory(staged.path()), std::vector<std::string>{std::string(kJournal)});
  }
  make_directory(dir_ / "out.partial");
  StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
  EXPECT_FALSE(staged.resumed());
  EXPECT_EQ(list_directory(staged.path()), std::vector<std::string>{std::string(kJournal)});
}

/// Files are made once the header is on the disk, so it was damaged later: whose they are nobody can say.
TEST_P(StagedDirTest, FilesBesideADamagedJournalAreLeftAlone) {
  make_directory(dir_ / "out.partial");
  put_text(dir_ / "out.partial" / "f", "1");
  for (const std::string& torn : {std::string(), std::string("GCJ"), std::string(50, '\0'), std::string("GCJ1\x05")}) {
    put_text(dir_ / "out.partial" / kJournal, torn);
    EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", false, StagedMode::Resume, kAsked); }), "resume-mismatch");
    EXPECT_EQ(get_text(dir_ / "out.partial" / "f"), "1");
  }
}

/// Somebody moves the directory away, and another run begins in its place.
TEST_P(StagedDirTest, AnotherRunsDirectoryIsNeitherCommittedNorRemoved) {
  const auto replace = [&] {
    rename_path(dir_ / "out.partial", dir_ / "moved");
    make_directory(dir_ / "out.partial");
    put_text(dir_ / "out.partial" / kJournal, "another's");
  };
  {
    StagedDir staged(dir_ / "out", false, StagedMode::Create, kAsked);
    replace();
    EXPECT_EQ(slug_of([&] { staged.commit(); }), "io");
  }
  EXPECT_EQ(get_text(dir_ / "out.partial" / kJournal), "another's");
  EXPECT_FALSE(name_taken(dir_ / "out"));
  remove_tree(dir_ / "out.partial");
  remove_tree(dir_ / "moved");
  {
    StagedDir staged(dir_ / "out", false, StagedMode::Create, kAsked);
    replace();
    staged.discard();
  }
  EXPECT_EQ(get_text(dir_ / "out.partial" / kJournal), "another's");
}

TEST_P(StagedDirTest, WhatIsOfNoRunIsLeftAlone) {
  make_directory(dir_ / "out.partial");
  put_text(dir_ / "out.partial" / "f", "1");
  const auto resume = [&] { StagedDir(dir_ / "out", false, StagedMode::Resume, kAsked); };
  EXPECT_EQ(slug_of(resume), "output-exists");
  put_text(dir_ / "out.partial" / kJournal, "dear diary");
  EXPECT_EQ(slug_of(resume), "output-exists");
  EXPECT_EQ(get_text(dir_ / "out.partial" / "f"), "1");
  EXPECT_EQ(get_text(dir_ / "out.partial" / kJournal), "dear diary");
}

TEST_P(StagedDirTest, JoinsWhatAnotherProcessMade) {
  const auto join = [&] { return std::make_unique<StagedDir>(dir_ / "out", false, StagedMode::Join, kAsked, 1); };
  EXPECT_EQ(slug_of([&] { join(); }), "not-found");
  const StagedDir first(dir_ / "out", false, StagedMode::Create, kAsked);
  {
    const auto joined = join();
    EXPECT_EQ(joined->path(), first.path());
    EXPECT_TRUE(joined->has_journal());
    EXPECT_FALSE(joined->resumed());
    put_text(joined->path() / "f", "1");
  }
  EXPECT_EQ(get_text(first.path() / "f"), "1");
}

std::string journal_name(int rank) {
  return rank == 0 ? std::string(StagedDir::kJournalName) : fmt::format("{}.{}", StagedDir::kJournalName, rank);
}

std::vector<std::string> texts_of(const Journal& journal) {
  std::vector<std::string> texts;
  for (const auto& entry : journal.entries())
    texts.emplace_back(reinterpret_cast<const char*>(entry.data()), entry.size());
  return texts;
}

/// Rank r of 4 writes the entries "r a" and "r b" to its journal and all of them stop.
void run_four_ranks(const fs::path& out) {
  StagedDir first(out, false, StagedMode::Create, kAsked);
  for (int rank = 0; rank < 4; ++rank) {
    const StagedDir joined(out, false, StagedMode::Join, rank == 0 ? "" : kAsked, rank);
    Journal& journal = rank == 0 ? first.journal() : joined.journal();
    for (const char* what : {"a", "b"}) journal.append(bytes_of(fmt::format("{} {}", rank, what)));
  }
  first.keep();
}

TEST_P(StagedDirTest, ResumesWhatAllRanksDid) {
  run_four_ranks(dir_ / "out");
  const std::vector<std::string> all = {"0 a", "0 b", "1 a", "1 b", "2 a", "2 b", "3 a", "3 b"};
  for (int again = 0; again < 2; ++again) {
    StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
    EXPECT_TRUE(staged.resumed());
    EXPECT_EQ(list_directory(staged.path()), std::vector<std::string>{journal_name(0)});
    auto texts = texts_of(staged.journal());
    std::ranges::sort(texts);
    EXPECT_EQ(texts, all);
    staged.keep();
  }
}

/// A rank's journal that a crash tore, emptied or left without its header, or one of another run, says what it can.
TEST_P(StagedDirTest, WhatIsWrongInARanksJournalIsLeftOut) {
  run_four_ranks(dir_ / "out");
  const fs::path partial = dir_ / "out.partial";
  const std::string torn = get_text(partial / journal_name(1));
  put_text(partial / journal_name(1), torn.substr(0, torn.size() - 1));
  put_text(partial / journal_name(2), torn.substr(0, 7));
  {
    Journal other(File::open_write(partial / journal_name(3)));
    other.begin("something else");
    other.append(bytes_of("3 c"));
  }
  put_text(partial / journal_name(4), "");
  put_text(partial / journal_name(5), std::string(100, '\0'));
  StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
  EXPECT_EQ(texts_of(staged.journal()), (std::vector<std::string>{"0 a", "0 b", "1 a"}));
  EXPECT_EQ(list_directory(staged.path()), std::vector<std::string>{journal_name(0)});
}

/// Any order of ranks, and of more than ten.
TEST_P(StagedDirTest, CommitsWithoutTheJournalsOfRanks) {
  StagedDir first(dir_ / "out", false, StagedMode::Create, kAsked);
  for (const int rank : {1, 2, 10, 11}) StagedDir(dir_ / "out", false, StagedMode::Join, kAsked, rank);
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", false, StagedMode::Join, kAsked, 10); }), "io");
  put_text(first.path() / "f", "1");
  EXPECT_EQ(list_directory(first.path()).size(), 6u);
  first.commit();
  EXPECT_EQ(list_directory(dir_ / "out"), std::vector<std::string>{"f"});
}

/// Where there are no locks, nobody is kept out, and all else is the same.
TEST(StagedDir, GoesWithoutLocks) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.allow_lock(false);
  StagedDir("/out", false, StagedMode::Create, kAsked).keep();
  EXPECT_EQ(slug_of([] { StagedDir("/out", false, StagedMode::Create, kAsked); }), "output-exists");
  StagedDir staged("/out", false, StagedMode::Resume, kAsked);
  EXPECT_TRUE(staged.resumed());
  staged.commit();
  EXPECT_EQ(memory.tree("/"), std::vector<std::string>{"out/"});
}

// ---- crashes
// ----------------------------------------------------------------------------------------------------------

/// A run of 3 entries, each made durable with what it is about, as far as it comes.
void run(StagedMode mode) {
  StagedDir staged("/dir/out", false, mode, kAsked);
  for (int n = static_cast<int>(staged.journal().entries().size()); n < 3; ++n) {
    (void)remove_tree(staged.path() / std::to_string(n));
    write_small_file(staged.path() / std::to_string(n), "data");
    sync_directory(staged.path());
    staged.journal().append(bytes_of("done"));
    staged.journal().sync();
  }
  staged.commit();
}

i64 calls_of_run() {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  make_directory("/dir");
  memory.reset();
  run(StagedMode::Create);
  return memory.calls();
}

class StagedDirCrash : public testing::TestWithParam<Crash> {};
INSTANTIATE_TEST_SUITE_P(All, StagedDirCrash, testing::ValuesIn(kCrashes));

/// After a crash at any call up to the first data, the run can be resumed; and it never gives less than it says.
TEST_P(StagedDirCrash, AtEveryCallOfCreationCanBeResumed) {
  MemorySystem counted;
  i64 creation = 0;
  {
    const SystemCallsScope scope(counted);
    make_directory("/dir");
    counted.reset();
    const StagedDir staged("/dir/out", false, StagedMode::Create, kAsked);
    creation = counted.calls();
  }
  ASSERT_GT(creation, 8);
  for (i64 n = 1; n <= creation + 1; ++n) {
    SCOPED_TRACE(n);
    MemorySystem memory;
    const SystemCallsScope scope(memory);
    memory.put("/dir/x", "");
    memory.stop_at(n);
    EXPECT_EQ(slug_of([] {
                StagedDir("/dir/out", false, StagedMode::Create, kAsked).keep();
                (void)sync_directory("/dir");
              }),
              "io");
    memory.crash(GetParam());
    const StagedDir staged("/dir/out", false, StagedMode::Resume, kAsked);
    EXPECT_EQ(staged.journal().header(), kAsked);
    EXPECT_EQ(list_directory(staged.path()), std::vector<std::string>{std::string(kJournal)});
  }
}

/// Once it is made, it is durable.
TEST_P(StagedDirCrash, AfterCreationIsResumed) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/dir/x", "");
  const StagedDir staged("/dir/out", false, StagedMode::Create, kAsked);
  memory.crash(GetParam());
  StagedDir resumed("/dir/out", false, StagedMode::Resume, kAsked);
  EXPECT_TRUE(resumed.resumed());
  resumed.keep();
}

/// Wherever a resume stops while it takes the ranks' journals in, the next one finds every entry, once or twice.
TEST_P(StagedDirCrash, TakingRanksJournalsInLosesNothing) {
  const auto prepare = [](MemorySystem& memory) {
    memory.put("/dir/x", "");
    run_four_ranks("/dir/out");
    // As after a flush: what is lost otherwise was never told to be done.
    for (int rank = 0; rank < 4; ++rank)
      memory.put("/dir/out.partial/" + journal_name(rank), get_text("/dir/out.partial/" + journal_name(rank)));
    memory.reset();
  };
  i64 calls = 0;
  {
    MemorySystem memory;
    const SystemCallsScope scope(memory);
    prepare(memory);
    StagedDir("/dir/out", false, StagedMode::Resume, kAsked).keep();
    calls = memory.calls();
  }
  ASSERT_GT(calls, 20);
  for (i64 n = 1; n <= calls; ++n) {
    SCOPED_TRACE(n);
    MemorySystem memory;
    const SystemCallsScope scope(memory);
    prepare(memory);
    memory.stop_at(n);
    (void)slug_of([] { StagedDir("/dir/out", false, StagedMode::Resume, kAsked).keep(); });
    memory.crash(GetParam());
    StagedDir staged("/dir/out", false, StagedMode::Resume, kAsked);
    const auto texts = texts_of(staged.journal());
    EXPECT_EQ(std::set(texts.begin(), texts.end()).size(), 8u);
    staged.keep();
  }
}

/// A file that could not be renamed is still there to resume with, by its name.
TEST_P(StagedDirCrash, AFailedRenameLosesNothing) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/dir/x", "");
  {
    StagedDir staged("/dir/f", false, StagedMode::Create, kAsked);
    write_small_file(staged.path() / "f", "new");
    memory.reset();
    memory.fail(CallKind::Rename, 1, EIO);
    EXPECT_EQ(slug_of([&] { staged.commit_file("f"); }), "io");
    staged.keep();
  }
  memory.crash(GetParam());
  EXPECT_EQ(memory.get("/dir/f.partial/f"), "new");
  EXPECT_TRUE(StagedDir("/dir/f", false, StagedMode::Resume, kAsked).resumed());
}

/// The output is whole, or there is a journal to go on from; and an entry of it is never about what was lost.
TEST_P(StagedDirCrash, AtEveryCallOfARunLosesNothingThatWasDone) {
  const i64 calls = calls_of_run();
  for (i64 n = 1; n <= calls; ++n) {
    SCOPED_TRACE(n);
    MemorySystem memory;
    const SystemCallsScope scope(memory);
    memory.put("/dir/x", "");
    memory.stop_at(n);
    (void)slug_of([] { run(StagedMode::Create); });
    memory.crash(GetParam());
    if (!path_exists("/dir/out")) {
      if (memory.get("/dir/out.partial/glu_ckpt.journal")) {
        StagedDir staged("/dir/out", false, StagedMode::Resume, kAsked);
        for (std::size_t done = 0; done < staged.journal().entries().size(); ++done)
          EXPECT_EQ(memory.get(staged.path() / std::to_string(done)), "data");
        staged.keep();
      }
      run(StagedMode::Resume);
    }
    // A journal beside whole output is all that may be too much.
    (void)remove_tree("/dir/out/glu_ckpt.journal");
    EXPECT_EQ(memory.tree("/dir"), (std::vector<std::string>{"out/", "out/0", "out/1", "out/2", "x"}));
    for (const char* name : {"0", "1", "2"}) EXPECT_EQ(memory.get(fs::path("/dir/out") / name), "data");
  }
}

/// What was there stays until the new output has its name. Then that is whole, and the next run removes what is left.
TEST_P(StagedDirCrash, AtEveryCallOfAReplacementIsClearedUp) {
  const auto replace = [](StagedMode mode) {
    StagedDir staged("/dir/out", true, mode, kAsked);
    (void)remove_tree(staged.path() / "new");
    write_small_file(staged.path() / "new", "data");
    staged.commit();
  };
  for (i64 n = 1;; ++n) {
    SCOPED_TRACE(n);
    MemorySystem memory;
    const SystemCallsScope scope(memory);
    memory.put("/dir/out/old", "");
    memory.put("/dir/out/deep/old", "");
    memory.stop_at(n);
    const std::string slug = slug_of([&] { replace(StagedMode::Create); });
    memory.crash(GetParam());
    EXPECT_TRUE(memory.get("/dir/out/old").has_value() != (memory.get("/dir/out/new") == "data"));
    replace(StagedMode::Resume);
    EXPECT_EQ(memory.tree("/dir"), (std::vector<std::string>{"out/", "out/new"}));
    if (slug == "none") break;
  }
}

/// Not what another run, or nobody, says it has replaced.
TEST(StagedDir, ClearsUpItsOwnOnly) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/out.partial/old", "");
  memory.put("/out/new", "");
  const auto resume = [](std::string_view asked) {
    return slug_of([&] { StagedDir("/out", true, StagedMode::Resume, asked); });
  };
  EXPECT_EQ(resume(kAsked), "output-exists");
  Journal(File::create("/out/glu_ckpt.journal")).begin(kAsked);
  EXPECT_EQ(resume("else"), "output-exists");
  EXPECT_EQ(memory.tree("/out.partial"), std::vector<std::string>{"old"});
  EXPECT_EQ(resume(kAsked), "none");
  EXPECT_EQ(memory.tree("/"), (std::vector<std::string>{"out/", "out/new"}));
}

/// Where a file cannot be removed, the journal stays beside it, so that the next run may.
TEST(StagedDir, WhatCannotBeRemovedKeepsItsJournal) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  {
    const StagedDir staged("/out", false, StagedMode::Create, kAsked);
    memory.put("/out.partial/f", "");
    memory.reset();
    for (i64 n = 1; n < 9; ++n) memory.fail(CallKind::Remove, n, EIO);
  }
  EXPECT_EQ(memory.tree("/out.partial"), (std::vector<std::string>{"f", "glu_ckpt.journal"}));
  memory.reset();
  StagedDir("/out", false, StagedMode::Resume, kAsked).discard();
  EXPECT_TRUE(memory.tree("/").empty());

  StagedDir staged("/out", false, StagedMode::Create, kAsked);
  memory.put("/out.partial/out", "new");
  memory.reset();
  for (i64 n = 1; n < 9; ++n) memory.fail(CallKind::Remove, n, EIO);
  EXPECT_EQ(slug_of([&] { staged.commit_file("out"); }), "io");
  EXPECT_EQ(memory.get("/out"), "new");
}

/// commit_file: the final name has the old file or the new one, whole, at any moment.
TEST_P(StagedDirCrash, ReplacingAFileNeverLosesBoth) {
  for (const bool exchange : {true, false})
    for (i64 n = 1;; ++n) {
      SCOPED_TRACE(testing::Message() << n << (exchange ? " exchange" : " two renames"));
      MemorySystem memory;
      const SystemCallsScope scope(memory);
      memory.allow_rename_flags(exchange);
      memory.put("/dir/f", "old");
      memory.stop_at(n);
      const std::string slug = slug_of([] {
        StagedDir staged("/dir/f", true, StagedMode::Create, kAsked);
        write_small_file(staged.path() / "f", "new");
        staged.commit_file("f");
      });
      const bool ended = memory.calls() < n;
      memory.crash(GetParam());
      const auto content = memory.get("/dir/f");
      if (exchange) {
        EXPECT_TRUE(content == "old" || content == "new");
      } else if (!content) {
        EXPECT_EQ(memory.get("/dir/f.replaced").value_or("old"), "old");
      }
      if (slug == "none") {
        EXPECT_EQ(content, "new");
      }
      if (ended) break;
    }
}

/// An error while the directory is made leaves none behind.
TEST(StagedDir, AFailedCreationLeavesNothing) {
  for (const int error : {EIO, ENOSPC})
    for (i64 n = 1;; ++n) {
      SCOPED_TRACE(n);
      MemorySystem memory;
      const SystemCallsScope scope(memory);
      memory.put("/dir/x", "");
      memory.fail(n, error);
      const std::string slug = slug_of([] { StagedDir("/dir/out", false, StagedMode::Create, kAsked).keep(); });
      EXPECT_EQ(memory.open_descriptors(), 0);
      if (slug == "none") {
        if (memory.calls() < n) break;
        continue;
      }
      EXPECT_EQ(memory.tree("/dir"), std::vector<std::string>{"x"});
    }
}

/// Another process of the same moment: a Resume that finds what a Create has just made.
class Meddling final : public SystemCalls {
 public:
  Meddling(SystemCalls& inner, std::function<void()> before_lock)
      : inner_(inner), before_lock_(std::move(before_lock)) {}
  int flock(int descriptor, int operation) override {
    if (before_lock_) std::exchange(before_lock_, nullptr)();
    return inner_.flock(descriptor, operation);
  }
  int open(const char* path, int flags, mode_t mode) override { return inner_.open(path, flags, mode); }
  int close(int descriptor) override { return inner_.close(descriptor); }
  ssize_t pread(int descriptor, void* out, std::size_t bytes, i64 offset) override {
    return inner_.pread(descriptor, out, bytes, offset);
  }
  ssize_t pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset) override {
    return inner_.pwrite(descriptor, from, bytes, offset);
  }
  int fsync(int descriptor) override { return inner_.fsync(descriptor); }
  int ftruncate(int descriptor, i64 bytes) override { return inner_.ftruncate(descriptor, bytes); }
  int fstat(int descriptor, struct stat* info) override { return inner_.fstat(descriptor, info); }
  int stat(const char* path, struct stat* info) override { return inner_.stat(path, info); }
  int lstat(const char* path, struct stat* info) override { return inner_.lstat(path, info); }
  int list(const char* path, std::vector<std::string>& names) override { return inner_.list(path, names); }
  int mkdir(const char* path, mode_t mode) override { return inner_.mkdir(path, mode); }
  int rmdir(const char* path) override { return inner_.rmdir(path); }
  int unlink(const char* path) override { return inner_.unlink(path); }

 private:
  SystemCalls& inner_;
  std::function<void()> before_lock_;
};

TEST(StagedDir, AResumeThatComesFirstKeepsTheDirectory) {
  MemorySystem memory;
  std::unique_ptr<StagedDir> other;
  Meddling meddling(memory, [&] { other = std::make_unique<StagedDir>("/out", false, StagedMode::Resume, kAsked); });
  const SystemCallsScope scope(meddling);
  EXPECT_EQ(slug_of([] { StagedDir("/out", false, StagedMode::Create, kAsked); }), "output-busy");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->journal().header(), kAsked);
  EXPECT_TRUE(memory.get("/out.partial/glu_ckpt.journal"));
  other.reset();
}

/// The run that had the directory ends while another looks at it.
TEST(StagedDir, ADirectoryThatGoesAwayWasBusy) {
  for (const CallKind kind : {CallKind::List, CallKind::Open}) {
    MemorySystem memory;
    const SystemCallsScope scope(memory);
    make_directory("/out.partial");
    if (kind == CallKind::Open) memory.put("/out.partial/glu_ckpt.journal", "");
    memory.reset();
    memory.fail(kind, 1, ENOENT);
    EXPECT_EQ(slug_of([] { StagedDir("/out", false, StagedMode::Resume, kAsked); }), "output-busy");
  }
}

/// Another user's journal cannot be opened; what is in the way is said all the same.
TEST(StagedDir, AJournalThatCannotBeOpenedIsInTheWay) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/out.partial/glu_ckpt.journal", "");
  memory.fail(CallKind::Open, 1, EACCES);
  EXPECT_EQ(slug_of([] { StagedDir("/out", false, StagedMode::Create, kAsked); }), "output-exists");
}

/// The run that had the journal ends between its opening and its locking here.
TEST(StagedDir, AJournalThatIsGoneIsNotLocked) {
  MemorySystem memory;
  Meddling meddling(memory, [&] { (void)remove_tree("/out.partial"); });
  const SystemCallsScope scope(meddling);
  {
    MemorySystem& quiet = memory;
    const SystemCallsScope inner(quiet);
    StagedDir("/out", false, StagedMode::Create, kAsked).keep();
  }
  EXPECT_EQ(slug_of([] { StagedDir("/out", false, StagedMode::Resume, kAsked); }), "output-busy");
  EXPECT_EQ(memory.open_descriptors(), 0);
}

}  // namespace
}  // namespace glu_ckpt
