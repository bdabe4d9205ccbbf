#include "model/settle_idle.hpp"

#include <algorithm>

namespace glu_ckpt {
namespace {

/// Returns whether all elements are 0, or -0 in a dtype whose sign is the highest bit of an element's last byte.
bool is_zero(const Source& source, std::size_t tensor) {
  const TensorRef& ref = source.inventory().tensors[tensor];
  std::vector<std::byte> bytes(static_cast<std::size_t>(ref.bytes));
  source.read(tensor, 0, bytes);
  constexpr Dtype kSigned[] = {Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16};
  const bool has_sign = std::ranges::find(kSigned, ref.dtype) != std::end(kSigned);
  const auto element_bytes = static_cast<std::size_t>(std::max<i64>(dtype_bits(ref.dtype) / 8, 1));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool is_sign = has_sign && (i + 1) % element_bytes == 0 && bytes[i] == std::byte{0x80};
    if (bytes[i] != std::byte{} && !is_sign) return false;
  }
  return true;
}

}  // namespace

void settle_idle(Checkpoint& checkpoint) {
  std::erase_if(checkpoint.recognition.idle,
                [&](const IdleTensor& idle) { return idle.if_zero && !is_zero(*checkpoint.source, idle.tensor); });
}

void settle_idle_like(const Checkpoint& source, const std::vector<std::size_t>& zeros, const Inventory& inventory,
                      Recognition& recognition) {
  const auto is_idle_in_source = [&](const std::string& name) {
    return std::ranges::any_of(source.recognition.idle, [&](const IdleTensor& idle) {
      return source.source->inventory().tensors[idle.tensor].name == name;
    });
  };
  std::erase_if(recognition.idle, [&](const IdleTensor& idle) {
    return idle.if_zero && !std::ranges::binary_search(zeros, idle.tensor) &&
           !is_idle_in_source(inventory.tensors[idle.tensor].name);
  });
}

}  // namespace glu_ckpt
