#include "io/file.hpp"

#include <gtest/gtest.h>
#include <limits.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <vector>

#include "io/staged_dir.hpp"
#include "support/both_systems.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPage = 4096;

/// Byte i holds a function of i that no other offset nearby shares.
std::vector<std::byte> position_bytes(std::size_t count, std::size_t from = 0) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i + from) * 131 + ((i + from) >> 8));
  return bytes;
}

std::vector<std::byte> read_bytes(const fs::path& path) {
  const File file = File::open_read(path);
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
  file.pread_exact(bytes, 0);
  return bytes;
}

/// Cuts bytes into pieces of 0, 1, 2, 3, 0, 1 ... bytes: as many as it takes.
std::vector<iovec> small_pieces(std::span<std::byte> bytes) {
  std::vector<iovec> pieces;
  for (std::size_t at = 0, i = 0; at < bytes.size(); ++i) {
    const std::size_t now = std::min(i % 4, bytes.size() - at);
    pieces.push_back({bytes.data() + at, now});
    at += now;
  }
  return pieces;
}

using FileTest = BothSystems;
GLU_CKPT_ON_BOTH(FileTest);

TEST_P(FileTest, WritesAndReadsAtOffsets) {
  const File file = File::create(dir_ / "a");
  file.pwrite_exact(std::as_bytes(std::span("world", 5)), 5);
  file.pwrite_exact(std::as_bytes(std::span("hello", 5)), 0);
  file.sync();
  EXPECT_EQ(file.size(), 10);
  std::array<char, 4> four{};
  File::open_read(dir_ / "a").pread_exact(std::as_writable_bytes(std::span(four)), 3);
  EXPECT_EQ(std::string_view(four.data(), 4), "lowo");
}

TEST_P(FileTest, OpensForWritingWhatIsThere) {
  put_text(dir_ / "a", "hello");
  File::open_write(dir_ / "a").pwrite_exact(std::as_bytes(std::span("J", 1)), 0);
  EXPECT_EQ(get_text(dir_ / "a"), "Jello");
  EXPECT_EQ(slug_of([&] { File::open_write(dir_ / "none"); }), "not-found");
  EXPECT_EQ(slug_of([&] { File::open_write(dir_); }), "output-exists");
}

TEST_P(FileTest, ReadsPieces) {
  // More pieces than one call takes, and such as are empty.
  std::vector<std::byte> bytes = position_bytes(5000);
  const File file = File::create(dir_ / "a");
  file.pwrite_exact(bytes, 7);
  EXPECT_EQ(file.size(), 5007);

  std::vector<std::byte> back(5000);
  const std::vector<iovec> pieces = small_pieces(back);
  ASSERT_GT(pieces.size(), std::size_t{2 * IOV_MAX});
  File::open_read(dir_ / "a").preadv_exact(pieces, 7);
  EXPECT_EQ(back, bytes);
  file.preadv_exact({}, 1'000'000);
  EXPECT_EQ(slug_of([&] { file.preadv_exact(small_pieces(back), 8); }), "file-truncated");
}

TEST_P(FileTest, SaysWhereAFileEnds) {
  put_text(dir_ / "a", "12345");
  const File file = File::open_read(dir_ / "a");
  std::array<std::byte, 4> four{};
  EXPECT_EQ(slug_of([&] { file.pread_exact(four, 1); }), "none");
  EXPECT_EQ(slug_of([&] { file.pread_exact(four, 2); }), "file-truncated");
  EXPECT_EQ(slug_of([&] { file.pread_exact(four, 100); }), "file-truncated");
  EXPECT_EQ(slug_of([&] { file.pread_exact({}, 100); }), "none");
}

TEST_P(FileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(slug_of([&] { File::open_read(dir_); }), "not-supported");
  EXPECT_EQ(slug_of([&] { File::open_read(dir_ / "none"); }), "not-found");
  make_symlink("nowhere", dir_ / "dangling");
  EXPECT_EQ(slug_of([&] { File::open_read(dir_ / "dangling"); }), "not-found");
  put_text(dir_ / "file", "");
  EXPECT_EQ(slug_of([&] { File::open_read(dir_ / "file" / "below"); }), "not-found");
  if (GetParam() == On::Memory) return;
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(slug_of([&] { File::open_read(dir_ / "fifo"); }), "not-supported");  // and does not hang
  EXPECT_EQ(slug_of([&] { File::open_write(dir_ / "fifo"); }), "output-exists");
  EXPECT_EQ(slug_of([&] { File::open_read("/dev/null"); }), "not-supported");
}

