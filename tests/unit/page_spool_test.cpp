#include "io/page_spool.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <string>

#include "core/parallel.hpp"
#include "support/memory_system.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kPage = 4096;
/// More than three chunks, and a part of one.
constexpr i64 kCount = 3 * PageSpool::kChunkBytes / kPage + 7;

/// Page `number` of file `file`, unlike all others.
std::string page_of(i64 number, int file) {
  std::string page(kPage, '\0');
  for (std::size_t i = 0; i < page.size(); ++i)
    page[i] = static_cast<char>(1 + (number * 37 + static_cast<i64>(i / 8) * 5 + file * 11) % 250);
  page.replace(0, 8, std::to_string(10'000'000 + number * 10 + file));
  return page;
}

class PageSpoolTest : public testing::Test {
 protected:
  PageSpoolTest() : scope_(disk_) {
    disk_.allow_clone(true);
    disk_.put("/dir/x", "");
    for (int f = 0; f < 2; ++f) {
      files_.push_back(File::create(name_of(f)));
      files_.back().set_size(2 * kCount * kPage);
    }
  }

  static std::string name_of(int file) { return "/dir/out" + std::to_string(file); }

  /// Every other page of both files in turn, by `threads`.
  void put_all(PageSpool& spool, int threads = 1) {
    parallel_for(static_cast<std::size_t>(kCount), threads, [&](std::size_t index, int) {
      const auto number = static_cast<i64>(index);
      for (int f = 0; f < 2; ++f) {
        const std::string page = page_of(number, f);
        ASSERT_TRUE(
            spool.try_put(std::as_bytes(std::span(page)), files_[static_cast<std::size_t>(f)], 2 * number * kPage));
      }
    });
  }

  void expect_all() const {
    for (int f = 0; f < 2; ++f) {
      std::string expected;
      for (i64 number = 0; number < kCount; ++number) expected += page_of(number, f) + std::string(kPage, '\0');
      EXPECT_TRUE(disk_.get(name_of(f)) == expected) << name_of(f);
    }
  }

  MemorySystem disk_;
  SystemCallsScope scope_;
  std::vector<File> files_;
};

TEST_F(PageSpoolTest, PagesGetToTheirPlaces) {
  for (const int threads : {1, 4}) {
    disk_.reset();
    PageSpool spool("/dir");
    put_all(spool, threads);
    spool.flush();
    expect_all();
    EXPECT_EQ(disk_.calls(CallKind::Clone), 2 * kCount);
    EXPECT_LE(disk_.calls(CallKind::Write), 2 * kCount * kPage / PageSpool::kChunkBytes + 1);
    EXPECT_EQ(disk_.tree("/dir"), (std::vector<std::string>{"out0", "out1", "x"}));
  }
}

TEST_F(PageSpoolTest, SeveralPagesAtOnceGoTogether) {
  PageSpool spool("/dir");
  std::string pages;
  for (i64 number = 0; number < 5; ++number) pages += page_of(number, 0);
  for (i64 at = 0; at < 100; ++at)
    ASSERT_TRUE(spool.try_put(std::as_bytes(std::span(pages)), files_[0], at * std::ssize(pages)));
  spool.flush();
  EXPECT_EQ(disk_.calls(CallKind::Clone), 100);
  for (std::size_t at = 0; at < 100; ++at)
    ASSERT_EQ(disk_.get(name_of(0))->substr(at * pages.size(), pages.size()), pages) << at;
}

TEST_F(PageSpoolTest, FlushTwiceAndPutInBetween) {
  PageSpool spool("/dir");
  spool.flush();
  EXPECT_EQ(disk_.calls(CallKind::Clone), 0);
  for (i64 number = 0; number < 3; ++number) {
    const std::string page = page_of(number, 1);
    ASSERT_TRUE(spool.try_put(std::as_bytes(std::span(page)), files_[1], number * kPage));
    spool.flush();
    EXPECT_EQ(disk_.get(name_of(1))->substr(static_cast<std::size_t>(number * kPage), kPage), page);
    EXPECT_EQ(disk_.calls(CallKind::Clone), number + 1);
  }
}

TEST_F(PageSpoolTest, WhatCannotBeSharedIsWritten) {
  disk_.allow_clone(false);
  PageSpool spool("/dir");
  put_all(spool);
  spool.flush();
  expect_all();
}

TEST_F(PageSpoolTest, WithoutAFileItTakesNothing) {
  disk_.allow_direct(false);
  PageSpool spool("/dir");
  const std::string page = page_of(1, 0);
  disk_.reset();
  for (int again = 0; again < 2; ++again) EXPECT_FALSE(spool.try_put(std::as_bytes(std::span(page)), files_[0], 0));
  spool.flush();
  EXPECT_EQ(disk_.calls(CallKind::Open), 1);
  EXPECT_EQ(disk_.calls(CallKind::Write), 0);
}

/// Each call fails once in turn: either the failure is told, or all pages are where they belong.
TEST_F(PageSpoolTest, NoFailureIsLost) {
  disk_.reset();
  {
    PageSpool spool("/dir");
    put_all(spool);
    spool.flush();
  }
  const i64 total = disk_.calls();
  ASSERT_GT(total, 2 * kCount);
  int told = 0, healed = 0;
  // Nearly all calls are clones: every 97th of them, and all others.
  for (i64 n = 1; n <= total; n += n < 4 || n > total - 8 ? 1 : 97) {
    for (File& file : files_) {
      file.set_size(0);
      file.set_size(2 * kCount * kPage);
    }
    disk_.reset();
    disk_.fail(n, EIO);
    try {
      PageSpool spool("/dir");
      const std::string page = page_of(0, 0);
      if (!spool.try_put(std::as_bytes(std::span(page)), files_[0], 0)) continue;
      put_all(spool);
      spool.flush();
      expect_all();
      ++healed;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Io);
      ++told;
    }
  }
  EXPECT_GT(told, 0);
  EXPECT_GT(healed, 0);
}

}  // namespace
}  // namespace glu_ckpt
