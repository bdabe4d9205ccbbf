#include "format/structure.hpp"

#include <gtest/gtest.h>

namespace glu_ckpt {
namespace {

/// An object's bytes are its number, that many times.
class NumberedObjects final : public ObjectStore {
 public:
  std::vector<std::byte> read(std::size_t number) const override {
    return std::vector<std::byte>(number, static_cast<std::byte>(number));
  }
};

Structure three_objects() {
  const auto store = std::make_shared<NumberedObjects>();
  Structure structure;
  structure.objects = {{"args", 1, store, 1}, {"optimizer.state", 2, store, 2}, {"rng", 3, store, 3}};
  structure.paths = {{"optimizer.state", {{"optimizer", false}}}, {"rng", {{"rng", false}}}};
  return structure;
}

bool is_of_optimizer(std::string_view name) { return name.starts_with("optimizer."); }

TEST(StructureFor, KeepsEverythingWhereNothingIsDropped) {
  for (const Format target : {Format::Safetensors, Format::Torch, Format::TorchDist}) {
    const Structure kept = structure_for(three_objects(), target, {});
    ASSERT_EQ(kept.objects.size(), 3U);
    EXPECT_EQ(kept.paths.size(), 2U);
  }
}

TEST(StructureFor, DroppedObjectsLeaveTheOthersTheirBytes) {
  const Structure kept = structure_for(three_objects(), Format::TorchDist, is_of_optimizer);
  ASSERT_EQ(kept.objects.size(), 2U);
  EXPECT_EQ(kept.objects[0].name, "args");
  EXPECT_EQ(kept.objects[0].read(), std::vector<std::byte>(1, std::byte{1}));
  EXPECT_EQ(kept.objects[1].name, "rng");
  EXPECT_EQ(kept.objects[1].read(), std::vector<std::byte>(3, std::byte{3}));
  EXPECT_FALSE(kept.paths.contains("optimizer.state"));
  EXPECT_TRUE(kept.paths.contains("rng"));
}

/// A dict of two strings, as torch.save pickles it.
TorchTree tree_of_two(std::string prefix) {
  TorchTree tree;
  tree.file = "model_optim_rng.pt";
  tree.prefix = std::move(prefix);
  tree.pickle = std::string("\x80\x02}(X\x01\0\0\0aX\x03\0\0\0oneX\x01\0\0\0bX\x03\0\0\0twou.", 34);
  return tree;
}

TEST(StructureFor, TorchDistHasTheObjectsOfTorchFilesAsEntries) {
  Structure structure;
  structure.trees = {tree_of_two("mp_rank_00/"), tree_of_two("mp_rank_01/")};
  EXPECT_TRUE(structure_for(structure, Format::Safetensors, {}).objects.empty());
  const Structure made = structure_for(structure, Format::TorchDist, {});
  ASSERT_EQ(made.objects.size(), 4U);
  EXPECT_EQ(made.objects[0].name, "mp_rank_00/a");
  EXPECT_EQ(made.objects[3].name, "mp_rank_01/b");
  for (const NamedObject& object : made.objects) {
    const std::vector<std::byte> bytes = object.read();
    EXPECT_EQ(std::ssize(bytes), object.bytes);
    const bool is_first = object.name.ends_with("a");
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_EQ(text.find("one") != std::string::npos, is_first) << object.name;
    EXPECT_EQ(text.find("two") != std::string::npos, !is_first) << object.name;
  }
}

TEST(StructureFor, ATorchFileOfDroppedStateGoes) {
  Structure structure;
  structure.trees = {tree_of_two(""), tree_of_two("optimizer.distrib_optim.")};
  const Structure kept = structure_for(structure, Format::Torch, is_of_optimizer);
  ASSERT_EQ(kept.trees.size(), 1U);
  EXPECT_EQ(kept.trees[0].prefix, "");
}

}  // namespace
}  // namespace glu_ckpt
