/// Whole conversions by several ranks, which are threads here, on the real disk: the same bytes as one process's, the
/// same failure everywhere, and what is left after it.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>

#include "glu_ckpt/convert.hpp"
#include "io/staged_dir.hpp"
#include "io/system_calls.hpp"
#include "support/slug_of.hpp"
#include "support/thread_ranks.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using support::run_thread_ranks;

/// Files by name.
using Tree = std::map<std::string, std::string>;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Tree tree_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {{"", text_of(path)}};
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) tree[entry.path().lexically_relative(path).string()] = text_of(entry.path());
  return tree;
}

/// The rank whose thread this is: files are opened by it, though other threads may use them.
thread_local int this_rank = 0;

/// What becomes of a rank that has done a little.
enum class Fault { None, WriteFails, DiskIsFull, SourceIsShort };

/// The kernel's file system, where one rank's writing or reading goes wrong once its journal tells of something done.
/// The others wait for that, and until they are stopped, so that all have done something by then, but nobody
/// everything.
class FaultyDisk final : public SystemCalls {
 public:
  FaultyDisk(Fault fault, int rank, const fs::path& source) : fault_(fault), rank_(rank), source_(source.string()) {}

  i64 tensor_writes() const { return writes_; }
  bool has_failed() const { return failed_; }
  int rank() const { return rank_; }
  /// The rank that fails, which says when it has stopped the others.
  void watch(Ranks& ranks) { ranks_ = &ranks; }

  int open(const char* path, int flags, mode_t mode) override {
    const int descriptor = SystemCalls::open(path, flags, mode);
    const std::string_view name(path);
    const std::lock_guard lock(mutex_);
    files_.erase(descriptor);
    const bool writes = (flags & O_ACCMODE) != O_RDONLY;
    if (descriptor < 0) return descriptor;
    if (writes && name.ends_with(".partial")) files_[descriptor] = {this_rank, Use::Output};
    const std::string file = fs::path(name).filename().string();
    if (writes && file.starts_with(StagedDir::kJournalName) && file != RunOwner::kName)
      files_[descriptor] = {this_rank, Use::Journal};
    if (!writes && name.starts_with(source_) && name.ends_with(".safetensors"))
      files_[descriptor] = {this_rank, Use::Source};
    return descriptor;
  }

