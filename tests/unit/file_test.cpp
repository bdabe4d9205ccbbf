#include "io/file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "io/staged_dir.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
std::string get(const fs::path& path) { return read_small_file(path, 1000, ErrorCode::Io); }

/// Each test has an empty directory of its own.
class OnDisk : public testing::Test {
 protected:
  OnDisk() {
    std::string pattern = (fs::path(testing::TempDir()) / "file_test_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~OnDisk() override { fs::remove_all(dir_); }
  fs::path dir_;
};

using FileTest = OnDisk;
using StagedDirTest = OnDisk;

TEST_F(FileTest, WritesAndReadsAtOffsets) {
  const File file = File::create(dir_ / "a");
  file.pwrite_exact(std::as_bytes(std::span("world", 5)), 5);
  file.pwrite_exact(std::as_bytes(std::span("hello", 5)), 0);
  file.sync();
  EXPECT_EQ(file.size(), 10);
  std::array<char, 4> four{};
  File::open_read(dir_ / "a").pread_exact(std::as_writable_bytes(std::span(four)), 3);
  EXPECT_EQ(std::string_view(four.data(), 4), "lowo");
}

TEST_F(FileTest, SaysWhereAFileEnds) {
  put(dir_ / "a", "12345");
  const File file = File::open_read(dir_ / "a");
  std::array<std::byte, 4> four{};
  EXPECT_EQ(slug_of([&] { file.pread_exact(four, 1); }), "none");
  EXPECT_EQ(slug_of([&] { file.pread_exact(four, 2); }), "file-truncated");
  EXPECT_EQ(slug_of([&] { file.pread_exact(four, 100); }), "file-truncated");
  EXPECT_EQ(slug_of([&] { file.pread_exact({}, 100); }), "none");
}

TEST_F(FileTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(slug_of([&] { File::open_read(dir_ / "fifo"); }), "not-supported");  // and does not hang
  EXPECT_EQ(slug_of([&] { File::open_read(dir_); }), "not-supported");
  EXPECT_EQ(slug_of([&] { File::open_read("/dev/null"); }), "not-supported");
  EXPECT_EQ(slug_of([&] { File::open_read(dir_ / "none"); }), "not-found");
  fs::create_symlink("nowhere", dir_ / "dangling");
  EXPECT_EQ(slug_of([&] { File::open_read(dir_ / "dangling"); }), "not-found");
}

TEST_F(FileTest, CreateNeverOverwrites) {
  put(dir_ / "a", "old");
  EXPECT_EQ(slug_of([&] { File::create(dir_ / "a"); }), "io");
  EXPECT_EQ(get(dir_ / "a"), "old");
}

TEST_F(FileTest, ReserveSetsTheSize) {
  const File file = File::create(dir_ / "a");
  file.reserve(0);
  EXPECT_EQ(file.size(), 0);
  file.reserve(12345);
  EXPECT_EQ(file.size(), 12345);
  // Larger than any disk: "no space" or "file too large", as the filesystem has it.
  EXPECT_NE(slug_of([&] { file.reserve(i64{1} << 60); }), "none");
}

TEST_F(FileTest, CopiesARange) {
  put(dir_ / "a", "0123456789");
  const File to = File::create(dir_ / "b");
  to.pwrite_exact(std::as_bytes(std::span("abcdef", 6)), 0);
  to.copy_from(File::open_read(dir_ / "a"), 3, 2, 3);
  EXPECT_EQ(get(dir_ / "b"), "ab345f");
  EXPECT_EQ(slug_of([&] { to.copy_from(File::open_read(dir_ / "a"), 8, 0, 3); }), "file-truncated");
}

TEST_F(FileTest, ErrnoBecomesACode) {
  EXPECT_EQ(slug_of([] { fail_errno(ENOSPC, "write", "x"); }), "no-space");
  EXPECT_EQ(slug_of([] { fail_errno(EDQUOT, "write", "x"); }), "no-space");
  EXPECT_EQ(slug_of([] { fail_errno(EIO, "write", "x"); }), "io");
}

TEST_F(FileTest, SmallFilesHaveALimit) {
  put(dir_ / "a", "12345");
  EXPECT_EQ(read_small_file(dir_ / "a", 5, ErrorCode::ConfigJson), "12345");
  EXPECT_EQ(slug_of([&] { read_small_file(dir_ / "a", 4, ErrorCode::ConfigJson); }), "config-json");
}

TEST_F(FileTest, ReplaceLeavesNothingBeside) {
  put(dir_ / "a", "old");
  replace_small_file(dir_ / "a", "new");
  EXPECT_EQ(get(dir_ / "a"), "new");
  EXPECT_FALSE(fs::exists(dir_ / "a.partial"));
}

TEST_F(StagedDirTest, AppearsOnCommitOnly) {
  StagedDir staged(dir_ / "out", false);
  EXPECT_EQ(staged.path(), dir_ / "out.partial");
  put(staged.path() / "f", "1");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  staged.commit();
  EXPECT_EQ(get(dir_ / "out" / "f"), "1");
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

TEST_F(StagedDirTest, IsRemovedWithoutCommit) {
  fs::create_directory(dir_ / "out");
  put(dir_ / "out" / "f", "old");
  {
    const StagedDir staged(dir_ / "out", true);
    put(staged.path() / "f", "new");
  }
  EXPECT_EQ(get(dir_ / "out" / "f"), "old");
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

TEST_F(StagedDirTest, RefusesWhatIsThere) {
  put(dir_ / "file", "");
  fs::create_symlink("nowhere", dir_ / "dangling");
  fs::create_directory(dir_ / "run.partial");
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "file", false); }), "output-exists");
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "dangling", false); }), "output-exists");
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "run", false); }), "output-exists");
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "run", true); }), "output-exists");
  EXPECT_TRUE(fs::exists(dir_ / "run.partial"));
  EXPECT_EQ(slug_of([&] { StagedDir(dir_ / "none" / "out", false); }), "not-found");
}

