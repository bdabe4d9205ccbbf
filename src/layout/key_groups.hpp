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
  std::vector<const KeyPattern*> patterns;
  std::vector<std::size_t> tensors;

  /// The pattern of `naming` that explains these keys, or nullptr.
  const KeyPattern* pattern_of(const Naming& naming) const;
};

/// What identifies a block: state, scope, stack, layer, set.
using BlockId = std::tuple<std::string, std::string, std::string, i64, ExpertSet>;

struct BlockDraft {
  ExpertBlock block;
  BlockParts parts;
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
  /// A key as a key of the model: whole, or without what an optimizer adds to it.
  struct ModelKey {
    StateKey reading;
    KeySkeleton skeleton;
  };

  const TensorRef& tensor(std::size_t index) const { return inventory_.tensors[index]; }
  using GroupIds = std::unordered_map<std::string, std::size_t>;
  void add_key(std::size_t index, GroupIds& ids);
  /// `known` is false where no pattern may explain the key.
  std::size_t group_of(const ModelKey& key, bool known, GroupIds& ids);
  /// Whether a tensor is called like the scales of MXFP8 and is none: many formats call theirs `weight_scale`.
  bool is_foreign_scale(const TensorRef& ref);
  void add_to_drafts(std::map<BlockId, BlockDraft>& drafts, const KeyPattern& pattern, std::size_t index,
                     std::optional<i64> num_hidden_layers) const;
  /// What a tensor with a leading axis of layers should have been; empty where it is sound.
  static std::string stack_fault(const std::map<BlockId, BlockDraft>& drafts, const ExpertBlock& block,
                                 const KeyParts& key, const TensorRef& ref);
  void add_to_draft(std::map<BlockId, BlockDraft>& drafts, ExpertBlock block, const KeyPattern& pattern, i64 expert,
                    std::size_t index) const;

  const Inventory& inventory_;
  /// By tensor.
  std::vector<ModelKey> keys_;
  std::vector<KeyGroup> groups_;
  /// Filled when a key is first asked for.
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace glu_ckpt
