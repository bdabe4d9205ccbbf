/// Real checkpoints (testdata/hf) through files into every layout and back.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "format/staged_output.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using namespace support;

struct Checkpoint {
  std::string name;
  std::string digest;
};

/// A change here is a change of the digest's definition, which every record in the world depends on.
const std::vector<Checkpoint> kCheckpoints{{"deepseek_v3", "gck2:e7666ee5fa0e391dbb23a054c466b34a:91:640288"},
                                           {"gpt_oss", "gck2:ab74aeba3c856be9a2ef4a750a344eb2:77:292256"},
                                           {"granitemoe", "gck2:ce6307cc1d84dd1f4808f570a8d04cad:41:288384"},
                                           {"llama4_text", "gck2:492ccf2d4df709ee3f4080ab7da69c86:47:337536"},
                                           {"mixtral", "gck2:3120505cb77fe7fb917bbfcf987829f3:41:386688"},
                                           {"qwen2_moe", "gck2:76c6b74e5fd4342ca1dfcd4e85b8cc11:67:289664"},
                                           {"qwen3_moe", "gck2:a5cc6fae4bde5738ac74ffe16517aa1d:69:486144"}};

fs::path testdata() {
  const char* path = std::getenv("GLU_CKPT_TESTDATA");
  return path == nullptr ? "testdata" : path;
}

std::vector<std::string> names_in_order(const Source& source) {
  std::vector<std::string> names;
  for (const TensorRef& tensor : source.inventory().tensors) names.push_back(tensor.name);
  return names;
}

std::vector<MemoryTensor> read_all(const Source& source) {
  std::vector<MemoryTensor> tensors;
  for (std::size_t i = 0; i < source.inventory().tensors.size(); ++i) {
    const TensorRef& ref = source.inventory().tensors[i];
    tensors.push_back({ref.name, ref.dtype, ref.shape, std::vector<std::byte>(static_cast<std::size_t>(ref.bytes))});
    if (ref.bytes > 0) source.read(i, 0, tensors.back().bytes);
  }
  return tensors;
}

/// One conversion as the program does it, but for its options.
LayoutAnswers convert_files(const fs::path& from, const fs::path& to, const PlanOptions& options) {
  const auto source = open_source(from);
  const Recognition recognition = recognize_source(*source);
  const Plan plan = make_plan(source->inventory(), recognition, options);
  check_plan(source->inventory(), plan);
  Record record{{"version", "golden"},
                {"naming", plan.to.naming},
                {"experts", plan.to.experts},
                {"glu", to_string(plan.to.glu)},
                {"digest", to_string(digest_of(*source))}};
  if (plan.to.shared_glu) record["shared_glu"] = to_string(*plan.to.shared_glu);
  if (recognition.num_hidden_layers) record["num_hidden_layers"] = std::to_string(*recognition.num_hidden_layers);
  const auto sink = create_output({to, source->metadata(), source->extra_files(), false, record, {}}, plan.outputs);
  ExecuteOptions execution;
  execution.jobs = 2;
  execution.memory_bytes = 1 << 20;
  execute(plan, *source, *sink, *make_backend("cpu"), execution);
  sink->finish(record);
  EXPECT_EQ(to_string(digest_of(*open_source(sink->staged_path()))), record["digest"]);
  sink->commit();
  return plan.to;
}

class Golden : public ::testing::TestWithParam<Checkpoint> {
 protected:
  void SetUp() override {
    std::string text = (fs::temp_directory_path() / "glu-ckpt-golden-XXXXXX").string();
    ASSERT_NE(mkdtemp(text.data()), nullptr);
    temp_ = text;
    ASSERT_TRUE(fs::exists(home())) << home() << ": set GLU_CKPT_TESTDATA";
  }
  void TearDown() override { fs::remove_all(temp_); }

  fs::path home() const { return testdata() / "hf" / GetParam().name; }

