/// The experts of testdata/hf, in their own layout and converted, against what transformers' modules answered.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "support/convert.hpp"
#include "support/mlp_cases.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using namespace support;

fs::path testdata() {
  const char* path = std::getenv("GLU_CKPT_TESTDATA");
  return path == nullptr ? "testdata" : path;
}

std::vector<std::byte> read_tensor(const Source& source, const std::string& name) {
  const auto& tensors = source.inventory().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].name == name) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(tensors[i].bytes));
      source.read(i, 0, bytes);
      return bytes;
    }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

/// What one module was asked, and answered.
struct GoldenLayer {
  std::string label;
  std::vector<std::byte> x;
  std::vector<i64> index;
  std::vector<float> weights;
  std::vector<double> y;
  std::vector<double> y_fp32;
};

std::vector<GoldenLayer> golden_layers(const std::string& family) {
  const auto source = open_source(testdata() / "golden" / family / "golden_experts.safetensors");
  std::vector<GoldenLayer> layers;
  for (const TensorRef& tensor : source->inventory().tensors) {
    if (!tensor.name.ends_with(".x")) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - 2);
    GoldenLayer layer;
    const std::size_t number = std::string("model.layers.").size();
    layer.label = module.substr(number, module.find('.', number) - number);
    layer.x = read_tensor(*source, module + ".x");
    const auto index = read_tensor(*source, module + ".index");
    layer.index.resize(index.size() / sizeof(i64));
    std::memcpy(layer.index.data(), index.data(), index.size());
    for (const double weight : to_doubles(read_tensor(*source, module + ".weights"), Dtype::BF16))
      layer.weights.push_back(static_cast<float>(weight));
    layer.y = to_doubles(read_tensor(*source, module + ".y"), Dtype::BF16);
    layer.y_fp32 = to_doubles(read_tensor(*source, module + ".y_fp32"), Dtype::F32);
    layers.push_back(layer);
  }
  return layers;
}

double rms_of_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::fmax(most, std::fabs(a[i] - b[i]));
  return most;
}

/// A source, the layout that it is in, and its experts' answers.
class Answers {
 public:
  explicit Answers(const Source& source) : source_(source), recognition_(recognize_source(source)) {}

  std::vector<std::byte> of(const GoldenLayer& layer, bool fp32, i64 memory_bytes = i64{1} << 30) const {
    for (const ExpertBlock& block : recognition_.blocks) {
      if (block.set != ExpertSet::Routed || layer_label(block) != layer.label) continue;
      const auto count = static_cast<i64>(layer.x.size()) / (2 * block.hidden_size);
      const auto top_k = static_cast<i64>(layer.index.size()) / count;
      const RoutedTokens tokens{count, top_k, Dtype::BF16, layer.x, layer.index, layer.weights};
      LayerOptions options;
      options.activation = choose_activation(source_.hints(), {}, true);
      options.fp32 = fp32;
      options.jobs = 2;
      options.memory_bytes = memory_bytes;
      const auto runner = make_mlp_runner(test_device() == "cuda:all" ? "cuda" : test_device());
      options.runner = runner.get();
      return forward_layer({&source_, &recognition_}, block, tokens, options);
    }
    ADD_FAILURE() << "no layer " << layer.label;
    return {};
  }

 private:
  const Source& source_;
  Recognition recognition_;
};

class ForwardGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(ForwardGolden, IsAsCloseAsTheModuleItself) {
  const auto source = open_source(testdata() / "hf" / GetParam());
  const Answers answers(*source);
  const auto layers = golden_layers(GetParam());
  EXPECT_EQ(layers.size(), 2);
  for (const GoldenLayer& layer : layers) {
    SCOPED_TRACE("layer " + layer.label);
    const double rms = rms_of_difference(layer.y_fp32, std::vector<double>(layer.y_fp32.size()));
    const auto fp32 = to_doubles(answers.of(layer, true), Dtype::F32);
    ASSERT_EQ(fp32.size(), layer.y_fp32.size());
    EXPECT_LT(largest_difference(fp32, layer.y_fp32), 1e-5 * rms);
    const auto bf16 = to_doubles(answers.of(layer, false), Dtype::BF16);
    EXPECT_LE(rms_of_difference(bf16, layer.y_fp32), rms_of_difference(layer.y, layer.y_fp32));
  }
}

