#include "support/state_dicts.hpp"

#include <fmt/format.h>

#include <functional>
#include <numeric>

namespace glu_ckpt::support {
namespace {

i64 product(const std::vector<i64>& shape) {
  return std::accumulate(shape.begin(), shape.end(), i64{1}, std::multiplies<>());
}

}  // namespace

StateTensor state_tensor(const std::vector<i64>& shape) {
  StateTensor tensor;
  tensor.dtype = Dtype::F32;
  tensor.shape = shape;
  tensor.pieces = {{0, 0, 4 * product(shape)}};
  return tensor;
}

StateTensor grouped_object(const std::vector<i64>& shape, bool quantized) {
  StateTensor tensor = state_tensor(shape);
  tensor.num_members = shape[0];
  if (!quantized) return tensor;
  tensor.storage = Storage::Quantized;
  tensor.pieces[0].bytes = product(shape);
  return tensor;
}

StateDict state_dict(const std::vector<KeyAndShape>& entries) {
  StateDict dict;
  for (const KeyAndShape& entry : entries) {
    StateTensor tensor = state_tensor(entry.shape);
    tensor.pieces[0].source = dict.size();
    tensor.pieces[0].offset = 100 * static_cast<i64>(dict.size());
    dict.push_back({entry.key, tensor});
  }
  return dict;
}

std::string text(const StateTensor& tensor) {
  std::string line = shape_text(tensor.shape);
  for (const Piece& piece : tensor.pieces) line += fmt::format(" {}:{}+{}", piece.source, piece.offset, piece.bytes);
  if (tensor.storage == Storage::Quantized) line += " quantized";
  if (tensor.storage == Storage::Dequantized) line += " dequantized";
  if (tensor.num_members) line += fmt::format(" grouped({})", *tensor.num_members);
  if (tensor.dtype != Dtype::F32) line += fmt::format(" {}", dtype_name(tensor.dtype));
  return line;
}

std::string text(const StateDict& dict) {
  std::string lines;
  for (const StateEntry& entry : dict) lines += entry.key + " " + text(entry.tensor) + "\n";
  return lines;
}

std::vector<std::string> texts(const std::vector<StateTensor>& tensors) {
  std::vector<std::string> lines;
  for (const StateTensor& tensor : tensors) lines.push_back(text(tensor));
  return lines;
}

}  // namespace glu_ckpt::support