TEST_P(FileTest, CreateNeverOverwrites) {
  put_text(dir_ / "a", "old");
  EXPECT_EQ(slug_of([&] { File::create(dir_ / "a"); }), "io");
  EXPECT_FALSE(File::try_create(dir_ / "a").is_open());
  EXPECT_EQ(get_text(dir_ / "a"), "old");
  make_symlink("nowhere", dir_ / "dangling");
  EXPECT_FALSE(File::try_create(dir_ / "dangling").is_open());
  EXPECT_TRUE(File::try_create(dir_ / "b").is_open());
  EXPECT_EQ(slug_of([&] { File::try_create(dir_ / "none" / "b"); }), "not-found");
}

TEST_P(FileTest, ReserveSetsTheSize) {
  const File file = File::create(dir_ / "a");
  file.reserve(0);
  EXPECT_EQ(file.size(), 0);
  file.reserve(12345);
  EXPECT_EQ(file.size(), 12345);
  EXPECT_EQ(read_bytes(dir_ / "a"), std::vector<std::byte>(12345));
  // Larger than any disk: "no space" or "file too large", as the filesystem has it.
  EXPECT_NE(slug_of([&] { file.reserve(i64{1} << 60); }), "none");
  memory_.allow_reserve(false);
  file.reserve(20000);
  EXPECT_EQ(file.size(), 20000);
}

TEST_P(FileTest, SizeCutsAndLengthens) {
  const std::vector<std::byte> bytes = position_bytes(10000);
  const File file = File::create(dir_ / "a");
  file.pwrite_exact(bytes, 0);
  file.set_size(5000);
  file.set_size(9000);
  std::vector<std::byte> expected(bytes.begin(), bytes.begin() + 5000);
  expected.resize(9000);
  EXPECT_EQ(read_bytes(dir_ / "a"), expected);
}

TEST_P(FileTest, CopiesARange) {
  put_text(dir_ / "a", "0123456789");
  const File to = File::create(dir_ / "b");
  to.pwrite_exact(std::as_bytes(std::span("abcdef", 6)), 0);
  to.copy_from(File::open_read(dir_ / "a"), 3, 2, 3);
  EXPECT_EQ(get_text(dir_ / "b"), "ab345f");
  EXPECT_EQ(slug_of([&] { to.copy_from(File::open_read(dir_ / "a"), 8, 0, 3); }), "file-truncated");
}

/// Where it cannot, nothing is done; where it can, the bytes are there.
TEST_P(FileTest, ClonesARangeOrSaysNo) {
  memory_.allow_clone(true);
  const std::vector<std::byte> bytes = position_bytes(3 * kPage);
  File::create(dir_ / "a").pwrite_exact(bytes, 0);
  const File from = File::open_read(dir_ / "a");
  const File to = File::create(dir_ / "b");
  to.reserve(2 * kPage);
  EXPECT_TRUE(to.try_clone_from(from, 0, 0, 0));
  EXPECT_FALSE(to.try_clone_from(from, 1, 0, kPage));
  EXPECT_EQ(read_bytes(dir_ / "b"), std::vector<std::byte>(2 * kPage));
  const bool cloned = to.try_clone_from(from, kPage, 0, 2 * kPage);
  if (GetParam() == On::Memory) {
    EXPECT_TRUE(cloned);
  }
  const std::vector<std::byte> expected(bytes.begin() + kPage, bytes.end());
  EXPECT_EQ(read_bytes(dir_ / "b"), cloned ? expected : std::vector<std::byte>(2 * kPage));
  memory_.allow_clone(false);
  if (GetParam() == On::Memory) {
    EXPECT_FALSE(to.try_clone_from(from, 0, 0, kPage));
  }
}

TEST_P(FileTest, WritesPastThePageCache) {
  put_text(dir_ / "a", "");
  const File direct = File::open_direct(dir_ / "a");
  if (GetParam() == On::Memory) {
    ASSERT_TRUE(direct.is_open());
  }
  if (direct.is_open()) {
    std::vector<std::byte> memory = position_bytes(4 * kPage);
    const std::size_t skip = kPage - reinterpret_cast<std::uintptr_t>(memory.data()) % kPage;
    const auto aligned = std::span(memory).subspan(skip, 2 * kPage);
    direct.pwrite_exact(aligned, kPage);
    const std::vector<std::byte> back = read_bytes(dir_ / "a");
    ASSERT_EQ(back.size(), 3 * kPage);
    EXPECT_TRUE(std::equal(aligned.begin(), aligned.end(), back.begin() + kPage));
  }
  memory_.allow_direct(false);
  if (GetParam() == On::Memory) {
    EXPECT_FALSE(File::open_direct(dir_ / "a").is_open());
  }
  EXPECT_EQ(slug_of([&] { File::open_direct(dir_ / "none"); }), "not-found");
}

