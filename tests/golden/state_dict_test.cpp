/// A state dict converts as the files do that it was loaded from: to the same tensors, byte for byte, or with the same
/// refusal.

#include <fmt/format.h>

#include <map>
#include <optional>
#include <random>
#include <tuple>

#include "glu_ckpt/state_plan.hpp"
#include "support/whole_models.hpp"

namespace glu_ckpt::support {
namespace {

namespace fs = std::filesystem;

TensorView view_of(MemoryTensor& tensor) {
  return {.data = tensor.bytes.data(), .dtype = tensor.dtype, .shape = tensor.shape, .strides = {}};
}

std::vector<TensorView> views_of(Tensors& tensors) {
  std::vector<TensorView> views;
  for (MemoryTensor& tensor : tensors) views.push_back(view_of(tensor));
  return views;
}

std::vector<NamedTensor> named(Tensors& tensors) {
  std::vector<NamedTensor> all;
  for (MemoryTensor& tensor : tensors) all.push_back({tensor.name, view_of(tensor)});
  return all;
}

/// Poisoned memory for all outputs.
Tensors room_for(const Plan& plan) {
  Tensors room;
  for (const OutputTensor& output : plan.outputs)
    room.push_back({output.name, output.dtype, output.shape,
                    std::vector(static_cast<std::size_t>(output.bytes), std::byte{0xA5})});
  return room;
}

/// Tensors, or the slug of a refusal.
struct Outcome {
  Tensors tensors;
  std::string slug;
};

Outcome in_memory(Tensors& tensors, const StateFacts& facts, const ConvertOptions& options) {
  try {
    const StatePlan plan(named(tensors), facts, options);
    Tensors made = room_for(plan.plan());
    plan.run(views_of(tensors), views_of(made));
    return {std::move(made), {}};
  } catch (const Error& error) {
    return {{}, std::string(slug(error.code()))};
  }
}

Outcome through_files(const fs::path& source, const fs::path& output, const ConvertOptions& options) {
  try {
    convert(source, output, options);
    return {read_tensors(output), {}};
  } catch (const Error& error) {
    return {{}, std::string(slug(error.code()))};
  }
}

void expect_same(Outcome files, Outcome memory, const std::string& what) {
  ASSERT_EQ(files.slug, memory.slug) << what;
  ASSERT_EQ(files.tensors.size(), memory.tensors.size()) << what;
  std::ranges::sort(files.tensors, {}, &MemoryTensor::name);
  std::ranges::sort(memory.tensors, {}, &MemoryTensor::name);
  for (std::size_t i = 0; i < files.tensors.size(); ++i) {
    const MemoryTensor &file = files.tensors[i], &made = memory.tensors[i];
    ASSERT_EQ(file.name, made.name) << what;
    ASSERT_EQ(file.dtype, made.dtype) << what << ' ' << file.name;
    ASSERT_EQ(file.shape, made.shape) << what << ' ' << file.name;
    ASSERT_TRUE(file.bytes == made.bytes) << what << ' ' << file.name;
  }
}

StateFacts facts_of(const fs::path& path) {
  const auto source = open_source(path);
  return {source->hints().config, source->record()};
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(home_of("qwen3_moe").parent_path()))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

class StateDicts : public WholeModel {
 protected:
  /// Converts on both roads, compares, and returns the path of the files.
  fs::path expect_equal(const fs::path& source, const ConvertOptions& options, const std::string& what) {
    fs::path output = temp_ / ("out" + std::to_string(count_++));
    Tensors tensors = read_tensors(source);
    Outcome memory = in_memory(tensors, facts_of(source), options);
    expect_same(through_files(source, output, options), std::move(memory), what);
    return output;
  }

