#include "io/output_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/parallel.hpp"
#include "io/directory.hpp"
#include "support/memory_system.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

constexpr i64 kPage = 4096;

/// Byte i is a function of i that no two pages share.
std::vector<std::byte> content_of(i64 bytes) {
  std::vector<std::byte> content(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + (i >> 16) * 31 + (i >> 20) * 3);
  return content;
}

/// Memory that lies in its page where byte `phase` of a file lies in its own.
class PagedCopy {
 public:
  PagedCopy(std::span<const std::byte> bytes, i64 phase) : memory_(bytes.size() + 2 * kPage) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    first_ = (static_cast<std::size_t>(phase) + 2 * kPage - at % kPage) % kPage;
    std::ranges::copy(bytes, memory_.begin() + static_cast<std::ptrdiff_t>(first_));
    span_ = std::span<const std::byte>(memory_).subspan(first_, bytes.size());
  }
  std::span<const std::byte> span() const { return span_; }

 private:
  std::vector<std::byte> memory_;
  std::size_t first_ = 0;
  std::span<const std::byte> span_;
};

struct Piece {
  i64 begin = 0;
  i64 bytes = 0;
};

/// Pieces that tile [0, bytes), in random order.
std::vector<Piece> random_pieces(i64 bytes, i64 largest, std::mt19937& random) {
  std::vector<Piece> pieces;
  for (i64 at = 0; at < bytes;) {
    // Many small ones among the large, so that edges share pages and blocks.
    const i64 most = random() % 3 == 0 ? 3000 : largest;
    const i64 count = std::min<i64>(bytes - at, 1 + static_cast<i64>(random() % static_cast<unsigned>(most)));
    pieces.push_back({at, count});
    at += count;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

HashMemory g_hash_memory(i64{1} << 20);

/// A file without a header whose data are hashed.
OutputFileOptions hashed(i64 bytes) { return {bytes, 0, Space::All, nullptr, &g_hash_memory}; }

/// Tells `file` what `other` wrote, as two processes do.
void exchange(OutputFile& other, OutputFile& file) {
  other.flush();
  ByteWriter out;
  other.export_hashes(out);
  const std::vector<std::byte> hashes = out.take();
  file.see_others();
  ByteReader in(hashes, "hashes");
  file.import_hashes(in);
  in.end();
}

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::string pattern = (fs::path(testing::TempDir()) / "output_file_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~OutputFileTest() override { fs::remove_all(dir_); }

  void expect_published(const OutputFile& file, std::span<const std::byte> content) const {
    std::vector<std::byte> found(content.size());
    const File read = File::open_read(file.path());
    ASSERT_EQ(read.size(), std::ssize(content));
    read.pread_exact(found, 0);
    EXPECT_TRUE(std::ranges::equal(found, content));
    EXPECT_EQ(file.data_hash(), hash_data(content));
    EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1);
  }

  fs::path dir_;
};

void write_piece(OutputFile& file, std::span<const std::byte> content, const Piece& piece, i64 phase_error) {
  const auto part = content.subspan(static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.bytes));
  file.write(PagedCopy(part, piece.begin + phase_error).span(), piece.begin);
}

