#pragma once
/// Shards of safetensors as one Source.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/safetensors_header.hpp"
#include "format/safetensors_index.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

/// The files that make up a checkpoint, as open_source() found them.
struct CheckpointFiles {
  /// What the user gave.
  std::filesystem::path path;
  /// Where shard names start from.
  std::filesystem::path directory;
  /// In the order they are read.
  std::vector<std::string> shards;
  std::optional<ShardIndex> index;
  /// For messages; empty without an index.
  std::string index_file;
  /// Empty where there is none.
  std::filesystem::path config;
  std::filesystem::path record;
  std::vector<ExtraFile> extra_files;
  std::vector<std::string> left_out;
};

/// Reads and checks all headers, and the index against them.
std::unique_ptr<Source> read_checkpoint(const CheckpointFiles& files);

/// The checked header of an open file; tensor offsets are absolute positions in it.
ParsedHeader read_header(const File& file);

}  // namespace glu_ckpt
