/// The verifier is tested by lying to it: each planted fault must be found and named.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>

#include "core/hash.hpp"
#include "support/lying_model.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

ModelSpec model_of() {
  ModelSpec model = lying_model(Dtype::F64);
  model.others = other_tensors();
  model.others.push_back({"decoder.layers.1.mlp.router.weight", Dtype::F32, {kExperts, kHidden}, {}});
  for (i64 i = 0; i < kExperts * kHidden * 4; ++i) model.others.back().bytes.push_back(static_cast<std::byte>(i % 253));
  return model;
}

Verdict verdict_of(const MemorySource& a, const MemorySource& b, const VerifySubset& subset = {}) {
  const Recognition left = recognize_source(a);
  const Recognition right = recognize_source(b);
  ExecuteOptions options;
  options.jobs = 2;
  i64 bytes = 0;
  std::mutex mutex;
  options.on_progress = [&](i64 more) {
    const std::lock_guard lock(mutex);
    bytes += more;
  };
  const Verdict verdict = verify({&a, &left}, {&b, &right}, *make_backend("cpu"), options, subset);
  EXPECT_EQ(bytes, verify_bytes({&a, &left}, {&b, &right}, subset));
  EXPECT_EQ(bytes, verdict.a.bytes + verdict.b.bytes);
  return verdict;
}

/// A is the model in one layout, B the model in another, with a fault that `lie` plants.
Verdict lied(const Spelling& spelling, const std::function<void(Tensors&)>& lie) {
  const ModelSpec model = model_of();
  Tensors tensors = build(model, spelling);
  lie(tensors);
  const Verdict verdict = verdict_of(make_source(model, kA), MemorySource(tensors, {}, record_of(model, spelling)));
  EXPECT_FALSE(verdict.equal);
  EXPECT_FALSE(verdict.same_layout);
  EXPECT_FALSE(verdict.a == verdict.b) << "the digests do not show it";
  return verdict;
}

void drop(Tensors& tensors, const std::string& part) {
  std::erase_if(tensors, [&](const auto& t) { return t.name.find(part) != std::string::npos; });
}

/// "layer/set/expert/role/kind [row, column]".
std::string place(const Verdict& verdict) {
  if (!verdict.first_difference) return "none";
  const Difference& d = *verdict.first_difference;
  const std::string at = "[" + std::to_string(d.row) + ", " + std::to_string(d.column) + "]";
  if (d.role.empty()) return d.tensor + " " + at;
  return d.layer + "/" + d.set + "/" + std::to_string(d.expert) + "/" + d.role + "/" + d.kind + " " + at;
}

std::string hint(const Verdict& verdict) { return verdict.first_difference ? verdict.first_difference->hint : ""; }

void expect_hint(const Verdict& verdict, const std::string& word) {
  EXPECT_NE(hint(verdict).find(word), std::string::npos) << "hint: " << hint(verdict);
}

constexpr i64 kElement = 8;
constexpr i64 kRow = kHidden * kElement;

TEST(Verify, EqualModelsInAnyTwoLayouts) {
  const ModelSpec model = model_of();
  for (const Spelling& a : {kA, kIndexed, kGrouped})
    for (const Spelling& b : {kA, kIndexed, kGrouped}) {
      const Verdict verdict = verdict_of(make_source(model, a), make_source(model, b));
      EXPECT_TRUE(verdict.equal);
      EXPECT_EQ(verdict.a, verdict.b);
      EXPECT_EQ(verdict.differing, 0);
      EXPECT_FALSE(verdict.first_difference);
      EXPECT_EQ(verdict.same_layout, a.describe() == b.describe());
    }
}

// ---- subsets ------------------------------------------------------------------------------------

VerifySubset part_of(i64 part, i64 parts, double percent = 100, u64 seed = 0) {
  VerifySubset subset;
  subset.part = part;
  subset.parts = parts;
  subset.percent = percent;
  subset.seed = seed;
  return subset;
}

