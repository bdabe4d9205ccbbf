/// Whole models (testdata/whole) into Megatron-Core's keys and back. The truth beside each was proved by logits and
/// made without this project, so a map that is wrong in both directions does not hide.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "glu_ckpt/convert.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using support::expect_error;
using support::MemoryTensor;
using support::same_tensors;

using Tensors = std::vector<MemoryTensor>;

fs::path home_of(const std::string& family) {
  const char* path = std::getenv("GLU_CKPT_TESTDATA");
  return fs::path(path == nullptr ? "testdata" : path) / "whole" / family;
}

std::string read_text(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

Tensors read_tensors(const fs::path& path) {
  const auto source = open_source(path);
  Tensors tensors;
  for (std::size_t i = 0; i < source->inventory().tensors.size(); ++i) {
    const TensorRef& ref = source->inventory().tensors[i];
    tensors.push_back({ref.name, ref.dtype, ref.shape, std::vector<std::byte>(static_cast<std::size_t>(ref.bytes))});
    if (ref.bytes > 0) source->read(i, 0, tensors.back().bytes);
  }
  return tensors;
}

/// One file of tensors with a config.json beside it, and no record of any conversion.
void write_checkpoint(const fs::path& path, const Tensors& tensors, const std::string& config) {
  std::string header;
  std::string data;
  for (const MemoryTensor& tensor : tensors) {
    std::string shape;
    for (const i64 extent : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.empty() ? "{" : ",",
                          tensor.name, dtype_name(tensor.dtype), shape, data.size(), data.size() + tensor.bytes.size());
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const u64 size = header.size();
  fs::create_directories(path);
  std::ofstream file(path / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof size) << header << data;
  std::ofstream(path / "config.json", std::ios::binary) << config;
}

std::string digest_text(const fs::path& path, const SourceAnswers& answers = {}) {
  return to_string(digest(path, answers).digest);
}

ConvertOptions to_target(const std::string& target) {
  ConvertOptions options;
  options.target = target;
  return options;
}

/// What a user says about keys of Megatron-Core that nobody recorded anything of.
SourceAnswers contiguous_answers() {
  SourceAnswers answers;
  answers.glu = answers.shared_glu = support::contiguous();
  return answers;
}

class WholeModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text = (fs::temp_directory_path() / "glu-ckpt-whole-XXXXXX").string();
    ASSERT_NE(mkdtemp(text.data()), nullptr);
    temp_ = text;
  }
  void TearDown() override { fs::remove_all(temp_); }

  fs::path temp_;
};

class WholeFamily : public WholeModel, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    WholeModel::SetUp();
    ASSERT_TRUE(fs::exists(source())) << source() << ": set GLU_CKPT_TESTDATA";
  }

  fs::path home() const { return home_of(GetParam()); }
  fs::path source() const { return home() / "hf"; }

  /// Converts with the options, expects what every output must have in common with its source, and leaves `away`.
  void there_and_back(const ConvertOptions& options) {
    const auto made = glu_ckpt::convert(source(), temp_ / "away", options);
    const std::string expected = digest_text(source());
    EXPECT_EQ(to_string(made.digest.value()), expected);
    EXPECT_EQ(digest_text(temp_ / "away"), expected);
    EXPECT_TRUE(verify(source(), temp_ / "away").equal);
    EXPECT_TRUE(verify(temp_ / "away", source()).equal);

    glu_ckpt::convert(temp_ / "away", temp_ / "back", to_target("hf"));
    EXPECT_TRUE(same_tensors(read_tensors(source()), read_tensors(temp_ / "back")));
    EXPECT_EQ(read_text(temp_ / "back" / "config.json"), read_text(source() / "config.json"));
    EXPECT_EQ(digest_text(temp_ / "back"), expected);
    EXPECT_TRUE(verify(temp_ / "away", temp_ / "back").equal);
  }
};

TEST_P(WholeFamily, MegatronIsTheTruthAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(there_and_back(to_target("megatron")));
  EXPECT_TRUE(same_tensors(read_tensors(home() / "truth.safetensors"), read_tensors(temp_ / "away")));
}

TEST_P(WholeFamily, InterleavedComesBack) {
  // 4 divides the widths of all experts here, shared ones included.
  ConvertOptions options = to_target("megatron");
  options.to.glu = support::interleaved(4);
  const auto hf = open_source(source());
  if (support::recognize_source(*hf).layout.shared_glu) options.to.shared_glu = support::interleaved(4);
  ASSERT_NO_FATAL_FAILURE(there_and_back(options));
  EXPECT_FALSE(same_tensors(read_tensors(home() / "truth.safetensors"), read_tensors(temp_ / "away")));
}

TEST_P(WholeFamily, SafetensorsOfMegatronKeysComeBack) {
  ConvertOptions options = to_target("megatron");
  options.format = Format::Safetensors;
  ASSERT_NO_FATAL_FAILURE(there_and_back(options));
  EXPECT_TRUE(same_tensors(read_tensors(home() / "truth.safetensors"), read_tensors(temp_ / "away")));
}

TEST_P(WholeFamily, TruthBecomesTheModel) {
  // Keys of Megatron-Core that no conversion wrote: what they are stands in the config.json alone.
  write_checkpoint(temp_ / "truth", read_tensors(home() / "truth.safetensors"), read_text(source() / "config.json"));
  EXPECT_EQ(digest_text(temp_ / "truth", contiguous_answers()), digest_text(source()));
  ConvertOptions options = to_target("hf");
  options.from = contiguous_answers();
  glu_ckpt::convert(temp_ / "truth", temp_ / "back", options);
  EXPECT_TRUE(verify(source(), temp_ / "back").equal);
}

TEST_P(WholeFamily, PlanSaysWhatConvertDoes) {
  const ConversionPlan planned = plan_conversion(source(), temp_ / "away", to_target("megatron"));
  EXPECT_TRUE(fs::is_empty(temp_));
  EXPECT_EQ(planned.plan.outputs.size(), open_source(home() / "truth.safetensors")->inventory().tensors.size());
  EXPECT_EQ(planned.plan.to.naming, "megatron-dist");
  i64 bytes = 0;
  for (const OutputTensor& output : planned.plan.outputs) bytes += output.bytes;
  EXPECT_EQ(planned.plan.bytes, bytes);
  const auto made = glu_ckpt::convert(source(), temp_ / "away", to_target("megatron"));
  EXPECT_EQ(made.plan.outputs.size(), planned.plan.outputs.size());
  EXPECT_EQ(made.plan.dropped, planned.plan.dropped);
  EXPECT_EQ(made.plan.notes, planned.plan.notes);
}

INSTANTIATE_TEST_SUITE_P(Families, WholeFamily, ::testing::Values("deepseek_v3", "gpt_oss", "qwen3_moe", "qwen3_next"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace glu_ckpt
