/// The model side, branch by branch. Tests named S1..S6 and M1..M8 are the cases of Megatron-LM's
/// tests/unit_tests/transformer/test_transformer_engine_grouped_linear.py, in its order.

#include <gtest/gtest.h>

#include "support/convert.hpp"
#include "support/state_dicts.hpp"

namespace glu_ckpt {
namespace {

using namespace support;
using enum RedundantKeys;
using Lines = std::vector<std::string>;

constexpr bool kGrouped = true;
constexpr bool kIndexed = false;

GroupedModule weight_only(i64 experts, bool grouped) { return {experts, grouped, false, false}; }
GroupedModule with_bias(i64 experts, bool grouped_weight, bool grouped_bias) {
  return {experts, grouped_weight, grouped_bias, true};
}

StateDict leave(const StateDict& dict, const GroupedModule& module) {
  return fold_or_split(dict, "layer.", module, Leave);
}
StateDict clean_up(const StateDict& dict, const GroupedModule& module) {
  return fold_or_split(dict, "layer.", module, CleanUp);
}

// ---- splitting one tensor -------------------------------------------------------------------------

TEST(SplitGrouped, S1MembersOfAnObjectThatHasNotSplitYet) {
  EXPECT_EQ(texts(split_grouped(grouped_object({2, 4}, true), "w", 2)),
            (Lines{"[4] 0:0+4 quantized", "[4] 0:4+4 quantized"}));
  EXPECT_EQ(texts(split_grouped(grouped_object({2, 3, 4}, false), "w", 2)), (Lines{"[3, 4] 0:0+48", "[3, 4] 0:48+48"}));
}

TEST(SplitGrouped, CachedMembersGoBeforeTheStorage) {
  StateTensor object = grouped_object({2, 4}, false);
  object.cached_members = {state_tensor({4, 1}), state_tensor({7})};
  EXPECT_EQ(texts(split_grouped(object, "w", 2)), (Lines{"[4, 1] 0:0+16", "[7] 0:0+28"}));
  object.cached_members->pop_back();
  expect_error(
      ErrorCode::ExpertShape, [&] { split_grouped(object, "w", 2); }, "has 1 groups, expected 2");
}

/// An object with E' members is never cut into E by its shape, even where that would fit.
TEST(SplitGrouped, TheObjectRuleGoesBeforeTheShapeRules) {
  StateTensor object = grouped_object({2, 4}, false);
  object.shape = {3, 4};
  object.cached_members = {state_tensor({4}), state_tensor({4})};
  EXPECT_EQ(split_grouped(object, "w", 2).size(), 2u);
  expect_error(
      ErrorCode::ExpertShape, [&] { split_grouped(object, "w", 3); }, "has 2 groups, expected 3");
}

TEST(SplitGrouped, S2FirstAxisOfExpertsGoesAway) {
  EXPECT_EQ(texts(split_grouped(state_tensor({3, 4}), "w", 3)), (Lines{"[4] 0:0+16", "[4] 0:16+16", "[4] 0:32+16"}));
}

TEST(SplitGrouped, FirstAxisOfExpertsGoesAwayAtEveryRank) {
  EXPECT_EQ(texts(split_grouped(state_tensor({2, 3, 5}), "w", 2)), (Lines{"[3, 5] 0:0+60", "[3, 5] 0:60+60"}));
  EXPECT_EQ(texts(split_grouped(state_tensor({2}), "w", 2)), (Lines{"[] 0:0+4", "[] 0:4+4"}));
  EXPECT_EQ(texts(split_grouped(state_tensor({1, 3}), "w", 1)), (Lines{"[3] 0:0+12"}));
}

TEST(SplitGrouped, S3PackedFirstAxisStays) {
  EXPECT_EQ(texts(split_grouped(state_tensor({6, 3}), "w", 3)),
            (Lines{"[2, 3] 0:0+24", "[2, 3] 0:24+24", "[2, 3] 0:48+24"}));
}

TEST(SplitGrouped, FlatBuffersStayFlat) {
  EXPECT_EQ(texts(split_grouped(state_tensor({12}), "w", 2)), (Lines{"[6] 0:0+24", "[6] 0:24+24"}));
}

TEST(SplitGrouped, PackedSingleRowsAreTakenForExperts) {
  EXPECT_EQ(texts(split_grouped(state_tensor({3, 5}), "[E * 1, in]", 3)),
            (Lines{"[5] 0:0+20", "[5] 0:20+20", "[5] 0:40+20"}));
}

TEST(SplitGrouped, AnEmptyFirstAxisSplitsIntoEmptyParts) {
  EXPECT_EQ(texts(split_grouped(state_tensor({0, 4}), "w", 2)), (Lines{"[0, 4]", "[0, 4]"}));
}

TEST(SplitGrouped, S4RejectsAnotherNumberOfMembers) {
  expect_error(
      ErrorCode::ExpertShape,
      [] {
        split_grouped(grouped_object({2, 1}, false), "layer.weight", 3);
      },
      "'layer.weight' has 2 groups, expected 3");
}

TEST(SplitGrouped, S5RejectsWhatDoesNotDivide) {
  expect_error(
      ErrorCode::ExpertShape,
      [] {
        split_grouped(state_tensor({4, 2}), "layer.weight", 3);
      },
      "cannot split tensor 'layer.weight' with shape [4, 2] among 3 experts");
  expect_error(
      ErrorCode::ExpertShape,
      [] {
        split_grouped(state_tensor({2, 2}), "layer.weight", 4);
      },
      "cannot split");
}

TEST(SplitGrouped, S6RejectsAScalar) {
  expect_error(
      ErrorCode::ExpertShape, [] { split_grouped(state_tensor({}), "layer.weight", 2); },
      "cannot split tensor 'layer.weight' with shape [] among 2 experts");
  expect_error(
      ErrorCode::ExpertShape, [] { split_grouped(state_tensor({}), "layer.weight", 1); }, "cannot split");
}

TEST(SplitGrouped, QuantizedTensorsThatAreNoObjectsAreReadThroughTheirValues) {
  StateTensor tensor = grouped_object({2, 4}, true);
  tensor.num_members.reset();
  EXPECT_EQ(texts(split_grouped(tensor, "w", 2)), (Lines{"[4] 0:0+4 dequantized", "[4] 0:4+4 dequantized"}));
}

TEST(SplitGrouped, CutsAcrossPieces) {
  StateTensor tensor = state_tensor({2, 3});
  tensor.pieces = {{7, 10, 4}, {8, 50, 16}, {9, 0, 4}};
  EXPECT_EQ(texts(split_grouped(tensor, "w", 2)), (Lines{"[3] 7:10+4 8:50+8", "[3] 8:58+8 9:0+4"}));
}

TEST(SplitGrouped, RefusesImpossibleNumbers) {
  expect_error(ErrorCode::NotSupported, [] { split_grouped(state_tensor({2}), "w", 0); });
  expect_error(ErrorCode::NotSupported, [] { split_grouped(state_tensor({2}), "w", -2); });
  expect_error(ErrorCode::NotSupported, [] { split_grouped(state_tensor({i64{1} << 40, 0}), "w", i64{1} << 40); });
  StateTensor tensor = state_tensor({2, 2});
  tensor.shape = {-2, -2};
  expect_error(ErrorCode::BadNumber, [&] { split_grouped(tensor, "w", 2); });
  tensor.shape = {2, i64{1} << 62};
  expect_error(ErrorCode::ShapeOverflow, [&] { split_grouped(tensor, "w", 2); });
  tensor.shape = {2, 3};
  expect_error(ErrorCode::SizeMismatch, [&] { split_grouped(tensor, "w", 2); });
  tensor = state_tensor({2, 2});
  tensor.pieces = {{0, 0, 20}, {0, 20, -4}};
  expect_error(ErrorCode::BadNumber, [&] { split_grouped(tensor, "w", 2); });
  StateTensor object = grouped_object({2, 2}, false);
  object.num_members = 3;
  expect_error(
      ErrorCode::ExpertShape, [&] { split_grouped(object, "w", 3); }, "is [2, 2] but has 3 groups");
  StateTensor nibbles;
  nibbles.dtype = Dtype::F4;
  nibbles.shape = {2, 3};
  nibbles.pieces = {{0, 0, 3}};
  expect_error(ErrorCode::SubByteShape, [&] { split_grouped(nibbles, "w", 2); });
  nibbles.shape = {1, 3};
  nibbles.pieces = {{0, 0, 1}};
  expect_error(ErrorCode::SubByteShape, [&] { split_grouped(nibbles, "w", 1); });
  tensor = state_tensor({2, 2});
  tensor.pieces[0].offset = -1;
  expect_error(ErrorCode::BadNumber, [&] { split_grouped(tensor, "w", 2); });
  StateTensor quantized = grouped_object({2, 2}, true);
  quantized.num_members.reset();
  quantized.shape = {2, -2};
  expect_error(ErrorCode::BadNumber, [&] { split_grouped(quantized, "w", 2); });
}

// ---- Megatron-LM ----------------------------------------------------------------------------------

TEST(LeaveKeys, M1FoldsWeights) {
  const StateDict dict = state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}, {"layer.weight2", {2}}});
  EXPECT_EQ(text(leave(dict, weight_only(3, kGrouped))), "layer.weight [3, 2] 0:0+8 1:100+8 2:200+8\n");
}

