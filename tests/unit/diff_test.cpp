/// What was planted is what diff finds: where, how much of it and by how much, in whatever two layouts.

#include "glu_ckpt/diff.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "support/lying_model.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using namespace support;
using Bytes = std::vector<std::byte>;

void put(MemoryTensor& tensor, i64 index, float value) {
  std::memcpy(tensor.bytes.data() + index * 4, &value, sizeof value);
}

/// Elements are normal numbers of the F32 model, drawn by place, so that figures mean something.
Tensors numbers(const ModelSpec& model, const Spelling& spelling) {
  Tensors tensors = build(model, spelling);
  for (MemoryTensor& tensor : tensors) {
    if (tensor.dtype != Dtype::F32) continue;
    for (i64 i = 0; i < std::ssize(tensor.bytes) / 4; ++i) {
      u32 code = 0;
      std::memcpy(&code, tensor.bytes.data() + i * 4, sizeof code);
      put(tensor, i, 1.0F + static_cast<float>(code % 1009) / 1024);
    }
  }
  return tensors;
}

Diff diff_of(const MemorySource& a, const MemorySource& b, const std::string& pattern = {}, int jobs = 2,
             i64 memory_bytes = i64{1} << 20) {
  const Recognition left = recognize_source(a), right = recognize_source(b);
  ExecuteOptions options;
  options.jobs = jobs;
  options.memory_bytes = memory_bytes;
  return diff({&a, &left}, {&b, &right}, *make_backend("cpu"), options, pattern);
}

const ModelSpec& model_of() {
  static const ModelSpec model = [] {
    ModelSpec made = lying_model(Dtype::F32);
    made.others.push_back({"decoder.layers.1.mlp.router.weight", Dtype::F32, {kExperts, kHidden}, {}});
    made.others.back().bytes.resize(kExperts * kHidden * 4);
    return made;
  }();
  return model;
}

/// A in one layout, B in another with what `plant` plants.
Diff planted(const Spelling& spelling, const std::function<void(Tensors&)>& plant) {
  Tensors tensors = numbers(model_of(), spelling);
  plant(tensors);
  const MemorySource a(numbers(model_of(), kA), {}, record_of(model_of(), kA));
  Diff found = diff_of(a, MemorySource(tensors, {}, record_of(model_of(), spelling)));
  EXPECT_FALSE(found.equal);
  return found;
}

std::string names(const Diff& found) {
  std::string text;
  for (const TensorDiff& tensor : found.tensors) text += (text.empty() ? "" : "; ") + tensor.name;
  return text;
}

TEST(Diff, EqualModelsInAnyTwoLayouts) {
  for (const Spelling& a : {kA, kIndexed, kGrouped})
    for (const Spelling& b : {kA, kIndexed, kGrouped}) {
      const Diff found = diff_of(make_source(model_of(), a), make_source(model_of(), b));
      EXPECT_TRUE(found.equal) << names(found);
      EXPECT_TRUE(found.layers.empty());
      EXPECT_EQ(found.equal_layers, 2);
      // Two layers of 12 experts and a shared one, of three weights and three biases; the router.
      EXPECT_EQ(found.compared, 2 * 13 * 6 + 1);
    }
}

TEST(Diff, OneElement) {
  float was = 0;
  const Diff found = planted(kGrouped, [&](Tensors& tensors) {
    MemoryTensor& fc1 = named(tensors, "decoder.layers.1.mlp.experts.linear_fc1.weight");
    // Up row 5 of expert 3: interleaved:2 has it in the third block of up rows.
    const i64 at = ((3 * 2 * kWidth) + 2 * 4 + 2 + 1) * kHidden + 6;
    std::memcpy(&was, fc1.bytes.data() + at * 4, sizeof was);
    put(fc1, at, -3.5F);
  });
  ASSERT_EQ(names(found), "layer 1 routed expert 3 up weight");
  const TensorDiff& tensor = found.tensors[0];
  EXPECT_EQ(tensor.layer, "1");
  EXPECT_EQ(tensor.expert, 3);
  EXPECT_EQ(tensor.tensor_b, "decoder.layers.1.mlp.experts.linear_fc1.weight");
  ASSERT_TRUE(tensor.elements && tensor.first && tensor.has_numbers);
  EXPECT_EQ(tensor.elements->elements, kWidth * kHidden);
  EXPECT_EQ(tensor.elements->differing, 1);
  const double by = static_cast<double>(was) + 3.5;
  EXPECT_EQ(tensor.elements->max_abs, by);
  EXPECT_EQ(tensor.elements->max_rel, by / static_cast<double>(was));
  EXPECT_EQ(tensor.elements->rms(), std::sqrt(by * by / (kWidth * kHidden)));
  EXPECT_EQ(tensor.first->row, 5);
  EXPECT_EQ(tensor.first->column, 6);
  EXPECT_EQ(tensor.first->b, "0xc0600000");
  EXPECT_EQ(tensor.first->number_b, "-3.5");
  ASSERT_EQ(found.layers.size(), 1u);
  EXPECT_EQ(found.layers[0].layer, "1");
  EXPECT_EQ(found.layers[0].differing, 1);
  EXPECT_EQ(found.layers[0].tensors, 13 * 6);
  EXPECT_EQ(found.layers[0].numbers.max_abs, by);
  EXPECT_EQ(found.equal_layers, 1);
}

