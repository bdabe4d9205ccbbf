/// Folding and splitting keys on both sides, over random modules and dicts. Every element is known by
/// its position in its source, and the expected place follows from what stack and unbind mean.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/state_dicts.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr int kCases = 500;

/// One U8 element by where it lies.
using Position = std::pair<std::size_t, i64>;

std::vector<Position> positions(const StateTensor& tensor) {
  std::vector<Position> result;
  for (const Piece& piece : tensor.pieces)
    for (i64 i = 0; i < piece.bytes; ++i) result.emplace_back(piece.source, piece.offset + i);
  return result;
}

struct Case {
  i64 experts = 1;
  std::vector<i64> weight_shape;
  bool bias = false;
  std::string prefix;
  /// Indexed, keys in random order, with others between them.
  StateDict dict;
};

class CaseMaker {
 public:
  explicit CaseMaker(unsigned seed) : random_(seed) {}

  Case make() {
    Case item;
    item.experts = 1 + below(12);
    for (i64 rank = below(4); rank > 0; --rank) item.weight_shape.push_back(1 + below(5));
    item.bias = below(2) == 0;
    item.prefix = std::vector<std::string>{
        "", "layer.", "module.decoder.layers.3.mlp.experts.linear_fc1."}[static_cast<std::size_t>(below(3))];
    for (i64 expert = 0; expert < item.experts; ++expert) {
      add(item.dict, item.prefix + "weight" + std::to_string(expert), item.weight_shape);
      if (item.bias) add(item.dict, item.prefix + "bias" + std::to_string(expert), {1 + item.experts});
    }
    for (const std::string other : {"_extra_state", "weight_scale", "biased0"})
      if (below(2) == 0) add(item.dict, item.prefix + other, {1 + below(3)});
    add(item.dict, item.prefix + "weight" + std::to_string(item.experts), item.weight_shape);
    add(item.dict, "elsewhere.x", {2});
    std::shuffle(item.dict.begin(), item.dict.end(), random_);
    return item;
  }

 private:
  i64 below(i64 count) { return std::uniform_int_distribution<i64>(0, count - 1)(random_); }

  /// Bytes in up to three runs of sources of their own.
  void add(StateDict& dict, const std::string& key, const std::vector<i64>& shape) {
    StateTensor tensor;
    tensor.shape = shape;
    i64 left = 1;
    for (const i64 extent : shape) left *= extent;
    while (left > 0) {
      const i64 run = tensor.pieces.size() == 2 ? left : 1 + below(left);
      tensor.pieces.push_back({next_source_++, below(1000), run});
      left -= run;
    }
    dict.push_back({key, tensor});
  }

  std::mt19937 random_;
  std::size_t next_source_ = 0;
};

const StateTensor& find(const StateDict& dict, const std::string& key) {
  const auto entry = std::find_if(dict.begin(), dict.end(), [&](const StateEntry& e) { return e.key == key; });
  if (entry == dict.end()) throw std::runtime_error("no key " + key);
  return entry->tensor;
}

std::string sorted_text(StateDict dict) {
  std::sort(dict.begin(), dict.end(), [](const StateEntry& a, const StateEntry& b) { return a.key < b.key; });
  return text(dict);
}

/// Element i of a stack is element i % n of member i / n.
void expect_stack(const StateDict& folded, const Case& item, const std::string& name) {
  const StateTensor& grouped = find(folded, item.prefix + name);
  std::vector<Position> expected;
  for (i64 expert = 0; expert < item.experts; ++expert) {
    const StateTensor& member = find(item.dict, item.prefix + name + std::to_string(expert));
    for (const Position& position : positions(member)) expected.push_back(position);
    EXPECT_EQ(member.shape, std::vector<i64>(grouped.shape.begin() + 1, grouped.shape.end()));
  }
  EXPECT_EQ(grouped.shape.front(), item.experts);
  EXPECT_EQ(positions(grouped), expected);
}

using Side = StateDict (*)(const StateDict&, const Case&, bool grouped);