TEST(LeaveKeys, M2FoldsWeightsAndBiases) {
  const StateDict dict =
      state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}, {"layer.bias0", {1}}, {"layer.bias1", {1}}});
  EXPECT_EQ(text(leave(dict, with_bias(2, kGrouped, kGrouped))),
            "layer.weight [2, 2] 0:0+8 1:100+8\n"
            "layer.bias [2, 1] 2:200+4 3:300+4\n");
}

TEST(LeaveKeys, M3SplitsAWeight) {
  EXPECT_EQ(text(leave(state_dict({{"layer.weight", {3, 3}}}), weight_only(3, kIndexed))),
            "layer.weight0 [3] 0:0+12\nlayer.weight1 [3] 0:12+12\nlayer.weight2 [3] 0:24+12\n");
}

TEST(LeaveKeys, M4SplitsAWeightAndABias) {
  const StateDict dict = state_dict({{"layer.weight", {2, 4}}, {"layer.bias", {2, 2}}});
  EXPECT_EQ(text(leave(dict, with_bias(2, kIndexed, kIndexed))),
            "layer.weight0 [4] 0:0+16\nlayer.weight1 [4] 0:16+16\n"
            "layer.bias0 [2] 1:100+8\nlayer.bias1 [2] 1:108+8\n");
}