  int count_ = 0;
};

TEST_F(StateDicts, ConvertAsFilesDoForEveryFamilyAndTargetAndBack) {
  int converted = 0;
  for (const std::string& family : families()) {
    const fs::path home = home_of(family) / "hf";
    for (const std::string target : {"megatron", "torchtitan"}) {
      const fs::path there = expect_equal(home, to_target(target), fmt::format("{} to {}", family, target));
      if (HasFatalFailure()) return;
      if (!fs::exists(there)) continue;
      ++converted;
      ConvertOptions back = to_target("hf");
      back.force = true;
      expect_equal(there, back, fmt::format("{} from {}", family, target));
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GE(converted, 20);
}

TEST_F(StateDicts, ConvertToEveryFormOfMegatronsExperts) {
  const fs::path home = home_of("qwen3_moe") / "hf";
  for (const std::string experts : {"indexed", "grouped"})
    for (const std::string glu : {"contiguous", "interleaved:4", "interleaved:1"}) {
      ConvertOptions options = to_target("megatron");
      options.to.experts = parse_experts(experts);
      options.to.glu = parse_glu(glu);
      expect_equal(home, options, fmt::format("{} {}", experts, glu));
    }
}

/// Experts alone of other families, and codes, which are decoded on the way.
TEST_F(StateDicts, ChangeTheFormOfExpertsAsFilesDo) {
  const fs::path testdata = home_of("").parent_path().parent_path();
  int converted = 0;
  for (const std::string kind : {"hf", "quantized"})
    for (const auto& entry : fs::directory_iterator(testdata / kind))
      for (const auto& [experts, glu, decode] : {std::tuple("grouped", "interleaved:8", false),
                                                 {"indexed", "split", false},
                                                 {"grouped", "contiguous", true}}) {
        ConvertOptions options;
        options.to.experts = parse_experts(experts);
        options.to.glu = options.to.shared_glu = parse_glu(glu);
        options.allow_foreign_order = true;
        if (decode) options.from.decode = Dtype::BF16;
        converted += fs::exists(
            expect_equal(entry.path(), options, fmt::format("{} {} {}", entry.path().string(), experts, glu)));
        if (HasFatalFailure()) return;
      }
  EXPECT_GE(converted, 12);
}

TEST_F(StateDicts, AreRefusedAsFilesAreWhereTensorsAreMissingOrOfOtherShapes) {
  std::mt19937 random(7);
  const std::vector<std::string> names = families();
  std::map<std::string, int> slugs;
  for (int round = 0; round < 200; ++round) {
    const fs::path home = home_of(names[static_cast<std::size_t>(round) % names.size()]) / "hf";
    Tensors tensors = read_tensors(home);
    for (auto left = random() % 3; left < 3; ++left) {
      auto& one = tensors[random() % tensors.size()];
      if (random() % 4 == 0 && !one.shape.empty() && one.shape[0] % 2 == 0) {
        one.shape[0] /= 2;
        one.bytes.resize(one.bytes.size() / 2);
      } else {
        tensors.erase(tensors.begin() + (&one - tensors.data()));
      }
    }
    const ConvertOptions options = to_target(round % 2 == 0 ? "megatron" : "torchtitan");
    const fs::path source = temp_ / ("in" + std::to_string(round));
    const StateFacts facts = facts_of(home);
    write_checkpoint(source, tensors, facts.config);
    Outcome files = through_files(source, temp_ / ("out" + std::to_string(round)), options);
    ++slugs[files.slug];
    expect_same(std::move(files), in_memory(tensors, facts, options), "round " + std::to_string(round));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(slugs.size(), 2U);
}

/// The plan is made of shapes and replayed with other values; what only gets another name needs no room.
TEST_F(StateDicts, ReplayAPlanThatShapesWereEnoughFor) {
  const fs::path home = home_of("qwen3_moe") / "hf";
  Tensors tensors = read_tensors(home);
  std::vector<NamedTensor> shapes = named(tensors);
  for (NamedTensor& tensor : shapes) tensor.view.data = nullptr;
  const StateFacts facts = facts_of(home);
  const StatePlan plan(shapes, facts, to_target("megatron"));
  EXPECT_FALSE(plan.renamed().empty());
  for (int round = 0; round < 2; ++round) {
    for (MemoryTensor& tensor : tensors)
      for (std::byte& byte : tensor.bytes) byte ^= std::byte{0x5A};
    Tensors made = room_for(plan.plan());
    std::vector<TensorView> out = views_of(made);
    for (const Renamed& same : plan.renamed()) out[same.output].data = nullptr;
    plan.run(views_of(tensors), out);
    for (const Renamed& same : plan.renamed()) {
      EXPECT_TRUE(std::ranges::all_of(made[same.output].bytes, [](std::byte byte) { return byte == std::byte{0xA5}; }));
      made[same.output].bytes = tensors[same.input].bytes;
    }
    expect_same(in_memory(tensors, facts, to_target("megatron")), {made, {}}, "replayed");
  }
}

TEST_F(StateDicts, LoseTheWordsOfWrappersWithoutACopy) {
  const fs::path home = home_of("qwen3_moe") / "hf";
  Tensors tensors = read_tensors(home);
  const Outcome wanted = in_memory(tensors, facts_of(home), to_target("megatron"));
  std::string given;
  for (MemoryTensor& tensor : tensors)
    if (const std::size_t at = tensor.name.find(".mlp."); at != std::string::npos)
      given = tensor.name.insert(at, "._orig_mod");
  expect_same(wanted, in_memory(tensors, facts_of(home), to_target("megatron")), "with words");
  const StatePlan plan(named(tensors), facts_of(home), to_target("megatron"));
  EXPECT_FALSE(plan.renamed().empty());
  EXPECT_NE(plan.to_json().find(given), std::string::npos);
}

TEST_F(StateDicts, RefuseOtherTensorsThanPlannedAndSharedMemory) {
  const fs::path home = home_of("qwen3_moe") / "hf";
  Tensors tensors = read_tensors(home);
  const StatePlan plan(named(tensors), facts_of(home), to_target("megatron"));
  Tensors made = room_for(plan.plan());
  std::vector<TensorView> in = views_of(tensors), out = views_of(made);
  const auto refused = [&](const std::string& word) {
    expect_error(
        ErrorCode::Usage, [&] { plan.run(in, out); }, word);
    in = views_of(tensors);
    out = views_of(made);
  };
  in[0].dtype = Dtype::F16;
  refused(tensors[0].name);
  in.pop_back();
  refused("tensors");
  out[0].shape.push_back(1);
  refused(made[0].name);
  const auto moved = std::ranges::find_if(plan.plan().moves, [](const Move& move) { return move.runs() > 1; });
  out[moved->dst].data = in[moved->src].data;
  refused("share memory");
  out[0].device = "cuda:0";
  refused("cuda:0");
  tensors.push_back(tensors.front());
  expect_error(
      ErrorCode::Usage, [&] { StatePlan(named(tensors), {}, to_target("megatron")); }, "two tensors");
}

TEST_F(StateDicts, SayWhichBytesGoWhere) {
  const fs::path home = home_of("qwen3_moe") / "hf";
  Tensors tensors = read_tensors(home);
  const std::string text = StatePlan(named(tensors), facts_of(home), to_target("megatron")).to_json();
  EXPECT_NE(text.find("\"from\": \"model.embed_tokens.weight\""), text.npos) << text.substr(0, 2000);
  EXPECT_NE(text.find("\"run_bytes\""), text.npos);
}

}  // namespace
}  // namespace glu_ckpt::support
