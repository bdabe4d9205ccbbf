#include "layout/key_groups.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace glu_ckpt {
namespace {

constexpr i64 kExperts = 12;

/// The names of one layer's tensors, so that a number finds the tensor that a draft has to hold.
std::string name_of(std::string_view before, i64 layer, std::string_view part, i64 expert) {
  return fmt::format("{}decoder.layers.{}.mlp.experts.{}{}", before, layer, part, expert);
}

Inventory inventory_of(const std::vector<std::string>& names) {
  Inventory inventory;
  inventory.files = {"model.safetensors"};
  for (const std::string& name : names) {
    const bool bias = name.find(".bias") != name.npos;
    inventory.tensors.push_back(
        {name, Dtype::BF16, bias ? std::vector<i64>{8} : std::vector<i64>{8, 4}, bias ? 16 : 64});
  }
  return inventory;
}

TEST(KeyGroups, EveryKeyGoesToItsLayerAndExpertInAnyOrder) {
  constexpr std::string_view kParts[] = {"linear_fc1.weight", "linear_fc2.weight", "linear_fc1.bias"};
  std::vector<std::string> names{"embedding.word_embeddings.weight"};
  for (const std::string_view before : {"", "optimizer.state.exp_avg."})
    for (const i64 layer : {0, 3, 12})
      for (const std::string_view part : kParts)
        for (i64 expert = 0; expert < kExperts; ++expert) names.push_back(name_of(before, layer, part, expert));
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    const Inventory inventory = inventory_of(names);
    const KeyGroups keys(inventory, {});
    const auto drafts = keys.drafts(*find_naming("megatron"), std::nullopt);
    ASSERT_EQ(drafts.size(), 6u);
    std::size_t tensors = 0;
    for (const auto& [id, draft] : drafts) {
      const std::string before = draft.block.is_optimizer_state() ? "optimizer.state.exp_avg." : "";
      EXPECT_EQ(draft.block.key_prefix, fmt::format("{}decoder.layers.{}.", before, draft.block.layer));
      ASSERT_EQ(draft.parts.size(), 3u);
      for (const auto& [part, list] : draft.parts) {
        const auto [kind, experts, role] = part;
        const std::string text = fmt::format("linear_fc{}.{}", role == Role::Down ? 2 : 1, to_string(kind));
        EXPECT_EQ(experts, Experts::Indexed);
        EXPECT_EQ(std::ssize(list), kExperts);
        for (const auto& [expert, index] : list)
          EXPECT_EQ(inventory.tensors[index].name, name_of(before, draft.block.layer, text, expert));
        tensors += list.size();
      }
    }
    EXPECT_EQ(tensors, names.size() - 1);
    std::shuffle(names.begin(), names.end(), random);
  }
}

TEST(KeyGroups, SkippedTensorsAreInNoDraft) {
  std::vector<std::string> names;
  for (i64 expert = 0; expert < kExperts; ++expert) names.push_back(name_of("", 1, "linear_fc2.weight", expert));
  const Inventory inventory = inventory_of(names);
  const KeyGroups keys(inventory, {0, 7});
  const auto drafts = keys.drafts(*find_naming("megatron"), std::nullopt);
  ASSERT_EQ(drafts.size(), 1u);
  const auto& [part, list] = *drafts.begin()->second.parts.begin();
  EXPECT_EQ(list.size(), names.size() - 2);
  for (const auto& [expert, index] : list) {
    EXPECT_EQ(expert, static_cast<i64>(index));
    EXPECT_TRUE(index != 0 && index != 7);
  }
}

TEST(KeyGroups, LayersBehindTheMainStackAreOfAnother) {
  const Inventory inventory =
      inventory_of({name_of("", 3, "linear_fc2.weight", 0), name_of("", 5, "linear_fc2.weight", 0)});
  const auto drafts = KeyGroups(inventory, {}).drafts(*find_naming("megatron"), 4);
  ASSERT_EQ(drafts.size(), 2u);
  for (const auto& [id, draft] : drafts) {
    const bool main = draft.block.stack == "decoder";
    EXPECT_EQ(draft.block.layer, main ? 3 : 1);
    EXPECT_EQ(draft.parts.begin()->second.front().second, main ? 0u : 1u);
  }
}

}  // namespace
}  // namespace glu_ckpt
