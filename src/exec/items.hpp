#pragma once
/// A model as the digest sees it: logical matrices and other tensors, each with an identity that no
/// layout changes.

#include <compare>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/hash.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

struct Item {
  /// The block; null for other tensors.
  const ExpertBlock* block = nullptr;
  const Matrix* matrix = nullptr;
  /// A matrix outside of the experts; null for others.
  const DenseMatrix* dense = nullptr;
  /// The tensor; null for matrices.
  const TensorRef* other = nullptr;
  /// Its name in the model itself, wherever it travelled to.
  std::string_view own_name;
  std::size_t tensor = 0;
  i64 bytes = 0;
  /// Sum of the leaves; filled by hash_items().
  Hash128 sum;

  /// The text that its leaves are seeded with, up to the number of the row or block: dtype and shape included.
  std::string identity() const;
  /// The text for people: "layer 3 routed expert 7 gate weight", or the tensor's name.
  std::string name() const;
  /// Returns the name, then dtype and shape: "... BF16 [768, 2048]".
  std::string label() const;
  /// "3", "mtp.0"; empty for what is in no layer.
  std::string layer() const;
  /// Returns how the elements that are hashed are computed from the stored ones.
  ComputeOp op() const { return dense == nullptr ? ComputeOp::None : dense->op; }
};

/// The order of reports: stack, layer, set, expert, role, kind; the optimizer's states after the weights, state by
/// state; then the matrices outside of the experts by stack, layer and role; other tensors last, by name. Of two
/// checkpoints, equal items come to the same place.
bool is_before(const Item& a, const Item& b);
/// Compares by the same order without dtypes and shapes: equal for one matrix, or tensor, of two checkpoints.
std::weak_ordering compare_places(const Item& a, const Item& b);
/// Returns whether two checkpoints' items are the same matrix, or tensor, whatever it holds.
inline bool is_same_item(const Item& a, const Item& b) { return a.identity() == b.identity(); }

/// Lists the items in that order. They point into both arguments.
std::vector<Item> list_items(const Inventory& inventory, const Recognition& recognition);

/// The items of two lists at equal places side by side, in their order; null where one list has none.
std::vector<std::pair<const Item*, const Item*>> pair_items(const std::vector<Item>& left,
                                                            const std::vector<Item>& right);

/// Tensors that hold no expert matrices are hashed in blocks, so that a difference is located without a second pass.
inline constexpr i64 kLeafBlockBytes = i64{1} << 20;

/// The leaf of row, or block, number `index` of the item with that identity.
Hash128 hash_leaf(std::string_view identity, i64 index, std::span<const std::byte> bytes);

/// Rows of an item as its logical elements, which may be computed from the stored ones. Not every stored element comes
/// back from the computed one: in F32, 0 and -0 both give -1. A row with one that does not is hashed with its stored
/// elements behind the computed ones, so that no two rows are hashed alike.
class LogicalRows {
 public:
  /// Keeps a reference to the item.
  explicit LogicalRows(const Item& item) : item_(item) {}

  ComputeOp op() const { return item_.op(); }
  /// The sum of the leaves of `count` rows from row `first` on. `stored` are rows in [out, in] order.
  Hash128 sum(std::string_view identity, i64 first, i64 count, std::span<const std::byte> stored);
  /// The logical elements of `stored`. Valid until the next call, and as long as `stored`.
  std::span<const std::byte> of(std::span<const std::byte> stored);
  /// Returns whether the stored elements of the last of() come back from the logical ones, bit for bit.
  bool come_back() const { return comes_back_; }
  /// The elements from which `op` makes the logical ones, in the logical dtype: the stored ones of an item that has
  /// that op; of one that stores the logical elements, what a conversion would write for `op`.
  std::span<const std::byte> before(ComputeOp op, std::span<const std::byte> stored);

 private:
  const Item& item_;
  bool comes_back_ = true;
  std::vector<std::byte> computed_;
  std::vector<std::byte> before_;
};

/// Stored rows of one matrix in two models as elements that are equal where, and only where, the rows are hashed alike.
std::pair<std::span<const std::byte>, std::span<const std::byte>> alike_rows(LogicalRows& a,
                                                                             std::span<const std::byte> stored_a,
                                                                             LogicalRows& b,
                                                                             std::span<const std::byte> stored_b);

/// The sum of the leaves of `count` rows of an item, from row `first` on, which follow each other at `rows`.
Hash128 sum_rows(std::string_view identity, i64 first, i64 count, const std::byte* rows, i64 row_bytes);

/// Returns the same matrix, dense in [out, in] order, at the start of tensor 0.
Matrix dense_matrix(const Matrix& matrix);

}  // namespace glu_ckpt