TEST_P(FileTest, IdentityTellsAFileFromWhatReplacedIt) {
  put_text(dir_ / "a", "12345");
  put_text(dir_ / "b", "12345");
  const File a = File::open_read(dir_ / "a");
  EXPECT_EQ(a.identity(), File::open_read(dir_ / "a").identity());
  EXPECT_NE(a.identity(), File::open_read(dir_ / "b").identity());
  EXPECT_TRUE(a.is_at(dir_ / "a"));
  EXPECT_FALSE(a.is_at(dir_ / "b"));
  const FileIdentity before = a.identity();
  File::open_write(dir_ / "a").pwrite_exact(std::as_bytes(std::span("678", 3)), 5);
  EXPECT_NE(a.identity(), before);
  replace_own(dir_ / "b", dir_ / "a", Own::MadeHere);
  EXPECT_FALSE(a.is_at(dir_ / "a"));
  EXPECT_FALSE(a.is_at(dir_ / "b"));
}

TEST_P(FileTest, OneAtATimeHasTheLock) {
  File first = File::create(dir_ / "a");
  EXPECT_EQ(first.try_lock(), LockResult::Locked);
  EXPECT_EQ(first.try_lock(), LockResult::Locked);
  const File second = File::open_write(dir_ / "a");
  EXPECT_EQ(second.try_lock(), LockResult::Busy);
  { const File closed = std::move(first); }
  EXPECT_EQ(second.try_lock(), LockResult::Locked);
  memory_.allow_lock(false);
  if (GetParam() == On::Memory) {
    EXPECT_EQ(second.try_lock(), LockResult::Unsupported);
  }
}

TEST_P(FileTest, AdviceChangesNothing) {
  put_text(dir_ / "a", "12345");
  const File file = File::open_write(dir_ / "a");
  file.will_need(0, 5);
  file.start_writeback(0, 5);
  file.drop_cache();
  file.will_need(100, 5);
  EXPECT_EQ(get_text(dir_ / "a"), "12345");
}

TEST_P(FileTest, HasPermissionBits) {
  const File file = File::create(dir_ / "a", 0600);
  EXPECT_EQ(file.mode(), 0600u);
  file.set_mode(0640);
  EXPECT_EQ(file.mode(), 0640u);
}

TEST_P(FileTest, SmallFilesHaveALimit) {
  put_text(dir_ / "a", "12345");
  EXPECT_EQ(read_small_file(dir_ / "a", 5, ErrorCode::ConfigJson), "12345");
  EXPECT_EQ(slug_of([&] { read_small_file(dir_ / "a", 4, ErrorCode::ConfigJson); }), "config-json");
}

TEST_P(FileTest, ReplaceLeavesNothingBeside) {
  put_text(dir_ / "a", "old");
  replace_small_file(dir_ / "a", "new");
  EXPECT_EQ(get_text(dir_ / "a"), "new");
  EXPECT_FALSE(path_exists(dir_ / "a.partial"));
}

TEST_P(FileTest, ReplaceLeavesWhatOthersMadeAlone) {
  const auto replace = [&] { replace_small_file(dir_ / "a", "new"); };
  put_text(dir_ / "a", "old");
  put_text(dir_ / "a.partial", "somebody's");
  EXPECT_EQ(slug_of(replace), "output-exists");
  EXPECT_EQ(get_text(dir_ / "a.partial"), "somebody's");
  put_text(dir_ / "a.partial", "");
  EXPECT_EQ(slug_of(replace), "output-exists");
  EXPECT_TRUE(path_exists(dir_ / "a.partial"));
  (void)remove_own(dir_ / "a.partial", Own::MadeHere);
  make_directory(dir_ / "a.partial");
  put_text(dir_ / "a.partial" / "x", "somebody's");
  EXPECT_EQ(slug_of(replace), "output-exists");
  EXPECT_EQ(get_text(dir_ / "a.partial" / "x"), "somebody's");
  (void)remove_own(dir_ / "a.partial", Own::MadeHere);
  {
    StagedDir conversion(dir_ / "a", true, StagedMode::Create, "a conversion");
    EXPECT_EQ(slug_of(replace), "output-busy");
    put_text(conversion.path() / "x", "work");
    conversion.keep();
  }
  EXPECT_EQ(slug_of(replace), "resume-mismatch");
  EXPECT_EQ(get_text(dir_ / "a.partial" / "x"), "work");
  EXPECT_EQ(get_text(dir_ / "a"), "old");
}