  ssize_t pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset) override {
    const auto file = file_of(descriptor);
    if (file && file->use == Use::Journal && bytes > kNoteBytes && bytes < kHeaderBytes) count_entry(*file);
    if (file && file->use == Use::Output) {
      if (fails(*file, fault_ == Fault::WriteFails || fault_ == Fault::DiskIsFull)) {
        errno = fault_ == Fault::DiskIsFull ? ENOSPC : EIO;
        return -1;
      }
      ++writes_;
    }
    return SystemCalls::pwrite(descriptor, from, bytes, offset);
  }

  ssize_t pread(int descriptor, void* out, std::size_t bytes, i64 offset) override {
    if (is_short(descriptor)) return 0;
    return SystemCalls::pread(descriptor, out, bytes, offset);
  }

  ssize_t preadv(int descriptor, const iovec* pieces, int count, i64 offset) override {
    if (is_short(descriptor)) return 0;
    return SystemCalls::preadv(descriptor, pieces, count, offset);
  }

 private:
  /// What a journal says of a range that is done is shorter than its header, and longer than its note of the source.
  static constexpr std::size_t kNoteBytes = 64;
  static constexpr std::size_t kHeaderBytes = 200;

  enum class Use { Output, Journal, Source };
  struct Known {
    int rank;
    Use use;
  };

  void count_entry(const Known& file) {
    const std::lock_guard lock(mutex_);
    ++entries_[file.rank];
  }

  std::optional<Known> file_of(int descriptor) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(descriptor);
    return found == files_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Reading counts once the output is being written: planning reads headers.
  bool is_short(int descriptor) {
    const auto file = file_of(descriptor);
    return file && file->use == Use::Source && writes_ > 0 && fails(*file, fault_ == Fault::SourceIsShort);
  }

  /// Whether this call of the rank is one that goes wrong; another rank's may wait for that.
  bool fails(const Known& file, bool matters) {
    if (fault_ == Fault::None) return false;
    std::unique_lock lock(mutex_);
    if (file.rank == rank_ && !matters) return false;
    const bool few = entries_[file.rank] == 0;
    if (file.rank == rank_) {
      failed_ = failed_ || !few;
      has_failed_.notify_all();
      return !few;
    }
    if (few || gave_up_) return false;
    gave_up_ = !has_failed_.wait_for(lock, std::chrono::seconds(30), [&] { return failed_.load(); });
    lock.unlock();
    for (int i = 0; i < 10'000 && !gave_up_ && !ranks_.load()->stopped(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  }

  Fault fault_;
  int rank_;
  std::string source_;
  std::mutex mutex_;
  std::condition_variable has_failed_;
  std::map<int, Known> files_;
  /// Of each rank's journal.
  std::map<int, int> entries_;
  std::atomic<i64> writes_{0};
  std::atomic<bool> failed_{false};
  /// A test that would wait for ever fails instead.
  std::atomic<bool> gave_up_{false};
  std::atomic<Ranks*> ranks_{nullptr};
};

/// What each rank threw.
struct Thrown {
  std::string slug = "none";
  std::string message;
  int rank = -1;
  bool operator==(const Thrown&) const = default;
};

class ConvertRanks : public testing::Test {
 protected:
  ConvertRanks() {
    std::string pattern = (fs::path(testing::TempDir()) / "convert_ranks_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
    const char* const testdata = std::getenv("GLU_CKPT_TESTDATA");
    if (testdata == nullptr) throw std::runtime_error("set GLU_CKPT_TESTDATA to the folder testdata");
    source_ = fs::path(testdata) / "hf/deepseek_v3";
  }
  ~ConvertRanks() override { fs::remove_all(dir_); }

  /// A call of convert().
  struct Asked {
    fs::path input;
    fs::path output;
    ConvertOptions options;
    RunOptions run;
  };

  /// Buffers hold a piece of an expert matrix only, so tensors are written by several ranks.
  Asked options(const fs::path& out, ConvertOptions more = {}) const {
    more.to.naming = "megatron";
    more.to.scope = Scope::Experts;
    more.to.experts = Experts::Grouped;
    RunOptions run;
    run.jobs = 2;
    run.device = "cpu";
    run.memory_bytes = 32'768;
    return {source_, out, more, run};
  }

  static ConvertOptions to_format(Format format, i64 max_shard_bytes = ConvertOptions().max_shard_bytes) {
    ConvertOptions options;
    options.format = format;
    options.max_shard_bytes = max_shard_bytes;
    return options;
  }
  static ConvertOptions with_shards(i64 max_shard_bytes) {
    ConvertOptions options;
    options.max_shard_bytes = max_shard_bytes;
    return options;
  }
  static ConvertOptions with_glu(const std::string& glu) {
    ConvertOptions options;
    options.to.glu = parse_glu(glu);
    return options;
  }

  static void convert(const Asked& asked, int ranks) {
    run_thread_ranks(ranks, [&](Ranks& all) {
      this_rank = all.rank();
      (void)glu_ckpt::convert(asked.input, asked.output, asked.options, asked.run, &all);
    });
  }

  static std::vector<std::string> warnings_of(const Asked& asked, int ranks) {
    std::vector<std::string> warnings;
    run_thread_ranks(ranks, [&](Ranks& all) {
      this_rank = all.rank();
      const Converted made = glu_ckpt::convert(asked.input, asked.output, asked.options, asked.run, &all);
      if (all.rank() == 0) warnings = made.warnings;
    });
    return warnings;
  }

  /// Makes every tenth code of the experts in FP8 NaN, and returns how many these are.
  static i64 plant_nans(const fs::path& directory) {
    i64 planted = 0;
    const auto source = open_source(directory);
    for (const TensorRef& tensor : source->inventory().tensors) {
      if (tensor.dtype != Dtype::F8_E4M3 || tensor.name.find(".experts.") == std::string::npos) continue;
      std::fstream file(directory / source->inventory().files[tensor.file], std::ios::in | std::ios::out);
      for (i64 at = 0; at < tensor.bytes; at += 10, ++planted) file.seekp(tensor.offset + at).put('\x7f');
    }
    return planted;
  }

  /// What every rank threw, by rank.
  static std::vector<Thrown> thrown(const std::function<Asked(int)>& asked_of, int ranks, FaultyDisk* disk = nullptr) {
    std::vector<Thrown> all(static_cast<std::size_t>(ranks));
    run_thread_ranks(ranks, [&](Ranks& mine) {
      this_rank = mine.rank();
      if (disk != nullptr && disk->rank() == mine.rank()) disk->watch(mine);
      try {
        const Asked asked = asked_of(mine.rank());
        (void)glu_ckpt::convert(asked.input, asked.output, asked.options, asked.run, &mine);
      } catch (const RankError& error) {
        all[static_cast<std::size_t>(mine.rank())] = {std::string(slug(error.code())), error.what(), error.rank()};
      }
    });
    return all;
  }

  /// A conversion that fails at that rank.
  std::vector<Thrown> fail_at(Fault fault, int failing, int ranks, const Asked& asked) const {
    FaultyDisk disk(fault, failing, source_);
    const SystemCallsScope scope(disk);
    auto all = thrown([&](int) { return asked; }, ranks, &disk);
    EXPECT_TRUE(disk.has_failed());
    return all;
  }

  static void expect_all(const std::vector<Thrown>& all, const std::string& slug, int rank) {
    for (const Thrown& one : all) {
      EXPECT_EQ(one.slug, slug) << one.message;
      EXPECT_EQ(one.rank, rank);
      EXPECT_EQ(one.message, all.front().message);
    }
  }

  /// Writes of tensor bytes that it took.
  i64 resume(const Asked& asked, int ranks) const {
    Asked again = asked;
    again.options.resume = true;
    FaultyDisk disk(Fault::None, 0, source_);
    const SystemCallsScope scope(disk);
    convert(again, ranks);
    return disk.tensor_writes();
  }

  /// Journals in DST.partial: of rank 0, and of those that joined.
  std::size_t journals(const fs::path& out) const {
    std::size_t found = 0;
    for (const auto& entry : fs::directory_iterator(out.string() + ".partial"))
      found += entry.path().filename().string().starts_with(StagedDir::kJournalName) ? 1 : 0;
    return found;
  }

  /// A directory for each run, so that the output's own name is always the same.
  fs::path place(const std::string& run, const std::string& name = "out") const {
    fs::create_directories(dir_ / run);
    return dir_ / run / name;
  }

  fs::path dir_;
  fs::path source_;
};

TEST_F(ConvertRanks, AnyNumberGivesTheSameBytes) {
  struct Target {
    std::string name;
    ConvertOptions options;
    std::size_t least_files;
  };
  const std::vector<Target> targets = {
      {"out", with_shards(150'000), 4},
      {"out", with_glu("interleaved:8"), 3},
      {"out.safetensors", {}, 1},
      {"out.pt", {}, 1},
      {"out", to_format(Format::Torch), 3},
      {"out", to_format(Format::Torch, 150'000), 4},
      {"out", to_format(Format::TorchDist), 3},
  };
  int number = 0;
  for (const Target& target : targets) {
    Tree expected;
    for (const int ranks : {1, 2, 3, 5}) {
      const fs::path out = place(std::to_string(++number), target.name);
      SCOPED_TRACE(out.string() + " " + testing::PrintToString(option_texts(target.options)) + " by " +
                   std::to_string(ranks));
      convert(options(out, target.options), ranks);
      const Tree tree = tree_of(out);
      if (ranks == 1) {
        expected = tree;
        EXPECT_GE(tree.size(), target.least_files);
        EXPECT_GT(fs::file_size(tree.size() == 1 ? out : out / tree.begin()->first), 0u);
      }
      EXPECT_TRUE(tree == expected);
      EXPECT_EQ(std::distance(fs::directory_iterator(out.parent_path()), {}), 1) << "something else is left";
    }
  }
}

/// Where the machine fails, what is done is kept, and any number of ranks goes on with it.
TEST_F(ConvertRanks, WhatAFailureLeavesIsResumedByAnyNumber) {
  const std::vector<ConvertOptions> formats = {with_shards(150'000), to_format(Format::Torch),
                                               to_format(Format::TorchDist)};
  int number = 0;
  for (const ConvertOptions& format : formats) {
    const fs::path whole = place("whole" + std::to_string(++number));
    FaultyDisk disk(Fault::None, 0, source_);
    {
      const SystemCallsScope scope(disk);
      convert(options(whole, format), 1);
    }
    const Tree expected = tree_of(whole);
    int failing = 0;
    for (const int again : {1, 2, 5}) {
      const fs::path out = place(std::to_string(++number));
      const Asked asked = options(out, format);
      const bool full = failing == 1;
      SCOPED_TRACE(testing::PrintToString(option_texts(format)) + " rank " + std::to_string(failing) + ", then " +
                   std::to_string(again) + " ranks");
      const auto all = fail_at(full ? Fault::DiskIsFull : Fault::WriteFails, failing, 3, asked);
      expect_all(all, full ? "no-space" : "io", failing);
      EXPECT_NE(all[0].message.find("--resume"), std::string::npos) << all[0].message;
      ASSERT_TRUE(fs::exists(out.string() + ".partial"));
      EXPECT_FALSE(fs::exists(out));
      EXPECT_EQ(journals(out), 3u);
      EXPECT_LT(resume(asked, again), disk.tensor_writes()) << "what was done is done again";
      EXPECT_TRUE(tree_of(out) == expected);
      EXPECT_EQ(std::distance(fs::directory_iterator(out.parent_path()), {}), 1) << "something else is left";
      ++failing;
    }
  }
}

/// Stopped again and again, by another number of ranks each time.
TEST_F(ConvertRanks, ManyStopsMakeOneOutput) {
  const fs::path whole = place("whole");
  convert(options(whole), 1);
  Asked asked = options(place("stopped"));
  for (const int ranks : {4, 2, 3, 2}) {
    SCOPED_TRACE(ranks);
    expect_all(fail_at(Fault::WriteFails, ranks - 1, ranks, asked), "io", ranks - 1);
    EXPECT_EQ(journals(asked.output), static_cast<std::size_t>(ranks)) << "those of the runs before are taken in";
    asked.options.resume = true;
  }
  (void)resume(asked, 1);
  EXPECT_TRUE(tree_of(asked.output) == tree_of(whole));
}

/// A NaN is counted once, whichever rank decoded it, in this run or in the one before.
TEST_F(ConvertRanks, CountNansOfAllRanksAndRuns) {
  const fs::path quantized = source_.parent_path().parent_path() / "quantized/fp8_block128";
  source_ = dir_ / "nans";
  fs::copy(quantized, source_);
  const i64 planted = plant_nans(source_);
  ConvertOptions decoding;
  decoding.from.decode = Dtype::BF16;
  const auto expect_counted = [&](const Asked& asked, int ranks) {
    const std::vector<std::string> warnings = warnings_of(asked, ranks);
    ASSERT_FALSE(warnings.empty());
    EXPECT_TRUE(warnings.back().starts_with(std::to_string(planted) + " decoded weights are NaN or infinite"))
        << warnings.back();
    EXPECT_NE(warnings.back().find(" in 6 tensors of the output, first in"), std::string::npos) << warnings.back();
  };
  for (const int ranks : {1, 2, 3}) expect_counted(options(place("whole" + std::to_string(ranks)), decoding), ranks);
  for (const int ranks : {1, 4}) {
    Asked asked = options(place("resumed" + std::to_string(ranks)), decoding);
    expect_all(fail_at(Fault::WriteFails, 1, 3, asked), "io", 1);
    asked.options.resume = true;
    expect_counted(asked, ranks);
  }
}

/// Rank 0 alone reads copies; all hash what is none as a tensor of its own.
TEST_F(ConvertRanks, AgreeAboutUnequalCopies) {
  const fs::path unequal = dir_ / "unequal";
  fs::copy(source_.parent_path().parent_path() / "whole/deepseek_v3/hf", unequal);
  {
    const auto source = open_source(unequal);
    const auto& tensors = source->inventory().tensors;
    const auto copy = std::ranges::find(tensors, "model.layers.3.shared_head.head.weight", &TensorRef::name);
    ASSERT_NE(copy, tensors.end());
    std::fstream(unequal / source->inventory().files[copy->file], std::ios::in | std::ios::out)
        .seekp(copy->offset + copy->bytes - 1)
        .put('\x01');
  }
  Asked asked = options(place("unequal_out"));
  asked.input = unequal;
  asked.options.to = {};
  asked.options.to.experts = Experts::Grouped;
  asked.options.to.glu = parse_glu("contiguous");
  convert(asked, 1);
  const Tree expected = tree_of(asked.output);
  fs::remove_all(asked.output);
  convert(asked, 3);
  EXPECT_TRUE(tree_of(asked.output) == expected);
  EXPECT_TRUE(verify(unequal, asked.output).equal);
}

/// A broken input cannot be resumed, whichever rank meets it.
TEST_F(ConvertRanks, NothingIsLeftOfWhatCannotBeResumed) {
  for (const int failing : {0, 2}) {
    const fs::path out = place("broken" + std::to_string(failing));
    const auto all = fail_at(Fault::SourceIsShort, failing, 3, options(out));
    expect_all(all, "source-changed", failing);
    EXPECT_EQ(all[0].message.find("--resume"), std::string::npos) << all[0].message;
    EXPECT_TRUE(fs::is_empty(out.parent_path()));
  }
}

TEST_F(ConvertRanks, RefusesRanksThatSeeAnotherSource) {
  // The same bytes, written at another time.
  const fs::path copy = dir_ / "copy";
  fs::copy(source_, copy);
  const auto other_file = copy / "model-00001-of-00003.safetensors";
  fs::last_write_time(other_file, fs::last_write_time(other_file) + std::chrono::hours(1));
  const Asked asked = options(place("refused"));
  Asked other = asked;
  other.input = copy;
  expect_all(thrown([&](int rank) { return rank == 2 ? other : asked; }, 3), "source-changed", 2);
  EXPECT_TRUE(fs::is_empty(dir_ / "refused"));
}

/// A rank that finds no such directory, as where it is not shared, cannot take what an earlier run did along.
TEST_F(ConvertRanks, ARankThatCannotJoinLosesNothing) {
  const fs::path whole = place("whole");
  convert(options(whole), 1);
  Asked asked = options(place("kept"));
  expect_all(fail_at(Fault::WriteFails, 1, 3, asked), "io", 1);
  asked.options.resume = true;
  Asked elsewhere = asked;
  elsewhere.output = place("elsewhere");
  expect_all(thrown([&](int rank) { return rank == 1 ? elsewhere : asked; }, 2), "not-found", 1);
  ASSERT_TRUE(fs::exists(asked.output.string() + ".partial"));
  FaultyDisk disk(Fault::None, 0, source_);
  {
    const SystemCallsScope scope(disk);
    convert(options(place("again")), 1);
  }
  EXPECT_LT(resume(asked, 2), disk.tensor_writes());
  EXPECT_TRUE(tree_of(asked.output) == tree_of(whole));
}

/// What all ranks do together fails as one, before anything is written.
TEST_F(ConvertRanks, RefusalsAreOneRefusal) {
  const fs::path out = place("refused");
  expect_all(thrown([&](int) { return options(out, with_glu("interleaved:7")); }, 4), "not-divisible", 0);
  EXPECT_TRUE(fs::is_empty(out.parent_path()));
  convert(options(out), 2);
  expect_all(thrown([&](int) { return options(out); }, 3), "output-exists", 0);
}

/// A run that had finished is found to be finished, by all.
TEST_F(ConvertRanks, ResumingWhatIsCompleteDoesNothing) {
  const Asked asked = options(place("done"));
  convert(asked, 3);
  const Tree tree = tree_of(asked.output);
  EXPECT_EQ(resume(asked, 4), 0);
  EXPECT_TRUE(tree_of(asked.output) == tree);
}

}  // namespace
}  // namespace glu_ckpt
