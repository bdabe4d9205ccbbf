#pragma once
/// Measures by how much items of two models differ.

#include <span>
#include <utility>

#include "exec/items.hpp"
#include "glu_ckpt/diff.hpp"

namespace glu_ckpt {

/// One item of A and of B; null on the side that lacks it.
using ItemPair = std::pair<const Item*, const Item*>;

/// pair_items(), and what is left alone on both sides though its tensor has the same name: a tensor of a shape that the
/// model's configuration does not expect is recognized on one side only.
std::vector<ItemPair> pair_models(const Model& a, const Model& b, const std::vector<Item>& left,
                                  const std::vector<Item>& right);

/// Says whether a pair is read.
using WantsPair = bool(const ItemPair&);

/// Reads both sides of each pair once, where it is not known to be equal. The result is the same for any number of jobs
/// and any memory.
Diff diff_items(const Model& a, const Model& b, std::span<const ItemPair> pairs, const Backend& backend,
                const ExecuteOptions& options, WantsPair* is_read);

/// Bytes that diff_items() reads.
i64 diff_items_bytes(std::span<const ItemPair> pairs, WantsPair* is_read);

/// Every pair; and those whose sums of leaves, which hash_items() made, differ.
bool any_pair(const ItemPair& pair);
bool hashed_unequal(const ItemPair& pair);

}  // namespace glu_ckpt
