/// What sinks of all formats promise alike: files, hashes, a run taken over, a run of several processes.

#include "format/staged_output.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>

#include "core/parallel.hpp"
#include "io/journal.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

/// Two shards; "stack" is cut into chunks of 64 KiB where the format has chunks.
const std::vector<OutputTensor> kTensors = {
    {"stack", Dtype::BF16, {2, 3, 64, 512}, 393216, 0, 0, "stack"},
    {"odd", Dtype::U8, {70001}, 70001, 0, 393216, "odd"},
    {"empty", Dtype::F32, {0}, 0, 0, 463217, "empty"},
    {"last", Dtype::F32, {300, 301}, 361200, 1, 0, "last"},
    {"scalar", Dtype::F32, {}, 4, 1, 361200, "scalar"},
};
const Record kPlanned = {{"digest", "0000"}, {"glu", "split"}};
const Record kFinal = {{"digest", "1234"}, {"glu", "split"}};

/// Byte i of a tensor is a function of both, so a byte in the wrong place shows.
std::vector<std::byte> content_of(std::size_t tensor) {
  std::vector<std::byte> content(static_cast<std::size_t>(kTensors[tensor].bytes));
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<std::byte>(tensor * 31 + i * 7 + (i >> 8) * 11 + (i >> 16) * 13);
  return content;
}

struct Range {
  std::size_t tensor = 0;
  i64 offset = 0;
  std::vector<std::byte> bytes;
};

/// Ranges that tile all tensors, in random order.
std::vector<Range> random_ranges(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Range> ranges;
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    const auto content = content_of(t);
    for (std::size_t at = 0; at < content.size();) {
      const std::size_t count = std::min<std::size_t>(content.size() - at, 1 + random() % 150'000);
      const auto from = content.begin() + static_cast<std::ptrdiff_t>(at);
      ranges.push_back({t, static_cast<i64>(at), {from, from + static_cast<std::ptrdiff_t>(count)}});
      at += count;
    }
  }
  std::shuffle(ranges.begin(), ranges.end(), random);
  return ranges;
}

void write(Sink& sink, const Range& range) { sink.write(range.tensor, range.offset, range.bytes); }

/// Name and content of every file under `root`.
std::map<std::string, std::string> files_of(const fs::path& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(root).string()] = read_small_file(entry.path(), 1 << 24, ErrorCode::Io);
  return files;
}

class EveryOutput : public testing::TestWithParam<Format> {
 protected:
  EveryOutput() {
    std::string pattern = (fs::path(testing::TempDir()) / "staged_output_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
    std::ofstream(dir_ / "config.json") << "{}";
    std::ofstream(dir_ / "large") << std::string(3'000'000, 'x');
  }
  ~EveryOutput() override { fs::remove_all(dir_); }

  std::unique_ptr<StagedOutput> open(const std::string& name, OutputMode mode = OutputMode::Create,
                                     const std::string& fingerprint = "asked", int rank = 0) const {
    OutputOptions options;
    options.path = dir_ / name;
    options.extra_files = {{"config.json", dir_ / "config.json"}, {"sub/large", dir_ / "large"}};
    options.record = kPlanned;
    options.format = GetParam();
    options.mode = mode;
    options.fingerprint = fingerprint;
    options.rank = rank;
    return create_output(options, kTensors);
  }

  /// What an uninterrupted run of one process writes.
  std::map<std::string, std::string> reference(i64* bytes_written = nullptr) const {
    const auto sink = open("reference");
    for (const Range& range : random_ranges(1)) write(*sink, range);
    sink->finish(kFinal);
    if (bytes_written != nullptr) *bytes_written = sink->bytes_written();
    sink->commit();
    return files_of(dir_ / "reference");
  }

  void finish_and_compare(StagedOutput& sink) const {
    i64 bytes = 0;
    const auto expected = reference(&bytes);
    sink.finish(kFinal);
    EXPECT_EQ(sink.bytes_written(), bytes);
    sink.commit();
    const auto found = files_of(dir_ / "out");
    for (const auto& [name, content] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(found.at(name) == content) << name;
    }
    EXPECT_EQ(found.size(), expected.size());
    EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
  }

  fs::path dir_;
};

TEST_P(EveryOutput, RecordsEveryFilesChecksums) {
  i64 bytes_written = 0;
  const auto files = reference(&bytes_written);
  const RecordFile record = parse_record_json(files.at("glu_ckpt.json"), "x");
  EXPECT_EQ(record.files.size(), files.size() - 1);
  i64 bytes = static_cast<i64>(files.at("glu_ckpt.json").size());
  for (const FileRecord& file : record.files) {
    const bool has_header = file.name.ends_with(".safetensors");
    EXPECT_EQ(file.header_bytes > 0, has_header) << file.name;
    EXPECT_EQ(file, record_of_file(File::open_read(dir_ / "reference" / file.name), file.name, {file.header_bytes}));
    bytes += file.bytes;
  }
  EXPECT_EQ(bytes_written, bytes);
  EXPECT_TRUE(std::ranges::is_sorted(record.files, {}, &FileRecord::name));
}

TEST_P(EveryOutput, ThreadsMayWriteAtOnce) {
  const auto sink = open("out");
  const auto ranges = random_ranges(2);
  parallel_for(ranges.size(), 4, [&](std::size_t i, int) { write(*sink, ranges[i]); });
  finish_and_compare(*sink);
}

TEST_P(EveryOutput, ReadsBackWhatItWrote) {
  const auto sink = open("out");
  for (const Range& range : random_ranges(3)) write(*sink, range);
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    std::vector<std::byte> found(static_cast<std::size_t>(kTensors[t].bytes));
    sink->read_back(t, 0, found);
    EXPECT_TRUE(found == content_of(t)) << kTensors[t].name;
  }
  std::array<std::byte, 2> two{};
  EXPECT_EQ(slug_of([&] { sink->read_back(4, 3, two); }), "io");
  EXPECT_EQ(slug_of([&] { sink->adopt(4, 3, two); }), "io");
}

