#include "format/check_files.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

class CheckFilesTest : public testing::Test {
 protected:
  CheckFilesTest() {
    std::string pattern = (fs::path(testing::TempDir()) / "check_files_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~CheckFilesTest() override { fs::remove_all(dir_); }

  /// Writes position-coded bytes and returns the file's record.
  FileRecord put(const std::string& name, i64 bytes, i64 header_bytes) const {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + (i >> 8) * 13 + (i >> 16) * 31);
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return record_of_file(File::open_read(dir_ / name), name, {header_bytes});
  }

  void flip(const std::string& name, i64 offset) const {
    std::fstream file(dir_ / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    file.put(byte);
  }

  CheckedFile checked(const FileRecord& record) {
    read_ = 0;
    return check_files(dir_, {record}, FilesReach::Below, {"glu_ckpt.json"}, 2, [&](i64 bytes) { read_ += bytes; })
        .at(0);
  }

  fs::path dir_;
  std::atomic<i64> read_{0};
};

TEST_F(CheckFilesTest, TellsHeaderAndDataApart) {
  constexpr i64 kBytes = 3'000'000;
  const FileRecord record = put("f", kBytes, 100);
  EXPECT_EQ(checked(record).state, FileState::Ok);
  EXPECT_EQ(read_, kBytes);
  flip("f", 99);
  EXPECT_EQ(checked(record).detail, "its header differs");
  flip("f", 100);
  EXPECT_EQ(checked(record).detail, "its header differs, its data differ");
  flip("f", 99);
  EXPECT_EQ(checked(record).state, FileState::Differs);
  EXPECT_EQ(checked(record).detail, "its data differ");
  flip("f", 100);
  EXPECT_EQ(checked(record).state, FileState::Ok);
  for (const i64 offset : {i64{1} << 20, kBytes - 1}) {
    flip("f", offset);
    EXPECT_EQ(checked(record).detail, "its data differ") << offset;
    flip("f", offset);
  }
}

TEST_F(CheckFilesTest, SizesAndMissingFilesNeedNoReading) {
  const FileRecord record = put("f", 1000, 0);
  fs::resize_file(dir_ / "f", 999);
  EXPECT_EQ(checked(record).detail, "has 999 bytes, 1000 are recorded");
  fs::remove(dir_ / "f");
  EXPECT_EQ(checked(record).state, FileState::Missing);
  EXPECT_EQ(read_, 0);
}

TEST_F(CheckFilesTest, WhatIsNotRecordedIsSaid) {
  FileRecord record = put("f", 1000, 100);
  record.data_xxh3_128.clear();
  EXPECT_EQ(checked(record).state, FileState::NoChecksum);
  flip("f", 5);
  EXPECT_EQ(checked(record).state, FileState::Differs);
  record.header_xxh3_128.clear();
  EXPECT_EQ(checked(record).state, FileState::NoChecksum);
  EXPECT_EQ(read_, 0);
}

TEST_F(CheckFilesTest, LinesNameFilesBelowTheDirectory) {
  for (const std::string name : {"../f", "/etc/hosts", "a/../../f", ""})
    EXPECT_EQ(slug_of([&] { checked({name, 1}); }), "record-invalid") << name;
}

}  // namespace
}  // namespace glu_ckpt