TEST_P(FileTest, ReplacesNoDirectory) {
  make_directory(dir_ / "a");
  EXPECT_EQ(slug_of([&] { replace_small_file(dir_ / "a", "new"); }), "output-exists");
  EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"a"});
}

TEST_P(FileTest, WhatAShortRunLeftIsTakenOver) {
  put_text(dir_ / "a", "old");
  {
    StagedDir killed(dir_ / "a", true, StagedMode::Anew, StagedDir::kShortRun);
    put_text(killed.path() / "a", "half");
    killed.keep();
  }
  replace_small_file(dir_ / "a", "new");
  EXPECT_EQ(get_text(dir_ / "a"), "new");
  EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"a"});
}

/// What a link leads to may be anything, a source's file among it.
TEST_P(FileTest, WritesThroughNoLink) {
  put_text(dir_ / "a", "1");
  make_symlink("a", dir_ / "link");
  EXPECT_EQ(slug_of([&] { File::open_write(dir_ / "link"); }), "output-exists");
  EXPECT_EQ(slug_of([&] { File::open_direct(dir_ / "link"); }), "output-exists");
  if (GetParam() == On::Memory) return;  // Its files have one name.
  fs::create_hard_link(dir_ / "a", dir_ / "name");
  EXPECT_EQ(slug_of([&] { File::open_write(dir_ / "name"); }), "output-exists");
  EXPECT_EQ(slug_of([&] { File::open_write(dir_ / "a"); }), "output-exists");
  fs::remove(dir_ / "name");
  EXPECT_EQ(File::open_write(dir_ / "a").size(), 1);
}

TEST(File, ErrnoBecomesACode) {
  EXPECT_EQ(slug_of([] { fail_errno(ENOSPC, "write", "x"); }), "no-space");
  EXPECT_EQ(slug_of([] { fail_errno(EDQUOT, "write", "x"); }), "no-space");
  EXPECT_EQ(slug_of([] { fail_errno(EIO, "write", "x"); }), "io");
}

// ---- what can go wrong in the middle
// ----------------------------------------------------------------------------------

/// Every call of File that must be done in full.
void use_every_call(const fs::path& dir) {
  std::vector<std::byte> bytes = position_bytes(700);
  const File a = File::create(dir / "a");
  a.reserve(1000);
  a.pwrite_exact(bytes, 3);
  a.pwrite_exact(bytes, 300);
  a.set_mode(0600);
  a.set_size(1001);
  (void)a.try_lock();
  a.sync();
  std::vector<std::byte> back(700);
  File::open_read(dir / "a").pread_exact(back, 3);
  std::ranges::fill(back, std::byte{0});
  File::open_write(dir / "a").preadv_exact(small_pieces(back), 300);
  const File b = File::create(dir / "b");
  b.copy_from(a, 1, 2, 990);
  b.pwrite_exact(back, 1000);
  (void)b.try_clone_from(a, 0, 0, 4096);
  b.sync();
  sync_directory(dir);
}

std::string contents(const MemorySystem& memory) {
  std::string all;
  for (const std::string& name : memory.tree("/d")) all += name + ":" + memory.get("/d/" + name).value_or("-") + ";";
  return all;
}

struct Ran {
  std::string slug;
  std::string contents;
  i64 calls = 0;
};

/// In a new file system that `spoil` was let loose on.
Ran run_with(const std::function<void(MemorySystem&)>& spoil) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  make_directory("/d");
  memory.reset();
  spoil(memory);
  Ran ran;
  ran.slug = slug_of([] { use_every_call("/d"); });
  ran.contents = contents(memory);
  ran.calls = memory.calls();
  EXPECT_EQ(memory.open_descriptors(), 0);
  return ran;
}

TEST(FileFaults, ShortReadsAndWritesGoOn) {
  const Ran whole = run_with([](MemorySystem&) {});
  ASSERT_EQ(whole.slug, "none");
  for (const Transfer transfer : {Transfer::Half, Transfer::OneByte})
    for (const bool interrupt : {false, true}) {
      const Ran ran = run_with([&](MemorySystem& memory) {
        memory.set_transfer(transfer);
        memory.interrupt(interrupt);
      });
      EXPECT_EQ(ran.slug, "none");
      EXPECT_EQ(ran.contents, whole.contents);
      EXPECT_GT(ran.calls, whole.calls);
    }
}