TEST_F(StagedDirTest, DoesNotReplaceWhatAppearedMeanwhile) {
  StagedDir staged(dir_ / "out", false);
  fs::create_directory(dir_ / "out");
  EXPECT_EQ(slug_of([&] { staged.commit(); }), "output-exists");
}

TEST_F(StagedDirTest, ReplacesADirectory) {
  fs::create_directory(dir_ / "out");
  put(dir_ / "out" / "old", "");
  StagedDir staged(dir_ / "out/", true);
  put(staged.path() / "new", "");
  staged.commit();
  EXPECT_TRUE(fs::exists(dir_ / "out" / "new"));
  EXPECT_FALSE(fs::exists(dir_ / "out" / "old"));
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

TEST_F(StagedDirTest, CommitsOneFile) {
  for (const bool overwrite : {false, true}) {
    StagedDir staged(dir_ / "f.safetensors", overwrite);
    put(staged.path() / "f.safetensors", overwrite ? "2" : "1");
    staged.commit_file("f.safetensors");
    EXPECT_EQ(get(dir_ / "f.safetensors"), overwrite ? "2" : "1");
    EXPECT_FALSE(fs::exists(dir_ / "f.safetensors.partial"));
  }
}

TEST_F(StagedDirTest, ReplacingASymlinkLeavesItsTarget) {
  fs::create_directory(dir_ / "target");
  put(dir_ / "target" / "f", "kept");
  fs::create_directory_symlink("target", dir_ / "out");
  StagedDir staged(dir_ / "out", true);
  staged.commit();
  EXPECT_EQ(get(dir_ / "target" / "f"), "kept");
  EXPECT_FALSE(fs::is_symlink(dir_ / "out"));
}

}  // namespace
}  // namespace glu_ckpt
