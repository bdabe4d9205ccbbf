#include "plan/place_outputs.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/clone_parts.hpp"
#include "plan/shard_phase.hpp"

namespace glu_ckpt {
namespace {

/// A source of tensors that pass through, each after the one before it.
class Sources {
 public:
  /// `begin`: where the file's data section begins.
  void begin_file(i64 begin) {
    inventory_.files.push_back(fmt::format("file-{}", inventory_.files.size()));
    end_ = begin;
  }

  void add(const std::string& name, i64 bytes, Dtype dtype = Dtype::U8) {
    TensorRef tensor{name, dtype, {bytes}, bytes, static_cast<u32>(inventory_.files.size() - 1), end_};
    end_ += bytes;
    inventory_.tensors.push_back(std::move(tensor));
  }

  Inventory& inventory() { return inventory_; }

  /// What passes through in one piece, in any order.
  std::vector<DraftOutput> drafts(std::mt19937& random) const {
    std::vector<DraftOutput> drafts;
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      const TensorRef& tensor = inventory_.tensors[i];
      drafts.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes, {}, i});
      if (tensor.bytes == 0) continue;
      drafts.back().moves.emplace_back();
      drafts.back().moves.back().src = i;
      drafts.back().moves.back().run_bytes = tensor.bytes;
    }
    std::ranges::shuffle(drafts, random);
    return drafts;
  }

  Plan place(i64 max_shard_bytes) const {
    std::mt19937 random(7);
    Plan plan;
    place_outputs(drafts(random), max_shard_bytes, inventory_, plan);
    return plan;
  }

 private:
  Inventory inventory_;
  i64 end_ = 0;
};

/// "a b | c": the names of each shard.
std::string text_of(const Plan& plan) {
  std::string text;
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    if (i > 0) text += plan.outputs[i].shard == plan.outputs[i - 1].shard ? " " : " | ";
    text += plan.outputs[i].name;
  }
  return text;
}

TEST(PlaceOutputs, KeepTheSourcesOrder) {
  Sources sources;
  sources.begin_file(100);
  for (const char* name : {"layers.10", "layers.2", "embed"}) sources.add(name, 10);
  sources.begin_file(200);
  for (const char* name : {"norm", "head"}) sources.add(name, 10);
  EXPECT_EQ(text_of(sources.place(1000)), "layers.10 layers.2 embed norm head");
  EXPECT_EQ(text_of(sources.place(30)), "layers.10 layers.2 embed | norm head");
  EXPECT_EQ(text_of(sources.place(1)), "layers.10 | layers.2 | embed | norm | head");
}

TEST(PlaceOutputs, AShardEndsWithAFileWhereTheNextWouldNotFit) {
  Sources sources;
  for (int file = 0; file < 4; ++file) {
    sources.begin_file(8);
    for (int t = 0; t < 3; ++t) sources.add(fmt::format("{}{}", static_cast<char>('a' + file), t), 10);
  }
  EXPECT_EQ(text_of(sources.place(59)), "a0 a1 a2 | b0 b1 b2 | c0 c1 c2 | d0 d1 d2");
  EXPECT_EQ(text_of(sources.place(60)), "a0 a1 a2 b0 b1 b2 | c0 c1 c2 d0 d1 d2");
  EXPECT_EQ(text_of(sources.place(30)), "a0 a1 a2 | b0 b1 b2 | c0 c1 c2 | d0 d1 d2");
  // A file that is larger than a shard is cut, and the next one goes on where it fits.
  EXPECT_EQ(text_of(sources.place(20)), "a0 a1 | a2 | b0 b1 | b2 | c0 c1 | c2 | d0 d1 | d2");
  sources.begin_file(8);
  sources.add("e", 1);
  EXPECT_EQ(text_of(sources.place(20)), "a0 a1 | a2 | b0 b1 | b2 | c0 c1 | c2 | d0 d1 | d2 e");
}

TEST(PlaceOutputs, WithoutPlacesTheOrderIsThatOfNames) {
  Sources sources;
  for (const char* name : {"layers.10.b", "layers.2.a", "layers.10.a", "embed"}) {
    sources.begin_file(8);
    sources.add(name, 10);
  }
  sources.inventory().dense = false;
  EXPECT_EQ(text_of(sources.place(20)), "embed layers.2.a | layers.10.a layers.10.b");
  EXPECT_EQ(text_of(sources.place(25)), "embed layers.2.a | layers.10.a layers.10.b");
  EXPECT_EQ(text_of(sources.place(30)), "embed layers.10.a layers.2.a | layers.10.b");
}

TEST(PlaceOutputs, LargerElementsComeFirst) {
  Sources sources;
  sources.begin_file(8);
  sources.add("bytes", 3, Dtype::U8);
  sources.add("halves", 6, Dtype::BF16);
  sources.add("words", 12, Dtype::F32);
  sources.add("none", 0, Dtype::F32);
  const Plan plan = sources.place(1000);
  EXPECT_EQ(text_of(plan), "words none halves bytes");
  for (const OutputTensor& output : plan.outputs) EXPECT_EQ(output.offset % (dtype_bits(output.dtype) / 8), 0);
}

/// A shard for each file: then all pages can be the source's, whatever the sizes are.
TEST(PlaceOutputs, ShardsOfOneFileAreAllInPhase) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    Sources sources;
    const int files = 1 + static_cast<int>(random() % 4);
    for (int file = 0; file < files; ++file) {
      sources.begin_file(8 * (1 + random() % 1000));
      const int tensors = 1 + static_cast<int>(random() % 6);
      for (int t = 0; t < tensors; ++t)
        sources.add(fmt::format("{}.{}", random() % 9, file * 10 + t), 8 * (1 + random() % 9000));
    }
    Plan plan = sources.place(6 * 8 * 9001);
    plan.data_phases = choose_data_phases(sources.inventory(), plan);
    for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
      const OutputTensor& output = plan.outputs[i];
      const TensorRef& from = sources.inventory().tensors[plan.moves[plan.first_move[i]].src];
      const bool alone = std::ranges::all_of(plan.outputs, [&](const OutputTensor& other) {
        const std::size_t at = static_cast<std::size_t>(&other - plan.outputs.data());
        return other.shard != output.shard ||
               sources.inventory().tensors[plan.moves[plan.first_move[at]].src].file == from.file;
      });
      if (!alone || from.bytes < 2 * kDataPhaseBytes) continue;
      EXPECT_EQ((plan.data_phases[output.shard] + output.offset - from.offset) % kDataPhaseBytes, 0) << output.name;
    }
  }
}

}  // namespace
}  // namespace glu_ckpt