/// Of each matrix and tensor one part compares it, the same for any two layouts.
TEST(VerifySubsets, PartsAreAllOfItOnce) {
  const ModelSpec model = model_of();
  const Verdict whole = verdict_of(make_source(model, kA), make_source(model, kIndexed));
  ASSERT_GT(whole.in_both, 20);
  EXPECT_EQ(whole.compared, whole.in_both);
  for (const i64 parts : {i64{1}, i64{2}, i64{7}, whole.in_both, whole.in_both + 3}) {
    Digest sum;
    i64 compared = 0;
    for (i64 part = 1; part <= parts; ++part) {
      const Verdict a = verdict_of(make_source(model, kA), make_source(model, kIndexed), part_of(part, parts));
      const Verdict b = verdict_of(make_source(model, kGrouped), make_source(model, kA), part_of(part, parts));
      EXPECT_TRUE(a.equal);
      EXPECT_EQ(a.a, b.a);
      EXPECT_EQ(a.in_both, whole.in_both);
      EXPECT_LE(a.compared, (whole.in_both + parts - 1) / parts);
      EXPECT_EQ(a.same_layout, false);
      compared += a.compared;
      sum.tensors += a.a.tensors;
      sum.bytes += a.a.bytes;
      const Hash128 both = [&] {
        Hash128 hash{sum.low, sum.high};
        hash += Hash128{a.a.low, a.a.high};
        return hash;
      }();
      sum.low = both.low;
      sum.high = both.high;
    }
    EXPECT_EQ(compared, whole.in_both) << parts;
    EXPECT_EQ(sum, whole.a) << parts;
  }
}

TEST(VerifySubsets, ASampleIsAShareThatTheSeedDraws) {
  const ModelSpec model = model_of();
  const auto drawn = [&](double percent, u64 seed, i64 part = 1, i64 parts = 1) {
    return verdict_of(make_source(model, kA), make_source(model, kGrouped), part_of(part, parts, percent, seed));
  };
  const i64 all = drawn(100, 0).in_both;
  for (const double percent : {0.001, 10.0, 33.3, 99.0}) {
    const Verdict once = drawn(percent, 5);
    EXPECT_TRUE(once.equal);
    EXPECT_EQ(once.compared, static_cast<i64>(std::ceil(static_cast<double>(all) * percent / 100))) << percent;
    EXPECT_EQ(once.a, drawn(percent, 5).a);
    // Parts of a sample are all of the sample.
    EXPECT_EQ(drawn(percent, 5, 1, 3).compared + drawn(percent, 5, 2, 3).compared + drawn(percent, 5, 3, 3).compared,
              once.compared);
  }
  std::set<std::string> different;
  for (u64 seed = 0; seed < 20; ++seed) different.insert(to_string(drawn(10, seed).a));
  EXPECT_GT(different.size(), 15u);
}

TEST(VerifySubsets, WhatIsNoSubsetIsRefused) {
  const ModelSpec model = model_of();
  for (const VerifySubset& subset : {part_of(0, 3), part_of(4, 3), part_of(1, 0), part_of(-1, 3), part_of(1, 1, 0),
                                     part_of(1, 1, -5), part_of(1, 1, std::nan(""))})
    EXPECT_EQ(slug_of([&] { (void)verdict_of(make_source(model, kA), make_source(model, kA), subset); }), "usage");
}

/// One element of one matrix: the one part that has it finds it, by its place, and tells of no other.
TEST(VerifySubsets, AFaultIsInOnePart) {
  const ModelSpec model = model_of();
  Tensors tensors = build(model, kIndexed);
  for (std::size_t t = 0; t < tensors.size(); t += 3) {
    Tensors bad = tensors;
    if (bad[t].bytes.empty()) continue;
    bad[t].bytes.back() ^= std::byte{0x40};
    const MemorySource b(bad, {}, record_of(model, kIndexed));
    const Verdict whole = verdict_of(make_source(model, kA), b);
    i64 found = 0;
    for (i64 part = 1; part <= 5; ++part) {
      const Verdict verdict = verdict_of(make_source(model, kA), b, part_of(part, 5));
      EXPECT_EQ(verdict.equal, verdict.differing == 0);
      if (verdict.equal) continue;
      ++found;
      EXPECT_EQ(place(verdict), place(whole));
    }
    EXPECT_EQ(found, 1) << tensors[t].name;
  }
}

