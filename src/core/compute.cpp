#include "core/compute.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/fail.hpp"
#include "core/float_rows.hpp"

namespace glu_ckpt {
namespace {

float computed_value(ComputeOp op, float value) {
  switch (op) {
    case ComputeOp::None: return value;
    case ComputeOp::SubtractOne: return value - 1.0F;
    case ComputeOp::AddOne: return value + 1.0F;
  }
  return value;
}

std::size_t element_size(Dtype dtype) { return static_cast<std::size_t>(dtype_bits(dtype)) / 8; }

}  // namespace

std::string_view to_string(ComputeOp op) {
  switch (op) {
    case ComputeOp::None: return "unchanged";
    case ComputeOp::SubtractOne: return "x - 1";
    case ComputeOp::AddOne: return "x + 1";
  }
  return {};
}

ComputeOp inverse(ComputeOp op) {
  if (op == ComputeOp::SubtractOne) return ComputeOp::AddOne;
  return op == ComputeOp::AddOne ? ComputeOp::SubtractOne : ComputeOp::None;
}

void compute(ComputeOp op, Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out) {
  if (!is_float(from) || !is_float(to))
    fail(ErrorCode::NotExact, {}, "{} cannot be computed from {} to {}: only BF16, F16 and F32 can", to_string(op),
         dtype_name(from), dtype_name(to));
  constexpr std::size_t kBatch = 1024;
  std::vector<float> values(kBatch);
  const std::size_t count = in.size() / element_size(from);
  for (std::size_t first = 0; first < count; first += kBatch) {
    const std::span batch(values.data(), std::min(kBatch, count - first));
    widen_row(in.data() + first * element_size(from), from, batch);
    for (float& value : batch) value = computed_value(op, value);
    narrow_row(batch, to, out.data() + first * element_size(to));
  }
}

i64 first_lost(ComputeOp op, Dtype from, std::span<const std::byte> in, Dtype to) {
  const std::size_t size = element_size(from), count = in.size() / size;
  std::vector<std::byte> there(count * element_size(to)), back(count * size);
  compute(op, from, in, to, there);
  compute(inverse(op), to, there, from, back);
  for (std::size_t i = 0; i < count; ++i)
    if (std::memcmp(in.data() + i * size, back.data() + i * size, size) != 0) return static_cast<i64>(i);
  return -1;
}

}  // namespace glu_ckpt
