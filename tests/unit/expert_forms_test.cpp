/// The form of each layer's experts, as a record holds it.

#include <gtest/gtest.h>

#include "convert/target.hpp"
#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

constexpr Glu kSplit{Glu::Kind::Split, 0}, kContiguous{Glu::Kind::Contiguous, 0},
    kInterleaved{Glu::Kind::Interleaved, 1};

ExpertBlock block_of(const std::string& stack, i64 layer, Experts experts, const Glu& glu) {
  ExpertBlock block;
  block.stack = stack;
  block.layer = layer;
  block.experts = experts;
  block.glu = glu;
  return block;
}

TEST(ExpertForms, LayersThatAreAlikeShareAWord) {
  std::vector<ExpertBlock> blocks;
  for (i64 layer = 3; layer < 12; ++layer)
    if (layer != 7) blocks.push_back(block_of("decoder", layer, Experts::Grouped, kContiguous));
  EXPECT_EQ(print_expert_forms(blocks), "");
  blocks.push_back(block_of("mtp", 0, Experts::Indexed, kSplit));
  blocks.push_back(block_of("mtp", 1, Experts::Indexed, kInterleaved));
  const std::string text =
      "3-6/grouped/contiguous 8-11/grouped/contiguous mtp.0/indexed/split mtp.1/indexed/interleaved:1";
  EXPECT_EQ(print_expert_forms(blocks), text);

  const ExpertForms forms = parse_expert_forms(text);
  EXPECT_EQ(forms.size(), blocks.size());
  for (const ExpertBlock& block : blocks) {
    ASSERT_TRUE(forms.contains(layer_label(block))) << layer_label(block);
    EXPECT_EQ(forms.at(layer_label(block)), (ExpertForm{block.experts, block.glu})) << layer_label(block);
  }
}

/// States and shared experts have answers of their own.
TEST(ExpertForms, OnlyWeightsOfRoutedExpertsCount) {
  std::vector<ExpertBlock> blocks = {block_of("decoder", 0, Experts::Grouped, kContiguous),
                                     block_of("decoder", 0, Experts::Indexed, kSplit),
                                     block_of("decoder", 0, Experts::Indexed, kSplit)};
  blocks[1].set = ExpertSet::Shared;
  blocks[2].state = "exp_avg";
  EXPECT_EQ(print_expert_forms(blocks), "");
  blocks.push_back(block_of("decoder", 1, Experts::Indexed, {Glu::Kind::None, 0}));
  EXPECT_EQ(print_expert_forms(blocks), "0/grouped/contiguous 1/indexed/none");
  EXPECT_FALSE(parse_expert_forms("1/indexed/none").at("1").glu);
}

TEST(ExpertForms, RefusesWhatIsNone) {
  EXPECT_TRUE(parse_expert_forms("").empty());
  for (const std::string text : {"0", "0/grouped", "/grouped/split", "x/grouped/split", "2-1/grouped/split",
                                 "-1/grouped/split", "0-/grouped/split", "0/some/split", "0/grouped/some",
                                 "0-100000/grouped/split", "99999999999999999999/grouped/split"})
    try {
      parse_expert_forms(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::RecordInvalid) << text;
    }
}

}  // namespace
}  // namespace glu_ckpt