TEST(VerifySubsets, LayersAreTheirExpertsAlone) {
  const ModelSpec model = model_of();
  Tensors tensors = build(model, kIndexed);
  std::set<std::string> labels;
  for (const ExpertBlock& block : recognize_source(make_source(model, kA)).blocks) labels.insert(layer_label(block));
  ASSERT_GT(labels.size(), 1u);
  const std::string first = *labels.begin(), last = *labels.rbegin();
  const auto with_layers = [](const std::string& list) {
    VerifySubset subset;
    subset.layers = list;
    return subset;
  };
  const MemorySource same(tensors, {}, record_of(model, kIndexed));
  i64 compared = 0;
  for (const std::string& label : labels) {
    const Verdict verdict = verdict_of(make_source(model, kA), same, with_layers(label));
    EXPECT_TRUE(verdict.equal);
    EXPECT_GT(verdict.compared, 0);
    compared += verdict.compared;
  }
  // The others are in no layer.
  EXPECT_EQ(compared + std::ssize(model.others), verdict_of(make_source(model, kA), same).in_both);
  const auto in_last = std::ranges::find_if(tensors, [&](const MemoryTensor& tensor) {
    return tensor.name.find("layers." + last + ".mlp.experts") != std::string::npos && !tensor.bytes.empty();
  });
  ASSERT_NE(in_last, tensors.end());
  in_last->bytes[0] ^= std::byte{1};
  tensors.erase(std::ranges::find_if(
      tensors, [](const auto& tensor) { return tensor.name.find("router") != std::string::npos; }));
  const MemorySource bad(tensors, {}, record_of(model, kIndexed));
  EXPECT_TRUE(verdict_of(make_source(model, kA), bad, with_layers(first)).equal);
  const Verdict found = verdict_of(make_source(model, kA), bad, with_layers(first + "," + last));
  EXPECT_EQ(found.differing, 1);
  EXPECT_TRUE(found.missing.empty());
  EXPECT_EQ(found.first_difference->layer, last);
  EXPECT_EQ(verdict_of(make_source(model, kA), bad).missing.size(), 1u);
  for (const auto& [list, error] : {std::pair("77", "layer-missing"), std::pair("1,,2", "usage")})
    EXPECT_EQ(slug_of([&, list = list] { (void)verdict_of(make_source(model, kA), same, with_layers(list)); }), error);
}

// ---- order --------------------------------------------------------------------------------------

TEST(VerifyLies, GateAndUpSwappedEverywhere) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    for (MemoryTensor& tensor : tensors)
      if (tensor.name.find("mlp.experts.linear_fc1.weight") != std::string::npos)
        for (const i64 row : {0, 1, 4, 5, 8, 9, 12, 13}) swap_rows(tensor, row, row + 2);
  });
  EXPECT_EQ(place(verdict), "1/routed/0/gate/weight [0, 0]");
  EXPECT_EQ(verdict.differing, 2 * 2 * kExperts);
  expect_hint(verdict, "gate and up look swapped");
}

TEST(VerifyLies, GateAndUpSwappedInOneExpert) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    for (const i64 row : {0, 1, 4, 5, 8, 9, 12, 13}) swap_rows(named(tensors, fc1(11)), row, row + 2);
  });
  EXPECT_EQ(place(verdict), "1/routed/11/gate/weight [0, 0]");
  EXPECT_EQ(verdict.differing, 2);
  expect_hint(verdict, "gate and up look swapped");
}

TEST(VerifyLies, AnotherBlockSize) {
  for (const i64 k : {1, 4, 8}) {
    const Verdict verdict = lied(kIndexed, [&](Tensors& tensors) {
      for (i64 e = 0; e < kExperts; ++e) reorder(named(tensors, fc1(e)), 2, k);
    });
    EXPECT_EQ(place(verdict), k == 1 ? "1/routed/0/gate/weight [1, 0]" : "1/routed/0/gate/weight [2, 0]");
    expect_hint(verdict, k == 8 ? "contiguous" : "interleaved:" + std::to_string(k));
  }
}

/// Rows that were interleaved already are taken for contiguous ones and interleaved once more.
TEST(VerifyLies, InterleavedTwice) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    for (i64 e = 0; e < kExperts; ++e) reorder(named(tensors, fc1(e)), kWidth, 2);
  });
  EXPECT_EQ(place(verdict), "1/routed/0/gate/weight [2, 0]");
  expect_hint(verdict,
              "as from an FC1 in interleaved:2 order that was read as contiguous; it may have been interleaved");
}

/// Contiguous rows were taken for interleaved ones, and what came out was written in the layout of B.
TEST(VerifyLies, ReadInAnotherOrder) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    for (i64 e = 0; e < kExperts; ++e) {
      reorder(named(tensors, fc1(e)), 2, kWidth);
      reorder(named(tensors, fc1(e)), 1, kWidth);
      reorder(named(tensors, fc1(e)), kWidth, 2);
    }
  });
  expect_hint(verdict, "as from an FC1 in contiguous order that was read as interleaved:1");
}

