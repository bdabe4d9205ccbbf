/// There and back is the identity, from every layout of every naming to every other.

#include <fmt/format.h>

#include <cctype>
#include <random>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

struct Dims {
  i64 hidden;
  i64 width;
};

ModelSpec small_model(const Naming& naming, Dims dims, Dtype dtype) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = dims.hidden;
  block.widths = widths(3, dims.width);
  block.bias = true;
  block.dtype = dtype;
  block.layer = 1;
  model.blocks.push_back(block);
  if (!naming.shared.down.empty()) {
    block.set = ExpertSet::Shared;
    block.widths = {2 * dims.width};
    model.blocks.push_back(block);
  }
  if (!naming.stacks.front().anchored) model.scope = "outer.";
  model.others = other_tensors();
  return model;
}

std::vector<Spelling> spellings(const Naming& naming) {
  std::vector<Spelling> all;
  for (const Experts experts : {Experts::Indexed, Experts::Grouped})
    for (const Glu& glu : {split(), contiguous(), interleaved(1), interleaved(2)})
      all.push_back({std::string(naming.name), experts, experts, glu, glu});
  return all;
}

class EveryNaming : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Naming& naming() const { return namings()[GetParam()]; }
};

TEST_P(EveryNaming, EveryLayoutToEveryOther) {
  // H = F and H = 2F are the sizes at which a transposed matrix has a shape that fits too.
  for (const Dims dims : {Dims{3, 4}, Dims{4, 4}, Dims{8, 4}}) {
    SCOPED_TRACE(fmt::format("H = {}, F = {}", dims.hidden, dims.width));
    const ModelSpec model = small_model(naming(), dims, Dtype::U32);
    for (const Spelling& from : spellings(naming()))
      for (const Spelling& to : spellings(naming())) expect_converts(model, from, to);
  }
}

std::string row_name(const ::testing::TestParamInfo<std::size_t>& param) {
  std::string name(namings()[param.param].name);
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(RoundTrip, EveryNaming, ::testing::Range(std::size_t{0}, namings().size()), row_name);

/// A random spelling in a random naming, both ways, compared with the model spelled directly.
TEST(RoundTrip, AcrossNamings) {
  std::mt19937 random(2);
  const auto below = [&](std::size_t n) { return random() % n; };
  for (int i = 0; i < 400; ++i) {
    const Naming& a = namings()[below(namings().size())];
    const Naming& b = namings()[below(namings().size())];
    const bool shared = !a.shared.down.empty() && !b.shared.down.empty();
    const Dims dims[] = {{3, 4}, {4, 4}, {8, 4}, {2, 8}};
    ModelSpec model = small_model(shared ? a : naming_row("hf:mixtral"), dims[below(4)], Dtype::U64);
    if (!shared) model.blocks.resize(1);
    if (a.stacks.front().anchored || b.stacks.front().anchored) model.scope.clear();
    const auto from = spellings(a);
    const auto to = spellings(b);
    const Spelling& x = from[below(from.size())];
    const Spelling& y = to[below(to.size())];
    SCOPED_TRACE(fmt::format("case {}", i));
    expect_converts(model, x, y);
    expect_converts(model, y, x);
  }
}

/// The copy that went there and back is the original, byte for byte, and names its sources' layouts.
TEST(RoundTrip, ThroughOutputsOnly) {
  const ModelSpec model = small_model(naming_row("hf:qwen2_moe"), {6, 4}, Dtype::BF16);
  const Spelling home{"hf:qwen2_moe", Experts::Indexed, Experts::Indexed, split(), split()};
  const Spelling away{"megatron", Experts::Grouped, Experts::Indexed, interleaved(2), interleaved(4)};
  const MemorySource source = make_source(model, home);
  const Converted there = convert(source, recognize_source(source), options_for(model, away));
  EXPECT_EQ(there.plan.from.naming, "hf:qwen2_moe");
  EXPECT_EQ(there.plan.to.naming, "megatron");
  EXPECT_EQ(there.plan.to.experts, "grouped");
  EXPECT_EQ(to_string(there.plan.to.glu), "interleaved:2");
  ASSERT_TRUE(there.plan.to.shared_glu);
  EXPECT_EQ(to_string(*there.plan.to.shared_glu), "interleaved:4");
  const MemorySource middle(there.tensors, {}, record_of(model, away));
  const Converted back = convert(middle, recognize_source(middle), options_for(model, home));
  EXPECT_TRUE(same_tensors(source.tensors(), back.tensors));
}

}  // namespace
}  // namespace glu_ckpt
