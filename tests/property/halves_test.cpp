/// Megatron cuts FC1 in the middle into `_w` and `_v`, whatever the order of its rows.

#include <fmt/format.h>

#include <algorithm>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

/// FC1s, spelled fused, as their halves.
std::vector<MemoryTensor> cut(const std::vector<MemoryTensor>& tensors, const std::string& suffix) {
  std::vector<MemoryTensor> halves;
  for (const MemoryTensor& tensor : tensors) {
    if (tensor.name.find("linear_fc1") == std::string::npos) {
      halves.push_back(tensor);
      continue;
    }
    std::string name = tensor.name.substr(0, tensor.name.size() - suffix.size());
    MemoryTensor parts[] = {{name + "_w" + suffix, tensor.dtype, tensor.shape, {}},
                            {name + "_v" + suffix, tensor.dtype, tensor.shape, {}}};
    const bool bias = name.find(".bias") != std::string::npos;
    const std::size_t axis = tensor.shape.size() - (bias ? 1 : 2);
    std::size_t matrices = 1;
    for (std::size_t i = 0; i < axis; ++i) matrices *= static_cast<std::size_t>(tensor.shape[i]);
    const std::size_t half = tensor.bytes.size() / matrices / 2;
    for (std::size_t i = 0; i < 2 * matrices; ++i) {
      const auto from = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(i * half);
      parts[i % 2].bytes.insert(parts[i % 2].bytes.end(), from, from + static_cast<std::ptrdiff_t>(half));
    }
    for (MemoryTensor& part : parts) {
      part.shape[axis] /= 2;
      halves.push_back(part);
    }
  }
  return halves;
}

struct HalvesCase {
  ModelSpec model;
  Spelling fused;
  SourceAnswers answers;
  std::string describe() const { return fused.describe(); }
};

std::vector<HalvesCase> cases() {
  std::vector<HalvesCase> all;
  for (const i64 width : {8, 12, 24, 36, 60})
    for (const i64 k : {1, 2, 4, 6, 12})
      for (const auto& [naming, experts, stacked] : {std::tuple{"megatron", Experts::Indexed, false},
                                                     {"megatron", Experts::Grouped, false},
                                                     {"megatron-sequential", Experts::Indexed, false},
                                                     {"megatron-dist", Experts::Indexed, false},
                                                     {"megatron-dist", Experts::Grouped, false},
                                                     {"megatron-dist", Experts::Grouped, true}}) {
        if (width % k != 0 || width == k) continue;
        HalvesCase item;
        for (const i64 layer : {0, 1}) {
          BlockSpec block;
          block.layer = layer;
          block.hidden = 3;
          block.widths = widths(2, width);
          block.bias = true;
          item.model.blocks.push_back(block);
          block.set = ExpertSet::Shared;
          block.widths = {2 * width};
          item.model.blocks.push_back(block);
        }
        add_states(item.model, {"exp_avg"});
        if (!stacked) item.model.others = other_tensors();
        item.fused = {naming, experts, experts, interleaved(k), interleaved(2 * k)};
        item.fused.stacked = stacked;
        item.answers.glu = interleaved(k);
        item.answers.shared_glu = interleaved(2 * k);
        all.push_back(item);
      }
  return all;
}

TEST(Halves, OfAnInterleavedFc1) {
  for (const HalvesCase& item : cases()) {
    SCOPED_TRACE(item.describe());
    // The other way round, so that the second half comes first.
    std::vector<MemoryTensor> halves = cut(build(item.model, item.fused), "");
    std::ranges::reverse(halves);
    const MemorySource source(std::move(halves));
    const Recognition found = recognize_source(source, item.answers);
    EXPECT_EQ(found.layout.glu, item.fused.glu);
    EXPECT_EQ(found.layout.glu_source, "option");
    for (const Glu& wanted :
         {contiguous(), item.fused.glu, interleaved(1), interleaved(4), interleaved(6), interleaved(12), split()}) {
      if (wanted.block_rows > 0 && item.model.blocks[0].widths[0] % wanted.block_rows != 0) continue;
      Spelling to = item.fused;
      to.glu = to.shared_glu = wanted;
      const Converted converted = convert(source, found, options_for(item.model, to));
      EXPECT_TRUE(same_tensors(build(item.model, to), converted.tensors)) << to.describe();
      const MemorySource target(converted.tensors, {}, record_of(item.model, to));
      EXPECT_EQ(to_string(digest_of(source, item.answers)), to_string(digest_of(target)));
    }
  }
}