TEST(VerifyLies, AnotherBlockSizeOfTheBiasOnly) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    MemoryTensor& bias = named(tensors, fc1(5, "bias"));
    swap_rows(bias, 2, 4, kElement);
    swap_rows(bias, 3, 5, kElement);
  });
  EXPECT_EQ(place(verdict), "1/routed/5/gate/bias [2, 0]");
  EXPECT_EQ(verdict.differing, 2);
}

TEST(VerifyLies, TheSharedExpertsBlockSize) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    swap_rows(named(tensors, "decoder.layers.3.mlp.shared_experts.linear_fc1.weight"), 0, 4);
  });
  EXPECT_EQ(place(verdict), "3/shared/0/gate/weight [0, 0]");
}

/// Blocks of K along the expert axis of a grouped tensor: what code does that knows axis 0 only.
TEST(VerifyLies, ExpertsInterleavedInsteadOfRows) {
  const Verdict verdict = lied(kGrouped, [](Tensors& tensors) {
    MemoryTensor& weight = named(tensors, "decoder.layers.1.mlp.experts.linear_fc1.weight");
    const auto before = weight.bytes;
    const i64 half = kExperts / 2;
    constexpr i64 k = 2;
    for (i64 p = 0; p < kExperts; ++p)
      std::copy_n(before.begin() + (p / k % 2 * half + p / (2 * k) * k + p % k) * 2 * kWidth * kRow, 2 * kWidth * kRow,
                  weight.bytes.begin() + p * 2 * kWidth * kRow);
  });
  EXPECT_EQ(place(verdict), "1/routed/2/gate/weight [0, 0]");
  expect_hint(verdict, "experts look reordered");
}

TEST(VerifyLies, RotatedExperts) {
  const Verdict verdict = lied(kGrouped, [](Tensors& tensors) {
    for (const std::string part : {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"}) {
      auto& bytes = named(tensors, "decoder.layers.1.mlp.experts." + part).bytes;
      std::rotate(bytes.begin(), bytes.begin() + static_cast<i64>(bytes.size()) / kExperts, bytes.end());
    }
  });
  EXPECT_EQ(place(verdict), "1/routed/0/gate/weight [0, 0]");
  EXPECT_EQ(verdict.differing, 6 * kExperts);
  expect_hint(verdict, "A's expert 0 is B's expert 11");
}

/// 0, 1, 10, 11, 2, ...: the order of names sorted as text.
TEST(VerifyLies, ExpertsInTheOrderOfText) {
  const Verdict verdict = lied(kGrouped, [](Tensors& tensors) {
    std::vector<std::string> names;
    for (i64 e = 0; e < kExperts; ++e) names.push_back(std::to_string(e));
    std::ranges::sort(names);
    auto& bytes = named(tensors, "decoder.layers.1.mlp.experts.linear_fc2.weight").bytes;
    const auto before = bytes;
    const i64 size = static_cast<i64>(bytes.size()) / kExperts;
    for (i64 e = 0; e < kExperts; ++e)
      std::copy_n(before.begin() + std::stoll(names[static_cast<std::size_t>(e)]) * size, size,
                  bytes.begin() + e * size);
  });
  EXPECT_EQ(place(verdict), "1/routed/2/down/weight [0, 0]");
  expect_hint(verdict, "A's expert 2 is B's expert 4");
}

TEST(VerifyLies, DuplicatedExpert) {
  const Verdict verdict =
      lied(kIndexed, [](Tensors& tensors) { named(tensors, fc1(7)).bytes = named(tensors, fc1(6)).bytes; });
  EXPECT_EQ(place(verdict), "1/routed/7/gate/weight [0, 0]");
  EXPECT_EQ(verdict.differing, 2);
}

TEST(VerifyLies, LayersSwapped) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    std::swap(named(tensors, fc1(0)).bytes, named(tensors, fc1(0, "weight", 3)).bytes);
  });
  EXPECT_EQ(place(verdict), "1/routed/0/gate/weight [0, 0]");
  EXPECT_EQ(verdict.differing, 4);
}

TEST(VerifyLies, TransposedWhereTheShapeFits) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    MemoryTensor& weight = named(tensors, fc2(4));
    const auto before = weight.bytes;
    for (i64 r = 0; r < kHidden; ++r)
      for (i64 c = 0; c < kWidth; ++c)
        std::copy_n(before.begin() + (r * kWidth + c) * kElement, kElement,
                    weight.bytes.begin() + (c * kHidden + r) * kElement);
  });
  EXPECT_EQ(place(verdict), "1/routed/4/down/weight [0, 1]");
  expect_hint(verdict, "transpose");
}