/// The source in another layout, in memory.
MemorySource converted(const Source& source, const TargetAnswers& to) {
  PlanOptions options;
  options.to = to;
  options.force = true;
  const Recognition recognition = recognize_source(source);
  const Plan plan = make_plan(source.inventory(), recognition, options);
  MemorySink sink(plan.outputs);
  execute(plan, source, sink, *make_backend("cpu"), {});
  Record record{
      {"version", "golden"}, {"naming", plan.to.naming}, {"experts", plan.to.experts}, {"glu", to_string(plan.to.glu)}};
  if (plan.to.shared_glu) record["shared_glu"] = to_string(*plan.to.shared_glu);
  return MemorySource(sink.tensors(), source.hints(), record);
}

TEST_P(ForwardGolden, EveryLayoutGivesTheSameBytes) {
  const auto source = open_source(testdata() / "hf" / GetParam());
  const Answers original(*source);
  int layouts = 0;
  // gpt-oss's own: transposed, single rows of gate and up in turn, grouped.
  for (const std::string naming : {"keep", "megatron", "megatron-dist", "hf:gpt_oss"})
    for (const Experts experts : {Experts::Indexed, Experts::Grouped})
      for (const std::string glu : {"split", "contiguous", "interleaved:1", "interleaved:8", "interleaved:32"}) {
        TargetAnswers to;
        if (naming != "keep") to.naming = naming;
        to.scope = Scope::Experts;
        to.experts = experts;
        to.glu = parse_glu(glu);
        to.shared_glu = to.glu;
        SCOPED_TRACE(naming + " " + std::string(to_string(experts)) + " " + glu);
        std::optional<MemorySource> other;
        try {
          other.emplace(converted(*source, to));
        } catch (const Error& error) {
          // A naming that cannot spell it: there are no shared experts or split gates in gpt-oss's.
          EXPECT_NE(naming, "keep") << error.what();
          EXPECT_NE(naming, "megatron") << error.what();
          continue;
        }
        ++layouts;
        const Answers answers(*other);
        for (const GoldenLayer& layer : golden_layers(GetParam()))
          for (const bool fp32 : {false, true})
            // One expert at a time, too.
            EXPECT_EQ(answers.of(layer, fp32, fp32 ? 1 : i64{1} << 30), original.of(layer, fp32));
      }
  EXPECT_GE(layouts, 20);
  RecordProperty("layouts", layouts);
}

/// Four experts a token: sums of four terms depend on their order, which is not that of the router's answer.
TEST_P(ForwardGolden, TheOrderOfATokensExpertsIsTheirNumber) {
  const auto source = open_source(testdata() / "hf" / GetParam());
  GoldenLayer layer = golden_layers(GetParam())[0];
  layer.x.resize(layer.x.size() / 2);
  for (std::size_t i = 0; i < layer.index.size(); ++i) layer.index[i] = static_cast<i64>(i % 4);
  GoldenLayer other = layer;
  for (std::size_t t = 0; t < other.index.size(); t += 4) {
    std::reverse(other.index.begin() + static_cast<std::ptrdiff_t>(t),
                 other.index.begin() + static_cast<std::ptrdiff_t>(t + 4));
    std::reverse(other.weights.begin() + static_cast<std::ptrdiff_t>(t),
                 other.weights.begin() + static_cast<std::ptrdiff_t>(t + 4));
  }
  const Answers answers(*source);
  for (const i64 memory_bytes : {i64{1}, i64{1} << 30})
    EXPECT_EQ(answers.of(other, true, memory_bytes), answers.of(layer, true));
}

TEST_P(ForwardGolden, AWrongOrderIsSeen) {
  const auto source = open_source(testdata() / "hf" / GetParam());
  TargetAnswers to;
  to.naming = "megatron";
  to.scope = Scope::Experts;
  to.experts = Experts::Grouped;
  to.glu = interleaved(8);
  to.shared_glu = interleaved(8);
  const MemorySource other = converted(*source, to);
  Record wrong = other.record();
  wrong["glu"] = "contiguous";
  const MemorySource misread(other.tensors(), other.hints(), wrong);
  for (const GoldenLayer& layer : golden_layers(GetParam()))
    EXPECT_NE(Answers(misread).of(layer, false), Answers(*source).of(layer, false));
}

INSTANTIATE_TEST_SUITE_P(Families, ForwardGolden,
                         ::testing::Values("deepseek_v3", "gpt_oss", "granitemoe", "mixtral", "qwen2_moe", "qwen3_moe"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace glu_ckpt
