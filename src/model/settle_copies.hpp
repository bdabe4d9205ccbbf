#pragma once
/// What only the bytes tell: copies that are none, since a tensor that should repeat another one (TensorCopy) was
/// trained on its own, and tensors that are idle if they are zero.

#include <string>
#include <vector>

#include "glu_ckpt/model.hpp"
#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// A tensor whose bytes differ from those that it should repeat.
struct UnlikeCopy {
  std::string name;
  std::string original;
  /// The first byte that differs, or, of what is `rounded`, 0.
  i64 byte = 0;
  /// One of the two was decoded, and no element differs by more than the rounding of codes.
  bool rounded = false;
};

/// "'a' should repeat 'b', but differs from its byte 7 on".
std::string to_sentence(const UnlikeCopy& copy);

enum class CopyReading {
  Whole,
  /// Some parts of what is large, evenly spread: for plans, which take no time.
  Sample,
};

/// Reads copies of the source and what they should repeat, as a stage.
std::vector<UnlikeCopy> find_unlike_copies(const RunOptions& run, const Source& source,
                                           const std::vector<TensorCopy>& copies,
                                           CopyReading reading = CopyReading::Whole);

/// Takes them out of the recognition's copies, so that they are tensors that no map knows: they have their own place in
/// digests and comparisons.
void take_as_own(const std::vector<UnlikeCopy>& copies, const Inventory& inventory, Recognition& recognition);

/// Does both, tells the observer, and returns what was found.
std::vector<UnlikeCopy> settle_copies(const RunOptions& run, Checkpoint& checkpoint);

/// Does so for two that are compared. A copy that was rounded stays one where the other checkpoint has none, or one
/// that repeats its original. Returns whether some did.
bool settle_copies(const RunOptions& run, Checkpoint& a, Checkpoint& b);

/// Reads the tensors that Recognition::idle has on that condition; those with another element leave it. They are small.
void settle_idle(Checkpoint& checkpoint);

/// Does the same for an output before it can be read: it has these tensors as `source` has them, or they are among its
/// tensors that are `zeros`.
void settle_idle_like(const Checkpoint& source, const std::vector<std::size_t>& zeros, const Inventory& inventory,
                      Recognition& recognition);

}  // namespace glu_ckpt
