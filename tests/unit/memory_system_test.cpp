#include "support/memory_system.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "io/file.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using Names = std::vector<std::string>;

void write_at(const std::string& path, std::string_view text, i64 offset = 0) {
  File::open_write(path).pwrite_exact(std::as_bytes(std::span(text)), offset);
}

/// In /d: `synced` with everything durable; `data` whose bytes are, but not its name; `name` the other way around;
/// `neither`; `longer`, durable as "old" and now "older"; `gone`, removed; `to`, renamed from `from`.
void make_all_kinds(MemorySystem& memory) {
  make_directory("/d");
  sync_directory("/");
  for (const char* path : {"/d/synced", "/d/from", "/d/gone"}) write_small_file(path, "data");
  write_small_file("/d/longer", "old");
  (void)File::create("/d/name");
  sync_directory("/d");
  write_at("/d/name", "data");
  write_at("/d/longer", "er", 3);
  write_small_file("/d/data", "data");
  (void)File::create("/d/neither");
  write_at("/d/neither", "data");
  replace_own("/d/from", "/d/to", Own::MadeHere);
  EXPECT_EQ(remove_own("/d/gone", Own::MadeHere), 0);
  make_directory("/d/sub");
  EXPECT_EQ(memory.open_descriptors(), 0);
}

struct Left {
  Names names;
  std::string name;
  std::string longer;
};

Left after(Crash what) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  make_all_kinds(memory);
  memory.crash(what);
  EXPECT_EQ(memory.get("/d/synced"), "data");
  // What came through a crash is durable: another one takes nothing.
  const Names names = memory.tree("/d");
  memory.crash(Crash::KeepSynced);
  EXPECT_EQ(memory.tree("/d"), names);
  return {names, memory.get("/d/name").value_or("-"), memory.get("/d/longer").value_or("-")};
}

TEST(MemorySystem, ACrashKeepsWhatWasSynced) {
  const Names synced = {"from", "gone", "longer", "name", "synced"};
  const Left left = after(Crash::KeepSynced);
  EXPECT_EQ(left.names, synced);
  EXPECT_EQ(left.name, "");
  EXPECT_EQ(left.longer, "old");
  const Left data = after(Crash::KeepData);
  EXPECT_EQ(data.names, synced);
  EXPECT_EQ(data.name, "data");
  EXPECT_EQ(data.longer, "older");
}

TEST(MemorySystem, ACrashMayKeepMore) {
  const Names all = {"data", "longer", "name", "neither", "sub/", "synced", "to"};
  const Left left = after(Crash::KeepAll);
  EXPECT_EQ(left.names, all);
  EXPECT_EQ(left.name, "data");
  EXPECT_EQ(left.longer, "older");
  const Left zeros = after(Crash::KeepNames);
  EXPECT_EQ(zeros.names, all);
  EXPECT_EQ(zeros.name, std::string(4, '\0'));
  EXPECT_EQ(zeros.longer, std::string("old\0\0", 5));
  const Left cut = after(Crash::KeepNamesShort);
  EXPECT_EQ(cut.names, all);
  EXPECT_EQ(cut.name, "");
  EXPECT_EQ(cut.longer, "old");
}

/// A name is durable only if those above it are.
TEST(MemorySystem, ADirectoryThatIsNotSyncedTakesAllBelowWithIt) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  make_directory("/d");
  write_small_file("/d/f", "data");
  sync_directory("/d");
  memory.crash(Crash::KeepSynced);
  EXPECT_TRUE(memory.tree("/").empty());
}

/// Between the two directories' flushes, a file that moved has both names: it is never lost.
TEST(MemorySystem, ARenameBetweenDirectoriesIsSyncedInEach) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/a/f", "data");
  memory.put("/b/x", "");
  replace_own("/a/f", "/b/f", Own::MadeHere);
  sync_directory("/b");
  memory.crash(Crash::KeepSynced);
  EXPECT_EQ(memory.tree("/"), (Names{"a/", "a/f", "b/", "b/f", "b/x"}));
  EXPECT_EQ(memory.get("/b/f"), "data");
}

TEST(MemorySystem, ACrashClosesAndUnlocks) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.put("/f", "data");
  const File before = File::open_write("/f");
  EXPECT_EQ(before.try_lock(), LockResult::Locked);
  memory.crash(Crash::KeepAll);
  EXPECT_EQ(memory.open_descriptors(), 0);
  EXPECT_EQ(slug_of([&] { before.sync(); }), "io");
  EXPECT_EQ(File::open_write("/f").try_lock(), LockResult::Locked);
}

