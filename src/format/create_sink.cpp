/// create_sink(): one row per format.

#include "format/create_sink.hpp"

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "format/dcp_sink.hpp"
#include "format/safetensors_sink.hpp"
#include "format/torch_sink.hpp"

namespace glu_ckpt {

void check_write_range(const OutputTensor& tensor, i64 offset, i64 count) {
  if (offset < 0 || offset > tensor.bytes || count > tensor.bytes - offset)
    fail(ErrorCode::Io, {{}, tensor.name}, "bytes [{}, {}) were to be written to '{}'; it has {}", offset,
         offset + count, tensor.name, tensor.bytes);
}

i64 count_parameters(const std::vector<OutputTensor>& tensors) {
  i64 total = 0;
  for (const OutputTensor& tensor : tensors) total += checked_product(tensor.shape).value_or(0);
  return total;
}

std::unique_ptr<Sink> create_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors) {
  switch (options.format) {
    case Format::Safetensors: return create_safetensors_sink(options, tensors);
    case Format::Torch: return create_torch_sink(options, tensors);
    case Format::TorchDist: return create_torch_dist_sink(options, tensors);
  }
  return nullptr;
}

}  // namespace glu_ckpt