TEST(VerifyLies, RowsShiftedByOne) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    auto& bytes = named(tensors, fc2(9)).bytes;
    std::rotate(bytes.begin(), bytes.begin() + kRow, bytes.end());
  });
  EXPECT_EQ(place(verdict), "1/routed/9/down/weight [0, 0]");
}

// ---- bits ---------------------------------------------------------------------------------------

void flip(MemoryTensor& tensor, std::size_t byte, unsigned bit = 0) {
  tensor.bytes.at(byte) ^= static_cast<std::byte>(1u << bit);
}

TEST(VerifyLies, OneBitOfAWeight) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    // Row 7 is up's row 3 in blocks of two; column 5.
    flip(named(tensors, fc1(10)), 7 * kRow + 5 * kElement + 7, 7);
  });
  EXPECT_EQ(place(verdict), "1/routed/10/up/weight [3, 5]");
  EXPECT_EQ(verdict.differing, 1);
  EXPECT_EQ(verdict.first_difference->tensor, "model.layers.1.mlp.experts.10.up_proj.weight");
  EXPECT_EQ(verdict.first_difference->a.substr(0, 3), "0x0");
  EXPECT_EQ(verdict.first_difference->b.substr(0, 3), "0x8");
  EXPECT_EQ(verdict.first_difference->a.substr(4), verdict.first_difference->b.substr(4));
  EXPECT_EQ(hint(verdict), "");
}

TEST(VerifyLies, OneBitOfABias) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) { flip(named(tensors, fc1(3, "bias")), 4 * kElement); });
  EXPECT_EQ(place(verdict), "1/routed/3/gate/bias [2, 0]");
}

TEST(VerifyLies, OneBitOfTheRouter) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    flip(named(tensors, "decoder.layers.1.mlp.router.weight"), (2 * kHidden + 3) * 4 + 1);
  });
  EXPECT_EQ(place(verdict), "decoder.layers.1.mlp.router.weight [2, 3]");
}

TEST(VerifyLies, OneBitOfTheEmbedding) {
  const Verdict verdict =
      lied(kIndexed, [](Tensors& tensors) { flip(named(tensors, "embed.weight"), 2 * (3 * 4 + 1)); });
  EXPECT_EQ(place(verdict), "embed.weight [4, 1]");
}

/// Two 4-bit values share a byte: the place is counted in values, not in bytes.
TEST(VerifyLies, OneValueOfAPackedTensor) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) { flip(named(tensors, "packed"), 4, 5); });
  EXPECT_TRUE(place(verdict) == "packed [1, 2]" || place(verdict) == "packed [1, 3]") << place(verdict);
}

TEST(VerifyLies, TheLastByteOfEveryTensor) {
  const Tensors tensors = build(model_of(), kGrouped);
  for (const MemoryTensor& tensor : tensors) {
    if (tensor.bytes.empty()) continue;
    SCOPED_TRACE(tensor.name);
    const Verdict verdict =
        lied(kGrouped, [&](Tensors& lie) { flip(named(lie, tensor.name), tensor.bytes.size() - 1, 6); });
    EXPECT_EQ(verdict.differing, 1);
    EXPECT_TRUE(verdict.first_difference);
  }
}

TEST(VerifyLies, ZeroedRow) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    std::fill_n(named(tensors, fc2(1)).bytes.begin() + 5 * kRow, kRow, std::byte{0});
  });
  EXPECT_EQ(place(verdict), "1/routed/1/down/weight [5, 0]");
}

/// Two values that compare equal as numbers, and two that never do, are told apart by their bits.
TEST(VerifyLies, SignOfZeroAndPayloadOfNan) {
  for (const auto& [good, bad] : {std::pair<u64, u64>{0, u64{1} << 63}, {0x7ff8000000000001, 0x7ff8000000000002}}) {
    const ModelSpec model = model_of();
    const auto planted = [&](const Spelling& spelling, const std::string& name, i64 element, u64 bits) {
      Tensors tensors = build(model, spelling);
      std::memcpy(&named(tensors, name).bytes[static_cast<std::size_t>(element * kElement)], &bits, kElement);
      return MemorySource(tensors, {}, record_of(model, spelling));
    };
    const std::string in_a = "model.layers.1.mlp.experts.2.up_proj.weight";
    const MemorySource a = planted(kA, in_a, 3 * kHidden + 6, good);
    EXPECT_TRUE(verdict_of(a, planted(kIndexed, fc1(2), 7 * kHidden + 6, good)).equal);
    const Verdict verdict = verdict_of(a, planted(kIndexed, fc1(2), 7 * kHidden + 6, bad));
    EXPECT_FALSE(verdict.equal);
    EXPECT_EQ(place(verdict), "1/routed/2/up/weight [3, 6]");
  }
}