TEST(MemorySystem, StopsAtACallUpToTheCrash) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.stop_at(3);
  EXPECT_TRUE(make_directory("/a"));
  EXPECT_TRUE(make_directory("/b"));
  EXPECT_EQ(slug_of([] { make_directory("/c"); }), "io");
  EXPECT_EQ(slug_of([] { make_directory("/d"); }), "io");
  EXPECT_EQ(memory.calls(), 4);
  memory.crash(Crash::KeepAll);
  EXPECT_TRUE(make_directory("/c"));
  EXPECT_EQ(memory.tree("/"), (Names{"a/", "b/", "c/"}));
}

TEST(MemorySystem, FailsTheCallThatItIsTold) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.fail(2, ENOSPC);
  memory.fail(CallKind::Stat, 2, EACCES);
  EXPECT_TRUE(make_directory("/a"));
  EXPECT_EQ(slug_of([] { make_directory("/b"); }), "no-space");
  EXPECT_EQ(path_kind("/a"), PathKind::Directory);
  EXPECT_EQ(path_kind("/a"), PathKind::Unknown);
  EXPECT_EQ(path_kind("/a"), PathKind::Directory);
  EXPECT_EQ(memory.calls(CallKind::Stat), 3);
  EXPECT_EQ(memory.calls(CallKind::MakeDirectory), 2);
  EXPECT_EQ(memory.tree("/"), Names{"a/"});
}

TEST(MemorySystem, IsShortAsItIsTold) {
  MemorySystem memory;
  memory.put("/f", "0123456789");
  const int descriptor = memory.open("/f", O_RDWR, 0);
  std::array<char, 20> out{};
  memory.set_transfer(Transfer::Half);
  EXPECT_EQ(memory.pread(descriptor, out.data(), 20, 2), 4);
  EXPECT_EQ(memory.pread(descriptor, out.data(), 1, 2), 1);
  EXPECT_EQ(memory.pread(descriptor, out.data(), 20, 10), 0);
  memory.set_transfer(Transfer::OneByte);
  EXPECT_EQ(memory.pwrite(descriptor, "abc", 3, 0), 1);
  EXPECT_EQ(memory.get("/f"), "a123456789");
}

TEST(MemorySystem, InterruptsEveryOtherTime) {
  MemorySystem memory;
  memory.put("/f", "0123456789");
  const int descriptor = memory.open("/f", O_RDWR, 0);
  memory.interrupt(true);
  char byte = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(memory.pread(descriptor, &byte, 1, 2), -1);
    EXPECT_EQ(errno, EINTR);
    EXPECT_EQ(memory.pread(descriptor, &byte, 1, 2), 1);
  }
  EXPECT_EQ(memory.close(descriptor), 0);
}

TEST(MemorySystem, HasOnlySoMuchSpace) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.set_free_bytes(3 * 4096);
  const File file = File::create("/f");
  EXPECT_EQ(slug_of([&] { file.reserve(3 * 4096 + 1); }), "no-space");
  file.reserve(2 * 4096);
  write_at("/f", "x", 4096);
  EXPECT_EQ(slug_of([] { write_small_file("/g", std::string(4097, 'x')); }), "no-space");
  EXPECT_EQ(remove_own("/f", Own::MadeHere), 0);
  EXPECT_EQ(remove_own("/g", Own::MadeHere), 0);
  EXPECT_EQ(slug_of([] { write_small_file("/g", std::string(3 * 4096, 'x')); }), "none");
}

TEST(MemorySystem, ManyThreadsMayUseIt) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  const File file = File::create("/f");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&file, t] {
      const std::string text(1000, static_cast<char>('a' + t));
      for (int i = 0; i < 50; ++i) file.pwrite_exact(std::as_bytes(std::span(text)), (i * 4 + t) * 1000);
      write_small_file("/t" + std::to_string(t), text);
    });
  for (std::thread& thread : threads) thread.join();
  const std::string all = *memory.get("/f");
  ASSERT_EQ(all.size(), 200'000u);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<char>('a' + i / 1000 % 4));
  EXPECT_EQ(memory.tree("/").size(), 5u);
}

}  // namespace
}  // namespace glu_ckpt
