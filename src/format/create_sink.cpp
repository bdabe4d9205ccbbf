/// create_sink(): one row per format.

#include "format/create_sink.hpp"

#include "core/fail.hpp"
#include "format/safetensors_sink.hpp"

namespace glu_ckpt {

void check_write_range(const OutputTensor& tensor, i64 offset, i64 count) {
  if (offset < 0 || offset > tensor.bytes || count > tensor.bytes - offset)
    fail(ErrorCode::Io, {{}, tensor.name}, "bytes [{}, {}) were to be written to '{}'; it has {}", offset,
         offset + count, tensor.name, tensor.bytes);
}

std::unique_ptr<Sink> create_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors) {
  return create_safetensors_sink(options, tensors);
}

}  // namespace glu_ckpt