TEST_F(OutputFileTest, AnyPiecesByAnyThreadsGiveTheFile) {
  std::mt19937 random(1);
  for (const i64 bytes : {i64{0}, i64{1}, i64{240}, i64{241}, i64{1024}, i64{1025}, i64{65536}, i64{5'000'003}})
    // Memory that lies in its page as the file does is written as it is, other memory is moved first.
    for (const i64 phase_error : {0, 1}) {
      SCOPED_TRACE(bytes);
      const auto content = content_of(bytes);
      OutputFile file(dir_ / "f", StagedMode::Create, hashed(bytes));
      const auto pieces = random_pieces(bytes, 700'000, random);
      parallel_for(pieces.size(), 4, [&](std::size_t i, int) { write_piece(file, content, pieces[i], phase_error); });
      EXPECT_FALSE(fs::exists(dir_ / "f"));
      EXPECT_EQ(fs::file_size(dir_ / "f.partial"), static_cast<std::uintmax_t>(bytes));
      file.publish();
      expect_published(file, content);
      fs::remove(dir_ / "f");
    }
}

TEST_F(OutputFileTest, SpaceIsReservedFirst) {
  const OutputFile file(dir_ / "f", StagedMode::Create, hashed(100'000));
  EXPECT_EQ(fs::file_size(dir_ / "f.partial"), 100'000u);
  EXPECT_NE(slug_of([&] { OutputFile(dir_ / "g", StagedMode::Create, hashed(i64{1} << 60)); }), "none");
}

TEST_F(OutputFileTest, ReadsWhatWasWritten) {
  const auto content = content_of(300'000);
  OutputFile file(dir_ / "f", StagedMode::Create, hashed(300'000));
  write_piece(file, content, {0, 300'000}, 0);
  std::vector<std::byte> middle(100'001);
  file.read(middle, 99'999);
  EXPECT_TRUE(std::ranges::equal(middle, std::span(content).subspan(99'999, middle.size())));
}

/// The first run writes some pieces and stops, the second takes over those and writes the rest.
TEST_F(OutputFileTest, ResumesUnderEitherName) {
  std::mt19937 random(2);
  constexpr i64 kBytes = 2'000'001;
  const auto content = content_of(kBytes);
  for (const bool was_published : {false, true}) {
    const auto pieces = random_pieces(kBytes, 300'000, random);
    const std::size_t half = pieces.size() / 2;
    {
      OutputFile first(dir_ / "f", StagedMode::Create, hashed(kBytes));
      for (std::size_t i = 0; i < half; ++i) write_piece(first, content, pieces[i], 0);
      if (was_published) first.publish();
    }
    OutputFile second(dir_ / "f", StagedMode::Resume, hashed(kBytes));
    for (std::size_t i = 0; i < half; ++i) {
      std::vector<std::byte> found(static_cast<std::size_t>(pieces[i].bytes));
      second.read(found, pieces[i].begin);
      ASSERT_TRUE(std::ranges::equal(
          found, std::span(content).subspan(static_cast<std::size_t>(pieces[i].begin), found.size())));
      second.add_written(found, pieces[i].begin);
    }
    for (std::size_t i = half; i < pieces.size(); ++i) write_piece(second, content, pieces[i], 0);
    second.publish();
    expect_published(second, content);
    fs::remove(dir_ / "f");
  }
}

TEST_F(OutputFileTest, AShorterFileIsReservedAgainALongerOneRefused) {
  const auto content = content_of(10'000);
  write_small_file(dir_ / "f.partial", "short");
  {
    OutputFile file(dir_ / "f", StagedMode::Resume, hashed(10'000));
    write_piece(file, content, {0, 10'000}, 0);
    file.publish();
    expect_published(file, content);
  }
  EXPECT_EQ(slug_of([&] { OutputFile(dir_ / "f", StagedMode::Resume, hashed(9'999)); }), "resume-mismatch");
}

TEST_F(OutputFileTest, AnotherProcessWritesToo) {
  constexpr i64 kBytes = 1'000'003;
  const auto content = content_of(kBytes);
  EXPECT_EQ(slug_of([&] { OutputFile(dir_ / "f", StagedMode::Join, hashed(kBytes)); }), "not-found");
  OutputFile first(dir_ / "f", StagedMode::Create, hashed(kBytes));
  EXPECT_EQ(slug_of([&] { OutputFile(dir_ / "f", StagedMode::Join, hashed(kBytes + 1)); }), "io");
  std::mt19937 random(3);
  const auto pieces = random_pieces(kBytes, 200'000, random);
  {
    OutputFile other(dir_ / "f", StagedMode::Join, hashed(kBytes));
    for (std::size_t i = 0; i < pieces.size(); ++i) write_piece(i % 2 == 0 ? first : other, content, pieces[i], 0);
    exchange(other, first);
  }
  first.publish();
  expect_published(first, content);
}

/// The header and its page's other half go to the same place; its length moves the blocks of the data.
TEST_F(OutputFileTest, TheHeaderIsHashedByItself) {
  constexpr i64 kBytes = 3'500'000;
  constexpr i64 kHeaderBytes = 1003;
  const auto content = content_of(kBytes);
  OutputFileOptions options = hashed(kBytes);
  options.header_bytes = kHeaderBytes;
  OutputFile file(dir_ / "f", StagedMode::Create, options);
  EXPECT_EQ(file.header_hash(), hash128({}, 0));
  for (const i64 begin : {kHeaderBytes, i64{1'300'000}, i64{2'400'000}})
    write_piece(file, content, {begin, std::min(kBytes, begin < 1'300'000 ? 1'300'000 : begin + 1'100'000) - begin}, 0);
  const auto bytes = std::span(content);
  file.write_header(bytes.first(kHeaderBytes));
  file.publish();
  EXPECT_EQ(file.header_hash(), hash128(bytes.first(kHeaderBytes), 0));
  EXPECT_EQ(file.data_hash(), hash_data(bytes.subspan(kHeaderBytes)));
  EXPECT_EQ(read_small_file(dir_ / "f", kBytes, ErrorCode::Io),
            std::string_view(reinterpret_cast<const char*>(content.data()), content.size()));
}

/// More than one piece of what is done piece by piece: 2 MiB of memory that is moved.
TEST_F(OutputFileTest, MovesLongRanges) {
  constexpr i64 kBytes = 20'000'001;
  const auto content = content_of(kBytes);
  for (const i64 phase_error : {0, 1}) {
    OutputFile file(dir_ / "f", StagedMode::Create, hashed(kBytes));
    write_piece(file, content, {0, kBytes}, phase_error);
    file.publish();
    expect_published(file, content);
    fs::remove(dir_ / "f");
  }
}

/// The same on a file system in memory, where calls can fail.
class OutputFileFaults : public testing::Test {
 protected:
  static constexpr i64 kBytes = 300'001;

  /// Writes and publishes "/f" by one thread; returns the slug of its error.
  std::string run() {
    return slug_of([&] {
      OutputFile file("/f", StagedMode::Create, hashed(kBytes));
      std::mt19937 random(5);
      for (const Piece& piece : random_pieces(kBytes, 150'000, random))
        write_piece(file, content_, piece, piece.begin % 2);
      file.publish();
      EXPECT_EQ(file.data_hash(), hash_data(content_));
    });
  }

  /// The same by two processes in turn.
  std::string run_two() {
    return slug_of([&] {
      OutputFile first("/f", StagedMode::Create, hashed(kBytes));
      {
        OutputFile other("/f", StagedMode::Join, hashed(kBytes));
        std::mt19937 random(6);
        int number = 0;
        for (const Piece& piece : random_pieces(kBytes, 30'000, random))
          write_piece(++number % 2 == 0 ? first : other, content_, piece, 0);
        exchange(other, first);
      }
      first.publish();
      EXPECT_EQ(first.data_hash(), hash_data(content_));
    });
  }

  void expect_file() const {
    const auto found = memory_.get("/f");
    ASSERT_TRUE(found);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(*found)), content_));
    EXPECT_EQ(memory_.tree("/"), std::vector<std::string>{"f"});
  }

  MemorySystem memory_;
  SystemCallsScope scope_{memory_};
  const std::vector<std::byte> content_ = content_of(kBytes);
};

TEST_F(OutputFileFaults, WorksWithoutWhatAFilesystemMayLack) {
  memory_.allow_direct(false);
  EXPECT_EQ(run(), "none");
  expect_file();
  remove_own("/f", Own::MadeHere);
  memory_.allow_direct(true);
  memory_.allow_reserve(false);
  EXPECT_EQ(run(), "none");
  expect_file();
}

TEST_F(OutputFileFaults, WritesAndReadsMayBeShort) {
  for (const Transfer transfer : {Transfer::Half, Transfer::Whole}) {
    memory_.set_transfer(transfer);
    memory_.interrupt(true);
    EXPECT_EQ(run(), "none");
    expect_file();
    remove_own("/f", Own::MadeHere);
  }
}

/// Where any one call fails, the run says so, or its file is right all the same.
TEST_F(OutputFileFaults, AFaultIsNeverAWrongFile) {
  ASSERT_EQ(run(), "none");
  const i64 calls = memory_.calls();
  int survived = 0;
  for (const int error : {EIO, ENOSPC, EINVAL})
    for (i64 number = 1; number <= calls; ++number) {
      SCOPED_TRACE(number);
      for (const char* name : {"/f", "/f.partial"}) remove_own(name, Own::MadeHere);
      memory_.reset();
      memory_.fail(number, error);
      const std::string result = run();
      memory_.reset();
      if (result == "none") {
        ++survived;
        const auto found = memory_.get("/f");
        ASSERT_TRUE(found);
        EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(*found)), content_));
      } else {
        EXPECT_TRUE(result == "io" || result == "no-space") << result;
      }
    }
  EXPECT_GT(survived, 0);  // of writes past the cache
}

/// Where a call of either process fails, the checksum is right or there is none.
TEST_F(OutputFileFaults, AFaultOfAnotherProcessIsNeverAWrongHash) {
  memory_.set_transfer(Transfer::Half);
  ASSERT_EQ(run_two(), "none");
  const i64 calls = memory_.calls();
  for (i64 number = 1; number <= calls; ++number) {
    SCOPED_TRACE(number);
    for (const char* name : {"/f", "/f.partial"}) remove_own(name, Own::MadeHere);
    memory_.reset();
    memory_.set_transfer(Transfer::Half);
    memory_.fail(number, ENOSPC);
    (void)run_two();
  }
}

TEST_F(OutputFileFaults, WhatIsPublishedSurvivesAPowerCut) {
  for (const Crash crash : kCrashes) {
    ASSERT_EQ(run(), "none");
    sync_directory("/");
    memory_.crash(crash);
    const auto found = memory_.get("/f");
    ASSERT_TRUE(found);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(*found)), content_));
    remove_own("/f", Own::MadeHere);
  }
}

/// What is cloned takes no space, so none of it may be asked for beforehand.
TEST(OutputFile, ReservesOnlyWhatIsWrittenBetweenClones) {
  MemorySystem memory;
  memory.allow_clone(true);
  const SystemCallsScope scope(memory);
  const std::vector<std::byte> content = content_of(4 << 20);
  const auto text = std::string_view(reinterpret_cast<const char*>(content.data()), content.size());
  memory.put("/source", text);
  const File source = File::open_read("/source");
  memory.reset();
  OutputFile file("/out", StagedMode::Create, {std::ssize(content), 0, Space::AsWritten});
  EXPECT_EQ(memory.calls(CallKind::Reserve), 0);
  EXPECT_TRUE(file.try_clone_from(source, kPage, kPage, 1 << 20));
  EXPECT_FALSE(file.try_clone_from(source, kPage + 8, kPage, kPage));
  const i64 end = kPage + (1 << 20);
  file.write(std::span(content).first(kPage), 0);
  EXPECT_EQ(memory.calls(CallKind::Reserve), 0);
  file.write(std::span(content).subspan(static_cast<std::size_t>(end)), end);
  EXPECT_EQ(memory.calls(CallKind::Reserve), 1);
  file.publish();
  EXPECT_FALSE(file.data_hash());
  EXPECT_EQ(memory.get("/out"), text);
  EXPECT_EQ(memory.tree("/"), (std::vector<std::string>{"out", "source"}));
}

}  // namespace
}  // namespace glu_ckpt
