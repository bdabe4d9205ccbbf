/// The order of gate and up by the arguments that a trainer saved.

#include "format/trainer_args.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "format/pickle_writer.hpp"
#include "format/torch_archive.hpp"

namespace glu_ckpt {
namespace {

class OneState final : public ObjectStore {
 public:
  explicit OneState(std::string zip) : zip_(std::move(zip)) {}
  std::vector<std::byte> read(std::size_t) const override {
    const auto bytes = std::as_bytes(std::span(zip_));
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::string zip_;
};

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
  info.structure.objects.push_back({"common_state/shard_0_1", bytes, std::make_shared<OneState>(std::move(zip)), 0});
  return info;
}

TEST(TrainerArgs, ANumberIsKAndNoneIsContiguous) {
  const TrainedArgs found = trained_args(state_with(Saved::Number, Saved::None));
  EXPECT_EQ(found.glu, "interleaved:32");
  EXPECT_EQ(found.shared_glu, "contiguous");
}

/// Arguments of a version that did not have the field say nothing, and neither does what is no number.
TEST(TrainerArgs, WhatIsNotThereAnswersNothing) {
  EXPECT_EQ(trained_args(state_with(Saved::Absent, Saved::Absent)).glu, "");
  const TrainedArgs one = trained_args(state_with(Saved::None, Saved::Absent));
  EXPECT_EQ(one.glu, "contiguous");
  EXPECT_EQ(one.shared_glu, "");
  EXPECT_EQ(trained_args(state_with(Saved::Text, Saved::Absent)).glu, "");
  EXPECT_EQ(trained_args(CheckpointInfo()).glu, "");
}

/// What has no word in JSON is left out, for nobody could read it as what it was.
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
  info.structure.objects.push_back({"common_state/shard_0_1", bytes, std::make_shared<OneState>(std::move(zip)), 0});
  EXPECT_EQ(trained_args(info).json,
            R"({"num_attention_heads":4,"norm_epsilon":1e-06,"swiglu":true,"load":null,"rope_type":"rope",)"
            R"("window_size":[0,1],"moe_layer_freq":[0,1]})");
  EXPECT_EQ(trained_args(state_with(Saved::Number, Saved::None)).json, "");
}

TEST(TrainerArgs, DamageAnswersNothing) {
  EXPECT_EQ(trained_args(state_with(Saved::Number, Saved::Number, true)).glu, "");
}

}  // namespace
}  // namespace glu_ckpt
