#pragma once
/// A model at sizes at which faults keep every shape as it was, and what plants them.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/convert.hpp"

namespace glu_ckpt::support {

using Tensors = std::vector<MemoryTensor>;

inline constexpr i64 kExperts = 12;
inline constexpr i64 kWidth = 8;
inline constexpr i64 kHidden = 8;

/// Layers 1 and 3, with a shared expert each. H = F, and E a multiple of 2K for K = 2.
inline ModelSpec lying_model(Dtype dtype, bool bias = true, bool gated = true) {
  ModelSpec model;
  for (const i64 layer : {1, 3}) {
    BlockSpec block;
    block.layer = layer;
    block.hidden = kHidden;
    block.widths = widths(kExperts, kWidth);
    block.bias = bias;
    block.gated = gated;
    block.dtype = dtype;
    model.blocks.push_back(block);
    block.set = ExpertSet::Shared;
    block.widths = {16};
    model.blocks.push_back(block);
  }
  return model;
}

inline const Spelling kA{"hf:deepseek_v3", Experts::Indexed, Experts::Indexed, split(), split()};
inline const Spelling kIndexed{"megatron", Experts::Indexed, Experts::Indexed, interleaved(2), interleaved(4)};
inline const Spelling kGrouped{"megatron", Experts::Grouped, Experts::Grouped, interleaved(2), interleaved(4)};

inline MemoryTensor& named(Tensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &MemoryTensor::name);
  if (found == tensors.end()) throw std::logic_error("no tensor " + name);
  return *found;
}

/// Of kIndexed.
inline std::string fc1(i64 expert, const std::string& kind = "weight", i64 layer = 1) {
  return "decoder.layers." + std::to_string(layer) + ".mlp.experts.linear_fc1." + kind + std::to_string(expert);
}
inline std::string fc2(i64 expert) { return "decoder.layers.1.mlp.experts.linear_fc2.weight" + std::to_string(expert); }

/// Of a weight with kHidden columns.
inline i64 row_bytes_of(const MemoryTensor& tensor) { return kHidden * dtype_bits(tensor.dtype) / 8; }

inline void swap_rows(MemoryTensor& tensor, i64 a, i64 b, i64 row_bytes) {
  std::swap_ranges(tensor.bytes.begin() + a * row_bytes, tensor.bytes.begin() + (a + 1) * row_bytes,
                   tensor.bytes.begin() + b * row_bytes);
}
inline void swap_rows(MemoryTensor& tensor, i64 a, i64 b) { swap_rows(tensor, a, b, row_bytes_of(tensor)); }

/// Rows of an FC1 in blocks of from_k, then in blocks of to_k; kWidth is contiguous.
inline void reorder(MemoryTensor& tensor, i64 from_k, i64 to_k) {
  const auto position = [](i64 half, i64 row, i64 k) { return row / k * 2 * k + half * k + row % k; };
  const i64 row_bytes = row_bytes_of(tensor);
  const auto before = tensor.bytes;
  for (const i64 half : {0, 1})
    for (i64 row = 0; row < kWidth; ++row)
      std::copy_n(before.begin() + position(half, row, from_k) * row_bytes, row_bytes,
                  tensor.bytes.begin() + position(half, row, to_k) * row_bytes);
}

}  // namespace glu_ckpt::support
