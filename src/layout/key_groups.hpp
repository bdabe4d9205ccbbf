#pragma once
/// The keys of an inventory, grouped by what they look like, and the blocks that a naming makes of them.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "layout/expert_block.hpp"
#include "layout/key_pattern.hpp"
#include "layout/optimizer_names.hpp"

namespace glu_ckpt {

/// Keys of one skeleton share their patterns, so patterns are matched once per skeleton.
struct KeyGroup {
  /// The reading of the group's first key as a key of the model. The others have the same text before and after theirs.
  StateKey reading;
  std::vector<const KeyPattern*> patterns;
  std::vector<std::size_t> tensors;

  /// The pattern of `naming` that explains these keys, or nullptr.
  const KeyPattern* pattern_of(const Naming& naming) const;
  /// The key of the model in the key of one of its tensors: all of it, but for what an optimizer adds.
  std::string_view model_key(std::string_view name) const {
    return name.substr(reading.before.size(), name.size() - reading.before.size() - reading.after.size());
  }
};

/// The identity of a block: state, scope, stack, layer, set.
using BlockId = std::tuple<std::string, std::string, std::string, i64, ExpertSet>;

struct BlockDraft {
  ExpertBlock block;
  BlockParts parts;
};

/// One part of a draft.
struct PartDraft {
  const ExpertBlock* block = nullptr;
  PartTensors* tensors = nullptr;
};

class KeyGroups {
 public:
  /// Leaves the tensors `skipped` (sorted) out.
  KeyGroups(const Inventory& inventory, const std::vector<std::size_t>& skipped);

  const Inventory& inventory() const { return inventory_; }
  const std::vector<KeyGroup>& groups() const { return groups_; }
  /// A key that some row explains, or nullptr.
  const TensorRef* any_explained() const;
  /// The first key of an expert that `naming` cannot explain, although some row can; nullptr if none.
  const TensorRef* first_unexplained(const Naming& naming) const;
  /// The tensors that `naming` explains, block by block. Layers of the main stack from `num_hidden_layers`
  /// on are MTP layers. Throws RedundantKeys where one layer is present twice.
  std::map<BlockId, BlockDraft> drafts(const Naming& naming, std::optional<i64> num_hidden_layers) const;

 private:
  /// Finds groups while keys are added.
  struct GroupFinder {
    std::unordered_map<std::string, std::size_t> numbers;
    /// Used again for each key.
    KeySkeleton skeleton;
    std::string id;
  };

  const TensorRef& tensor(std::size_t index) const { return inventory_.tensors[index]; }
  void add_key(std::size_t index, GroupFinder& finder);
  KeyGroup& group_of(const StateKey& reading, GroupFinder& finder);
  /// The tensors of a group, each to the block that its pattern says.
  void add_group(std::map<BlockId, BlockDraft>& drafts, const KeyGroup& group, const KeyPattern& pattern,
                 std::optional<i64> num_hidden_layers) const;
  /// The parts, one for each layer that the tensor holds, that it and all keys of the group with the same `prefix` in
  /// front of the expert part belong to.
  std::vector<PartDraft> parts_of(std::map<BlockId, BlockDraft>& drafts, const KeyGroup& group,
                                  const KeyPattern& pattern, std::string_view prefix, std::size_t index,
                                  std::optional<i64> num_hidden_layers) const;
  /// Says what a tensor with a leading axis of layers should have been; empty where it is sound.
  static std::string stack_fault(const std::map<BlockId, BlockDraft>& drafts, const ExpertBlock& block,
                                 std::string_view stack, const TensorRef& ref);
  PartDraft part_of(std::map<BlockId, BlockDraft>& drafts, const ExpertBlock& block, const KeyPattern& pattern,
                    std::size_t index) const;

  const Inventory& inventory_;
  std::vector<KeyGroup> groups_;
};

}  // namespace glu_ckpt
