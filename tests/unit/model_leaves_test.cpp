#include <fmt/format.h>

#include <random>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

/// Routed and shared experts with biases, and a tensor of several blocks beside them.
ModelSpec model_of(i64 hidden, i64 width) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = hidden;
  block.widths = widths(4, width);
  block.bias = true;
  block.dtype = Dtype::BF16;
  model.blocks.push_back(block);
  return model;
}

const Spelling kIndexed{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), split()};
const Spelling kGrouped{"megatron", Experts::Grouped, Experts::Grouped, interleaved(4), split()};
const Spelling kPacked{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};
const Spelling kSplit{"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()};

struct Hashed {
  explicit Hashed(const MemorySource& from)
      : source(from), recognition(recognize_source(from)), leaves(from.inventory(), recognition) {}
  const MemorySource& source;
  Recognition recognition;
  ModelLeaves leaves;
};

/// Every tensor cut at places that cut() allows, at random, in a random order.
TEST(ModelLeaves, PiecesCutWhereTheySayGiveTheDigest) {
  std::mt19937 random(1);
  for (const Spelling& spelling : {kIndexed, kGrouped, kPacked}) {
    SCOPED_TRACE(spelling.describe());
    const MemorySource source = make_source(model_of(64, 96), spelling);
    const Hashed hashed(source);
    for (const i64 step : {1, 100, 1000, 20'000, 1'000'000}) {
      LeafSum sum;
      for (std::size_t t = 0; t < source.tensors().size(); ++t) {
        const std::vector<std::byte>& bytes = source.tensors()[t].bytes;
        const auto size = static_cast<i64>(bytes.size());
        for (i64 begin = 0, end = 0; begin < size; begin = end) {
          end = hashed.leaves.cut(t, begin, std::min(size, begin + 1 + static_cast<i64>(random() % step)));
          ASSERT_GT(end, begin);
          ASSERT_LE(end, size);
          hashed.leaves.add(t, begin, std::span(bytes).subspan(begin, end - begin), sum);
        }
      }
      const auto digest = hashed.leaves.digest(sum);
      ASSERT_TRUE(digest) << step;
      EXPECT_EQ(to_string(*digest), to_string(digest_of(source)));
    }
  }
}

TEST(ModelLeaves, ALeafThatIsCutIsMissed) {
  const MemorySource source = make_source(model_of(64, 96), kIndexed);
  const Hashed hashed(source);
  LeafSum sum;
  for (std::size_t t = 0; t < source.tensors().size(); ++t) {
    const std::span<const std::byte> bytes(source.tensors()[t].bytes);
    hashed.leaves.add(t, 0, bytes.first(bytes.size() - 1), sum);
    hashed.leaves.add(t, static_cast<i64>(bytes.size()) - 1, bytes.last(1), sum);
  }
  EXPECT_FALSE(hashed.leaves.digest(sum));
}

/// Of bytes that were read for several ranges, each leaf counts for the range whose moves want it.
TEST(ModelLeaves, WindowsCountWhatTheirMovesRead) {
  const MemorySource source = make_source(model_of(64, 96), kPacked);
  const Hashed hashed(source);
  const Plan plan = make_plan(source.inventory(), hashed.recognition, options_for(model_of(64, 96), kSplit));
  LeafSum sum;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    const std::span<const Move> moves(plan.moves.data() + plan.first_move[t],
                                      plan.moves.data() + plan.first_move[t + 1]);
    for (std::size_t s = 0; s < source.tensors().size(); ++s) {
      std::vector<Move> reads;
      for (const Move& move : moves)
        if (move.src == s) reads.push_back(move);
      if (!reads.empty()) hashed.leaves.add_used(s, 0, source.tensors()[s].bytes, reads, sum);
    }
  }
  const auto digest = hashed.leaves.digest(sum);
  ASSERT_TRUE(digest);
  EXPECT_EQ(to_string(*digest), to_string(digest_of(source)));
}

/// The digests of both sides, from the bytes of a conversion as they pass, for any number of workers and any memory
/// that holds an expert.
TEST(ModelLeaves, AConversionHashesBothSides) {
  const ModelSpec model = model_of(64, 96);
  for (const Spelling& from : {kIndexed, kGrouped, kPacked, kSplit})
    for (const Spelling& to : {kIndexed, kGrouped, kPacked, kSplit}) {
      SCOPED_TRACE(from.describe() + " -> " + to.describe());
      const MemorySource source = make_source(model, from);
      const Hashed in(source);
      const Plan plan = make_plan(source.inventory(), in.recognition, options_for(model, to));
      const MemorySource target(build(model, to), {}, record_of(model, to));
      std::vector<MemoryTensor> outputs;
      for (const OutputTensor& output : plan.outputs) outputs.push_back({output.name, output.dtype, output.shape, {}});
      const Inventory inventory = make_inventory(outputs);
      const Recognition recognition = recognize(inventory, {}, record_of(model, to), {});
      const ModelLeaves out(inventory, recognition);
      for (const int jobs : {1, 3})
        for (const i64 memory_bytes : {i64{300'000}, i64{1} << 30}) {
          ExecuteOptions options;
          options.jobs = jobs;
          options.memory_bytes = memory_bytes;
          options.source_leaves = &in.leaves;
          options.output_leaves = &out;
          MemorySink sink(plan.outputs);
          const RangeSums sums = execute(plan, source, sink, *make_backend(test_device()), options);
          const std::string expected = to_string(digest_of(source));
          ASSERT_TRUE(in.leaves.digest(sums.source)) << memory_bytes;
          ASSERT_TRUE(out.digest(sums.output)) << memory_bytes;
          EXPECT_EQ(to_string(*in.leaves.digest(sums.source)), expected);
          EXPECT_EQ(to_string(*out.digest(sums.output)), expected);
        }
    }
}

}  // namespace
}  // namespace glu_ckpt