TEST(LeaveKeys, M5ABiasCountsOnlyWhereTheModuleUsesOne) {
  const StateDict dict =
      state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}, {"layer.bias0", {1}}, {"layer.bias1", {1}}});
  EXPECT_EQ(text(leave(dict, {2, true, true, false})),
            "layer.bias0 [1] 2:200+4\nlayer.bias1 [1] 3:300+4\nlayer.weight [2, 2] 0:0+8 1:100+8\n");
}

TEST(LeaveKeys, M6aAGroupedKeyIsEnoughForAGroupedModule) {
  const StateDict dict = state_dict({{"layer.weight", {2, 2}}, {"layer.weight0", {2}}});
  EXPECT_EQ(text(leave(dict, weight_only(2, kGrouped))), text(dict));
  const StateDict full = state_dict({{"layer.weight1", {2}}, {"layer.weight", {2, 2}}, {"layer.weight0", {2}}});
  EXPECT_EQ(text(leave(full, weight_only(2, kGrouped))), text(full));
}

TEST(LeaveKeys, M6bOneIndexedKeyIsEnoughForAnIndexedModule) {
  const StateDict dict = state_dict({{"layer.weight", {2, 2}}, {"layer.weight0", {2}}});
  EXPECT_EQ(text(leave(dict, weight_only(2, kIndexed))), text(dict));
  const StateDict full = state_dict({{"layer.weight1", {2}}, {"layer.weight", {2, 2}}, {"layer.weight0", {2}}});
  EXPECT_EQ(text(leave(full, weight_only(2, kIndexed))), text(full));
}

TEST(LeaveKeys, M7AnIncompleteSetStays) {
  const StateDict dict = state_dict({{"layer.weight0", {2}}, {"layer.weight2", {2}}});
  EXPECT_EQ(text(leave(dict, weight_only(3, kGrouped))), text(dict));
}

