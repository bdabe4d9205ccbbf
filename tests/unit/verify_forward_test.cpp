/// Running the experts is tested by lying to it, too: what changes the function must change bits.

#include "glu_ckpt/verify_forward.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>

#include "core/float_rows.hpp"
#include "support/lying_model.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

ModelSpec model_of(Dtype dtype = Dtype::F32, bool bias = true, bool gated = true) {
  return lying_model(dtype, bias, gated);
}

/// Elements that say their place become multiples of 1/512 up to 1/4 on both sides of 0, which all dtypes have.
Tensors with_values(Tensors tensors) {
  for (MemoryTensor& tensor : tensors) {
    const auto size = static_cast<std::size_t>(dtype_bits(tensor.dtype) / 8);
    for (std::size_t at = 0; at < tensor.bytes.size(); at += size) {
      u32 code = 0;
      std::memcpy(&code, &tensor.bytes[at], size);
      const u32 hash = (code + 1) * 2654435761U >> 8;
      const float value = (static_cast<float>(hash % 255) - 127) / 512;
      narrow_row({&value, 1}, tensor.dtype, &tensor.bytes[at]);
    }
  }
  return tensors;
}

const Spelling kContiguous{"megatron", Experts::Grouped, Experts::Indexed, contiguous(), contiguous()};
const Spelling kTurns{"megatron", Experts::Indexed, Experts::Grouped, interleaved(1), interleaved(16)};

MemorySource source_of(const ModelSpec& model, const Spelling& spelling) {
  return MemorySource(with_values(build(model, spelling)), {}, record_of(model, spelling));
}

std::vector<LayerForward> forward_of(const MemorySource& a, const MemorySource& b,
                                     const VerifyForwardOptions& options = {}, MlpRunner* runner = nullptr) {
  const Recognition left = recognize_source(a);
  const Recognition right = recognize_source(b);
  if (runner != nullptr) return verify_forward({&a, &left}, {&b, &right}, *runner, options);
  const auto own = make_mlp_runner(test_device() == "cuda:all" ? "cuda" : test_device());
  return verify_forward({&a, &left}, {&b, &right}, *own, options);
}

void expect_same(const std::vector<LayerForward>& layers, std::size_t count) {
  EXPECT_EQ(layers.size(), count);
  for (const LayerForward& layer : layers) {
    SCOPED_TRACE("layer " + layer.layer + " " + layer.set);
    EXPECT_TRUE(layer.ok());
    EXPECT_EQ(layer.fault, "");
    EXPECT_EQ(layer.differing_bits, 0);
    EXPECT_TRUE(layer.control_caught);
    EXPECT_EQ(layer.max_abs, 0);
    EXPECT_EQ(layer.max_rel, 0);
    EXPECT_EQ(layer.first_expert, -1);
    EXPECT_GT(layer.tokens, 0);
  }
}

TEST(VerifyForward, NoBitDiffersBetweenAnyTwoLayouts) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
    for (const bool bias : {false, true}) {
      const ModelSpec model = model_of(dtype, bias);
      for (const Spelling& a : {kA, kIndexed, kGrouped, kContiguous, kTurns})
        for (const Spelling& b : {kA, kIndexed, kGrouped, kContiguous, kTurns}) {
          SCOPED_TRACE(a.describe() + " and " + b.describe());
          expect_same(forward_of(source_of(model, a), source_of(model, b)), 4);
        }
    }
}

TEST(VerifyForward, NeitherDoTransposedOnes) {
  ModelSpec model = model_of(Dtype::BF16);
  std::erase_if(model.blocks, [](const BlockSpec& block) { return block.set == ExpertSet::Shared; });
  const Spelling gpt_oss{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};
  VerifyForwardOptions options;
  options.activation = {ActivationKind::ClampedQuickGeglu, 1.702F, 0.5F, 1};
  for (const Spelling& other : {kIndexed, kContiguous, gpt_oss}) {
    expect_same(forward_of(source_of(model, gpt_oss), source_of(model, other), options), 2);
    options.fp32 = true;
  }
}

