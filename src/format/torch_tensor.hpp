#pragma once
/// Tensors as torch.save pickles them: a call of torch._utils._rebuild_tensor_v2 or _v3 on a storage.

#include <string>
#include <vector>

#include "format/pickle_graph.hpp"
#include "format/tensor_pieces.hpp"
#include "format/torch_dtype.hpp"
#include "glu_ckpt/error.hpp"

namespace glu_ckpt {

struct TorchTensor {
  Dtype dtype = Dtype::U8;
  /// The shape as torch has it: packed dtypes count elements, not values.
  std::vector<i64> shape;
  /// Bytes.
  std::vector<i64> strides;
  /// Bytes from the storage's start to the first element.
  i64 offset = 0;
  /// The storage's record is `data/<key>`.
  std::string storage;
  i64 storage_bytes = 0;
  /// Bytes of what the storage's size is counted in: an element, or 1 where it is untyped.
  i64 storage_unit = 1;

  i64 bytes() const;
  /// The shape that safetensors would have.
  std::vector<i64> value_shape() const;
  /// All of it, in a file where the storage begins at `storage_offset`.
  TensorPiece piece(i64 storage_offset) const;
};

/// Returns true where the node rebuilds a tensor or a parameter, be its kind supported or not.
bool is_tensor(const PickleGraph& graph, PickleRef node);

/// Checks that every element is within the storage. `part` is what the graph was read from; `name` is for messages.
/// Throws NotSupported, TorchObject, TorchStorage, TorchStrides.
TorchTensor read_tensor(const PickleGraph& graph, PickleRef node, const InputPart& part, const std::string& name);

/// The call that rebuilds a dense tensor that fills the storage `key`. `shape` counts values. Throws
/// NotExact where torch has no such dtype.
PickleRef add_tensor(PickleGraph& graph, Dtype dtype, const std::vector<i64>& shape, const std::string& key,
                     const std::string& name);

/// torch.Size(shape).
PickleRef add_size(PickleGraph& graph, const std::vector<i64>& shape);
/// A tuple of integers, torch.Size or not. Throws TorchObject.
std::vector<i64> read_integers(const PickleGraph& graph, PickleRef node, const InputPart& part,
                               const std::string& name);
/// Returns true where the node is this name, e.g. is_global(graph, n, "torch", "Size").
bool is_global(const PickleGraph& graph, PickleRef node, std::string_view module, std::string_view name);

/// Returns the shape in torch elements rather than values. Throws NotExact where a packed last axis is odd.
std::vector<i64> torch_shape(Dtype dtype, const std::vector<i64>& shape, const std::string& name);

}  // namespace glu_ckpt
