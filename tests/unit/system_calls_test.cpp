#include "io/system_calls.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "support/both_systems.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

using SystemCallsTest = BothSystems;
GLU_CKPT_ON_BOTH(SystemCallsTest);

/// What a call says: 0 or more as it is, an errno as its negative.
i64 said(i64 result) { return result >= 0 ? result : -errno; }

/// Calls by path below the test's directory.
class Below {
 public:
  explicit Below(const fs::path& dir) : dir_(dir) {}
  i64 open(const char* name, int flags) const { return said(system_calls().open(at(name).c_str(), flags, 0644)); }
  i64 touch(const char* name) const {
    const i64 descriptor = open(name, O_RDWR | O_CREAT | O_EXCL);
    return descriptor < 0 ? descriptor : said(system_calls().close(static_cast<int>(descriptor)));
  }
  i64 mkdir(const char* name) const { return said(system_calls().mkdir(at(name).c_str(), 0755)); }
  i64 rmdir(const char* name) const { return said(system_calls().rmdir(at(name).c_str())); }
  i64 unlink(const char* name) const { return said(system_calls().unlink(at(name).c_str())); }
  i64 rename(const char* from, const char* to, unsigned flags = 0) const {
    return said(flags == 0 ? system_calls().rename(at(from).c_str(), at(to).c_str())
                           : system_calls().renameat2(at(from).c_str(), at(to).c_str(), flags));
  }
  std::string list(const char* name) const {
    std::vector<std::string> names;
    if (const i64 error = said(system_calls().list(at(name).c_str(), names)); error != 0) return std::to_string(error);
    std::sort(names.begin(), names.end());
    std::string all;
    for (const std::string& each : names) all += each + " ";
    return all;
  }
  mode_t mode(const char* name) const {
    struct stat info {};
    return system_calls().lstat(at(name).c_str(), &info) == 0 ? info.st_mode & S_IFMT : 0;
  }
  fs::path at(const char* name) const { return dir_ / name; }

 private:
  fs::path dir_;
};

TEST_P(SystemCallsTest, MakesAndRemovesNames) {
  const Below d(dir_);
  EXPECT_EQ(d.list("."), "");
  EXPECT_EQ(d.touch("a"), 0);
  EXPECT_EQ(d.touch("a"), -EEXIST);
  EXPECT_EQ(d.mkdir("d"), 0);
  EXPECT_EQ(d.mkdir("d"), -EEXIST);
  EXPECT_EQ(d.mkdir("a"), -EEXIST);
  EXPECT_EQ(d.mkdir("none/d"), -ENOENT);
  EXPECT_EQ(d.mkdir("a/d"), -ENOTDIR);
  EXPECT_EQ(d.touch("d/b"), 0);
  EXPECT_EQ(d.list("."), "a d ");
  EXPECT_EQ(d.list("d"), "b ");
  EXPECT_EQ(d.list("a"), std::to_string(-ENOTDIR));
  EXPECT_EQ(d.list("none"), std::to_string(-ENOENT));
  EXPECT_EQ(d.rmdir("d"), -ENOTEMPTY);
  EXPECT_EQ(d.rmdir("a"), -ENOTDIR);
  EXPECT_EQ(d.rmdir("none"), -ENOENT);
  EXPECT_EQ(d.unlink("d"), -EISDIR);
  EXPECT_EQ(d.unlink("none"), -ENOENT);
  EXPECT_EQ(d.unlink("d/b"), 0);
  EXPECT_EQ(d.rmdir("d"), 0);
  EXPECT_EQ(d.list("."), "a ");
}

TEST_P(SystemCallsTest, OpensAsTheFlagsSay) {
  const Below d(dir_);
  d.touch("a");
  d.mkdir("d");
  EXPECT_EQ(d.open("none", O_RDONLY), -ENOENT);
  EXPECT_EQ(d.open("a/b", O_RDONLY), -ENOTDIR);
  EXPECT_EQ(d.open("d", O_RDWR), -EISDIR);
  EXPECT_EQ(d.open("a", O_RDONLY | O_DIRECTORY), -ENOTDIR);
  EXPECT_EQ(said(system_calls().close(-1)), -EBADF);
  const i64 readable = d.open("a", O_RDONLY);
  ASSERT_GE(readable, 0);
  const int descriptor = static_cast<int>(readable);
  EXPECT_EQ(said(system_calls().pwrite(descriptor, "x", 1, 0)), -EBADF);
  EXPECT_EQ(said(system_calls().close(descriptor)), 0);
  EXPECT_EQ(said(system_calls().close(descriptor)), -EBADF);
}

