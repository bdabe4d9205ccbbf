#pragma once
/// Tensors as a checkpoint describes them: name, dtype, shape and where the bytes lie.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace glu_ckpt {

using i64 = std::int64_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;

/// The dtypes of the safetensors format, in its enum order, which is also the ascending sort rank
/// of the reference writer (safetensors/src/tensor.rs).
enum class Dtype : std::uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

/// safetensors spelling, e.g. "BF16".
std::string_view dtype_name(Dtype dtype);
/// Bits of one element: 4, 6, 8, 16, 32 or 64.
int dtype_bits(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

/// One stored tensor, row-major and dense. `shape` counts elements (values, also for packed
/// sub-byte dtypes); a scalar has an empty shape.
struct TensorRef {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
  /// Bytes of the whole tensor.
  i64 bytes = 0;
  /// Index into Inventory::files.
  u32 file = 0;
  /// Absolute position of the first byte in that file.
  i64 offset = 0;
};

/// All tensors of a checkpoint and nothing else. Names are unique. Order: file by file, and by
/// offset within each.
struct Inventory {
  std::vector<TensorRef> tensors;
  /// Names as the index or the directory gives them, in the order the shards are read.
  std::vector<std::string> files;
  /// Says whether each tensor is one range of its file. If not, its file and offset are those of its first piece.
  bool dense = true;
};

/// The modulus of data phases: the block in which XFS and btrfs share extents unless they were made otherwise.
inline constexpr i64 kDataPhaseBytes = 4096;

/// One tensor to be written: its place within its shard is fixed before any byte is.
struct OutputTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
  i64 bytes = 0;
  /// Index of the shard, 0-based.
  u32 shard = 0;
  /// Offset in the shard's data section.
  i64 offset = 0;
  /// The source tensor whose place in a nested state dict it takes.
  std::string from{};
};

/// The way in which the elements of a tensor are computed from another's, where they are not the same bytes. Each has
/// one row in core/compute.cpp.
enum class ComputeOp : std::uint8_t {
  /// The bytes as they are.
  None,
  /// x - 1 and x + 1, each rounded once, to F32 where that is the dtype asked for. Megatron-Core's GatedDeltaNet keeps
  /// the weight of its output norm less 1, like that of its other norms; Hugging Face's does not.
  SubtractOne,
  AddOne,
};

/// The text in front of the names of tensors that no map knows, where they travel with a model in another naming.
inline constexpr std::string_view kUnknownPrefix = "glu_ckpt.unknown.";

/// "[64, 4096]".
std::string shape_text(const std::vector<i64>& shape);

}  // namespace glu_ckpt
