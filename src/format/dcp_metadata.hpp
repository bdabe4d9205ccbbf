#pragma once
/// `.metadata` of torch.distributed.checkpoint: which tensors and objects there are and where their chunks lie.
/// Opens no file, so that it can be fuzzed as it is.

#include <map>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

inline constexpr std::string_view kDcpMetadataName = ".metadata";
inline constexpr i64 kMaxDcpMetadataBytes = i64{1} << 30;

/// The place of an entry: one zip inside a .distcp file.
struct DcpItem {
  /// Index into DcpMetadata::files.
  u32 file = 0;
  i64 offset = 0;
  i64 length = 0;
  /// Position in `.metadata` of what says so, for errors.
  u32 listed_at = 0;
};

/// A box of a tensor. Start and shape count torch elements.
struct DcpChunk {
  std::vector<i64> start;
  std::vector<i64> shape;
  DcpItem item;
  /// Position in `.metadata`, as DcpItem::listed_at.
  u32 listed_at = 0;
};

struct DcpTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  /// Torch elements.
  std::vector<i64> shape;
  /// The chunks by ascending start.
  std::vector<DcpChunk> chunks;
  /// Position in `.metadata`, as DcpItem::listed_at.
  u32 listed_at = 0;
};

struct DcpObject {
  std::string name;
  DcpItem item;
  /// Position in `.metadata`, as DcpItem::listed_at.
  u32 listed_at = 0;
};

struct DcpMetadata {
  /// The tensors in the order of the file.
  std::vector<DcpTensor> tensors;
  std::vector<DcpObject> objects;
  /// Paths relative to the directory.
  std::vector<std::string> files;
  /// planner_data, where there is one.
  std::map<std::string, KeyPath> paths;
  bool has_planner_data = false;
};

/// Every tensor's chunks tile it, each has one item, and each item is of one of them. `file` is for messages.
/// Throws DcpMetadata, NotSupported, IndexPath, ShapeOverflow, ChunkBounds, ChunkOverlap, ChunkHole and the errors of
/// read_pickle().
DcpMetadata read_dcp_metadata(std::string text, const std::string& file);

/// Throws DcpItemOverlap where two items share bytes. Apart from the rest, as the source can say more where they do.
void check_item_overlaps(const DcpMetadata& metadata, const std::string& file);

/// Prints the metadata for the loaders of Megatron and PyTorch: protocol 2, without the plans of the ranks.
std::string print_dcp_metadata(const DcpMetadata& metadata);

/// Throws ChunkBounds, ChunkOverlap, ChunkHole unless the chunks tile `tensor.shape`. Chunks without elements do not
/// count.
void check_tiling(const DcpTensor& tensor, const InputPart& part);

}  // namespace glu_ckpt
