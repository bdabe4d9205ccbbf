#pragma once
/// The digest, and its leaves in bytes that pass.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Layout-invariant fingerprint: the sum mod 2^128 of one XXH3-128 leaf per matrix row and per 1 MiB
/// block of every other tensor (docs/digest.md).
struct Digest {
  u64 low = 0;
  u64 high = 0;
  /// Logical matrices plus other tensors.
  i64 tensors = 0;
  i64 bytes = 0;
  bool operator==(const Digest&) const = default;
};

/// "gck2:<32 hex>:<tensors>:<bytes>".
std::string to_string(const Digest& digest);
std::optional<Digest> parse_digest(std::string_view text);

/// Leaves of the digest, summed mod 2^128, how many they are, and of how many bytes.
struct LeafSum {
  u64 low = 0;
  u64 high = 0;
  i64 leaves = 0;
  i64 bytes = 0;
  LeafSum& operator+=(const LeafSum& other);
  bool operator==(const LeafSum&) const = default;
};

/// The leaves of a model whose bytes pass somewhere else, such as a conversion's, in any order. It finds them through
/// the placements of its own recognition, never through a plan. Thread safe.
class ModelLeaves {
 public:
  /// Keeps references to both.
  ModelLeaves(const Inventory& inventory, const Recognition& recognition);
  ~ModelLeaves();
  ModelLeaves(const ModelLeaves&) = delete;
  ModelLeaves& operator=(const ModelLeaves&) = delete;

  /// Adds every leaf that lies wholly in `bytes`, which begin at `offset` of `tensor`.
  void add(std::size_t tensor, i64 offset, std::span<const std::byte> bytes, LeafSum& sum) const;
  /// Adds only those leaves that `moves` read; their offsets count from the tensor's first byte.
  void add_used(std::size_t tensor, i64 offset, std::span<const std::byte> bytes, std::span<const Move> moves,
                LeafSum& sum) const;
  /// Returns where to cut [begin, end) of a tensor so that no leaf is cut: the last such place at or before `end`, else
  /// the first one behind it, else `end`.
  i64 cut(std::size_t tensor, i64 begin, i64 end) const;
  /// The model's digest, where `sum` has as many leaves, of as many bytes, as the model. Absent where some passed in
  /// parts only, such as rows of a transposed matrix that no buffer held whole.
  std::optional<Digest> digest(const LeafSum& sum) const;
  /// A digest of this model's size, whose sum is 0: as long, printed, as the real one.
  Digest blank() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// A model without its bytes: tensors by name, dtype and shape, and what was recognized in them. Owned by somebody
/// else.
struct ModelShape {
  const Inventory& inventory;
  const Recognition& recognition;
};

/// The first matrix or tensor that one of two models has and the other lacks, by its label; empty where both consist of
/// the same ones.
std::string first_unlike(const ModelShape& a, const ModelShape& b);

}  // namespace glu_ckpt
