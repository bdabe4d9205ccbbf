#include "glu_ckpt/error.hpp"

#include <gtest/gtest.h>

#include <set>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

TEST(Error, EveryCodeHasASlugOfItsOwnAndAStatus) {
  std::set<std::string_view> slugs;
  for (int i = 0; i <= static_cast<int>(ErrorCode::Interrupted); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    EXPECT_TRUE(slugs.insert(slug(code)).second) << slug(code);
    EXPECT_FALSE(slug(code).empty());
    EXPECT_EQ(slug(code).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string_view::npos);
    EXPECT_NE(exit_status(code), ExitStatus::Done);
  }
}

/// Scripts branch on these.
TEST(Error, StatusesOfTheContract) {
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::VerifyFailed)), 1);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::Usage)), 2);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::FileTruncated)), 3);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::RecordContradicts)), 3);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::ExpertMissing)), 3);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::UnknownGlu)), 4);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::GluConflict)), 4);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::NotDivisible)), 4);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::AlreadyInLayout)), 4);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::OutputExists)), 4);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::NoSpace)), 5);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::NoDevice)), 5);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::DeviceFailed)), 5);
  EXPECT_EQ(static_cast<int>(exit_status(ErrorCode::Interrupted)), 6);
}

TEST(Error, KeepsFileAndTensor) {
  const Error error(ErrorCode::Io, "text", "file", "tensor");
  EXPECT_EQ(error.code(), ErrorCode::Io);
  EXPECT_STREQ(error.what(), "text");
  EXPECT_EQ(error.file(), "file");
  EXPECT_EQ(error.tensor(), "tensor");
}

std::string message_at(const InputPart& part, std::optional<std::int64_t> offset) {
  try {
    fail_at(ErrorCode::Io, {part, offset, "tensor"}, "is {}", "bad");
  } catch (const Error& error) {
    EXPECT_EQ(error.file(), part.file);
    EXPECT_EQ(error.tensor(), "tensor");
    return error.what();
  }
  return {};
}

TEST(FailAt, NamesTheByteOfTheFile) {
  EXPECT_EQ(message_at("x.pt", 7), "x.pt: byte 7: is bad");
  EXPECT_EQ(message_at({"x.pt", 100}, 7), "x.pt: byte 107: is bad");
  EXPECT_EQ(message_at({"x.pt", 100}, std::nullopt), "x.pt: is bad");
  EXPECT_EQ(message_at({"x.pt", 0, "extras"}, 7), "x.pt: byte 7 of its extras: is bad");
  EXPECT_EQ(message_at({"x.pt", -1}, 7), "x.pt: is bad");
}

}  // namespace
}  // namespace glu_ckpt
