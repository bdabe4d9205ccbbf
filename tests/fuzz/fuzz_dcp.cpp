/// A .metadata. Whatever is accepted keeps its promises and reads the same from its own print.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "format/dcp_metadata.hpp"
#include "glu_ckpt/error.hpp"

namespace {

using namespace glu_ckpt;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_item(const DcpMetadata& metadata, const DcpItem& item) {
  require(item.file < metadata.files.size() && item.offset >= 0 && item.length >= 0);
}

/// Chunks with elements hold as many as the tensor has.
void check_tensor(const DcpMetadata& metadata, const DcpTensor& tensor) {
  i64 held = 0;
  for (const DcpChunk& chunk : tensor.chunks) {
    check_item(metadata, chunk.item);
    require(chunk.start.size() == tensor.shape.size() && chunk.shape.size() == tensor.shape.size());
    i64 count = 1;
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      require(chunk.start[axis] >= 0 && chunk.start[axis] + chunk.shape[axis] <= tensor.shape[axis]);
      count *= chunk.shape[axis];
    }
    held += count;
  }
  i64 wanted = 1;
  for (const i64 extent : tensor.shape) wanted *= extent;
  require(held == wanted);
}

bool same(const DcpMetadata& a, const DcpMetadata& b) {
  if (a.tensors.size() != b.tensors.size() || a.objects.size() != b.objects.size() || a.paths != b.paths) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i)
    if (a.tensors[i].name != b.tensors[i].name || a.tensors[i].shape != b.tensors[i].shape ||
        a.tensors[i].chunks.size() != b.tensors[i].chunks.size())
      return false;
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  DcpMetadata metadata;
  try {
    metadata = read_dcp_metadata({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  for (const DcpTensor& tensor : metadata.tensors) check_tensor(metadata, tensor);
  for (const DcpObject& object : metadata.objects) check_item(metadata, object.item);
  require(same(metadata, read_dcp_metadata(print_dcp_metadata(metadata), "printed")));
  return 0;
}