TEST(VerifyForward, WithoutAGate) {
  const ModelSpec model = model_of(Dtype::F32, true, false);
  const auto plain = [](Experts experts) {
    return Spelling{"megatron", experts, experts, {Glu::Kind::None, 0}, {Glu::Kind::None, 0}};
  };
  VerifyForwardOptions options;
  options.activation = {ActivationKind::SquaredRelu};
  expect_same(forward_of(source_of(model, plain(Experts::Indexed)), source_of(model, plain(Experts::Grouped)), options),
              4);
}

// ---- lies ---------------------------------------------------------------------------------------

constexpr i64 kElement = 4;
constexpr i64 kRow = kHidden * kElement;

void rotate(MemoryTensor& tensor, i64 bytes) {
  std::rotate(tensor.bytes.begin(), tensor.bytes.begin() + bytes, tensor.bytes.end());
}

/// The model in one layout beside the model in another, with a fault that `lie` plants; the same with A and B
/// exchanged. Returns the blocks in which bits differ: "1/routed/7" for a first expert 7.
std::vector<std::string> lied(const Spelling& spelling, const std::function<void(Tensors&)>& lie) {
  const ModelSpec model = model_of();
  Tensors tensors = with_values(build(model, spelling));
  lie(tensors);
  const MemorySource good = source_of(model, kA);
  const MemorySource bad(tensors, {}, record_of(model, spelling));
  const auto differing = [](const std::vector<LayerForward>& layers) {
    std::vector<std::string> names;
    for (const LayerForward& layer : layers) {
      EXPECT_TRUE(layer.control_caught);
      EXPECT_EQ(layer.ok(), layer.differing_bits == 0);
      EXPECT_EQ(layer.differing_bits > 0, layer.max_abs > 0);
      EXPECT_EQ(layer.differing_bits > 0, layer.differing_experts > 0);
      if (layer.differing_bits > 0)
        names.push_back(layer.layer + "/" + layer.set + "/" + std::to_string(layer.first_expert));
    }
    return names;
  };
  const auto names = differing(forward_of(good, bad));
  EXPECT_EQ(differing(forward_of(bad, good)), names);
  return names;
}

using Names = std::vector<std::string>;

TEST(VerifyForwardLies, GateAndUpSwappedEverywhere) {
  EXPECT_EQ(lied(kIndexed,
                 [](Tensors& tensors) {
                   for (MemoryTensor& tensor : tensors)
                     if (tensor.name.find("mlp.experts.linear_fc1.weight") != std::string::npos)
                       for (const i64 row : {0, 1, 4, 5, 8, 9, 12, 13}) swap_rows(tensor, row, row + 2);
                 }),
            (Names{"1/routed/0", "3/routed/0"}));
}

/// Each expert has tokens, the one that is empty beside the others as well.
TEST(VerifyForwardLies, GateAndUpSwappedInOneExpert) {
  for (i64 e = 0; e < kExperts; ++e)
    EXPECT_EQ(lied(kIndexed,
                   [&](Tensors& tensors) {
                     for (const i64 row : {0, 1, 4, 5, 8, 9, 12, 13}) swap_rows(named(tensors, fc1(e)), row, row + 2);
                   }),
              Names{"1/routed/" + std::to_string(e)});
}

TEST(VerifyForwardLies, AnotherBlockSize) {
  for (const i64 k : {1, 4, 8})
    EXPECT_EQ(lied(kIndexed,
                   [&](Tensors& tensors) {
                     for (i64 e = 0; e < kExperts; ++e) reorder(named(tensors, fc1(e)), 2, k);
                   }),
              Names{"1/routed/0"});
}

TEST(VerifyForwardLies, AnotherBlockSizeOfTheBiasOnly) {
  EXPECT_EQ(lied(kIndexed,
                 [](Tensors& tensors) {
                   swap_rows(named(tensors, fc1(5, "bias")), 2, 4, kElement);
                   swap_rows(named(tensors, fc1(5, "bias")), 3, 5, kElement);
                 }),
            Names{"1/routed/5"});
}

