/// The order of gate and up by the arguments that a trainer saved.

#include "format/trainer_args.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "format/pickle_graph.hpp"
#include "format/structure.hpp"
#include "format/torch_archive.hpp"

namespace glu_ckpt {
namespace {

enum class Saved { Absent, None, Number, Text };

/// Megatron's common state, a list of a dict whose "args" are a Namespace.
CheckpointInfo state_with(Saved routed, Saved shared, bool damaged = false) {
  PickleGraph graph;
  std::vector<PickleRef> fields{graph.add_string("num_layers"), graph.add_int(2)};
  const auto add = [&](const std::string& name, Saved saved) {
    if (saved == Saved::Absent) return;
    fields.push_back(graph.add_string(name));
    fields.push_back(saved == Saved::None     ? graph.add_none()
                     : saved == Saved::Number ? graph.add_int(32)
                                              : graph.add_string("32"));
  };
  add("moe_mlp_glu_interleave_size", routed);
  add("moe_shared_expert_glu_interleave_size", shared);
  const PickleRef args = graph.add_call(graph.add_global("argparse", "Namespace"), graph.add_tuple({}));
  graph.add_state(args, graph.add_container(PickleKind::Dict, fields));
  const PickleRef entries[] = {graph.add_string("args"), args};
  const PickleRef dict = graph.add_container(PickleKind::Dict, entries);
  std::string zip = print_object_zip(write_pickle(graph, graph.add_container(PickleKind::List, {&dict, 1})));
  if (damaged) zip.resize(zip.size() / 2);
  CheckpointInfo info;
  const i64 bytes = std::ssize(zip);
  info.structure.objects.push_back({"common_state/shard_0_1", bytes, store_of({std::move(zip)}), 0});
  return info;
}

TEST(TrainerArgs, ANumberIsKAndNoneIsContiguous) {
  const RunArguments found = trained_args(state_with(Saved::Number, Saved::None));
  EXPECT_EQ(found.glu, "interleaved:32");
  EXPECT_EQ(found.shared_glu, "contiguous");
}

/// Arguments of a version that did not have the field say nothing, and neither does what is no number.
TEST(TrainerArgs, WhatIsNotThereAnswersNothing) {
  EXPECT_EQ(trained_args(state_with(Saved::Absent, Saved::Absent)).glu, "");
  const RunArguments one = trained_args(state_with(Saved::None, Saved::Absent));
  EXPECT_EQ(one.glu, "contiguous");
  EXPECT_EQ(one.shared_glu, "");
  EXPECT_EQ(trained_args(state_with(Saved::Text, Saved::Absent)).glu, "");
  EXPECT_EQ(trained_args(CheckpointInfo()).glu, "");
}

/// A dtype stands for itself; a number that is not finite is a text, for JSON has no word for it.
TEST(TrainerArgs, AllThatIsPlainIsAJsonObject) {
  PickleGraph graph;
  const PickleRef numbers[] = {graph.add_int(0), graph.add_int(1)};
  const PickleRef mixed[] = {graph.add_int(0), graph.add_global("torch", "bfloat16")};
  const PickleRef fields[] = {graph.add_string("num_attention_heads"),
                              graph.add_int(4),
                              graph.add_string("norm_epsilon"),
                              graph.add_float(1e-6),
                              graph.add_string("swiglu"),
                              graph.add_bool(true),
                              graph.add_string("load"),
                              graph.add_none(),
                              graph.add_string("rope_type"),
                              graph.add_string("rope"),
                              graph.add_string("window_size"),
                              graph.add_tuple({numbers[0], numbers[1]}),
                              graph.add_string("moe_layer_freq"),
                              graph.add_container(PickleKind::List, numbers),
                              graph.add_string("params_dtype"),
                              graph.add_global("torch", "bfloat16"),
                              graph.add_string("mixed"),
                              graph.add_container(PickleKind::List, mixed),
                              graph.add_string("lr"),
                              graph.add_float(std::numeric_limits<double>::infinity())};
  const PickleRef args = graph.add_call(graph.add_global("argparse", "Namespace"), graph.add_tuple({}));
  graph.add_state(args, graph.add_container(PickleKind::Dict, fields));
  const PickleRef entries[] = {graph.add_string("args"), args};
  CheckpointInfo info;
  std::string zip = print_object_zip(write_pickle(graph, graph.add_container(PickleKind::Dict, entries)));
  const i64 bytes = std::ssize(zip);
  info.structure.objects.push_back({"common_state/shard_0_1", bytes, store_of({std::move(zip)}), 0});
  EXPECT_EQ(trained_args(info).args,
            R"({"load":null,"lr":"inf","mixed":[0,"torch.bfloat16"],"moe_layer_freq":[0,1],"norm_epsilon":1e-06,)"
            R"("num_attention_heads":4,"params_dtype":"torch.bfloat16","rope_type":"rope","swiglu":true,)"
            R"("window_size":[0,1]})");
  EXPECT_TRUE(trained_args(info).unread.empty());
  EXPECT_EQ(trained_args(state_with(Saved::Number, Saved::None)).args, "");
}

TEST(TrainerArgs, DamageAnswersNothingAndIsSaid) {
  const RunArguments found = trained_args(state_with(Saved::Number, Saved::Number, true));
  EXPECT_EQ(found.glu, "");
  ASSERT_EQ(found.unread.size(), 1U);
  EXPECT_EQ(found.unread.front().name, "");
}

/// A text that is no number of rows must not pass for an answer that is not there.
TEST(TrainerArgs, AnOrderOfAnotherTypeIsSaid) {
  const RunArguments found = trained_args(state_with(Saved::Text, Saved::Number));
  ASSERT_EQ(found.unread.size(), 1U);
  EXPECT_EQ(found.unread.front().name, "moe_mlp_glu_interleave_size");
  EXPECT_EQ(found.shared_glu, "interleaved:32");
}

using MakeValue = PickleRef (*)(PickleGraph& graph, PickleRef foreign);

/// Ways in which a foreign class or function comes into the arguments.
const std::vector<MakeValue> kForeignValues = {
    [](PickleGraph&, PickleRef foreign) { return foreign; },
    [](PickleGraph& graph, PickleRef foreign) { return graph.add_call(foreign, graph.add_tuple({graph.add_int(1)})); },
    [](PickleGraph& graph, PickleRef foreign) { return graph.add_new(foreign, graph.add_tuple({})); },
    [](PickleGraph& graph, PickleRef foreign) {
      const PickleRef made = graph.add_call(foreign, graph.add_tuple({graph.add_global("torch", "bfloat16")}));
      graph.add_state(made, graph.add_tuple({graph.add_none(), graph.add_container(PickleKind::Dict, {})}));
      return made;
    },
    [](PickleGraph& graph, PickleRef foreign) {
      return graph.add_call(graph.add_global("builtins", "getattr"), graph.add_tuple({foreign, graph.add_string("A")}));
    },
    [](PickleGraph& graph, PickleRef foreign) {
      return graph.add_container(PickleKind::List, {&foreign, 1});
    },
    [](PickleGraph& graph, PickleRef foreign) {
      const PickleRef items[] = {graph.add_string("a"), foreign};
      return graph.add_container(PickleKind::Dict, items);
    },
};

/// The states in which Megatron and its relatives keep arguments.
enum class Kept { Namespace, Dict, ForeignObject, Slots };

CheckpointInfo state_with(const MakeValue& make, const std::string& module, const std::string& name, std::size_t place,
                          Kept kept) {
  PickleGraph graph;
  std::vector<std::pair<std::string, PickleRef>> args{{"num_attention_heads", graph.add_int(4)},
                                                      {"moe_mlp_glu_interleave_size", graph.add_int(8)},
                                                      {"norm_epsilon", graph.add_float(1e-6)}};
  args.insert(args.begin() + static_cast<std::ptrdiff_t>(place),
              {"strange", make(graph, graph.add_global(module, name))});
  std::vector<PickleRef> items;
  for (const auto& [key, value] : args) {
    items.push_back(graph.add_string(key));
    items.push_back(value);
  }
  const PickleRef dict = graph.add_container(PickleKind::Dict, items);
  PickleRef saved = dict;
  if (kept != Kept::Dict) {
    saved = graph.add_new(graph.add_global(kept == Kept::Namespace ? "argparse" : "their.own", "Namespace"),
                          graph.add_tuple({}));
    graph.add_state(saved, kept == Kept::Slots ? graph.add_tuple({graph.add_none(), dict}) : dict);
  }
  const PickleRef entries[] = {graph.add_string("iteration"), graph.add_int(1), graph.add_string("args"), saved};
  std::string zip = print_object_zip(write_pickle(graph, graph.add_container(PickleKind::Dict, entries)));
  CheckpointInfo info;
  const i64 bytes = std::ssize(zip);
  info.structure.objects.push_back({"common_state/shard_0_1", bytes, store_of({std::move(zip)}), 0});
  return info;
}

TEST(TrainerArgs, WhatIsForeignIsNamedAndTheRestCounts) {
  const std::pair<const char*, const char*> names[] = {{"other_package.arguments", "SchedulerType"},
                                                       {"functools", "partial"},
                                                       {"__main__", "lambda_like"},
                                                       {"numpy.core.multiarray", "scalar"}};
  for (std::size_t way = 0; way < kForeignValues.size(); ++way)
    for (const auto& [module, name] : names)
      for (std::size_t place = 0; place < 4; ++place)
        for (const Kept kept : {Kept::Namespace, Kept::Dict, Kept::ForeignObject, Kept::Slots}) {
          SCOPED_TRACE(
              fmt::format("way {}, {}.{}, place {}, kept {}", way, module, name, place, static_cast<int>(kept)));
          // The name alone is known.
          if (std::string(module) == "numpy.core.multiarray" && (way == 0 || way > 4)) continue;
          const RunArguments found = trained_args(state_with(kForeignValues[way], module, name, place, kept));
          EXPECT_EQ(found.glu, "interleaved:8");
          EXPECT_EQ(found.args, R"({"moe_mlp_glu_interleave_size":8,"norm_epsilon":1e-06,"num_attention_heads":4})");
          ASSERT_EQ(found.unread.size(), 1U);
          EXPECT_EQ(found.unread.front().name, "strange");
          if (way != 4) {
            EXPECT_NE(found.unread.front().why.find(fmt::format("{}.{}", module, name)), std::string::npos);
          }
        }
}

// ---- megatron_args.txt ------------------------------------------------------------------------------

RunArguments listed(const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "megatron_args.txt";
  std::ofstream(path, std::ios::binary) << text;
  CheckpointInfo info;
  info.extra_files.push_back({"../megatron_args.txt", path});
  RunArguments read = listed_args(info);
  std::filesystem::remove(path);
  return read;
}

TEST(ListedArgs, AreReadAsAShellGivesThem) {
  for (const std::string text :
       {"--moe-mlp-glu-interleave-size 4\n", "--swiglu --moe-mlp-glu-interleave-size=4",
        "--moe-mlp-glu-interleave-size\n  4\n--swiglu\n", "\t--moe-mlp-glu-interleave-size 4\r\n",
        "--moe-mlp-glu-interleave-size 4\n# --moe-mlp-glu-interleave-size 8\n",
        "--moe-mlp-glu-interleave-size 4\n--moe-mlp-glu-interleave-size 4\n"}) {
    const RunArguments found = listed(text);
    EXPECT_EQ(found.glu, "interleaved:4") << text;
    EXPECT_EQ(found.shared_glu, "");
    EXPECT_TRUE(found.unread.empty()) << text;
  }
  EXPECT_EQ(listed("--moe-shared-expert-glu-interleave-size 8\n").shared_glu, "interleaved:8");
  EXPECT_EQ(listed("--num-layers 2\n--swiglu\n--norm-epsilon 1e-06\n").args,
            R"({"norm_epsilon":"1e-06","num_layers":2,"swiglu":true})");
}

TEST(ListedArgs, SayNothingWithoutTheOption) {
  for (const std::string text : {"", "\n\n", "--num-experts 8\n", "# --moe-mlp-glu-interleave-size 4\n",
                                 "moe-mlp-glu-interleave-size 4\n", "--moe-mlp-glu-interleave-sizes 4\n"}) {
    const RunArguments found = listed(text);
    EXPECT_EQ(found.glu, "") << text;
    EXPECT_TRUE(found.unread.empty()) << text;
  }
  EXPECT_TRUE(listed_args({}).args.empty());
}

TEST(ListedArgs, SayNothingOfWhatIsNoNumberOrSeveral) {
  for (const std::string value : {"", " 0", " -4", " 4.5", " four", " '4'", " 4 5", "=", " 99999999999999999999",
                                  " 4\n--moe-mlp-glu-interleave-size 8", " 4\n--moe-mlp-glu-interleave-size"}) {
    const RunArguments found = listed("--moe-mlp-glu-interleave-size" + value);
    EXPECT_EQ(found.glu, "") << value;
    ASSERT_EQ(found.unread.size(), 1u) << value;
    EXPECT_EQ(found.unread.front().name, "--moe-mlp-glu-interleave-size");
  }
}

TEST(ListedArgs, MayBeNoTextOrTooLong) {
  const std::string option = "--moe-mlp-glu-interleave-size 4\n";
  for (const std::string& text :
       {option + std::string(1, '\0'), option + "\xff\xfe", option + std::string(2 << 20, 'a')}) {
    const RunArguments found = listed(text);
    EXPECT_EQ(found.glu, "");
    ASSERT_EQ(found.unread.size(), 1u);
    EXPECT_EQ(found.unread.front().name, "");
    EXPECT_NE(found.unread.front().why.find("megatron_args.txt"), std::string::npos);
  }
}

TEST(ListedArgs, AskForOtherOrders) {
  const std::string text = "--swiglu --moe-mlp-glu-interleave-size 4 --bf16\n# a remark\n--moe-layer-freq [1]*3\n";
  EXPECT_EQ(with_orders(text, 0, {}), "--swiglu --bf16\n# a remark\n--moe-layer-freq [1]*3\n");
  EXPECT_EQ(with_orders(text, 8, 8),
            "--swiglu --bf16\n# a remark\n--moe-layer-freq [1]*3\n--moe-mlp-glu-interleave-size 8\n"
            "--moe-shared-expert-glu-interleave-size 8\n");
  EXPECT_EQ(with_orders(text, {}, 0), text);
  EXPECT_EQ(with_orders("--moe-mlp-glu-interleave-size=4\n4\n", 0, {}), "");
  EXPECT_EQ(with_orders("\xff", 8, {}), "\xff");
}

}  // namespace
}  // namespace glu_ckpt
