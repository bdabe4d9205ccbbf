/// The optimizer side, branch by branch. Tests named O1..O9 are the cases of Megatron-LM's
/// tests/unit_tests/optimizer/test_distrib_optimizer_grouped_quantized.py, in its order.

#include <gtest/gtest.h>

#include "support/convert.hpp"
#include "support/state_dicts.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr bool kGrouped = true;
constexpr bool kIndexed = false;

StateDict normalize(const StateDict& dict, const std::string& path, const GroupedModule& module) {
  const std::vector<NamedModule> modules{{"", {}}, {path, module}};
  return normalize_for_grouped_params(dict, modules);
}
GroupedModule weight_only(i64 experts, bool grouped) { return {experts, grouped, false, false}; }

const std::string kFc1 = "experts.linear_fc1";

TEST(OptimizerKeys, O1FoldsWeights) {
  const StateDict dict = state_dict({{kFc1 + ".weight0", {2}}, {kFc1 + ".weight1", {2}}, {kFc1 + ".weight2", {2}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(3, kGrouped))),
            "experts.linear_fc1.weight [3, 2] 0:0+8 1:100+8 2:200+8\n");
}

TEST(OptimizerKeys, O2SplitsAWeight) {
  EXPECT_EQ(text(normalize(state_dict({{kFc1 + ".weight", {3, 3}}}), kFc1, weight_only(3, kIndexed))),
            "experts.linear_fc1.weight0 [3] 0:0+12\n"
            "experts.linear_fc1.weight1 [3] 0:12+12\n"
            "experts.linear_fc1.weight2 [3] 0:24+12\n");
}

TEST(OptimizerKeys, O3FoldsWeightsAndBiases) {
  const StateDict dict = state_dict({{"layer.linear_fc1.weight0", {2}},
                                     {"layer.linear_fc1.weight1", {2}},
                                     {"layer.linear_fc1.bias0", {1}},
                                     {"layer.linear_fc1.bias1", {1}}});
  EXPECT_EQ(text(normalize(dict, "layer.linear_fc1", {2, true, true, true})),
            "layer.linear_fc1.weight [2, 2] 0:0+8 1:100+8\nlayer.linear_fc1.bias [2, 1] 2:200+4 3:300+4\n");
}

TEST(OptimizerKeys, O4ABiasCountsOnlyWhereTheModuleUsesOne) {
  const StateDict dict =
      state_dict({{kFc1 + ".weight0", {2}}, {kFc1 + ".weight1", {2}}, {kFc1 + ".bias0", {1}}, {kFc1 + ".bias1", {1}}});
  EXPECT_EQ(text(normalize(dict, kFc1, {2, true, true, false})),
            "experts.linear_fc1.bias0 [1] 2:200+4\nexperts.linear_fc1.bias1 [1] 3:300+4\n"
            "experts.linear_fc1.weight [2, 2] 0:0+8 1:100+8\n");
}

TEST(OptimizerKeys, O5LeadingModulePrefixesOfThePathGoAway) {
  const StateDict dict = state_dict({{kFc1 + ".weight0", {1}}, {kFc1 + ".weight1", {1}}});
  for (const std::string wrapped : {"module.", "module.module.", ""})
    EXPECT_EQ(text(normalize(dict, wrapped + kFc1, weight_only(2, kGrouped))),
              "experts.linear_fc1.weight [2, 1] 0:0+4 1:100+4\n");
  // Those further in are part of the name.
  EXPECT_EQ(text(normalize(dict, "module.experts.module.linear_fc1", weight_only(2, kGrouped))), text(dict));
}

TEST(OptimizerKeys, O6AGroupedKeyIsEnoughForAGroupedModule) {
  const StateDict dict = state_dict({{kFc1 + ".weight", {2, 2}}, {kFc1 + ".weight0", {2}}, {kFc1 + ".weight1", {2}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(2, kGrouped))), text(dict));
}

TEST(OptimizerKeys, O7AnIncompleteSetStays) {
  const StateDict dict = state_dict({{kFc1 + ".weight0", {2}}, {kFc1 + ".weight2", {2}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(3, kGrouped))), text(dict));
}

