#include "io/directory.hpp"

#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>

#include "support/both_systems.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

using DirectoryTest = BothSystems;
GLU_CKPT_ON_BOTH(DirectoryTest);

TEST_P(DirectoryTest, KnowsWhatIsThere) {
  put_text(dir_ / "file", "x");
  make_directory(dir_ / "sub");
  make_symlink("file", dir_ / "to-file");
  make_symlink("sub", dir_ / "to-sub");
  make_symlink("nowhere", dir_ / "dangling");
  make_symlink("loop", dir_ / "loop");
  struct Case {
    const char* name;
    PathKind kind;
    PathKind link;
  };
  for (const Case& c : {Case{"file", PathKind::File, PathKind::File},
                        {"sub", PathKind::Directory, PathKind::Directory},
                        {"to-file", PathKind::File, PathKind::Symlink},
                        {"to-sub", PathKind::Directory, PathKind::Symlink},
                        {"dangling", PathKind::Missing, PathKind::Symlink},
                        {"loop", PathKind::Unknown, PathKind::Symlink},
                        {"none", PathKind::Missing, PathKind::Missing},
                        {"file/below", PathKind::Missing, PathKind::Missing}}) {
    SCOPED_TRACE(c.name);
    const fs::path path = dir_ / c.name;
    EXPECT_EQ(path_kind(path), c.kind);
    EXPECT_EQ(link_kind(path), c.link);
    EXPECT_EQ(is_file(path), c.kind == PathKind::File);
    EXPECT_EQ(is_directory_at(path), c.kind == PathKind::Directory);
    EXPECT_EQ(path_exists(path), c.kind == PathKind::File || c.kind == PathKind::Directory);
    EXPECT_EQ(name_taken(path), c.link != PathKind::Missing);
  }
  if (GetParam() == On::Memory) return;
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(path_kind(dir_ / "fifo"), PathKind::Other);
  EXPECT_TRUE(path_exists(dir_ / "fifo"));
}

TEST_P(DirectoryTest, ListsSorted) {
  EXPECT_TRUE(list_directory(dir_).empty());
  for (const char* name : {"b", "a10", "a2", ".hidden", "B"}) put_text(dir_ / name, "");
  EXPECT_EQ(list_directory(dir_), (Names{".hidden", "B", "a10", "a2", "b"}));
  EXPECT_EQ(slug_of([&] { list_directory(dir_ / "none"); }), "not-found");
  EXPECT_EQ(slug_of([&] { list_directory(dir_ / "b"); }), "not-found");
}

TEST_P(DirectoryTest, MakesDirectories) {
  EXPECT_TRUE(make_directory(dir_ / "sub"));
  EXPECT_FALSE(make_directory(dir_ / "sub"));
  put_text(dir_ / "file", "");
  EXPECT_FALSE(make_directory(dir_ / "file"));
  EXPECT_EQ(slug_of([&] { make_directory(dir_ / "none" / "sub"); }), "not-found");
}

TEST_P(DirectoryTest, RemovesATreeAndNothingElse) {
  make_directory(dir_ / "kept");
  put_text(dir_ / "kept" / "file", "x");
  make_directory(dir_ / "tree");
  make_directory(dir_ / "tree" / "sub");
  put_text(dir_ / "tree" / "file", "x");
  put_text(dir_ / "tree" / "sub" / "file", "x");
  make_symlink("../kept", dir_ / "tree" / "to-kept");
  make_symlink("nowhere", dir_ / "tree" / "dangling");
  EXPECT_EQ(remove_empty_directory(dir_ / "tree"), ENOTEMPTY);
  EXPECT_EQ(remove_own(dir_ / "tree", Own::MadeHere), 0);
  EXPECT_EQ(list_directory(dir_), Names{"kept"});
  EXPECT_EQ(list_directory(dir_ / "kept"), Names{"file"});
  EXPECT_EQ(remove_own(dir_ / "tree", Own::MadeHere), 0);
  EXPECT_EQ(remove_own(dir_ / "kept" / "file", Own::MadeHere), 0);
  EXPECT_EQ(remove_empty_directory(dir_ / "kept"), 0);
  EXPECT_EQ(remove_empty_directory(dir_ / "kept"), ENOENT);
}