TEST(Halves, AreKeptAsTheyAre) {
  for (const HalvesCase& item : cases()) {
    SCOPED_TRACE(item.describe());
    const std::vector<MemoryTensor> halves = cut(build(item.model, item.fused), "");
    const MemorySource source(halves);
    const Recognition found = recognize_source(source, item.answers);
    expect_error(ErrorCode::AlreadyInLayout, [&] { make_plan(source.inventory(), found, {}); });
    PlanOptions options;
    options.force = true;
    const Converted converted = convert(source, found, options);
    EXPECT_TRUE(same_tensors(halves, converted.tensors));
    // Read back by the record alone.
    const MemorySource again(converted.tensors, {}, record_of(item.model, item.fused));
    EXPECT_EQ(to_string(digest_of(again)), to_string(digest_of(source, item.answers)));
  }
}

TEST(Halves, AreGroupedAsHalvesWhereTheNamingHasThem) {
  const HalvesCase item = cases().front();
  const MemorySource source(cut(build(item.model, item.fused), ""));
  const Recognition found = recognize_source(source, item.answers);
  PlanOptions options;
  options.to.naming = "megatron-dist";
  options.to.scope = Scope::Experts;
  Spelling to = item.fused;
  to.naming = "megatron-dist";
  // Shared experts come fused, as their row of the table does not have them cut.
  std::vector<MemoryTensor> expected = build(item.model, to);
  const Converted converted = convert(source, found, options);
  std::erase_if(expected, [](const auto& t) { return t.name.find("shared") == std::string::npos; });
  std::vector<MemoryTensor> shared = converted.tensors;
  std::erase_if(shared, [](const auto& t) { return t.name.find("shared") == std::string::npos; });
  EXPECT_TRUE(same_tensors(expected, shared));
  std::vector<MemoryTensor> routed = converted.tensors;
  std::vector<MemoryTensor> cut_routed = cut(build(item.model, to), "");
  for (auto* tensors : {&routed, &cut_routed})
    std::erase_if(*tensors, [](const auto& t) { return t.name.find("shared") != std::string::npos; });
  EXPECT_TRUE(same_tensors(cut_routed, routed));
}

/// Without an answer, and with one that says contiguous, the first half is the gate.
TEST(Halves, OfAContiguousFc1AreGateAndUp) {
  HalvesCase item = cases().front();
  item.fused.glu = item.fused.shared_glu = contiguous();
  const MemorySource source(cut(build(item.model, item.fused), ""));
  SourceAnswers said;
  said.glu = said.shared_glu = contiguous();
  for (const SourceAnswers& answers : {SourceAnswers(), said}) {
    const Recognition found = recognize_source(source, answers);
    EXPECT_EQ(found.layout.glu, split());
    EXPECT_EQ(found.layout.glu_source, "naming");
    const Converted converted = convert(source, found, options_for(item.model, item.fused));
    EXPECT_TRUE(same_tensors(build(item.model, item.fused), converted.tensors));
  }
}

TEST(Halves, HaveOneDtype) {
  const HalvesCase item = cases().front();
  std::vector<MemoryTensor> tensors = cut(build(item.model, item.fused), "");
  for (MemoryTensor& tensor : tensors)
    if (tensor.name.ends_with("_v")) tensor.dtype = Dtype::I64;
  expect_error(
      ErrorCode::ExpertDtype, [&] { recognize_source(MemorySource(tensors), item.answers); }, "other half");
}

TEST(Halves, OtherNamingsHaveNone) {
  ModelSpec model;
  model.blocks.emplace_back();
  const MemorySource source(build(model, {"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()}));
  SourceAnswers said;
  said.glu = interleaved(2);
  expect_error(ErrorCode::GluConflict, [&] { recognize_source(source, said); });
  model.blocks[0].widths = widths(2, 6);
  const MemorySource halves(build(model, {"megatron", Experts::Indexed, Experts::Indexed, split(), split()}));
  said.glu = interleaved(4);
  expect_error(ErrorCode::NotDivisible, [&] { recognize_source(halves, said); });
}

}  // namespace
}  // namespace glu_ckpt