TEST(VerifyForwardLies, TheSharedExpertsRows) {
  EXPECT_EQ(lied(kIndexed,
                 [](Tensors& tensors) {
                   swap_rows(named(tensors, "decoder.layers.3.mlp.shared_experts.linear_fc1.weight"), 0, 4);
                 }),
            Names{"3/shared/0"});
}

/// Blocks of K along the expert axis of a grouped tensor: what code does that knows axis 0 only.
TEST(VerifyForwardLies, ExpertsInterleavedInsteadOfRows) {
  EXPECT_EQ(lied(kGrouped,
                 [](Tensors& tensors) {
                   MemoryTensor& weight = named(tensors, "decoder.layers.1.mlp.experts.linear_fc1.weight");
                   const auto before = weight.bytes;
                   constexpr i64 half = kExperts / 2, k = 2, bytes = 2 * kWidth * kRow;
                   for (i64 p = 0; p < kExperts; ++p)
                     std::copy_n(before.begin() + (p / k % 2 * half + p / (2 * k) * k + p % k) * bytes, bytes,
                                 weight.bytes.begin() + p * bytes);
                 }),
            Names{"1/routed/2"});
}

TEST(VerifyForwardLies, RotatedExperts) {
  EXPECT_EQ(lied(kGrouped,
                 [](Tensors& tensors) {
                   for (const std::string part :
                        {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"}) {
                     MemoryTensor& tensor = named(tensors, "decoder.layers.1.mlp.experts." + part);
                     rotate(tensor, static_cast<i64>(tensor.bytes.size()) / kExperts);
                   }
                 }),
            Names{"1/routed/0"});
}

TEST(VerifyForwardLies, ExpertsAndLayersExchanged) {
  EXPECT_EQ(
      lied(kIndexed, [](Tensors& tensors) { std::swap(named(tensors, fc2(10)).bytes, named(tensors, fc2(2)).bytes); }),
      Names{"1/routed/2"});
  EXPECT_EQ(lied(kIndexed, [](Tensors& tensors) { named(tensors, fc1(7)).bytes = named(tensors, fc1(6)).bytes; }),
            Names{"1/routed/7"});
  EXPECT_EQ(lied(kIndexed,
                 [](Tensors& tensors) {
                   std::swap(named(tensors, fc1(4)).bytes, named(tensors, fc1(4, "weight", 3)).bytes);
                 }),
            (Names{"1/routed/4", "3/routed/4"}));
}

TEST(VerifyForwardLies, RowsOfDown) {
  EXPECT_EQ(lied(kIndexed, [](Tensors& tensors) { rotate(named(tensors, fc2(9)), kRow); }), Names{"1/routed/9"});
  EXPECT_EQ(lied(kIndexed, [](Tensors& tensors) { swap_rows(named(tensors, fc2(11)), 3, 6); }), Names{"1/routed/11"});
  EXPECT_EQ(
      lied(kIndexed,
           [](Tensors& tensors) { std::fill_n(named(tensors, fc2(1)).bytes.begin() + 5 * kRow, kRow, std::byte{0}); }),
      Names{"1/routed/1"});
  EXPECT_EQ(lied(kIndexed,
                 [](Tensors& tensors) {
                   MemoryTensor& weight = named(tensors, fc2(4));
                   const auto before = weight.bytes;
                   for (i64 r = 0; r < kHidden; ++r)
                     for (i64 c = 0; c < kWidth; ++c)
                       std::copy_n(before.begin() + (r * kWidth + c) * kElement, kElement,
                                   weight.bytes.begin() + (c * kHidden + r) * kElement);
                 }),
            Names{"1/routed/4"});
}

/// The last element of each tensor of experts, by its sign.
TEST(VerifyForwardLies, OneBitOfEveryTensor) {
  for (const Spelling& spelling : {kGrouped, kIndexed})
    for (const MemoryTensor& tensor : build(model_of(), spelling)) {
      SCOPED_TRACE(tensor.name);
      EXPECT_EQ(
          lied(spelling, [&](Tensors& tensors) { named(tensors, tensor.name).bytes.back() ^= std::byte{0x80}; }).size(),
          1U);
    }
}

/// In fp32 the lowest bit of a bf16 weight shows; rounded to bf16 the answers need not differ.
TEST(VerifyForwardLies, TheLowestBitOfAWeight) {
  const ModelSpec model = model_of(Dtype::BF16);
  VerifyForwardOptions options;
  options.fp32 = true;
  for (i64 e = 0; e < kExperts; ++e) {
    Tensors tensors = with_values(build(model, kIndexed));
    named(tensors, fc1(e)).bytes[2 * (7 * kHidden + 5)] ^= std::byte{1};
    const auto layers =
        forward_of(source_of(model, kA), MemorySource(tensors, {}, record_of(model, kIndexed)), options);
    EXPECT_GT(layers[0].differing_bits, 0) << "expert " << e;
    EXPECT_EQ(layers[0].first_expert, e);
  }
}

TEST(VerifyForwardLies, DroppedBiases) {
  EXPECT_EQ(lied(kIndexed,
                 [](Tensors& tensors) {
                   std::erase_if(tensors, [](const auto& t) {
                     return t.name.find("layers.3.mlp.experts.linear_fc2.bias") != std::string::npos;
                   });
                 }),
            Names{"3/routed/0"});
}

// ---- the control --------------------------------------------------------------------------------

/// B's weights with one thing changed on both sides.
std::vector<LayerForward> changed_alike(const Spelling& spelling, const std::function<void(Tensors&)>& change,
                                        const VerifyForwardOptions& options = {}) {
  const ModelSpec model = model_of();
  Tensors tensors = with_values(build(model, spelling));
  change(tensors);
  const MemorySource source(tensors, {}, record_of(model, spelling));
  return forward_of(source, source, options);
}

void make_up_gate(Tensors& tensors) {
  for (MemoryTensor& tensor : tensors)
    if (const auto at = tensor.name.find("up_proj"); at != std::string::npos)
      tensor.bytes = named(tensors, tensor.name.substr(0, at) + "gate_proj" + tensor.name.substr(at + 7)).bytes;
}

TEST(VerifyForwardControl, WhatNoLayoutChangesProvesNothing) {
  for (const LayerForward& layer : changed_alike(kA, make_up_gate)) {
    EXPECT_EQ(layer.differing_bits, 0);
    EXPECT_FALSE(layer.control_caught);
    EXPECT_FALSE(layer.ok());
  }
  const auto zeros = [](Tensors& tensors) {
    for (MemoryTensor& tensor : tensors) std::ranges::fill(tensor.bytes, std::byte{0});
  };
  for (const LayerForward& layer : changed_alike(kGrouped, zeros)) EXPECT_FALSE(layer.ok());
}

/// One expert that tells is enough.
TEST(VerifyForwardControl, LooksForAnExpertThatTells) {
  const auto zero_but_last = [](Tensors& tensors) {
    for (MemoryTensor& tensor : tensors)
      if (tensor.name.find("mlp.experts.linear_fc1.weight") != std::string::npos && !tensor.name.ends_with("11"))
        std::ranges::fill(tensor.bytes, std::byte{0});
  };
  VerifyForwardOptions options;
  options.memory_bytes = 1;
  expect_same(changed_alike(kIndexed, zero_but_last), 4);
  expect_same(changed_alike(kIndexed, zero_but_last, options), 4);
}

/// Passes calls on, and looks at them.
class WatchedRunner : public MlpRunner {
 public:
  void run(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs, void* out,
           int) override {
    const std::lock_guard lock(mutex_);
    ++calls;
    most_experts = std::max(most_experts, mlp.experts.size());
    i64 sum = 0;
    for (const i64 split : splits) {
      sum += split;
      if (splits.size() > 1) counts.insert(split);
    }
    EXPECT_EQ(sum, rows);
    for (i64 t = 0; t < rows; ++t) {
      EXPECT_GT(probs[t], 0);
      EXPECT_LT(probs[t], 1);
    }
    answer(mlp, x, rows, splits, probs, out);
  }
  i64 batch_bytes(int) const override { return batch; }
  std::string name() const override { return "watched"; }

  i64 calls = 0;
  std::size_t most_experts = 0;
  std::set<i64> counts;
  i64 batch = i64{1} << 30;

 private:
  std::mutex mutex_;

 protected:
  virtual void answer(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs,
                      void* out) {
    grouped_mlp_host(mlp, x, rows, splits, probs, out, 1);
  }
};

/// Answers that do not depend on the weights: both sides agree, and the control is what tells.
class BlindRunner final : public WatchedRunner {
  void answer(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64>, const float*, void* out) override {
    std::memcpy(out, x, static_cast<std::size_t>(rows * mlp.hidden * dtype_bits(mlp.compute) / 8));
  }
};

TEST(VerifyForwardControl, TellsARunnerThatDoesNotLookAtTheWeights) {
  const ModelSpec model = model_of();
  BlindRunner runner;
  for (const LayerForward& layer : forward_of(source_of(model, kA), source_of(model, kGrouped), {}, &runner)) {
    EXPECT_EQ(layer.differing_bits, 0);
    EXPECT_FALSE(layer.control_caught);
    EXPECT_FALSE(layer.ok());
  }
}

// ---- tokens, batches and memory -----------------------------------------------------------------

TEST(VerifyForward, ExpertsAreEmptyHaveOneTokenAndMore) {
  const ModelSpec model = model_of();
  WatchedRunner runner;
  const auto layers = forward_of(source_of(model, kA), source_of(model, kGrouped), {}, &runner);
  expect_same(layers, 4);
  EXPECT_TRUE(runner.counts.contains(0));
  EXPECT_TRUE(runner.counts.contains(1));
  EXPECT_GT(runner.counts.size(), 4U);
  EXPECT_EQ(runner.most_experts, static_cast<std::size_t>(kExperts));
  EXPECT_GT(layers[0].tokens, 2 * kExperts);
  EXPECT_LT(layers[0].tokens, 6 * kExperts);
}

/// One expert is 3 * 8 * 8 * 4 bytes of weights and 24 * 4 of biases: 864, in memory up to 1024.
TEST(VerifyForward, BatchesStayWithinTheMemory) {
  const ModelSpec model = model_of();
  const MemorySource a = source_of(model, kA);
  const MemorySource b = source_of(model, kGrouped);
  std::vector<i64> tokens;
  for (const i64 memory : {i64{1}, i64{2048}, i64{5000}, i64{10'000}, i64{1} << 20}) {
    WatchedRunner runner;
    VerifyForwardOptions options;
    options.memory_bytes = memory;
    i64 read = 0;
    std::mutex mutex;
    options.on_progress = [&](i64 bytes) {
      const std::lock_guard lock(mutex);
      read += bytes;
    };
    const auto layers = forward_of(a, b, options, &runner);
    expect_same(layers, 4);
    EXPECT_LE(static_cast<i64>(runner.most_experts), std::max<i64>(1, memory / 2 / 864)) << memory;
    EXPECT_GE(static_cast<i64>(runner.most_experts), std::clamp<i64>(memory / 2 / 1216, 1, kExperts)) << memory;
    tokens.push_back(layers[0].tokens);
    const Recognition left = recognize_source(a);
    const Recognition right = recognize_source(b);
    EXPECT_EQ(read, forward_bytes({&a, &left}, {&b, &right}, options));
    EXPECT_EQ(read, a.bytes() + b.bytes());
  }
  EXPECT_EQ(std::set<i64>(tokens.begin(), tokens.end()).size(), 1U);
}

TEST(VerifyForward, TheSeedMakesTheTokens) {
  const ModelSpec model = model_of();
  const auto bits = [&](u64 seed, i64 memory) {
    Tensors tensors = with_values(build(model, kIndexed));
    swap_rows(named(tensors, fc1(3)), 0, 2);
    VerifyForwardOptions options;
    options.seed = seed;
    options.memory_bytes = memory;
    const auto layers =
        forward_of(source_of(model, kA), MemorySource(tensors, {}, record_of(model, kIndexed)), options);
    return std::tuple(layers[0].differing_bits, layers[0].max_abs, layers[0].max_rel);
  };
  EXPECT_EQ(bits(5, 1 << 20), bits(5, 1));
  EXPECT_NE(bits(5, 1 << 20), bits(6, 1 << 20));
}

TEST(VerifyForward, OnlyTheLayersThatWereAskedFor) {
  const ModelSpec model = model_of();
  VerifyForwardOptions options;
  options.layers = "2-7";
  const auto layers = forward_of(source_of(model, kA), source_of(model, kGrouped), options);
  expect_same(layers, 2);
  EXPECT_EQ(layers[0].layer, "3");
  EXPECT_EQ(layers[0].set, "routed");
  EXPECT_EQ(layers[1].set, "shared");
  options.layers = "2";
  expect_error(
      ErrorCode::LayerMissing, [&] { forward_of(source_of(model, kA), source_of(model, kGrouped), options); }, "1, 3");
}

TEST(VerifyForward, NanIsComparedByItsBits) {
  const auto with_nan = [](Tensors& tensors) {
    const u32 nan = 0x7fc0'0001;
    std::memcpy(named(tensors, fc1(3)).bytes.data(), &nan, sizeof nan);
  };
  expect_same(changed_alike(kIndexed, with_nan), 4);
  EXPECT_EQ(lied(kIndexed,
                 [](Tensors& tensors) {
                   const u32 nan = 0x7fc0'0001;
                   std::memcpy(named(tensors, fc2(3)).bytes.data() + kRow, &nan, sizeof nan);
                   named(tensors, fc2(3)).bytes[0] ^= std::byte{0x40};
                 }),
            Names{"1/routed/3"});
}

// ---- what cannot be run -------------------------------------------------------------------------

TEST(VerifyForwardFaults, AreDifferencesAndNoFailures) {
  const auto faults = [](const std::function<void(ModelSpec&)>& change) {
    ModelSpec other = model_of();
    change(other);
    std::vector<std::string> texts;
    for (const LayerForward& layer : forward_of(source_of(model_of(), kA), source_of(other, kIndexed))) {
      EXPECT_EQ(layer.ok(), layer.fault.empty());
      texts.push_back(layer.fault);
    }
    return texts;
  };
  EXPECT_EQ(faults([](ModelSpec& model) { model.blocks[0].widths.push_back(kWidth); }),
            (Names{"experts 12 in A, 13 in B", "", "", ""}));
  EXPECT_EQ(faults([](ModelSpec& model) { model.blocks[2].hidden = model.blocks[3].hidden = 16; }),
            (Names{"", "", "hidden size 8 in A, 16 in B", "hidden size 8 in A, 16 in B"}));
  EXPECT_EQ(faults([](ModelSpec& model) { model.blocks[1].dtype = Dtype::BF16; }),
            (Names{"", "F32 in A, BF16 in B", "", ""}));
  EXPECT_EQ(faults([](ModelSpec& model) { model.blocks.erase(model.blocks.begin() + 1); }),
            (Names{"", "only in A", "", ""}));
  EXPECT_EQ(faults([](ModelSpec& model) { model.blocks[2].layer = model.blocks[3].layer = 2; }),
            (Names{"", "", "only in A", "only in A", "only in B", "only in B"}));
}

/// Another width is another function, but one that can be run.
TEST(VerifyForwardFaults, AnotherWidth) {
  ModelSpec other = model_of();
  other.blocks[0].widths = widths(kExperts, 2 * kWidth);
  const auto layers = forward_of(source_of(model_of(), kA), source_of(other, kIndexed));
  EXPECT_GT(layers[0].differing_bits, 0);
  EXPECT_TRUE(layers[1].ok());
}

TEST(VerifyForwardFaults, WhatCannotBeComputedWithIsRefused) {
  for (const Dtype dtype : {Dtype::F8_E4M3, Dtype::F64}) {
    const ModelSpec model = model_of(dtype);
    const MemorySource a(build(model, kA), {}, record_of(model, kA));
    expect_error(
        ErrorCode::NotSupported, [&] { forward_of(a, a); }, "can be computed");
  }
  const MemorySource dense({{"w", Dtype::F32, {1}, std::vector<std::byte>(4)}});
  expect_error(
      ErrorCode::NoExperts, [&] { forward_of(dense, dense); }, "--forward");
}

}  // namespace
}  // namespace glu_ckpt