TEST(OptimizerKeys, O8AnAmbiguousIndexStopsAFold) {
  const StateDict dict = state_dict({{"chunk_a." + kFc1 + ".weight0", {1}},
                                     {"chunk_b." + kFc1 + ".weight0", {1}},
                                     {"chunk_a." + kFc1 + ".weight1", {1}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(2, kGrouped))), text(dict));
}

TEST(OptimizerKeys, O9ModulesThatAreNotGroupedAreSkipped) {
  const StateDict dict = state_dict({{"layer.linear.weight0", {4, 4}}, {"layer.linear.weight1", {4, 4}}});
  const std::vector<NamedModule> modules{{"", {}}, {"layer", {}}, {"layer.linear", {}}};
  EXPECT_EQ(text(normalize_for_grouped_params(dict, modules)), text(dict));
}

TEST(OptimizerKeys, PrefixesOfTheKeysAreKept) {
  const StateDict indexed =
      state_dict({{"module.a." + kFc1 + ".weight1", {1}}, {"module.a." + kFc1 + ".weight0", {1}}});
  EXPECT_EQ(text(normalize(indexed, kFc1, weight_only(2, kGrouped))),
            "module.a.experts.linear_fc1.weight [2, 1] 1:100+4 0:0+4\n");
  const StateDict grouped = state_dict({{"module.a." + kFc1 + ".weight", {2, 1}}});
  EXPECT_EQ(text(normalize(grouped, kFc1, weight_only(2, kIndexed))),
            "module.a.experts.linear_fc1.weight0 [1] 0:0+4\nmodule.a.experts.linear_fc1.weight1 [1] 0:4+4\n");
}

TEST(OptimizerKeys, PrefixesMayDifferAndIndexZeroNamesTheResult) {
  const StateDict dict = state_dict({{"b." + kFc1 + ".weight1", {1}}, {"a." + kFc1 + ".weight0", {1}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(2, kGrouped))),
            "a.experts.linear_fc1.weight [2, 1] 1:100+4 0:0+4\n");
}

TEST(OptimizerKeys, NamesMatchInTheMiddleOfAComponent) {
  const StateDict shared = state_dict({{"mlp.shared_experts.linear_fc1.weight", {2, 1}}});
  EXPECT_EQ(text(normalize(shared, kFc1, weight_only(2, kIndexed))),
            "mlp.shared_experts.linear_fc1.weight0 [1] 0:0+4\nmlp.shared_experts.linear_fc1.weight1 [1] 0:4+4\n");
  // So a shared expert's weight keeps the routed ones from being folded.
  const StateDict both = state_dict({{"mlp.shared_experts.linear_fc1.weight", {2, 1}},
                                     {"mlp.experts.linear_fc1.weight0", {1}},
                                     {"mlp.experts.linear_fc1.weight1", {1}}});
  EXPECT_EQ(text(normalize(both, kFc1, weight_only(2, kGrouped))), text(both));
}

TEST(OptimizerKeys, AnEmptyPathMatchesTheBareNames) {
  const StateDict dict = state_dict({{"x.weight0", {1}}, {"weight1", {1}}});
  const std::vector<NamedModule> modules{{"", weight_only(2, kGrouped)}};
  EXPECT_EQ(text(normalize_for_grouped_params(dict, modules)), "x.weight [2, 1] 0:0+4 1:100+4\n");
  const std::vector<NamedModule> wrapped{{"module.", weight_only(2, kGrouped)}};
  EXPECT_EQ(text(normalize_for_grouped_params(dict, wrapped)), "x.weight [2, 1] 0:0+4 1:100+4\n");
}

TEST(OptimizerKeys, OneMatchedIndexStopsASplit) {
  const StateDict dict = state_dict({{kFc1 + ".weight", {2, 1}}, {"a." + kFc1 + ".weight1", {1}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(2, kIndexed))), text(dict));
}

TEST(OptimizerKeys, AnAmbiguousOrAbsentGroupedKeyStopsASplit) {
  const StateDict two = state_dict({{"a." + kFc1 + ".weight", {2, 1}}, {"b." + kFc1 + ".weight", {2, 1}}});
  EXPECT_EQ(text(normalize(two, kFc1, weight_only(2, kIndexed))), text(two));
  const StateDict none = state_dict({{kFc1 + ".weight2", {2, 1}}, {kFc1 + ".weight00", {1}}, {"007", {1}}});
  for (const bool grouped : {kGrouped, kIndexed})
    EXPECT_EQ(text(normalize(none, kFc1, weight_only(2, grouped))), text(none));
}