TEST(LeaveKeys, M8FoldThenSplitGivesTheTensorsBack) {
  const StateDict dict = state_dict({{"layer.weight0", {3}}, {"layer.weight1", {3}}});
  const StateDict folded = leave(dict, weight_only(2, kGrouped));
  EXPECT_EQ(text(leave(folded, weight_only(2, kIndexed))), text(dict));
}

TEST(LeaveKeys, SplitThenFoldGivesTheTensorBack) {
  const StateDict dict = state_dict({{"layer.weight", {2, 3}}});
  EXPECT_EQ(text(leave(leave(dict, weight_only(2, kIndexed)), weight_only(2, kGrouped))), text(dict));
}

TEST(LeaveKeys, NothingToDoIsNothingDone) {
  const StateDict none = state_dict({{"other.weight", {2, 2}}, {"layer.weight_scale", {2}}, {"layer.weights0", {2}}});
  const StateDict indexed = state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}});
  for (const bool grouped : {kGrouped, kIndexed}) EXPECT_EQ(text(leave(none, weight_only(2, grouped))), text(none));
  EXPECT_EQ(text(leave(indexed, weight_only(2, kIndexed))), text(indexed));
  EXPECT_EQ(text(leave({}, with_bias(2, kGrouped, kGrouped))), "");
}

/// Indices that are not the module's own take part in nothing.
TEST(LeaveKeys, StrayIndicesAreLeftAlone) {
  const StateDict extra = state_dict({{"layer.weight2", {2}}, {"layer.weight0", {2}}, {"layer.weight1", {2}}});
  EXPECT_EQ(text(leave(extra, weight_only(2, kGrouped))),
            "layer.weight2 [2] 0:0+8\nlayer.weight [2, 2] 1:100+8 2:200+8\n");
  const StateDict strange = state_dict({{"layer.weight2", {1}},
                                        {"layer.weight00", {1}},
                                        {"layer.weight.0", {1}},
                                        {"layer.weight-1", {1}},
                                        {"layer.weight99999999999999999999", {1}},
                                        {"layer.weight", {2, 2}}});
  const StateDict split = leave(strange, weight_only(2, kIndexed));
  ASSERT_EQ(split.size(), 7u);
  EXPECT_EQ(split[5].key, "layer.weight0");
  EXPECT_EQ(split[6].key, "layer.weight1");
}

TEST(LeaveKeys, NewKeysGoToTheEndAndMembersGoByNumber) {
  const StateDict dict = state_dict(
      {{"a", {1}}, {"layer.weight10", {1}}, {"layer.weight1", {1}}, {"b", {1}}, {"layer.weight0", {1}}, {"c", {1}}});
  StateDict full = dict;
  for (i64 i = 2; i < 10; ++i) {
    full.push_back(dict[1]);
    full.back().key = "layer.weight" + std::to_string(i);
    full.back().tensor.pieces[0] = {static_cast<std::size_t>(i) + 20, 0, 4};
  }
  EXPECT_EQ(text(leave(full, weight_only(11, kGrouped))),
            "a [1] 0:0+4\nb [1] 3:300+4\nc [1] 5:500+4\n"
            "layer.weight [11, 1] 4:400+4 2:200+4 22:0+4 23:0+4 24:0+4 25:0+4 26:0+4 27:0+4 28:0+4 29:0+4 1:100+4\n");
  const StateDict grouped = state_dict({{"layer.weight", {2, 1}}, {"a", {1}}});
  EXPECT_EQ(text(leave(grouped, weight_only(2, kIndexed))),
            "a [1] 1:100+4\nlayer.weight0 [1] 0:0+4\nlayer.weight1 [1] 0:4+4\n");
}

TEST(LeaveKeys, PrefixIsTakenLiterally) {
  const StateDict dict =
      state_dict({{"weight0", {1}}, {"layer.weight0", {1}}, {"module.layer.weight0", {1}}, {"xlayer.weight0", {1}}});
  EXPECT_EQ(text(fold_or_split(dict, "", weight_only(1, kGrouped), Leave)),
            "layer.weight0 [1] 1:100+4\nmodule.layer.weight0 [1] 2:200+4\nxlayer.weight0 [1] 3:300+4\n"
            "weight [1, 1] 0:0+4\n");
  EXPECT_EQ(text(leave(dict, weight_only(1, kGrouped))),
            "weight0 [1] 0:0+4\nmodule.layer.weight0 [1] 2:200+4\nxlayer.weight0 [1] 3:300+4\n"
            "layer.weight [1, 1] 1:100+4\n");
  EXPECT_EQ(text(fold_or_split(dict, "module.layer.", weight_only(1, kGrouped), Leave)),
            "weight0 [1] 0:0+4\nlayer.weight0 [1] 1:100+4\nxlayer.weight0 [1] 3:300+4\n"
            "module.layer.weight [1, 1] 2:200+4\n");
}