TEST(Diff, OneRow) {
  const Diff found = planted(kIndexed, [](Tensors& tensors) {
    for (i64 c = 0; c < kHidden; ++c) put(named(tensors, fc2(4)), 2 * kWidth + c, 4.0F + static_cast<float>(c));
  });
  ASSERT_EQ(names(found), "layer 1 routed expert 4 down weight");
  EXPECT_EQ(found.tensors[0].elements->differing, kWidth);
  EXPECT_EQ(found.tensors[0].first->row, 2);
  EXPECT_EQ(found.tensors[0].first->column, 0);
}

TEST(Diff, TwoExpertsExchanged) {
  const Diff found = planted(
      kIndexed, [](Tensors& tensors) { std::swap(named(tensors, fc2(4)).bytes, named(tensors, fc2(9)).bytes); });
  ASSERT_EQ(found.tensors.size(), 2u);
  EXPECT_TRUE(names(found) == "layer 1 routed expert 4 down weight; layer 1 routed expert 9 down weight")
      << names(found);
  EXPECT_EQ(found.tensors[0].elements->sum_squares, found.tensors[1].elements->sum_squares);
}

TEST(Diff, AMissingBiasAndAnExtraTensorComeFirst) {
  const Diff found = planted(kIndexed, [](Tensors& tensors) {
    put(named(tensors, fc2(4)), 0, 1e9F);
    for (i64 e = 0; e < kExperts; ++e)
      std::erase_if(tensors, [&](const MemoryTensor& tensor) { return tensor.name == fc1(e, "bias"); });
    tensors.push_back({"something.else", Dtype::U8, {3}, Bytes(3)});
  });
  ASSERT_EQ(found.tensors.size(), 2 * kExperts + 2u);
  EXPECT_EQ(found.tensors[0].name, "layer 1 routed expert 0 gate bias");
  EXPECT_EQ(found.tensors[0].only_in, Side::A);
  EXPECT_FALSE(found.tensors[0].elements);
  EXPECT_EQ(found.tensors[2 * kExperts].name, "something.else");
  EXPECT_EQ(found.tensors[2 * kExperts].only_in, Side::B);
  EXPECT_EQ(found.tensors.back().name, "layer 1 routed expert 4 down weight");
  EXPECT_EQ(found.layers[0].only_in_one, 2 * kExperts);
}

/// F32 in A and F64 in B, with the same values but one.
TEST(Diff, AnotherDtypeIsComparedByValue) {
  const Diff found = planted(kIndexed, [](Tensors& tensors) {
    MemoryTensor& tensor = named(tensors, "decoder.layers.1.mlp.router.weight");
    Bytes wide(tensor.bytes.size() * 2);
    for (i64 i = 0; i < std::ssize(tensor.bytes) / 4; ++i) {
      float value = 0;
      std::memcpy(&value, tensor.bytes.data() + i * 4, 4);
      const double as_double = i == 17 ? 0.25 : static_cast<double>(value);
      std::memcpy(wide.data() + i * 8, &as_double, 8);
    }
    tensor.dtype = Dtype::F64;
    tensor.bytes = wide;
  });
  ASSERT_EQ(found.tensors.size(), 1u);
  const TensorDiff& tensor = found.tensors[0];
  EXPECT_EQ(tensor.dtype_a, Dtype::F32);
  EXPECT_EQ(tensor.dtype_b, Dtype::F64);
  EXPECT_EQ(tensor.elements->differing, 1);
  EXPECT_EQ(tensor.elements->max_abs, 0.75);
  EXPECT_EQ(tensor.first->row, 17 / kHidden);
  EXPECT_EQ(tensor.first->column, 17 % kHidden);
}

TEST(Diff, AnotherShapeOrKindIsNotCompared) {
  for (const bool is_shape : {true, false}) {
    const Diff found = planted(kIndexed, [&](Tensors& tensors) {
      MemoryTensor& tensor = named(tensors, "decoder.layers.1.mlp.router.weight");
      if (is_shape)
        tensor.shape = {kHidden, kExperts};
      else
        tensor.dtype = Dtype::I32;
    });
    ASSERT_EQ(found.tensors.size(), 1u);
    EXPECT_FALSE(found.tensors[0].elements);
    EXPECT_FALSE(found.tensors[0].first);
    EXPECT_EQ(found.tensors[0].only_in, std::nullopt);
  }
}

