#include "glu_ckpt/error.hpp"

#include <gtest/gtest.h>

#include <set>

namespace glu_ckpt {
namespace {

TEST(Error, EveryCodeHasASlugOfItsOwnAndAStatus) {
  std::set<std::string_view> slugs;
  for (int i = 0; i <= static_cast<int>(ErrorCode::Interrupted); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    EXPECT_TRUE(slugs.insert(slug(code)).second) << slug(code);
    EXPECT_FALSE(slug(code).empty());
    EXPECT_EQ(slug(code).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string_view::npos);
    EXPECT_GE(exit_status(code), 1);
    EXPECT_LE(exit_status(code), 6);
  }
}

/// Scripts branch on these.
TEST(Error, StatusesOfTheContract) {
  EXPECT_EQ(exit_status(ErrorCode::VerifyFailed), 1);
  EXPECT_EQ(exit_status(ErrorCode::Usage), 2);
  EXPECT_EQ(exit_status(ErrorCode::FileTruncated), 3);
  EXPECT_EQ(exit_status(ErrorCode::RecordContradicts), 3);
  EXPECT_EQ(exit_status(ErrorCode::ExpertMissing), 3);
  EXPECT_EQ(exit_status(ErrorCode::UnknownGlu), 4);
  EXPECT_EQ(exit_status(ErrorCode::GluConflict), 4);
  EXPECT_EQ(exit_status(ErrorCode::NotDivisible), 4);
  EXPECT_EQ(exit_status(ErrorCode::AlreadyInLayout), 4);
  EXPECT_EQ(exit_status(ErrorCode::OutputExists), 4);
  EXPECT_EQ(exit_status(ErrorCode::NoSpace), 5);
  EXPECT_EQ(exit_status(ErrorCode::NoDevice), 5);
  EXPECT_EQ(exit_status(ErrorCode::DeviceFailed), 5);
  EXPECT_EQ(exit_status(ErrorCode::Interrupted), 6);
}

TEST(Error, KeepsFileAndTensor) {
  const Error error(ErrorCode::Io, "text", "file", "tensor");
  EXPECT_EQ(error.code(), ErrorCode::Io);
  EXPECT_STREQ(error.what(), "text");
  EXPECT_EQ(error.file(), "file");
  EXPECT_EQ(error.tensor(), "tensor");
}

}  // namespace
}  // namespace glu_ckpt