TEST(LeaveKeys, WeightAndBiasModesAreIndependent) {
  const StateDict indexed =
      state_dict({{"layer.bias0", {1}}, {"layer.bias1", {1}}, {"layer.weight0", {2}}, {"layer.weight1", {2}}});
  EXPECT_EQ(text(leave(indexed, with_bias(2, kGrouped, kIndexed))),
            "layer.bias0 [1] 0:0+4\nlayer.bias1 [1] 1:100+4\nlayer.weight [2, 2] 2:200+8 3:300+8\n");
  EXPECT_EQ(text(leave(indexed, with_bias(2, kIndexed, kGrouped))),
            "layer.weight0 [2] 2:200+8\nlayer.weight1 [2] 3:300+8\nlayer.bias [2, 1] 0:0+4 1:100+4\n");
  // Weight first, whatever the order of the keys.
  EXPECT_EQ(text(leave(indexed, with_bias(2, kGrouped, kGrouped))),
            "layer.weight [2, 2] 2:200+8 3:300+8\nlayer.bias [2, 1] 0:0+4 1:100+4\n");
}

TEST(LeaveKeys, FlagsAreOffByDefault) {
  const GroupedModule module;
  EXPECT_FALSE(module.single_grouped_weight || module.single_grouped_bias || module.use_bias);
}

TEST(LeaveKeys, AFailureChangesNothing) {
  const StateDict dict = state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}, {"layer.bias", {3}}});
  const std::string before = text(dict);
  // The weight folds before the bias fails.
  expect_error(
      ErrorCode::ExpertShape, [&] { leave(dict, with_bias(2, kGrouped, kIndexed)); },
      "cannot split tensor 'layer.bias' with shape [3] among 2 experts");
  EXPECT_EQ(text(dict), before);
}

TEST(LeaveKeys, OnlyEqualMembersFold) {
  StateDict dict = state_dict({{"layer.weight0", {2}}, {"layer.weight1", {1, 2}}});
  expect_error(
      ErrorCode::ExpertShape, [&] { leave(dict, weight_only(2, kGrouped)); }, "'layer.weight1' is [1, 2]");
  dict = state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}});
  dict[1].tensor.dtype = Dtype::I32;
  expect_error(
      ErrorCode::ExpertDtype, [&] { leave(dict, weight_only(2, kGrouped)); }, "layer.weight1");
  dict[1] = dict[0];
  dict[1].key = "layer.weight1";
  dict[1].tensor.storage = Storage::Quantized;
  expect_error(
      ErrorCode::ExpertDtype, [&] { leave(dict, weight_only(2, kGrouped)); }, "layer.weight1");
  dict[1].tensor = grouped_object({2}, false);
  expect_error(
      ErrorCode::NotSupported, [&] { leave(dict, weight_only(2, kGrouped)); }, "layer.weight1");
  dict[1] = dict[0];
  expect_error(
      ErrorCode::DuplicateKey, [&] { leave(dict, weight_only(2, kGrouped)); }, "'layer.weight0' is there twice");
  expect_error(ErrorCode::NotSupported, [] { leave({}, weight_only(0, kGrouped)); });
}

TEST(LeaveKeys, FoldKeepsTheDtype) {
  StateDict dict = state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}});
  for (StateEntry& entry : dict) entry.tensor.dtype = Dtype::I32;
  EXPECT_EQ(text(leave(dict, weight_only(2, kGrouped))), "layer.weight [2, 2] 0:0+8 1:100+8 I32\n");
}

TEST(LeaveKeys, MembersOfAQuantizedObjectStayQuantized) {
  const StateDict dict{{"layer.weight", grouped_object({2, 4}, true)}};
  EXPECT_EQ(text(leave(dict, weight_only(2, kIndexed))),
            "layer.weight0 [4] 0:0+4 quantized\nlayer.weight1 [4] 0:4+4 quantized\n");
}

