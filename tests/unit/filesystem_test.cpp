#include "io/filesystem.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

#include "support/both_systems.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using FilesystemTest = BothSystems;
GLU_CKPT_ON_BOTH(FilesystemTest);

TEST_P(FilesystemTest, KnowsWhatThePathLiesOn) {
  const FilesystemInfo here = filesystem_of(dir_);
  EXPECT_FALSE(here.type.empty());
  EXPECT_GT(here.total_bytes, 0);
  EXPECT_GE(here.free_bytes, 0);
  EXPECT_LE(here.free_bytes, here.total_bytes);
}

/// An output is asked about before it is made.
TEST_P(FilesystemTest, OfAPathThatIsNotThereYet) {
  EXPECT_EQ(filesystem_of(dir_ / "no/such/directory/yet").type, filesystem_of(dir_).type);
  EXPECT_EQ(filesystem_of("/no/such/directory").total_bytes, filesystem_of("/").total_bytes);
}

TEST(Filesystem, FreeSpaceIsThatOfThePath) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  memory.set_free_bytes(100 * 4096);
  EXPECT_EQ(filesystem_of("/none/yet").free_bytes, 100 * 4096);
  EXPECT_EQ(filesystem_of("/").type, "ext4");
  memory.fail(CallKind::Statfs, 3, EIO);
  EXPECT_EQ(slug_of([] { filesystem_of("/"); }), "io");
}

/// As NFS, and most file systems in user space.
class NoNamelessFiles final : public SystemCalls {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    if ((flags & O_TMPFILE) != O_TMPFILE) return SystemCalls::open(path, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
  }
};

TEST(Filesystem, WithoutNamelessFilesIsTriedAllTheSame) {
  std::string pattern = (std::filesystem::path(testing::TempDir()) / "nameless_XXXXXX").string();
  const std::filesystem::path dir = ::mkdtemp(pattern.data());
  const IoAbilities expected = io_abilities(dir);
  ASSERT_TRUE(expected.known);
  NoNamelessFiles calls;
  const SystemCallsScope scope(calls);
  const IoAbilities found = io_abilities(dir);
  EXPECT_TRUE(found.known);
  EXPECT_EQ(found.direct, expected.direct);
  EXPECT_EQ(found.clones, expected.clones);
  EXPECT_EQ(found.locks, expected.locks);
  EXPECT_TRUE(measure_writes(dir, 2).has_value());
  EXPECT_EQ(list_directory(dir), std::vector<std::string>{});
  EXPECT_FALSE(io_abilities(dir / "nowhere").known);
  std::filesystem::remove_all(dir);
}

TEST(Filesystem, OneWithoutANameIsANumber) { EXPECT_EQ(filesystem_of("/proc").type, "0x9fa0"); }

TEST(Filesystem, OfARelativePath) { EXPECT_EQ(filesystem_of(".").total_bytes, filesystem_of("none/yet").total_bytes); }

TEST(Filesystem, TriesACloneAndLeavesNothing) {
  MemorySystem memory;
  const SystemCallsScope scope(memory);
  make_directory("/out");
  memory.put("/source", std::string(5000, 'x'));
  memory.put("/short", std::string(4095, 'x'));
  const File source = File::open_read("/source");
  EXPECT_FALSE(can_clone_into("/out", source, 4096));
  memory.allow_clone(true);
  EXPECT_TRUE(can_clone_into("/out", source, 4096));
  EXPECT_FALSE(can_clone_into("/out", File::open_read("/short"), 4096));
  EXPECT_FALSE(can_clone_into("/none", source, 4096));
  EXPECT_FALSE(can_clone_into("/short", source, 4096));
  memory.reset();
  memory.fail(CallKind::Clone, 1, EIO);
  EXPECT_FALSE(can_clone_into("/out", source, 4096));
  // A full disk could share blocks if it had room for a file, so no answer is given.
  for (const auto& [kind, error] :
       {std::pair(CallKind::Open, ENOSPC), {CallKind::Open, EDQUOT}, {CallKind::Clone, ENOSPC}}) {
    memory.reset();
    memory.fail(kind, 1, error);
    EXPECT_EQ(slug_of([&] { (void)can_clone_into("/out", source, 4096); }), "no-space");
  }
  EXPECT_TRUE(memory.tree("/out").empty());
  EXPECT_EQ(memory.open_descriptors(), 1);
}

}  // namespace
}  // namespace glu_ckpt
