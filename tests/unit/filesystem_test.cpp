#include "io/filesystem.hpp"

#include <gtest/gtest.h>

namespace glu_ckpt {
namespace {

TEST(Filesystem, KnowsWhatThePathLiesOn) {
  const FilesystemInfo here = filesystem_of(".");
  EXPECT_FALSE(here.type.empty());
  EXPECT_GT(here.total_bytes, 0);
  EXPECT_GE(here.free_bytes, 0);
  EXPECT_LE(here.free_bytes, here.total_bytes);
}

/// An output is asked about before it is made.
TEST(Filesystem, OfAPathThatIsNotThereYet) {
  EXPECT_EQ(filesystem_of("no/such/directory/yet").type, filesystem_of(".").type);
  EXPECT_EQ(filesystem_of("/no/such/directory").total_bytes, filesystem_of("/").total_bytes);
}

TEST(Filesystem, OneWithoutANameIsANumber) { EXPECT_EQ(filesystem_of("/proc").type, "0x9fa0"); }

}  // namespace
}  // namespace glu_ckpt