/// A run that stops after some ranges, and one that takes them over.
TEST_P(EveryOutput, AResumedRunGivesTheSameFiles) {
  const auto ranges = random_ranges(4);
  for (const std::size_t done : {std::size_t{0}, ranges.size() / 2, ranges.size()}) {
    SCOPED_TRACE(done);
    {
      const auto first = open("out", OutputMode::Resume);  // nothing to resume: as Create
      EXPECT_FALSE(first->resumed());
      ASSERT_TRUE(first->has_journal());
      for (std::size_t i = 0; i < done; ++i) write(*first, ranges[i]);
      first->journal().append(std::as_bytes(std::span("entry", 5)));
      first->keep();
    }
    // What such a run may leave too goes.
    std::ofstream(dir_ / "out.partial" / "glu_ckpt.json") << "old";
    fs::create_directories(dir_ / "out.partial" / "sub" / "deep");
    std::ofstream(dir_ / "out.partial" / "sub" / "deep" / "old") << "old";
    EXPECT_EQ(slug_of([&] { open("out", OutputMode::Resume, "asked something else"); }), "resume-mismatch");
    EXPECT_EQ(slug_of([&] { open("out"); }), "output-exists");
    const auto second = open("out", OutputMode::Resume);
    EXPECT_TRUE(second->resumed());
    EXPECT_EQ(second->journal().entries().size(), 1U);
    for (std::size_t i = 0; i < done; ++i) {
      std::vector<std::byte> found(ranges[i].bytes.size());
      second->read_back(ranges[i].tensor, ranges[i].offset, found);
      ASSERT_TRUE(found == ranges[i].bytes);
      second->adopt(ranges[i].tensor, ranges[i].offset, found);
    }
    for (std::size_t i = done; i < ranges.size(); ++i) write(*second, ranges[i]);
    finish_and_compare(*second);
    fs::remove_all(dir_ / "out");
    fs::remove_all(dir_ / "reference");
  }
}

/// Stopped between finish() and commit(): files have their final names already.
TEST_P(EveryOutput, AFinishedRunCanBeResumed) {
  const auto ranges = random_ranges(5);
  {
    const auto first = open("out");
    for (const Range& range : ranges) write(*first, range);
    first->finish(kFinal);
    first->keep();
  }
  const auto second = open("out", OutputMode::Resume);
  for (const Range& range : ranges) second->adopt(range.tensor, range.offset, range.bytes);
  finish_and_compare(*second);
}

TEST_P(EveryOutput, ProcessesThatJoinGiveTheSameFiles) {
  const auto ranges = random_ranges(6);
  const auto first = open("out");
  i64 others = 0;
  for (const int rank : {1, 2}) {
    const auto joined = open("out", OutputMode::Join, "asked", rank);
    EXPECT_TRUE(joined->has_journal());
    for (auto i = static_cast<std::size_t>(rank); i < ranges.size(); i += 3) {
      write(*joined, ranges[i]);
      others += static_cast<i64>(ranges[i].bytes.size());
    }
    const auto sums = joined->export_sums();
    first->import_sums(sums);
    EXPECT_EQ(slug_of([&] { first->import_sums(std::span(sums).first(sums.size() - 1)); }), "io");
    EXPECT_EQ(slug_of([&] { joined->finish(kFinal); }), "io");
    EXPECT_EQ(slug_of([&] { joined->commit(); }), "io");
  }
  for (std::size_t i = 0; i < ranges.size(); i += 3) write(*first, ranges[i]);
  first->finish(kFinal);
  first->commit();
  const auto expected = reference();
  EXPECT_TRUE(files_of(dir_ / "out") == expected);
  EXPECT_GT(others, 0);
}

/// Where the formats say that tensors lie is where their bytes are in the file.
TEST_P(EveryOutput, FileOffsetsAreWhereTheBytesAre) {
  const auto sink = open("out");
  for (const Range& range : random_ranges(7)) write(*sink, range);
  std::vector<i64> offsets;
  for (std::size_t t = 0; t < kTensors.size(); ++t) offsets.push_back(sink->file_offset(t));
  sink->finish(kFinal);
  sink->commit();
  const auto files = files_of(dir_ / "out");
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    if (offsets[t] < 0) {
      EXPECT_EQ(GetParam(), Format::TorchDist);
      EXPECT_EQ(kTensors[t].name, "stack");
      continue;
    }
    const auto content = content_of(t);
    const std::string text(reinterpret_cast<const char*>(content.data()), content.size());
    EXPECT_TRUE(std::ranges::any_of(files, [&](const auto& file) {
      return file.second.size() > static_cast<std::size_t>(offsets[t]) &&
             file.second.compare(static_cast<std::size_t>(offsets[t]), text.size(), text) == 0;
    })) << kTensors[t].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryOutput, testing::Values(Format::Safetensors, Format::Torch, Format::TorchDist),
                         [](const auto& format) {
                           std::string name(to_string(format.param));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace glu_ckpt