/// Upstream's hazard, taken as it is: keys that are ambiguous do not protect what they hold.
TEST(OptimizerKeys, AmbiguousIndexedKeysDoNotStopASplitAndMayBeOverwritten) {
  const StateDict dict = state_dict({{"a." + kFc1 + ".weight0", {9}},
                                     {"b." + kFc1 + ".weight0", {9}},
                                     {"a." + kFc1 + ".weight", {2, 1}},
                                     {"c", {1}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(2, kIndexed))),
            "a.experts.linear_fc1.weight0 [1] 2:200+4\nb.experts.linear_fc1.weight0 [9] 1:100+36\nc [1] 3:300+4\n"
            "a.experts.linear_fc1.weight1 [1] 2:204+4\n");
}

TEST(OptimizerKeys, AnyGroupedMatchStopsAFold) {
  const StateDict dict =
      state_dict({{kFc1 + ".weight0", {1}}, {kFc1 + ".weight1", {1}}, {"elsewhere." + kFc1 + ".weight", {1}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(2, kGrouped))), text(dict));
}

TEST(OptimizerKeys, SplitsWithTheModulesSplitter) {
  EXPECT_EQ(text(normalize(state_dict({{kFc1 + ".weight", {4, 3}}}), kFc1, weight_only(2, kIndexed))),
            "experts.linear_fc1.weight0 [2, 3] 0:0+24\nexperts.linear_fc1.weight1 [2, 3] 0:24+24\n");
  const StateDict dict = state_dict({{kFc1 + ".weight", {3, 1}}});
  expect_error(
      ErrorCode::ExpertShape, [&] { normalize(dict, kFc1, weight_only(2, kIndexed)); },
      "cannot split tensor 'experts.linear_fc1.weight' with shape [3, 1] among 2 experts");
}

TEST(OptimizerKeys, ModulesAreTakenInTurnAndModesAreIndependent) {
  const StateDict dict = state_dict({{"l.1.fc.weight", {2, 1}},
                                     {"l.0.fc.bias0", {1}},
                                     {"l.0.fc.weight0", {1}},
                                     {"l.0.fc.weight1", {1}},
                                     {"l.1.fc.bias0", {1}},
                                     {"l.1.fc.bias1", {1}}});
  const std::vector<NamedModule> modules{{"module.l.1.fc", GroupedModule{2, false, true, true}},
                                         {"module.l.0.fc", GroupedModule{2, true, true, true}}};
  EXPECT_EQ(text(normalize_for_grouped_params(dict, modules)),
            "l.0.fc.bias0 [1] 1:100+4\nl.1.fc.weight0 [1] 0:0+4\nl.1.fc.weight1 [1] 0:4+4\n"
            "l.1.fc.bias [2, 1] 4:400+4 5:500+4\nl.0.fc.weight [2, 1] 2:200+4 3:300+4\n");
}

/// A dict of model weights is meant; like names in optimizer state look the same to a rule about endings.
TEST(OptimizerKeys, LikeNamesInOptimizerStateMakeKeysAmbiguous) {
  const StateDict dict = state_dict(
      {{kFc1 + ".weight0", {1}}, {kFc1 + ".weight1", {1}}, {"optimizer.state.exp_avg." + kFc1 + ".weight0", {1}}});
  EXPECT_EQ(text(normalize(dict, kFc1, weight_only(2, kGrouped))), text(dict));
}

TEST(OptimizerKeys, AFailureChangesNothing) {
  const StateDict dict = state_dict({{"l.0.fc.weight0", {1}}, {"l.0.fc.weight1", {1}}, {"l.1.fc.weight", {3}}});
  const std::string before = text(dict);
  const std::vector<NamedModule> modules{{"l.0.fc", weight_only(2, kGrouped)}, {"l.1.fc", weight_only(2, kIndexed)}};
  expect_error(
      ErrorCode::ExpertShape, [&] { normalize_for_grouped_params(dict, modules); }, "l.1.fc.weight");
  EXPECT_EQ(text(dict), before);
  StateDict twice = dict;
  twice.push_back(dict[0]);
  expect_error(ErrorCode::DuplicateKey, [&] { normalize_for_grouped_params(twice, modules); });
  const std::vector<NamedModule> none{{"l.0.fc", weight_only(0, kGrouped)}};
  expect_error(ErrorCode::NotSupported, [&] { normalize_for_grouped_params(dict, none); });
}