// ---- what is there --------------------------------------------------------------------------------

TEST(VerifyLies, DroppedBiases) {
  const Verdict verdict =
      lied(kIndexed, [](Tensors& tensors) { drop(tensors, "layers.3.mlp.experts.linear_fc2.bias"); });
  ASSERT_EQ(verdict.missing.size(), static_cast<std::size_t>(kExperts));
  EXPECT_EQ(verdict.missing[0], "layer 3 routed expert 0 down bias F64 [8, 1]");
  EXPECT_TRUE(verdict.extra.empty());
}

TEST(VerifyLies, MissingSharedExpert) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) { drop(tensors, "layers.1.mlp.shared_experts"); });
  ASSERT_EQ(verdict.missing.size(), 6u);
  EXPECT_EQ(verdict.missing[0], "layer 1 shared expert gate weight F64 [16, 8]");
}

TEST(VerifyLies, MissingLastExpert) {
  const auto erase_expert = [](Tensors& tensors) {
    std::erase_if(tensors, [](const auto& t) {
      return t.name.find("layers.1.mlp.experts") != std::string::npos && t.name.ends_with("11");
    });
  };
  // The router beside the experts counts one more, so this is no checkpoint at all.
  EXPECT_THROW(lied(kIndexed, erase_expert), Error);
  const Verdict verdict = lied(kIndexed, [&](Tensors& tensors) {
    erase_expert(tensors);
    std::erase_if(tensors, [](const auto& t) { return t.name.find("layers.1.mlp.router") != std::string::npos; });
  });
  ASSERT_EQ(verdict.missing.size(), 7u);
  EXPECT_NE(verdict.missing[0].find("expert 11"), std::string::npos);
}

TEST(VerifyLies, MissingAndExtraTensors) {
  Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name == "embed.weight"; });
  });
  EXPECT_EQ(verdict.missing, std::vector<std::string>{"embed.weight BF16 [7, 3]"});
  verdict = lied(kIndexed, [](Tensors& tensors) { tensors.push_back({"new", Dtype::U8, {1}, {std::byte{1}}}); });
  EXPECT_EQ(verdict.extra, std::vector<std::string>{"new U8 [1]"});
  // Even one without a byte.
  verdict =
      lied(kIndexed, [](Tensors& tensors) { std::erase_if(tensors, [](const auto& t) { return t.name == "empty"; }); });
  EXPECT_EQ(verdict.missing, std::vector<std::string>{"empty F16 [0, 4]"});
}

TEST(VerifyLies, RenamedReshapedAndRetypedTensors) {
  Verdict verdict = lied(kIndexed, [](Tensors& tensors) { named(tensors, "embed.weight").name = "embedding.weight"; });
  EXPECT_EQ(verdict.missing.size(), 1u);
  EXPECT_EQ(verdict.extra.size(), 1u);
  verdict = lied(kIndexed, [](Tensors& tensors) { named(tensors, "embed.weight").shape = {3, 7}; });
  EXPECT_EQ(verdict.missing.size() + verdict.extra.size(), 2u);
  verdict = lied(kIndexed, [](Tensors& tensors) { named(tensors, "embed.weight").dtype = Dtype::F16; });
  EXPECT_EQ(verdict.missing.size() + verdict.extra.size(), 2u);
  verdict = lied(kIndexed, [](Tensors& tensors) {
    for (i64 e = 0; e < kExperts; ++e) named(tensors, fc2(e)).dtype = Dtype::I64;
  });
  EXPECT_EQ(verdict.missing.size(), static_cast<std::size_t>(kExperts));
  EXPECT_EQ(verdict.extra.size(), static_cast<std::size_t>(kExperts));
}

TEST(VerifyLies, LayersMoved) {
  const Verdict verdict = lied(kIndexed, [](Tensors& tensors) {
    for (MemoryTensor& tensor : tensors)
      if (const auto at = tensor.name.find("decoder.layers.3."); at == 0) tensor.name[15] = '2';
  });
  EXPECT_EQ(verdict.missing.size(), static_cast<std::size_t>(6 * kExperts + 6));
  EXPECT_EQ(verdict.missing.size(), verdict.extra.size());
}

}  // namespace
}  // namespace glu_ckpt