TEST(LeaveKeys, SplitsPackedWeights) {
  EXPECT_EQ(text(leave(state_dict({{"layer.weight", {4, 3}}}), weight_only(2, kIndexed))),
            "layer.weight0 [2, 3] 0:0+24\nlayer.weight1 [2, 3] 0:24+24\n");
}

TEST(LeaveKeys, ABiasIsNotSqueezed) {
  const StateDict dict = state_dict({{"layer.bias", {2, 1, 3}}});
  EXPECT_EQ(text(leave(dict, with_bias(2, kIndexed, kGrouped))), text(dict));
  EXPECT_EQ(text(leave(dict, with_bias(2, kIndexed, kIndexed))),
            "layer.bias0 [1, 3] 0:0+12\nlayer.bias1 [1, 3] 0:12+12\n");
}

// ---- TransformerEngine ----------------------------------------------------------------------------

TEST(CleanUpKeys, GroupedModuleFoldsACompleteSet) {
  const StateDict dict = state_dict({{"layer.weight1", {2}}, {"a", {1}}, {"layer.weight0", {2}}});
  EXPECT_EQ(text(clean_up(dict, weight_only(2, kGrouped))), "a [1] 1:100+4\nlayer.weight [2, 2] 2:200+8 0:0+8\n");
}

TEST(CleanUpKeys, FoldDequantizesMembers) {
  StateDict dict{{"layer.weight0", grouped_object({2, 4}, true)}, {"layer.weight1", grouped_object({2, 4}, true)}};
  for (StateEntry& entry : dict) entry.tensor.num_members.reset();
  EXPECT_EQ(text(clean_up(dict, weight_only(2, kGrouped))), "layer.weight [2, 2, 4] 0:0+8 0:0+8 dequantized\n");
}

TEST(CleanUpKeys, GroupedModuleDropsIndexedKeys) {
  const StateDict dict = state_dict({{"layer.weight0", {2}}, {"layer.weight", {2, 2}}, {"layer.weight1", {2}}});
  EXPECT_EQ(text(clean_up(dict, weight_only(2, kGrouped))), "layer.weight [2, 2] 1:100+16\n");
  const StateDict partial = state_dict({{"layer.weight1", {2}}, {"layer.weight2", {2}}, {"layer.weight", {2, 2}}});
  EXPECT_EQ(text(clean_up(partial, weight_only(2, kGrouped))),
            "layer.weight2 [2] 1:100+8\nlayer.weight [2, 2] 2:200+16\n");
}

TEST(CleanUpKeys, GroupedModuleLeavesAnIncompleteSetAlone) {
  const StateDict dict = state_dict({{"layer.weight0", {2}}, {"layer.bias1", {2}}});
  EXPECT_EQ(text(clean_up(dict, with_bias(2, kGrouped, kGrouped))), text(dict));
}

TEST(CleanUpKeys, IndexedModuleSplits) {
  EXPECT_EQ(text(clean_up(state_dict({{"layer.weight", {2, 3, 4}}, {"a", {1}}}), weight_only(2, kIndexed))),
            "a [1] 1:100+4\nlayer.weight0 [3, 4] 0:0+48\nlayer.weight1 [3, 4] 0:48+48\n");
}

/// As a Python dict does: what is assigned again keeps its place.
TEST(CleanUpKeys, IndexedModuleOverwritesAnIncompleteSetInPlace) {
  const StateDict dict = state_dict({{"layer.weight1", {9}}, {"layer.weight", {3, 2}}, {"a", {1}}});
  EXPECT_EQ(text(clean_up(dict, weight_only(3, kIndexed))),
            "layer.weight1 [2] 1:108+8\na [1] 2:200+4\nlayer.weight0 [2] 1:100+8\nlayer.weight2 [2] 1:116+8\n");
}

TEST(CleanUpKeys, IndexedModuleDropsTheGroupedKey) {
  const StateDict dict = state_dict({{"layer.weight", {2, 2}}, {"layer.weight0", {2}}, {"layer.weight1", {2}}});
  EXPECT_EQ(text(clean_up(dict, weight_only(2, kIndexed))), "layer.weight0 [2] 1:100+8\nlayer.weight1 [2] 2:200+8\n");
}