TEST(FileFaults, ASignalAtAnyCallChangesNothing) {
  const Ran whole = run_with([](MemorySystem&) {});
  const auto can_wait = {CallKind::Open, CallKind::Read,    CallKind::Write,  CallKind::Copy, CallKind::Clone,
                         CallKind::Sync, CallKind::Reserve, CallKind::Resize, CallKind::Lock, CallKind::Mode};
  for (const CallKind kind : can_wait)
    for (i64 n = 1; n < 12; ++n) {
      const Ran ran = run_with([&](MemorySystem& memory) { memory.fail(kind, n, EINTR); });
      EXPECT_EQ(ran.slug, "none") << static_cast<int>(kind) << " " << n;
      EXPECT_EQ(ran.contents, whole.contents);
    }
}

/// A failed close, and failed advice, are passed over; everything else is told, and nothing stays open.
TEST(FileFaults, EveryFailureIsTold) {
  const Ran whole = run_with([](MemorySystem&) {});
  i64 told = 0;
  for (i64 n = 1; n <= whole.calls; ++n) {
    const Ran ran = run_with([&](MemorySystem& memory) { memory.fail(n, EIO); });
    if (ran.slug == "io")
      ++told;
    else
      EXPECT_EQ(ran.contents, whole.contents) << n;
  }
  const Ran closes = run_with([](MemorySystem& memory) {
    for (i64 n = 1; n < 100; ++n) memory.fail(CallKind::Close, n, EIO);
  });
  EXPECT_EQ(closes.slug, "none");
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  make_directory("/d");
  memory.reset();
  use_every_call("/d");
  EXPECT_EQ(told, whole.calls - memory.calls(CallKind::Close));
}

/// The old text or the new one at any moment, the new one once it is said to be there, and nothing beside it.
TEST(FileFaults, AReplacedFileIsOneOrTheOther) {
  for (const Crash crash : kCrashes)
    for (i64 n = 1;; ++n) {
      SCOPED_TRACE(n);
      MemorySystem memory;
      const SystemCallsScope scope(memory);
      memory.put("/d/f", "old");
      memory.stop_at(n);
      const std::string slug = slug_of([] { replace_small_file("/d/f", "new"); });
      const bool ended = memory.calls() < n;
      memory.crash(crash);
      const auto text = memory.get("/d/f");
      EXPECT_TRUE(text == "new" || (text == "old" && slug != "none"));
      // What it left is known for this program's own, so that it is in nobody's way.
      memory.reset();
      EXPECT_EQ(slug_of([] { replace_small_file("/d/f", "newer"); }), "none");
      EXPECT_EQ(memory.get("/d/f"), "newer");
      EXPECT_EQ(memory.tree("/d"), std::vector<std::string>{"f"});
      if (ended) break;
    }
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/d/f", "old");
  memory.fail(CallKind::Rename, 1, EIO);
  EXPECT_EQ(slug_of([] { replace_small_file("/d/f", "new"); }), "io");
  EXPECT_EQ(memory.tree("/d"), std::vector<std::string>{"f"});
}

TEST(FileFaults, AFullDiskIsNoSpace) {
  for (const auto kind : {CallKind::Reserve, CallKind::Write, CallKind::Copy, CallKind::Sync})
    EXPECT_EQ(run_with([&](MemorySystem& memory) { memory.fail(kind, 1, ENOSPC); }).slug, "no-space");
  EXPECT_EQ(run_with([&](MemorySystem& memory) { memory.set_free_bytes(4096); }).slug, "no-space");
}

/// The plain ways are taken where the filesystem lacks the quick ones.
TEST(FileFaults, WhatAFilesystemLacksIsDoneWithout) {
  const Ran whole = run_with([](MemorySystem&) {});
  for (const int error : {EOPNOTSUPP, ENOSYS, EINVAL, EXDEV})
    for (const auto kind : {CallKind::Reserve, CallKind::Copy, CallKind::Clone, CallKind::Lock}) {
      const Ran ran = run_with([&](MemorySystem& memory) { memory.fail(kind, 1, error); });
      EXPECT_EQ(ran.slug, "none") << error;
      EXPECT_EQ(ran.contents, whole.contents);
    }
}

}  // namespace
}  // namespace glu_ckpt
