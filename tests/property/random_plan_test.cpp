/// Random models, layouts, memory bounds and numbers of workers.

#include <fmt/format.h>

#include <numeric>
#include <random>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr int kCases = 600;

/// One draw; everything follows from the seed, which a failure prints.
struct Case {
  ModelSpec model;
  Spelling from;
  Spelling to;
  ExecuteOptions execution;
  i64 max_shard_bytes = 0;
};

class CaseMaker {
 public:
  explicit CaseMaker(unsigned seed) : random_(seed) {}

  Case make() {
    Case item;
    const Naming& a = naming();
    const Naming& b = naming();
    const bool shared = !a.shared.down.empty() && !b.shared.down.empty() && coin();
    // Experts of different widths can only be indexed, in the source and in the target.
    const bool ragged = coin() && coin();
    gcd_ = 0;
    Dtype dtype = any<Dtype>({Dtype::U8, Dtype::F8_E5M2, Dtype::BF16, Dtype::F32, Dtype::U64});
    const bool bias = coin();
    const i64 layers = 1 + below(3);
    for (i64 layer = 0; layer < layers; ++layer) {
      item.model.blocks.push_back(block(layer, ExpertSet::Routed, ragged, dtype, bias));
      if (!shared) continue;
      const i64 hidden = item.model.blocks.back().hidden;
      item.model.blocks.push_back(block(layer, ExpertSet::Shared, false, dtype, bias && coin()));
      item.model.blocks.back().hidden = hidden;
    }
    if (!a.stacks.front().anchored && !b.stacks.front().anchored && coin()) item.model.scope = "module.module.";
    // Without other layers whose keys are numbered, megatron-dist would stack those of the experts.
    if (coin() || b.stacks_layers) item.model.others = other_tensors();
    item.from = spelling(a, ragged);
    item.to = spelling(b, ragged);
    item.execution.jobs = 1 + static_cast<int>(below(4));
    item.execution.memory_bytes = any<i64>({8 << 10, 64 << 10, 1 << 20});
    item.max_shard_bytes = any<i64>({1, 1000, 20'000, i64{1} << 40});
    return item;
  }

 private:
  i64 below(i64 n) { return static_cast<i64>(random_() % static_cast<unsigned>(n)); }
  bool coin() { return below(2) == 1; }
  template <typename T>
  T any(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<i64>(values.size())))];
  }
  const Naming& naming() { return namings()[static_cast<std::size_t>(below(static_cast<i64>(namings().size())))]; }

  BlockSpec block(i64 layer, ExpertSet set, bool ragged, Dtype dtype, bool bias) {
    BlockSpec block;
    block.layer = layer;
    block.set = set;
    block.dtype = dtype;
    block.bias = bias;
    block.hidden = any<i64>({1, 3, 8, 12, 24, 33});
    const i64 experts = set == ExpertSet::Shared ? 1 : any<i64>({1, 2, 3, 11});
    block.widths = widths(experts, any<i64>({12, 24, 24, 36}));
    if (ragged)
      for (i64& width : block.widths) width = any<i64>({12, 24, 36});
    for (const i64 width : block.widths) gcd_ = std::gcd(gcd_, width);
    return block;
  }

  /// All divisors, so that pairs such as 4 and 6, or 8 and 12, come up.
  Glu glu() {
    if (below(4) == 0) return split();
    if (below(4) == 0) return contiguous();
    i64 k = 0;
    do k = 1 + below(gcd_);
    while (gcd_ % k != 0);
    return interleaved(k);
  }

  Spelling spelling(const Naming& naming, bool indexed_only) {
    const auto experts = [&] { return indexed_only || coin() ? Experts::Indexed : Experts::Grouped; };
    return {std::string(naming.name), experts(), experts(), glu(), glu()};
  }

  std::mt19937 random_;
  i64 gcd_ = 0;
};

TEST(RandomPlan, WritesEveryByteOnceAndInItsPlace) {
  for (unsigned seed = 1; seed <= kCases && !::testing::Test::HasFailure(); ++seed) {
    const Case item = CaseMaker(seed).make();
    SCOPED_TRACE(fmt::format("seed {}: {} blocks, E {}, F {}, H {}, {} jobs, {} bytes of memory", seed,
                             item.model.blocks.size(), item.model.blocks[0].widths.size(),
                             item.model.blocks[0].widths[0], item.model.blocks[0].hidden, item.execution.jobs,
                             item.execution.memory_bytes));
    EXPECT_TRUE(converts(item.model, item.from, item.to, item.execution, item.max_shard_bytes))
        << item.from.describe() << "  ->  " << item.to.describe();
  }
}

/// Blocks of sizes where neither is a multiple of the other.
TEST(RandomPlan, BlockSizesThatDoNotNest) {
  struct Pair {
    i64 from;
    i64 to;
    i64 width;
  };
  for (const Pair pair : {Pair{4, 6, 12}, Pair{6, 4, 12}, Pair{8, 12, 24}, Pair{12, 8, 24}, Pair{10, 4, 20},
                          Pair{9, 6, 36}, Pair{12, 18, 36}, Pair{15, 6, 30}}) {
    for (const std::string naming : {"megatron", "hf:gpt_oss"})
      for (const Experts experts : {Experts::Indexed, Experts::Grouped}) {
        ModelSpec model;
        BlockSpec block;
        block.hidden = 5;
        block.widths = widths(3, pair.width);
        block.bias = true;
        model.blocks.push_back(block);
        ExecuteOptions small;
        small.memory_bytes = 8 << 10;
        EXPECT_TRUE(converts(model, {naming, experts, experts, interleaved(pair.from), split()},
                             {naming, Experts::Grouped, Experts::Indexed, interleaved(pair.to), split()}, small))
            << naming << " " << to_string(experts) << ", K " << pair.from << " to " << pair.to;
      }
  }
}

/// Tensors of many tasks, so that tasks begin and end anywhere within rows, blocks and experts.
TEST(RandomPlan, LargeTensorsInLittleMemory) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = 131;
  block.widths = widths(7, 96);
  block.bias = true;
  block.dtype = Dtype::F32;
  model.blocks.push_back(block);
  const std::vector<Spelling> all{{"megatron", Experts::Indexed, Experts::Grouped, contiguous(), split()},
                                  {"megatron", Experts::Grouped, Experts::Indexed, interleaved(32), split()},
                                  {"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()},
                                  {"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()},
                                  {"hf:llama4_text", Experts::Grouped, Experts::Grouped, contiguous(), split()}};
  for (const Spelling& from : all)
    for (const Spelling& to : all)
      for (const int jobs : {1, 3}) {
        ExecuteOptions execution;
        execution.jobs = jobs;
        execution.memory_bytes = jobs == 1 ? 9001 : 100'003;
        EXPECT_TRUE(converts(model, from, to, execution))
            << from.describe() << "  ->  " << to.describe() << ", " << jobs << " jobs";
      }
}

}  // namespace
}  // namespace glu_ckpt