TEST(Diff, APatternChoosesByAnyName) {
  const MemorySource a = make_source(model_of(), kA), b = make_source(model_of(), kGrouped);
  // By A's tensors, by B's, by the logical name.
  EXPECT_EQ(diff_of(a, b, "*.experts.3.gate_proj.*").compared, 2 * 2);
  EXPECT_EQ(diff_of(a, b, "decoder.layers.1.*.experts.linear_fc1.bias").compared, 2 * kExperts);
  EXPECT_EQ(diff_of(a, b, "layer 3 * down weight").compared, kExperts + 1);
  EXPECT_EQ(slug_of([&] { (void)diff_of(a, b, "nothing*"); }), "usage");
}

TensorDiff changed(const std::string& layer, i64 expert, const std::string& name, double distance) {
  TensorDiff tensor;
  tensor.name = name;
  tensor.layer = layer;
  tensor.expert = expert;
  tensor.has_numbers = true;
  tensor.elements = ElementDiff{.elements = 4, .differing = 4, .sum_squares = distance * distance, .squares_a = 1};
  return tensor;
}

TEST(Diff, ExpertsAreGatheredAndTheFurthestNamed) {
  std::vector<TensorDiff> tensors;
  for (i64 expert = 0; expert < 9; ++expert)
    for (const char* part : {" gate weight", " up weight"})
      tensors.push_back(changed("2", expert, "layer 2 routed expert " + std::to_string(expert) + part, 0.01));
  tensors[7].elements->sum_squares = 0.25;
  tensors.push_back(changed("", -1, "model.norm.weight", 0.3));
  // What was 0 is not compared with the rest.
  tensors.push_back(changed("", -1, "bias", 0.3));
  tensors.back().elements->squares_a = 0;
  const std::vector<ChangedPart> parts = changed_parts(tensors);
  ASSERT_EQ(parts.size(), 11u);
  EXPECT_EQ(parts[3].name, "layer 2 routed expert 3");
  EXPECT_EQ(parts[3].tensor, 6u);
  EXPECT_EQ(parts[3].tensors, 2);
  EXPECT_EQ(parts[3].numbers.elements, 8);
  const std::vector<ChangedPart> far = far_off(tensors);
  ASSERT_EQ(far.size(), 2u);
  EXPECT_EQ(far[0].name, "layer 2 routed expert 3");
  EXPECT_NEAR(far[0].numbers.relative_norm(), std::sqrt(0.2501 / 2), 1e-12);
  EXPECT_NEAR(far[0].times, std::sqrt(0.2501 / 2) / 0.01, 1e-9);
  EXPECT_EQ(far[1].name, "model.norm.weight");
  EXPECT_TRUE(far_off({tensors.begin(), tensors.begin() + 16}).empty());
  // No norm shows a NaN, and nothing is worse.
  tensors[11].elements->nan_in_one = 1;
  EXPECT_EQ(far_off(tensors)[0].name, "layer 2 routed expert 5");
  EXPECT_EQ(far_off(tensors)[0].times, 0);
  EXPECT_EQ(far_off(tensors)[1].name, "layer 2 routed expert 3");
}

/// Sums are made in one order: any number of threads and any memory give the same bits.
TEST(Diff, JobsAndMemoryDoNotMatter) {
  ModelSpec model = model_of();
  model.others.push_back({"long", Dtype::F32, {5000}, Bytes(20000)});
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  Tensors left = numbers(model, kA), right = numbers(model, kGrouped);
  for (MemoryTensor& tensor : right)
    for (i64 i = 0; i < std::ssize(tensor.bytes) / 4; ++i)
      // Batches and groups that are equal count in the norms, too.
      if (tensor.name != "long" || i < 100 || i > 4000) put(tensor, i, normal(random));
  const MemorySource a(left, {}, record_of(model, kA)), b(right, {}, record_of(model, kGrouped));
  const Diff once = diff_of(a, b, {}, 1, i64{1} << 30);
  EXPECT_EQ(std::ssize(once.tensors), once.compared);
  for (const auto& [jobs, memory] : {std::pair(1, i64{1}), std::pair(2, i64{1} << 16), std::pair(4, i64{1} << 20)}) {
    const Diff again = diff_of(a, b, {}, jobs, memory);
    ASSERT_EQ(again.tensors.size(), once.tensors.size());
    for (std::size_t i = 0; i < once.tensors.size(); ++i) {
      EXPECT_EQ(again.tensors[i].name, once.tensors[i].name);
      EXPECT_EQ(again.tensors[i].elements->sum_squares, once.tensors[i].elements->sum_squares);
      EXPECT_EQ(again.tensors[i].elements->squares_a, once.tensors[i].elements->squares_a);
      EXPECT_EQ(again.tensors[i].elements->squares_b, once.tensors[i].elements->squares_b);
      EXPECT_EQ(again.tensors[i].elements->max_rel, once.tensors[i].elements->max_rel);
    }
  }
}

}  // namespace
}  // namespace glu_ckpt