  /// To `away` and back; the copy must be the original, tensor for tensor.
  void there_and_back(const PlanOptions& away) {
    const auto source = open_source(home());
    const Recognition recognition = recognize_source(*source);
    const LayoutAnswers layout = recognition.layout;
    const LayoutAnswers reached = convert_files(home(), temp_ / "away", away);
    // One block of all rows is halves, and names that fix those call it so.
    const auto routed = std::ranges::find(recognition.blocks, ExpertSet::Routed, &ExpertBlock::set);
    ASSERT_NE(routed, recognition.blocks.end());
    const bool is_one_block = *away.to.glu == Glu{Glu::Kind::Interleaved, routed->intermediate_size};
    const bool is_halves = is_one_block && reached.naming == layout.naming && reached.experts == "grouped";
    EXPECT_EQ(to_string(reached.glu), is_halves ? "contiguous" : to_string(*away.to.glu));
    const auto middle = open_source(temp_ / "away");
    const LayoutAnswers read = recognize_source(*middle).layout;
    EXPECT_EQ(read.naming, reached.naming);
    EXPECT_EQ(read.experts, reached.experts);
    EXPECT_EQ(to_string(read.glu), to_string(reached.glu));
    EXPECT_EQ(to_string(digest_of(*middle)), GetParam().digest);
    PlanOptions back;
    back.force = true;
    back.to.naming = layout.naming;
    back.to.scope = Scope::Experts;
    back.to.experts = parse_experts(layout.experts);
    back.to.glu = layout.glu;
    back.to.shared_glu = layout.shared_glu;
    convert_files(temp_ / "away", temp_ / "back", back);
    const auto returned = open_source(temp_ / "back");
    EXPECT_TRUE(same_tensors(read_all(*source), read_all(*returned)));
    // Where each was one file, tensors kept their places.
    if (source->inventory().files.size() == 1 && middle->inventory().files.size() == 1) {
      EXPECT_EQ(names_in_order(*returned), names_in_order(*source));
    }
    EXPECT_EQ(to_string(digest_of(*returned)), GetParam().digest);
    EXPECT_TRUE(fs::exists(temp_ / "back" / "config.json"));
    fs::remove_all(temp_ / "away");
    fs::remove_all(temp_ / "back");
  }

  fs::path temp_;
};

TEST_P(Golden, Digest) { EXPECT_EQ(to_string(digest_of(*open_source(home()))), GetParam().digest); }

TEST_P(Golden, EveryLayoutAndBack) {
  for (const bool megatron : {false, true})
    for (const Experts experts : {Experts::Indexed, Experts::Grouped})
      for (const std::string glu : {"split", "contiguous", "interleaved:1", "interleaved:2", "interleaved:8",
                                    "interleaved:16", "interleaved:32"}) {
        SCOPED_TRACE(std::string(megatron ? "megatron " : "keep ") + std::string(to_string(experts)) + " " + glu);
        PlanOptions away;
        away.force = true;
        if (megatron) away.to.naming = "megatron";
        away.to.scope = Scope::Experts;
        away.to.experts = experts;
        away.to.glu = parse_glu(glu);
        away.to.shared_glu = parse_glu(glu);
        away.max_shard_bytes = megatron ? 100'000 : 1'000'000'000;
        try {
          there_and_back(away);
        } catch (const Error& error) {
          ADD_FAILURE() << slug(error.code()) << ": " << error.what();
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
}

std::string checkpoint_name(const ::testing::TestParamInfo<Checkpoint>& param) { return param.param.name; }

INSTANTIATE_TEST_SUITE_P(Checkpoints, Golden, ::testing::ValuesIn(kCheckpoints), checkpoint_name);

/// Every byte of an output, header included: whoever changes the format sees it here.
TEST(GoldenFile, IsThisFile) {
  std::string text = (fs::temp_directory_path() / "glu-ckpt-golden-XXXXXX").string();
  ASSERT_NE(mkdtemp(text.data()), nullptr);
  const fs::path file = fs::path(text) / "out.safetensors";
  PlanOptions options;
  options.to.naming = "megatron";
  options.to.scope = Scope::Experts;
  options.to.experts = Experts::Grouped;
  options.to.glu = interleaved(32);
  convert_files(testdata() / "hf" / "mixtral", file, options);
  const FileRecord all_data = record_of_file(File::open_read(file), "out.safetensors");
  EXPECT_EQ(all_data.bytes, 389136);
  EXPECT_EQ(all_data.data_xxh3_128, "b79fe5b8e0715095ba9e2a55d2e16f1f");
  fs::remove_all(text);
}

}  // namespace
}  // namespace glu_ckpt
