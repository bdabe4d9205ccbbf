#include "io/staged_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/both_systems.hpp"
#include "support/slug_of.hpp"
#include "support/staged_runs.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

using StagedDirTest = BothSystems;
GLU_CKPT_ON_BOTH(StagedDirTest);

TEST_P(StagedDirTest, AppearsOnCommitOnly) {
  for (const std::string_view fingerprint : {std::string_view(), kAsked}) {
    (void)remove_own(dir_ / "out", Own::MadeHere);
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
    (void)remove_own(dir_ / "out", Own::MadeHere);
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
    (void)remove_own(dir_ / "f.safetensors", Own::MadeHere);
    for (const std::string_view fingerprint : {std::string_view(), kAsked})
      for (const bool overwrite : {false, true}) {
        if (!overwrite) (void)remove_own(dir_ / "f.safetensors", Own::MadeHere);
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

// Journals.

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
    EXPECT_EQ(list_directory(staged.path()), kBegun);
  }
  make_directory(dir_ / "out.partial");
  StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
  EXPECT_FALSE(staged.resumed());
  EXPECT_EQ(list_directory(staged.path()), kBegun);
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
    replace_own(dir_ / "out.partial", dir_ / "moved", Own::MadeHere);
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
  remove_own(dir_ / "out.partial", Own::MadeHere);
  remove_own(dir_ / "moved", Own::MadeHere);
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

TEST_P(StagedDirTest, ResumesWhatAllRanksDid) {
  run_four_ranks(dir_ / "out");
  const std::vector<std::string> all = {"0 a", "0 b", "1 a", "1 b", "2 a", "2 b", "3 a", "3 b"};
  for (int again = 0; again < 2; ++again) {
    StagedDir staged(dir_ / "out", false, StagedMode::Resume, kAsked);
    EXPECT_TRUE(staged.resumed());
    EXPECT_EQ(list_directory(staged.path()), kBegun);
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
  EXPECT_EQ(list_directory(staged.path()), kBegun);
}

/// Any order of ranks, and of more than ten.
TEST_P(StagedDirTest, CommitsWithoutTheJournalsOfRanks) {
  StagedDir first(dir_ / "out", false, StagedMode::Create, kAsked);
  for (const int rank : {1, 2, 10, 11}) StagedDir(dir_ / "out", false, StagedMode::Join, kAsked, rank);
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "out", false, StagedMode::Join, kAsked, 10); }), "io");
  put_text(first.path() / "f", "1");
  EXPECT_EQ(list_directory(first.path()).size(), 7u);
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

}  // namespace
}  // namespace glu_ckpt
