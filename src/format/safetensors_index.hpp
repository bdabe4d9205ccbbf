#pragma once
/// model.safetensors.index.json, as text: opens no file.
///
///   {"metadata": {"total_size": BYTES, ...}, "weight_map": {TENSOR: SHARD}}

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The index of shards that torch.save wrote.
inline constexpr std::string_view kTorchIndexFile = "pytorch_model.bin.index.json";

inline constexpr std::string_view kSafetensorsIndexFile = "model.safetensors.index.json";

/// The shard of each tensor. Shard names are stored once: an index may have 200,000 tensors.
struct ShardIndex {
  struct Entry {
    std::string tensor;
    /// Index into `files`.
    u32 file = 0;
    /// The byte of the index at which the tensor is listed.
    u32 offset = 0;
  };
  /// Sorted.
  std::vector<std::string> files;
  /// Sorted by tensor.
  std::vector<Entry> entries;
};

/// Throws IndexJson, DuplicateKey and, for a shard outside the directory, IndexPath. `file` is for messages.
ShardIndex parse_index(std::string_view text, const std::string& file);

/// Prints the index as transformers does: indented by 2, keys sorted, with a final newline.
std::string print_index(const std::map<std::string, std::string>& weight_map, i64 total_bytes, i64 total_parameters);

}  // namespace glu_ckpt
