#include "layout/key_pattern.hpp"

#include <gtest/gtest.h>

#include "support/position_model.hpp"

namespace glu_ckpt {
namespace {

TEST(KeySkeleton, NumbersAreWholeComponentsOrFollowWeightAndBias) {
  EXPECT_EQ(skeletonize("model.layers.12.mlp.experts.7.w1.weight").text, "model.layers.#.mlp.experts.#.w1.weight");
  EXPECT_EQ(skeletonize("decoder.layers.3.mlp.experts.linear_fc1.weight10").text,
            "decoder.layers.#.mlp.experts.linear_fc1.weight#");
  EXPECT_EQ(skeletonize("linear_fc1.bias0_w").text, "linear_fc1.bias#_w");
  EXPECT_EQ(skeletonize("my_weight3").text, "my_weight3");
  EXPECT_EQ(skeletonize("a.007").text, "a.007");
  EXPECT_EQ(skeletonize("0.weight").text, "#.weight");
  EXPECT_EQ(skeletonize("12x.3").text, "12x.#");
  EXPECT_EQ(skeletonize("").text, "");
  const KeySkeleton key = skeletonize("layers.12.experts.7");
  EXPECT_EQ(key.numbers, (std::vector<i64>{12, 7}));
  EXPECT_EQ(key.widths, (std::vector<int>{2, 1}));
}

TEST(KeySkeleton, NumbersTooLargeForAnExpertAreText) {
  EXPECT_EQ(skeletonize("experts.999999999").numbers, (std::vector<i64>{999'999'999}));
  EXPECT_TRUE(skeletonize("experts.9999999999").numbers.empty());
  EXPECT_TRUE(skeletonize("experts.99999999999999999999999999999999").numbers.empty());
}

TEST(KeyPattern, SharedExpertsAreNoRoutedOnes) {
  for (const std::string key :
       {"decoder.layers.0.mlp.shared_experts.linear_fc1.weight", "model.layers.0.mlp.shared_experts.gate_proj.weight",
        "model.layers.0.mlp.shared_expert.down_proj.weight"}) {
    const auto patterns = match_patterns(skeletonize(key));
    EXPECT_FALSE(patterns.empty()) << key;
    for (const KeyPattern* pattern : patterns) EXPECT_EQ(pattern->set, ExpertSet::Shared) << key;
  }
}

TEST(KeyPattern, KeysThatOnlyLookAlike) {
  for (const std::string key :
       {"decoder.layers.0.mlp.experts.linear_fc1._extra_state", "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.experts.linear_fc1.weight_quantizer._amax",
        "xmodel.layers.0.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.01.up_proj.weight",
        "model.layers.x.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.0.up_proj.weight.absmax",
        "model.layers.0.mlp.experts.e_score_correction_bias", "vision.layers.0.moe.experts.w1"})
    EXPECT_TRUE(match_patterns(skeletonize(key)).empty()) << key;
}

TEST(KeyPattern, PrintsKindAndExpert) {
  EXPECT_EQ(print_part("mlp.experts.{E}.up_proj.{K}", TensorKind::Scale, "7"),
            "mlp.experts.7.up_proj.weight_scale_inv");
  EXPECT_EQ(print_part("mlp.experts.gate_up_proj{_K}", TensorKind::Weight, "7"), "mlp.experts.gate_up_proj");
  EXPECT_EQ(print_part("mlp.experts.gate_up_proj{_K}", TensorKind::Bias, "7"), "mlp.experts.gate_up_proj_bias");
  EXPECT_EQ(print_part("linear_fc1.{K}{E}", TensorKind::Bias, "7"), "linear_fc1.bias7");
}

}  // namespace
}  // namespace glu_ckpt
