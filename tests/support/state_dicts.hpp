#pragma once
/// State dicts written down in a line, and read as one.

#include <string>
#include <vector>

#include "glu_ckpt/megatron.hpp"

namespace glu_ckpt::support {

struct KeyAndShape {
  std::string key;
  std::vector<i64> shape;
};

/// F32 tensors; entry i is source i, from byte 100 * i on.
StateDict state_dict(const std::vector<KeyAndShape>& entries);

/// F32 of this shape, source 0 from byte 0 on.
StateTensor state_tensor(const std::vector<i64>& shape);
/// A GroupedTensor of as many members as axis 0 is long; uint8 storage, one byte an element, if quantized.
StateTensor grouped_object(const std::vector<i64>& shape, bool quantized);

/// "[2, 3] 0:100+24 dequantized": shape, then source:offset+bytes of each piece, then what is special.
std::string text(const StateTensor& tensor);
/// One line "key text" for each entry, in order.
std::string text(const StateDict& dict);
std::vector<std::string> texts(const std::vector<StateTensor>& tensors);

}  // namespace glu_ckpt::support
