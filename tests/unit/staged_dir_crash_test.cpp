/// StagedDir when the power goes, when calls fail, and when another process is at the same place.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <set>

#include "io/staged_dir.hpp"
#include "support/both_systems.hpp"
#include "support/slug_of.hpp"
#include "support/staged_runs.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

/// A run of 3 entries, each made durable with what it is about, as far as it comes.
void run(StagedMode mode) {
  StagedDir staged("/dir/out", false, mode, kAsked);
  for (int n = static_cast<int>(staged.journal().entries().size()); n < 3; ++n) {
    (void)remove_own(staged.path() / std::to_string(n), Own::MadeHere);
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
    EXPECT_EQ(list_directory(staged.path()), kBegun);
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
    (void)remove_own("/dir/out/glu_ckpt.journal", Own::MadeHere);
    EXPECT_EQ(memory.tree("/dir"), (std::vector<std::string>{"out/", "out/0", "out/1", "out/2", "x"}));
    for (const char* name : {"0", "1", "2"}) EXPECT_EQ(memory.get(fs::path("/dir/out") / name), "data");
  }
}

/// What was there stays until the new output has its name. Then that is whole, and the next run removes what is left.
TEST_P(StagedDirCrash, AtEveryCallOfAReplacementIsClearedUp) {
  const auto replace = [](StagedMode mode) {
    StagedDir staged("/dir/out", true, mode, kAsked);
    (void)remove_own(staged.path() / "new", Own::MadeHere);
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
  EXPECT_EQ(memory.tree("/out.partial"), (std::vector<std::string>{"f", "glu_ckpt.journal", "glu_ckpt.journal.owner"}));
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
  Meddling meddling(memory, [&] { (void)remove_own("/out.partial", Own::MadeHere); });
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
