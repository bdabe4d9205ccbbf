/// A conversion through the public headers alone, as a program that links the library would do it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/error.hpp"
#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/plan.hpp"
#include "glu_ckpt/verify.hpp"

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
  fs::path dir_;
};

TEST_F(Library, ConvertsAndVerifies) {
  const char* const testdata = std::getenv("GLU_CKPT_TESTDATA");
  ASSERT_NE(testdata, nullptr) << "set GLU_CKPT_TESTDATA to the folder testdata";
  const fs::path input = fs::path(testdata) / "hf" / "qwen3_moe";
  const auto source = open_source(input);
  const Recognition have = recognize(source->inventory(), source->hints(), source->record(), {});
  ASSERT_EQ(have.layout.naming, "hf:qwen3_moe");

  PlanOptions options;
  options.to = {"megatron", Experts::Grouped, std::nullopt, parse_glu("interleaved:32"), std::nullopt};
  const Plan plan = make_plan(source->inventory(), have, options);
  check_plan(source->inventory(), plan);

  const auto backend = make_backend("cpu");
  const Model model{source.get(), &have};
  const std::string digest = to_string(compute_digest(model, *backend, {}));
  const Record record{
      {"naming", plan.to.naming}, {"experts", plan.to.experts}, {"glu", to_string(plan.to.glu)}, {"digest", digest}};
  const fs::path output = dir_ / "out";
  const auto sink = create_sink({output, source->metadata(), source->extra_files(), false, record, {}}, plan.outputs);
  execute(plan, *source, *sink, *backend, {});
  sink->finish(record);
  EXPECT_FALSE(fs::exists(output)) << "nothing stands at the final path before commit()";
  sink->commit();

  const auto written = open_source(output);
  const Recognition now = recognize(written->inventory(), written->hints(), written->record(), {});
  EXPECT_EQ(to_string(now.layout.glu), "interleaved:32");
  EXPECT_EQ(now.layout.glu_source, "record");
  const Verdict verdict = verify(model, {written.get(), &now}, *backend, {});
  EXPECT_TRUE(verdict.equal);
  EXPECT_FALSE(verdict.same_layout);
  EXPECT_EQ(to_string(verdict.b), digest);
}

TEST_F(Library, LeavesNothingBehindWithoutCommit) {
  const fs::path output = dir_ / "out";
  const std::vector<OutputTensor> tensors{{"a", Dtype::U8, {4}, 4, 0, 0}};
  { const auto sink = create_sink({output, {}, {}, false, {}, {}}, tensors); }
  EXPECT_TRUE(fs::is_empty(dir_));
}

}  // namespace
