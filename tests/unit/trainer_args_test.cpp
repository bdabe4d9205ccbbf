/// The order of gate and up by the arguments that a trainer saved.

#include "format/trainer_args.hpp"

#include <gtest/gtest.h>

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
  const TrainedOrders found = trained_orders(state_with(Saved::Number, Saved::None));
  EXPECT_EQ(found.glu, "interleaved:32");
  EXPECT_EQ(found.shared_glu, "contiguous");
}

/// Arguments of a version that did not have the field say nothing, and neither does what is no number.
TEST(TrainerArgs, WhatIsNotThereAnswersNothing) {
  EXPECT_EQ(trained_orders(state_with(Saved::Absent, Saved::Absent)).glu, "");
  const TrainedOrders one = trained_orders(state_with(Saved::None, Saved::Absent));
  EXPECT_EQ(one.glu, "contiguous");
  EXPECT_EQ(one.shared_glu, "");
  EXPECT_EQ(trained_orders(state_with(Saved::Text, Saved::Absent)).glu, "");
  EXPECT_EQ(trained_orders(CheckpointInfo()).glu, "");
}

TEST(TrainerArgs, DamageAnswersNothing) {
  EXPECT_EQ(trained_orders(state_with(Saved::Number, Saved::Number, true)).glu, "");
}

}  // namespace
}  // namespace glu_ckpt