TEST_P(SystemCallsTest, RenamesAsLinuxDoes) {
  const Below d(dir_);
  d.touch("a");
  d.touch("b");
  d.mkdir("empty");
  d.mkdir("full");
  d.touch("full/x");
  EXPECT_EQ(d.rename("none", "b"), -ENOENT);
  EXPECT_EQ(d.rename("a", "none/b"), -ENOENT);
  EXPECT_EQ(d.rename("a", "a"), 0);
  EXPECT_EQ(d.rename("a", "full"), -EISDIR);
  EXPECT_EQ(d.rename("full", "a"), -ENOTDIR);
  EXPECT_EQ(d.rename("empty", "full"), -ENOTEMPTY);
  EXPECT_EQ(d.rename("full", "full/y"), -EINVAL);
  EXPECT_EQ(d.rename("a", "b", RENAME_NOREPLACE), -EEXIST);
  EXPECT_EQ(d.rename("a", "c", RENAME_EXCHANGE), -ENOENT);
  EXPECT_EQ(d.list("."), "a b empty full ");
  EXPECT_EQ(d.rename("a", "full", RENAME_EXCHANGE), 0);
  EXPECT_EQ(d.list("a"), "x ");
  EXPECT_EQ(d.mode("full"), mode_t{S_IFREG});
  EXPECT_EQ(d.rename("b", "c", RENAME_NOREPLACE), 0);
  EXPECT_EQ(d.rename("a", "empty"), 0);
  EXPECT_EQ(d.list("empty"), "x ");
  EXPECT_EQ(d.rename("c", "full"), 0);
  EXPECT_EQ(d.list("."), "empty full ");
}

TEST_P(SystemCallsTest, FollowsSymlinks) {
  const Below d(dir_);
  d.mkdir("d");
  d.touch("d/a");
  make_symlink("d", d.at("link"));
  make_symlink("../d/a", d.at("d/up"));
  make_symlink("loop", d.at("loop"));
  make_symlink((dir_ / "d").string(), d.at("absolute"));
  EXPECT_EQ(d.list("link"), "a up ");
  EXPECT_EQ(d.list("absolute"), "a up ");
  EXPECT_EQ(d.mode("link"), mode_t{S_IFLNK});
  EXPECT_EQ(d.open("loop", O_RDONLY), -ELOOP);
  EXPECT_EQ(d.touch("loop"), -EEXIST);
  std::array<char, 100> target{};
  EXPECT_EQ(said(system_calls().readlink(d.at("link").c_str(), target.data(), target.size())), 1);
  EXPECT_EQ(target[0], 'd');
  EXPECT_EQ(said(system_calls().readlink(d.at("d").c_str(), target.data(), target.size())), -EINVAL);
  std::string found;
  std::string real_dir;
  EXPECT_EQ(said(system_calls().realpath(dir_.c_str(), real_dir)), 0);
  EXPECT_EQ(said(system_calls().realpath(d.at("link/./up").c_str(), found)), 0);
  EXPECT_EQ(found, real_dir + "/d/a");
  EXPECT_EQ(said(system_calls().realpath(d.at("none").c_str(), found)), -ENOENT);
  // rename and unlink are of the link itself.
  EXPECT_EQ(d.rename("link", "other"), 0);
  EXPECT_EQ(d.unlink("other"), 0);
  EXPECT_EQ(d.list("d"), "a up ");
}

TEST_P(SystemCallsTest, AnUnlinkedFileLivesWhileItIsOpen) {
  const Below d(dir_);
  const int descriptor = static_cast<int>(d.open("a", O_RDWR | O_CREAT | O_EXCL));
  ASSERT_GE(descriptor, 0);
  EXPECT_EQ(d.unlink("a"), 0);
  EXPECT_EQ(said(system_calls().pwrite(descriptor, "12345", 5, 0)), 5);
  std::array<char, 10> back{};
  EXPECT_EQ(said(system_calls().pread(descriptor, back.data(), 10, 1)), 4);
  EXPECT_STREQ(back.data(), "2345");
  EXPECT_EQ(said(system_calls().close(descriptor)), 0);
  EXPECT_EQ(d.list("."), "");
}