TEST(CleanUpKeys, IndexedModuleWithoutAGroupedKeyHasNothingToDo) {
  for (const StateDict& dict : {state_dict({{"layer.weight1", {2}}}), state_dict({{"a", {1}}}),
                                state_dict({{"layer.weight0", {2}}, {"layer.weight1", {2}}})})
    EXPECT_EQ(text(clean_up(dict, weight_only(2, kIndexed))), text(dict));
}

TEST(CleanUpKeys, MembersOfAnObjectAreDequantized) {
  const StateDict dict{{"layer.weight", grouped_object({2, 4}, true)}};
  EXPECT_EQ(text(clean_up(dict, weight_only(2, kIndexed))),
            "layer.weight0 [4] 0:0+4 dequantized\nlayer.weight1 [4] 0:4+4 dequantized\n");
  const StateDict plain{{"layer.weight", grouped_object({2, 4}, false)}};
  EXPECT_EQ(text(clean_up(plain, weight_only(2, kIndexed))), "layer.weight0 [4] 0:0+16\nlayer.weight1 [4] 0:16+16\n");
  StateDict no_object = dict;
  no_object[0].tensor.num_members.reset();
  EXPECT_EQ(text(clean_up(no_object, weight_only(2, kIndexed))),
            "layer.weight0 [4] 0:0+4 dequantized\nlayer.weight1 [4] 0:4+4 dequantized\n");
}

TEST(CleanUpKeys, PackedWeightsAreNotUnderstood) {
  for (const std::vector<i64>& shape : {std::vector<i64>{4, 3}, {12}, {1, 3}, {}}) {
    const StateDict dict = state_dict({{"layer.weight", shape}});
    expect_error(
        ErrorCode::ExpertShape, [&] { clean_up(dict, weight_only(2, kIndexed)); },
        "'layer.weight' is " + shape_text(shape));
  }
  const StateDict three{{"layer.weight", grouped_object({3, 2}, false)}};
  expect_error(
      ErrorCode::ExpertShape, [&] { clean_up(three, weight_only(2, kIndexed)); }, "has 3 groups, expected 2");
}

TEST(CleanUpKeys, GroupedBias) {
  const StateDict indexed = state_dict({{"layer.bias0", {3}}, {"layer.bias1", {3}}});
  EXPECT_EQ(text(clean_up(indexed, with_bias(2, kGrouped, kGrouped))), "layer.bias [2, 3] 0:0+12 1:100+12\n");
  const StateDict both = state_dict({{"layer.bias", {2, 3}}, {"layer.bias0", {3}}});
  EXPECT_EQ(text(clean_up(both, with_bias(2, kGrouped, kGrouped))), "layer.bias [2, 3] 0:0+24\n");
}

TEST(CleanUpKeys, GroupedBiasLosesAnAxisOfOneInPlace) {
  const auto squeezed = [](const std::vector<i64>& shape) {
    return text(clean_up(state_dict({{"layer.bias", shape}, {"a", {1}}}), with_bias(2, kGrouped, kGrouped)));
  };
  EXPECT_EQ(squeezed({2, 1, 3}), "layer.bias [2, 3] 0:0+24\na [1] 1:100+4\n");
  EXPECT_EQ(squeezed({2, 2, 3}), "layer.bias [2, 2, 3] 0:0+48\na [1] 1:100+4\n");
  EXPECT_EQ(squeezed({2, 1}), "layer.bias [2, 1] 0:0+8\na [1] 1:100+4\n");
  EXPECT_EQ(squeezed({2, 1, 1, 3}), "layer.bias [2, 1, 1, 3] 0:0+24\na [1] 1:100+4\n");
  const StateDict weight = state_dict({{"layer.weight", {2, 1, 3}}});
  EXPECT_EQ(text(clean_up(weight, with_bias(2, kGrouped, kGrouped))), text(weight));
}

