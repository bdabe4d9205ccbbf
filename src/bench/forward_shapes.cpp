#include "bench/forward_shapes.hpp"

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// Gate (half 0) or up (half 1) of the FC1 at `data`.
StoredMatrix fc1_half(const ForwardShape& shape, const std::byte* data, i64 half) {
  const i64 row = shape.hidden * kBf16, block = kBenchBlockRows * row;
  const Placement place{half * block, kBenchBlockRows, 2 * block, row, kBf16};
  return {Dtype::BF16, shape.width, shape.hidden, {data, place}, {}, shape.width};
}

StoredMatrix fc2_matrix(const ForwardShape& shape, const std::byte* data) {
  const i64 row = shape.width * kBf16;
  const Placement place{0, shape.hidden, shape.hidden * row, row, kBf16};
  return {Dtype::BF16, shape.hidden, shape.width, {data, place}, {}, shape.hidden};
}

}  // namespace

std::vector<ForwardShape> forward_shapes() {
  return {{"DeepSeek-V3", 64, 7168, 2048}, {"Qwen3-30B", 128, 2048, 768}, {"Mixtral-8x7B", 8, 4096, 14336}};
}

std::vector<ForwardShape> shapes_named(const std::string& model, const std::string& otherwise) {
  const std::vector<ForwardShape> all = forward_shapes();
  const std::string& wanted = model.empty() ? otherwise : model;
  if (wanted.empty()) return all;
  std::string names;
  for (const ForwardShape& shape : all) {
    if (shape.model == wanted) return {shape};
    names.append(names.empty() ? "" : ", ").append(shape.model);
  }
  fail(ErrorCode::Usage, {}, "--model {}: no such shape; there are {}", wanted, names);
}

std::vector<i64> token_counts(const std::vector<i64>& tokens, const std::vector<i64>& otherwise) {
  for (const i64 count : tokens)
    if (count < 1 || count > i64{1} << 24)
      fail(ErrorCode::Usage, {}, "--tokens {}: tokens per expert are from 1 to {}", count, i64{1} << 24);
  return tokens.empty() ? otherwise : tokens;
}

std::vector<ExpertWeights> grouped_experts(const ForwardShape& shape, const std::byte* fc1, const std::byte* fc2) {
  const i64 matrix_bytes = shape.width * shape.hidden * kBf16;
  std::vector<ExpertWeights> experts(static_cast<std::size_t>(shape.experts));
  for (ExpertWeights& expert : experts) {
    expert.gate = fc1_half(shape, fc1, 0);
    expert.up = fc1_half(shape, fc1, 1);
    expert.down = fc2_matrix(shape, fc2);
    fc1 += 2 * matrix_bytes;
    fc2 += matrix_bytes;
  }
  return experts;
}

}  // namespace glu_ckpt
