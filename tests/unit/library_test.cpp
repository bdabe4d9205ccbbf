/// README's example of the library: a resumable, verified conversion through the public headers, as safe as the
/// program.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

// [example]
#include <glu_ckpt/convert.hpp>

glu_ckpt::Converted interleave(const std::filesystem::path& source, const std::filesystem::path& output) {
  glu_ckpt::ConvertOptions options;
  options.target = "megatron";
  options.to.glu = glu_ckpt::parse_glu("interleaved:32");
  options.resume = true;
  return glu_ckpt::convert(source, output, options);
}
// [example]

namespace {

using namespace glu_ckpt;
namespace fs = std::filesystem;

class Library : public testing::Test {
 protected:
  Library() {
    std::string pattern = (fs::path(testing::TempDir()) / "library_test_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~Library() override { fs::remove_all(dir_); }

  static fs::path source() {
    const char* const testdata = std::getenv("GLU_CKPT_TESTDATA");
    if (testdata == nullptr) throw std::runtime_error("set GLU_CKPT_TESTDATA to the folder testdata");
    return fs::path(testdata) / "hf" / "qwen3_moe";
  }

  fs::path dir_;
};

/// Counts stages, and asks for a stop once `converting` has done something.
class Watcher : public Observer {
 public:
  explicit Watcher(StopToken* stop = nullptr) : stop_(stop) {}
  void stage_begins(std::string_view title, i64) override { converting_ = title == "converting"; }
  void advance(i64 bytes, std::string_view) override {
    bytes_ += bytes;
    if (converting_ && stop_ != nullptr) stop_->request();
  }
  void note(std::string_view) override { ++notes_; }
  i64 bytes() const { return bytes_; }
  int notes() const { return notes_; }

 private:
  StopToken* stop_;
  std::atomic<bool> converting_{false};
  std::atomic<i64> bytes_{0};
  int notes_ = 0;
};

TEST_F(Library, ConvertsAndProves) {
  const fs::path output = dir_ / "out";
  const Converted converted = interleave(source(), output);
  EXPECT_EQ(to_string(converted.proof), "digest");
  EXPECT_FALSE(converted.was_complete);
  ASSERT_TRUE(converted.digest.has_value());
  EXPECT_EQ(to_string(open_checkpoint(output).recognition.layout.glu), "interleaved:32");
  const Verdict verdict = verify(source(), output);
  EXPECT_TRUE(verdict.equal);
  EXPECT_FALSE(verdict.same_layout);
  EXPECT_EQ(verdict.b, *converted.digest);
  EXPECT_EQ(digest(output).recorded, to_string(*converted.digest));
}

TEST_F(Library, StopsAndResumes) {
  StopToken stop;
  Watcher watcher(&stop);
  RunOptions run;
  run.jobs = 1;
  run.memory_bytes = i64{1} << 20;
  run.observer = &watcher;
  run.stop = &stop;
  ConvertOptions options;
  options.target = "megatron";
  options.to.glu = parse_glu("interleaved:32");
  const fs::path output = dir_ / "out";
  try {
    (void)convert(source(), output, options, run);
    FAIL() << "nothing stopped it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Interrupted) << error.what();
  }
  EXPECT_FALSE(fs::exists(output));
  EXPECT_TRUE(fs::exists(dir_ / "out.partial"));
  const Converted resumed = interleave(source(), output);
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
  EXPECT_TRUE(verify(source(), output).equal);
  EXPECT_TRUE(interleave(source(), output).was_complete);
  EXPECT_GT(watcher.notes(), 0);
  EXPECT_EQ(to_string(resumed.proof), "digest");
}

TEST_F(Library, RefusesBeforeAnythingIsWritten) {
  ConvertOptions options;
  options.to.glu = parse_glu("interleaved:7");
  try {
    (void)convert(source(), dir_ / "out", options);
    FAIL() << "7 does not divide F";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotDivisible) << error.what();
  }
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(Library, PlansWithoutWriting) {
  ConvertOptions options;
  options.to.glu = parse_glu("contiguous");
  const ConversionPlan planned = plan_conversion(source(), dir_ / "out", options);
  EXPECT_EQ(planned.bytes_written + planned.bytes_cloned, planned.plan.bytes);
  EXPECT_GE(planned.disk_needed, planned.plan.bytes);
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(Library, StampsAndInspects) {
  const fs::path copy = dir_ / "copy";
  ConvertOptions options;
  options.to.glu = parse_glu("contiguous");
  (void)convert(source(), copy, options);
  EXPECT_EQ(inspect(copy).recognition->layout.glu_source, "record");
  SourceAnswers wrong;
  wrong.glu = parse_glu("interleaved:32");
  EXPECT_THROW((void)stamp(copy, wrong), Error);
  EXPECT_THROW((void)stamp(copy, {}), Error);
}

}  // namespace
