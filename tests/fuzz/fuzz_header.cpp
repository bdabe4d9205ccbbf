/// Bytes of a whole safetensors file. Whatever parses must print and parse back to the same tensors.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "format/safetensors_header.hpp"
#include "glu_ckpt/error.hpp"

namespace {

using namespace glu_ckpt;

ParsedHeader parse_file(std::span<const std::byte> bytes) {
  const auto file_bytes = static_cast<i64>(bytes.size());
  const auto prefix = bytes.first(std::min<std::size_t>(bytes.size(), 8));
  const i64 length = check_header_length(prefix, file_bytes, "fuzz");
  const auto json = bytes.subspan(8, static_cast<std::size_t>(length));
  return parse_header({reinterpret_cast<const char*>(json.data()), json.size()}, file_bytes - 8 - length, "fuzz");
}

void require(bool holds) {
  if (!holds) std::abort();
}

void check_round_trip(const ParsedHeader& header) {
  std::vector<OutputTensor> outputs;
  i64 data_bytes = 0;
  for (const TensorRef& tensor : header.tensors) {
    outputs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes, 0, tensor.offset});
    data_bytes += tensor.bytes;
  }
  const std::string printed = print_header(outputs, header.metadata);
  const ParsedHeader back = parse_header(std::string_view(printed).substr(8), data_bytes, "printed");
  require(back.metadata == header.metadata);
  require(back.tensors.size() == header.tensors.size());
  for (std::size_t i = 0; i < back.tensors.size(); ++i) {
    const TensorRef& a = header.tensors[i];
    const TensorRef& b = back.tensors[i];
    require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.offset == b.offset && a.bytes == b.bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ParsedHeader header;
  try {
    header = parse_file(std::as_bytes(std::span(data, size)));
  } catch (const Error&) {
    return 0;
  }
  check_round_trip(header);
  return 0;
}