TEST(StripModulePrefixes, OnlyWhatLeads) {
  EXPECT_EQ(strip_module_prefixes("module.module.a.module.b"), "a.module.b");
  EXPECT_EQ(strip_module_prefixes("modules.a"), "modules.a");
  EXPECT_EQ(strip_module_prefixes("module"), "module");
  EXPECT_EQ(strip_module_prefixes("module."), "");
  EXPECT_EQ(strip_module_prefixes(""), "");
}

// ---- where the weights are ------------------------------------------------------------------------

TEST(ModelDictNames, ByTheKeysOfTheCheckpoint) {
  using Names = std::vector<std::string>;
  const auto names = [](const Names& keys, std::size_t chunks) { return model_dict_names(keys, chunks); };
  EXPECT_EQ(names({"model0", "model1", "optimizer"}, 2), (Names{"model0", "model1"}));
  EXPECT_EQ(names({"model_0", "model_1"}, 2), (Names{"model_0", "model_1"}));
  EXPECT_EQ(names({"model_0", "model0", "model"}, 1), (Names{"model0"}));
  EXPECT_EQ(names({"model_0", "model"}, 1), (Names{"model_0"}));
  EXPECT_EQ(names({"model0"}, 1), (Names{"model0"}));
  EXPECT_EQ(names({"model", "optimizer"}, 1), (Names{"model"}));
  EXPECT_EQ(names({"embedding.weight"}, 1), (Names{""}));
  EXPECT_EQ(names({}, 1), (Names{""}));
  expect_error(
      ErrorCode::PartMissing,
      [&] {
        names({"model0", "model_1"}, 2);
      },
      "'model1'");
  expect_error(
      ErrorCode::PartMissing, [&] { names({"model"}, 2); }, "2 chunks");
  expect_error(
      ErrorCode::PartMissing, [&] { names({"a"}, 2); }, "2 chunks");
}

TEST(MatchParameters, ByTheEndOfTheKey) {
  const StateDict dict = state_dict({{"chunk.b.weight", {2}}, {"chunk.a.weight", {3}}, {"chunk.extra", {1}}});
  const std::vector<NamedParameter> parameters{{"module.module.a.weight", {3}}, {"b.weight", {2}}};
  EXPECT_EQ(match_parameters(dict, parameters), (std::vector<std::size_t>{1, 0}));
}

TEST(MatchParameters, AKeyIsTakenOnce) {
  const StateDict dict = state_dict({{"shared_experts.weight", {2}}, {"experts.weight", {2}}});
  const std::vector<NamedParameter> long_first{{"shared_experts.weight", {2}}, {"experts.weight", {2}}};
  EXPECT_EQ(match_parameters(dict, long_first), (std::vector<std::size_t>{0, 1}));
  const std::vector<NamedParameter> short_first{{"experts.weight", {2}}, {"shared_experts.weight", {2}}};
  expect_error(
      ErrorCode::RedundantKeys, [&] { match_parameters(dict, short_first); }, "'experts.weight' could be");
  const std::vector<NamedParameter> twice{{"shared_experts.weight", {2}}, {"shared_experts.weight", {2}}};
  expect_error(
      ErrorCode::PartMissing, [&] { match_parameters(dict, twice); }, "'shared_experts.weight'");
}

TEST(MatchParameters, MustExistAndHaveTheShape) {
  const StateDict dict = state_dict({{"fc.weight", {6, 4}}});
  const std::vector<NamedParameter> missing{{"fc.weight0", {3, 4}}};
  expect_error(
      ErrorCode::PartMissing, [&] { match_parameters(dict, missing); }, "'fc.weight0'");
  const std::vector<NamedParameter> unpacked{{"fc.weight", {2, 3, 4}}};
  expect_error(
      ErrorCode::ExpertShape, [&] { match_parameters(dict, unpacked); }, "'fc.weight' is [6, 4]");
}

}  // namespace
}  // namespace glu_ckpt