TEST_P(SystemCallsTest, HolesAreZeros) {
  const Below d(dir_);
  const int descriptor = static_cast<int>(d.open("a", O_RDWR | O_CREAT | O_EXCL));
  EXPECT_EQ(said(system_calls().pwrite(descriptor, "abc", 3, i64{1} << 32)), 3);
  std::array<char, 8> back{};
  back.fill('x');
  EXPECT_EQ(said(system_calls().pread(descriptor, back.data(), 8, (i64{1} << 32) - 5)), 8);
  EXPECT_EQ(std::string(back.data(), 8), std::string(5, '\0') + "abc");
  EXPECT_EQ(said(system_calls().ftruncate(descriptor, 4)), 0);
  EXPECT_EQ(said(system_calls().pread(descriptor, back.data(), 8, 0)), 4);
  EXPECT_EQ(said(system_calls().pread(descriptor, back.data(), 8, 4)), 0);
  EXPECT_EQ(said(system_calls().ftruncate(descriptor, -1)), -EINVAL);
  EXPECT_EQ(said(system_calls().fallocate(descriptor, 0, 0, 0)), -EINVAL);
  EXPECT_EQ(said(system_calls().pread(descriptor, back.data(), 8, -1)), -EINVAL);
  EXPECT_EQ(said(system_calls().close(descriptor)), 0);
}

TEST_P(SystemCallsTest, LocksAreOfTheOpening) {
  const Below d(dir_);
  const int first = static_cast<int>(d.open("a", O_RDWR | O_CREAT | O_EXCL));
  const int second = static_cast<int>(d.open("a", O_RDWR));
  SystemCalls& calls = system_calls();
  EXPECT_EQ(said(calls.flock(first, LOCK_EX | LOCK_NB)), 0);
  EXPECT_EQ(said(calls.flock(second, LOCK_EX | LOCK_NB)), -EWOULDBLOCK);
  EXPECT_EQ(said(calls.flock(second, LOCK_UN)), 0);
  EXPECT_EQ(said(calls.flock(second, LOCK_EX | LOCK_NB)), -EWOULDBLOCK);
  EXPECT_EQ(said(calls.close(first)), 0);
  EXPECT_EQ(said(calls.flock(second, LOCK_EX | LOCK_NB)), 0);
  EXPECT_EQ(said(calls.close(second)), 0);
}

TEST_P(SystemCallsTest, DirectWritesWantTheirAlignment) {
  const Below d(dir_);
  d.touch("a");
  const i64 opened = d.open("a", O_RDWR | O_DIRECT);
  if (opened < 0) {
    EXPECT_EQ(GetParam(), On::Disk);  // tmpfs of old kernels has none
    return;
  }
  const int descriptor = static_cast<int>(opened);
  std::vector<char> memory(3 * 4096);
  char* const aligned = memory.data() + (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096);
  EXPECT_EQ(said(system_calls().pwrite(descriptor, aligned, 4096, 4096)), 4096);
  EXPECT_EQ(said(system_calls().pread(descriptor, aligned, 4096, 4096)), 4096);
  if (GetParam() == On::Memory) {
    memory_.allow_misaligned(true);
    EXPECT_EQ(said(system_calls().pwrite(descriptor, aligned, 4096, 100)), -EINVAL);
    EXPECT_EQ(said(system_calls().pwrite(descriptor, aligned, 100, 4096)), -EINVAL);
    EXPECT_EQ(said(system_calls().pwrite(descriptor, aligned + 8, 4096, 4096)), -EINVAL);
  }
  EXPECT_EQ(said(system_calls().close(descriptor)), 0);
}

TEST_P(SystemCallsTest, FlushesFilesAndDirectories) {
  const Below d(dir_);
  d.touch("a");
  SystemCalls& calls = system_calls();
  for (const char* name : {"a", "."}) {
    const int descriptor = static_cast<int>(d.open(name, O_RDONLY));
    EXPECT_EQ(said(calls.fsync(descriptor)), 0);
    EXPECT_EQ(said(calls.fdatasync(descriptor)), 0);
    EXPECT_EQ(said(calls.close(descriptor)), 0);
    EXPECT_EQ(said(calls.fsync(descriptor)), -EBADF);
    EXPECT_EQ(said(calls.posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED)), -EBADF);
  }
}

TEST(SystemCallsScope, PutsTheOthersBack) {
  SystemCalls& before = system_calls();
  {
    MemorySystem memory;
    const SystemCallsScope scope(memory);
    EXPECT_EQ(&system_calls(), &memory);
    {
      MemorySystem inner;
      const SystemCallsScope another(inner);
      EXPECT_EQ(&system_calls(), &inner);
    }
    EXPECT_EQ(&system_calls(), &memory);
  }
  EXPECT_EQ(&system_calls(), &before);
}

TEST(Uninterrupted, CallsAgainOnlyAfterASignal) {
  int left = 3;
  EXPECT_EQ(uninterrupted([&] { return --left > 0 ? (errno = EINTR, -1) : 7; }), 7);
  int called = 0;
  EXPECT_EQ(uninterrupted([&] { return ++called, errno = EIO, -1; }), -1);
  EXPECT_EQ(called, 1);
}

}  // namespace
}  // namespace glu_ckpt