StateDict model_leave(const StateDict& dict, const Case& item, bool grouped) {
  return fold_or_split(dict, item.prefix, {item.experts, grouped, grouped, item.bias}, RedundantKeys::Leave);
}

StateDict model_clean_up(const StateDict& dict, const Case& item, bool grouped) {
  return fold_or_split(dict, item.prefix, {item.experts, grouped, grouped, item.bias}, RedundantKeys::CleanUp);
}

StateDict optimizer(const StateDict& dict, const Case& item, bool grouped) {
  std::string path = "module." + item.prefix;
  if (path.ends_with('.')) path.pop_back();
  // The path of a module that has no name of its own.
  if (item.prefix.empty()) path.clear();
  const std::vector<NamedModule> modules{{path, GroupedModule{item.experts, grouped, grouped, item.bias}}};
  return normalize_for_grouped_params(dict, modules);
}

class GroupedKeysProperty : public ::testing::TestWithParam<Side> {};

TEST_P(GroupedKeysProperty, FoldStacksAndSplitGivesEveryTensorBack) {
  CaseMaker maker(3);
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE("case " + std::to_string(number) + " of seed 3");
    const Case item = maker.make();
    const StateDict folded = GetParam()(item.dict, item, true);
    expect_stack(folded, item, "weight");
    if (item.bias) expect_stack(folded, item, "bias");
    EXPECT_EQ(folded.size(), item.dict.size() - static_cast<std::size_t>((item.experts - 1) * (item.bias ? 2 : 1)));
    EXPECT_EQ(text(GetParam()(folded, item, true)), text(folded)) << "folding twice is folding once";
    const StateDict back = GetParam()(folded, item, false);
    EXPECT_EQ(sorted_text(back), sorted_text(item.dict));
    EXPECT_EQ(text(GetParam()(back, item, false)), text(back)) << "splitting twice is splitting once";
    EXPECT_EQ(sorted_text(GetParam()(back, item, true)), sorted_text(folded));
  }
}

/// The keys that no rule touched stand in front, in their old order.
TEST_P(GroupedKeysProperty, OtherKeysKeepTheirOrder) {
  CaseMaker maker(4);
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE("case " + std::to_string(number) + " of seed 4");
    const Case item = maker.make();
    StateDict folded = GetParam()(item.dict, item, true);
    StateDict others = item.dict;
    std::erase_if(others, [&](const StateEntry& entry) {
      return std::none_of(folded.begin(), folded.end(), [&](const StateEntry& e) { return e.key == entry.key; });
    });
    std::vector<std::string> added{item.prefix + "weight"};
    if (item.bias) added.push_back(item.prefix + "bias");
    ASSERT_EQ(folded.size(), others.size() + added.size());
    for (std::size_t i = 0; i < added.size(); ++i) EXPECT_EQ(folded[others.size() + i].key, added[i]);
    folded.resize(others.size());
    EXPECT_EQ(text(folded), text(others));
  }
}

INSTANTIATE_TEST_SUITE_P(Sides, GroupedKeysProperty, ::testing::Values(&model_leave, &model_clean_up, &optimizer));

/// Every split of a tensor covers it, in order, whatever the rule that fitted.
TEST(SplitGroupedProperty, PartsLieEndToEnd) {
  std::mt19937 random(5);
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE("case " + std::to_string(number) + " of seed 5");
    const i64 experts = 1 + static_cast<i64>(random() % 9);
    const i64 rows = static_cast<i64>(random() % 4);
    StateTensor whole;
    whole.shape = {experts * rows, 3};
    for (i64 row = 0; row < experts * rows; ++row) whole.pieces.push_back({static_cast<std::size_t>(row), row, 3});
    std::vector<Position> joined;
    for (const StateTensor& part : split_grouped(whole, "w", experts)) {
      EXPECT_EQ(part.shape, rows == 1 ? std::vector<i64>{3} : (std::vector<i64>{rows, 3}));
      for (const Position& position : positions(part)) joined.push_back(position);
    }
    EXPECT_EQ(joined, positions(whole));
  }
}

}  // namespace
}  // namespace glu_ckpt
