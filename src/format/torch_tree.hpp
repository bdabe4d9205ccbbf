#pragma once
/// The nested objects of a torch file without its tensors: which names its tensors get, and the way back
/// from names to nested objects.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "format/pickle_graph.hpp"
#include "format/torch_tensor.hpp"
#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Tensors found in a file, and the rest of it.
struct TorchContents {
  struct Found {
    /// The keys on the way to it, joined by '.'; the key "model" at the top is left out, as it wraps the model
    /// rather than belongs to its names.
    std::string name;
    PickleRef node;
  };
  std::vector<Found> tensors;
  /// See TorchTree::pickle.
  std::string pickle;
  /// It is true where there is nothing but one dict of tensors.
  bool flat = false;
};

/// Reads all bytes of a tensor, dense and row-major.
using ReadTensor = std::function<std::string(const TorchTensor& tensor, const std::string& name)>;

/// States of random number generators beside a wrapped model ("rng_state") are objects rather than weights:
/// they stay in the tree, bytes and all, for which `read` is called. `part` is what the graph was read from. Throws
/// DuplicateKey, NotSupported, PickleDepth, PickleLimit.
TorchContents read_contents(const PickleGraph& graph, PickleRef root, const InputPart& part, const ReadTensor& read);

/// A small tensor that is kept in a tree.
struct EmbeddedTensor {
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
  std::string bytes;
};

/// Puts nodes for tensors into `graph`.
struct MakeTensor {
  std::function<PickleRef(PickleGraph& graph, std::size_t output)> output;
  /// They stay embedded if this is null.
  std::function<PickleRef(PickleGraph& graph, EmbeddedTensor tensor)> embedded;
};

/// Rebuilds the tree in `graph` with the outputs in place of the tensors that they come from: an output
/// takes the place of `from`, under a key that differs as its name differs from that tensor's. Tensors that
/// no output comes from are left out; outputs from none are added to the model's dict, or the top one.
/// `members` are the outputs that belong to this tree.
PickleRef place_in_tree(const TorchTree& tree, const std::vector<OutputTensor>& outputs,
                        std::span<const std::size_t> members, PickleGraph& graph, const MakeTensor& make);

/// The place that errors about a tree name.
InputPart part_of(const TorchTree& tree);

/// Returns true where there is nothing but one dict of tensors.
bool is_flat_tree(const TorchTree& tree);

/// Returns the same tree with placeholders for the outputs.
TorchTree rename_in_tree(const TorchTree& tree, const std::vector<OutputTensor>& outputs,
                         std::span<const std::size_t> members);

/// The tree without those keys of the top-level dict for which `dropped` holds.
TorchTree without_keys(const TorchTree& tree, const std::function<bool(const std::string& key)>& dropped);

/// Objects of a tree that are no tensors, each with its dotted name: what a torch-dist checkpoint has as
/// entries of their own.
struct TreeObject {
  std::string name;
  PickleRef node;
};
std::vector<TreeObject> objects_of_tree(const PickleGraph& graph, PickleRef root, const InputPart& part);

/// Key of `output` where its source `from` has the key `key`: the part of the name that the two share stays.
std::string renamed_key(const std::string& key, const std::string& from, const std::string& output);

}  // namespace glu_ckpt
