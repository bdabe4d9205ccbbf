#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/clone_parts.hpp"
#include "plan/draft_outputs.hpp"

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

TEST(PlaceOutputs, AnOutputOfMoreThanAShardHasFilesEnoughToWriteThemSideBySide) {
  constexpr i64 kGigabyte = 1'000'000'000;
  for (const auto& [output, shard] : {std::pair(i64{0}, 5 * kGigabyte),
                                      {5 * kGigabyte, 5 * kGigabyte},
                                      {5 * kGigabyte + 1, kGigabyte},
                                      {16 * kGigabyte, kGigabyte},
                                      {32 * kGigabyte, 2 * kGigabyte},
                                      {80 * kGigabyte, 5 * kGigabyte},
                                      {1'300 * kGigabyte, 5 * kGigabyte}})
    EXPECT_EQ(usual_shard_bytes(output), shard) << output;
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

struct Placed {
  Inventory inventory;
  Plan plan;

  void add_source(i64 offset, i64 bytes) {
    TensorRef tensor;
    tensor.offset = offset;
    tensor.bytes = bytes;
    inventory.tensors.push_back(std::move(tensor));
  }

  void begin_output(u32 shard, i64 offset, i64 bytes) {
    OutputTensor output;
    output.shard = shard;
    output.offset = offset;
    output.bytes = bytes;
    plan.outputs.push_back(std::move(output));
    plan.num_shards = shard + 1;
    plan.first_move.push_back(plan.moves.size());
  }

  void add_move(Move move) {
    move.dst = plan.outputs.size() - 1;
    plan.moves.push_back(move);
  }

  /// A whole tensor that passes through.
  void pass(u32 shard, i64 src_at, i64 dst_at, i64 bytes) {
    Move move;
    move.src = inventory.tensors.size();
    move.run_bytes = bytes;
    add_source(src_at, bytes);
    begin_output(shard, dst_at, bytes);
    add_move(move);
  }

  std::vector<i64> phases() {
    plan.first_move.push_back(plan.moves.size());
    auto phases = choose_data_phases(inventory, plan);
    plan.first_move.pop_back();
    return phases;
  }
};

/// Bytes that would be cloned were the data section of a shard to begin at `phase`.
i64 cloned_at(const Placed& placed, u32 shard, i64 phase, const CloneLimits& limits) {
  std::vector<i64> src_at;
  for (const TensorRef& tensor : placed.inventory.tensors) src_at.push_back(tensor.offset);
  i64 bytes = 0;
  for (std::size_t t = 0; t < placed.plan.outputs.size(); ++t) {
    const OutputTensor& output = placed.plan.outputs[t];
    if (output.shard != shard) continue;
    const std::size_t first = placed.plan.first_move[t];
    const std::size_t last =
        t + 1 < placed.plan.outputs.size() ? placed.plan.first_move[t + 1] : placed.plan.moves.size();
    const CloneMap map(std::span(placed.plan.moves).subspan(first, last - first), src_at, phase + output.offset,
                       limits);
    for (const CloneRun& run : map.parts(0, output.bytes).cloned) bytes += run.bytes;
  }
  return bytes;
}

TEST(DataPhase, IsThatOfTheTensorThatPassesThrough) {
  Placed placed;
  placed.pass(0, 3 * 4096 + 1016, 8192, i64{1} << 20);
  placed.pass(1, 1016, 4096 - 8, i64{1} << 20);
  placed.pass(2, 8, 16, i64{1} << 20);
  EXPECT_EQ(placed.phases(), (std::vector<i64>{1016, 1024, 4088}));
}

TEST(DataPhase, IsZeroWhereNothingCanBeShared) {
  Placed placed;
  placed.pass(0, 1016, 0, 4000);
  // In no phase that is a multiple of 8.
  placed.pass(1, 1013, 0, i64{1} << 20);
  // Its runs ask for different phases.
  placed.add_source(1016, 1 << 20);
  placed.begin_output(2, 0, 1 << 20);
  Move move;
  move.src = 2;
  move.run_bytes = 1 << 19;
  move.dims[0] = {2, (1 << 19) + 8, 1 << 19};
  placed.add_move(move);
  placed.begin_output(3, 0, 0);
  EXPECT_EQ(placed.phases(), (std::vector<i64>{0, 0, 0, 0}));
  EXPECT_TRUE(choose_data_phases({}, {}).empty());
}

TEST(DataPhase, FollowsTheLongRunsBeforeTheManyShortOnes) {
  Placed placed;
  placed.pass(0, 8, 0, kWorthCloningBytes + 2 * kDataPhaseBytes);
  i64 at = placed.plan.outputs[0].bytes;
  for (int i = 0; i < 100; ++i, at += 65536) placed.pass(0, 16 + at, at, 65536);
  EXPECT_EQ(placed.phases(), (std::vector<i64>{8}));
}

/// Gate and up in turn on both sides are long runs only together.
TEST(DataPhase, CountsRunsThatTouchAsOne) {
  Placed placed;
  placed.add_source(8, i64{1} << 20);
  placed.begin_output(0, 0, i64{1} << 20);
  for (const i64 half : {0, 1}) {
    Move move;
    move.src_offset = move.dst_offset = half * 16384;
    move.run_bytes = 16384;
    move.dims[0] = {32, 32768, 32768};
    placed.add_move(move);
  }
  placed.pass(0, 16 + (i64{1} << 20), i64{1} << 20, kWorthCloningBytes + 2 * kDataPhaseBytes);
  EXPECT_EQ(placed.phases(), (std::vector<i64>{8}));
}

TEST(DataPhase, DoesNotDependOnTheShardsAround) {
  Placed alone, among;
  alone.pass(0, 1016, 0, i64{1} << 20);
  among.pass(0, 2016, 0, i64{1} << 22);
  among.pass(1, 1016, 0, i64{1} << 20);
  among.pass(2, 3016, 0, i64{1} << 22);
  EXPECT_EQ(among.phases()[1], alone.phases()[0]);
}

/// Tensors of random places and lengths, some of them cut in turn from two sources as gate and up are.
Placed random_placed(std::mt19937& random) {
  const auto below = [&](i64 n) { return static_cast<i64>(random() % static_cast<u64>(n)); };
  Placed placed;
  for (u32 shard = 0; shard < 2; ++shard) {
    i64 at = 0;
    const i64 tensors = 1 + below(6);
    for (i64 i = 0; i < tensors; ++i) {
      const i64 run = (1 + below(200)) * kDataPhaseBytes;
      const i64 count = 1 + below(3);
      const i64 begin = 8 * below(4) + 4096 * below(3);
      if (below(2) == 0) {
        const i64 bytes = run + 8 * below(600);
        placed.pass(shard, begin, at, bytes);
        at += bytes;
        continue;
      }
      placed.begin_output(shard, at, 2 * count * run);
      for (const i64 half : {0, 1}) {
        Move move;
        move.src = placed.inventory.tensors.size();
        placed.add_source(begin + half * 8 * below(2), count * run);
        move.dst_offset = half * run;
        move.run_bytes = run;
        if (count > 1) move.dims[0] = {count, run, 2 * run};
        placed.add_move(move);
      }
      at += 2 * count * run;
    }
  }
  return placed;
}

TEST(DataPhase, SharesTheMost) {
  std::mt19937 random(3);
  for (int turn = 0; turn < 60; ++turn) {
    SCOPED_TRACE(turn);
    Placed placed = random_placed(random);
    const auto phases = placed.phases();
    ASSERT_EQ(phases.size(), 2u);
    for (const u32 shard : {0u, 1u}) {
      const auto shared = [&](i64 phase) {
        return std::pair(cloned_at(placed, shard, phase, {}), cloned_at(placed, shard, phase, {kDataPhaseBytes, 0, 0}));
      };
      std::pair<i64, i64> most{-1, -1};
      i64 best = 0;
      for (i64 phase = 0; phase < kDataPhaseBytes; phase += 8)
        if (const auto bytes = shared(phase); bytes > most) {
          most = bytes;
          best = phase;
        }
      EXPECT_EQ(phases[shard], best);
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace glu_ckpt