TEST(CleanUpKeys, IndexedBiasIsFlattened) {
  EXPECT_EQ(text(clean_up(state_dict({{"layer.bias", {2, 1, 3}}}), with_bias(2, kIndexed, kIndexed))),
            "layer.bias0 [3] 0:0+12\nlayer.bias1 [3] 0:12+12\n");
  StateTensor object = grouped_object({2, 4}, false);
  object.cached_members = {state_tensor({4, 1}), state_tensor({4, 1})};
  EXPECT_EQ(text(clean_up({{"layer.bias", object}}, with_bias(2, kIndexed, kIndexed))),
            "layer.bias0 [4] 0:0+16\nlayer.bias1 [4] 0:0+16\n");
  EXPECT_EQ(text(clean_up(state_dict({{"layer.bias", {2}}}), with_bias(2, kIndexed, kIndexed))),
            "layer.bias0 [] 0:0+4\nlayer.bias1 [] 0:4+4\n");
  const StateDict quantized{{"layer.bias", grouped_object({2, 4}, true)}};
  EXPECT_EQ(text(clean_up(quantized, with_bias(2, kIndexed, kIndexed))),
            "layer.bias0 [4] 0:0+4 quantized\nlayer.bias1 [4] 0:4+4 quantized\n");
}

TEST(CleanUpKeys, IndexedBiasOverwritesOrDrops) {
  const StateDict partial = state_dict({{"layer.bias0", {9}}, {"layer.bias", {2, 3}}});
  EXPECT_EQ(text(clean_up(partial, with_bias(2, kIndexed, kIndexed))),
            "layer.bias0 [3] 1:100+12\nlayer.bias1 [3] 1:112+12\n");
  const StateDict both = state_dict({{"layer.bias", {2, 3}}, {"layer.bias0", {3}}, {"layer.bias1", {3}}});
  EXPECT_EQ(text(clean_up(both, with_bias(2, kIndexed, kIndexed))),
            "layer.bias0 [3] 1:100+12\nlayer.bias1 [3] 2:200+12\n");
}

TEST(CleanUpKeys, ABiasCountsOnlyWhereTheModuleUsesOne) {
  const StateDict dict = state_dict({{"layer.bias", {2, 1, 3}}, {"layer.bias0", {3}}, {"layer.bias1", {3}}});
  for (const bool grouped : {kGrouped, kIndexed})
    EXPECT_EQ(text(clean_up(dict, {2, grouped, grouped, false})), text(dict));
}

/// In a model on today's TransformerEngine the remap runs before Megatron-LM's hook, which then finds nothing to do.
TEST(CleanUpKeys, LeaveNothingToMegatronsHook) {
  const StateDict both = state_dict({{"layer.weight", {2, 2}}, {"layer.weight0", {2}}, {"layer.weight1", {2}}});
  const StateDict partial = state_dict({{"layer.weight", {2, 2}}, {"layer.weight1", {2}}});
  for (const StateDict& dict : {both, partial})
    for (const bool grouped : {kGrouped, kIndexed}) {
      const StateDict cleaned = clean_up(dict, weight_only(2, grouped));
      EXPECT_NE(text(cleaned), text(dict));
      EXPECT_EQ(text(leave(cleaned, weight_only(2, grouped))), text(cleaned));
    }
}

// ---- names and gates ------------------------------------------------------------------------------

TEST(RedundantKeysPolicy, ParsesWhatItPrints) {
  EXPECT_EQ(to_string(Leave), "leave");
  EXPECT_EQ(to_string(CleanUp), "clean-up");
  for (const RedundantKeys policy : {Leave, CleanUp}) EXPECT_EQ(parse_redundant_keys(to_string(policy)), policy);
  for (const std::string unknown : {"", "Leave", "cleanup", "clean-up "})
    expect_error(
        ErrorCode::Usage, [&] { parse_redundant_keys(unknown); }, "'" + unknown + "'");
}

TEST(GroupedModuleFlags, SingleParametersNeedTheEnvironmentVariable) {
  const GroupedModule off = gate_single_params({4, true, true, true}, false);
  EXPECT_FALSE(off.single_grouped_weight || off.single_grouped_bias);
  EXPECT_TRUE(off.use_bias);
  EXPECT_EQ(off.num_experts, 4);
  const GroupedModule on = gate_single_params({4, true, false, false}, true);
  EXPECT_TRUE(on.single_grouped_weight);
  EXPECT_FALSE(on.single_grouped_bias);
}

}  // namespace
}  // namespace glu_ckpt