TEST_P(DirectoryTest, RenamesAndExchanges) {
  put_text(dir_ / "a", "1");
  put_text(dir_ / "b", "2");
  EXPECT_EQ(rename_with(dir_ / "a", dir_ / "b", RENAME_NOREPLACE), EEXIST);
  EXPECT_EQ(rename_with(dir_ / "a", dir_ / "b", RENAME_EXCHANGE), 0);
  EXPECT_EQ(get_text(dir_ / "a"), "2");
  replace_own(dir_ / "a", dir_ / "b", Own::MadeHere);
  EXPECT_EQ(get_text(dir_ / "b"), "2");
  EXPECT_EQ(list_directory(dir_), Names{"b"});
  EXPECT_EQ(slug_of([&] { replace_own(dir_ / "a", dir_ / "b", Own::MadeHere); }), "not-found");
}

TEST_P(DirectoryTest, FindsTheRealPath) {
  make_directory(dir_ / "sub");
  make_symlink("sub", dir_ / "link");
  EXPECT_EQ(canonical_path(dir_ / "link" / ".." / "link"), canonical_path(dir_) / "sub");
  EXPECT_EQ(slug_of([&] { canonical_path(dir_ / "none"); }), "not-found");
  EXPECT_EQ(directory_of("a/b"), "a");
  EXPECT_EQ(directory_of("b"), ".");
  EXPECT_EQ(directory_of("/b"), "/");
}

TEST_P(DirectoryTest, FlushesWhatIsThere) {
  sync_directory(dir_);
  EXPECT_EQ(slug_of([&] { sync_directory(dir_ / "none"); }), "not-found");
  put_text(dir_ / "file", "");
  EXPECT_EQ(slug_of([&] { sync_directory(dir_ / "file"); }), "not-found");
}

/// What could not be removed is said, and the rest is gone.
TEST(Directory, RemovesWhatItCan) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  for (const char* path : {"/d/a", "/d/b", "/d/c"}) memory.put(path, "");
  memory.fail(CallKind::Remove, 1, EPERM);
  EXPECT_EQ(remove_own("/d", Own::MadeHere), EPERM);
  EXPECT_EQ(list_directory("/d").size(), 1u);
}

TEST(Directory, ADirectoryThatCannotBeFlushedIsNoError) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  make_directory("/d");
  memory.fail(CallKind::Sync, 1, EINVAL);
  memory.fail(CallKind::Sync, 2, EINTR);
  memory.fail(CallKind::Sync, 4, EIO);
  EXPECT_EQ(slug_of([] { sync_directory("/d"); }), "none");
  EXPECT_EQ(slug_of([] { sync_directory("/d"); }), "none");
  EXPECT_EQ(slug_of([] { sync_directory("/d"); }), "io");
  EXPECT_EQ(memory.open_descriptors(), 0);
}

TEST(Directory, WhatCannotBeSeenIsNotCalledFree) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  for (i64 n = 1; n <= 6; ++n) memory.fail(CallKind::Stat, n, n == 6 ? EACCES : EIO);
  for (const auto look : {+[] { (void)name_taken("/d"); }, +[] { (void)path_exists("/d"); },
                          +[] { (void)is_file("/d"); }, +[] { (void)link_kind("/d"); }})
    EXPECT_EQ(slug_of(look), "io");
  EXPECT_EQ(remove_own("/d", Own::MadeHere), EIO);
  EXPECT_EQ(slug_of([] { (void)name_taken("/d"); }), "io");
}

}  // namespace
}  // namespace glu_ckpt
