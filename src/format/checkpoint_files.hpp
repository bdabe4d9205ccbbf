#pragma once
/// The files that make up a checkpoint, as open_source() found them, and the Source of each format.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/safetensors_index.hpp"
#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// The beginning of the names of files beside the directory of tensors.
inline constexpr std::string_view kBesideTensors = "../";
/// The directory in which a checkpoint for Megatron keeps the files of the Hugging Face directory that it was made
/// from.
inline constexpr std::string_view kHfDirectory = "hf";
/// The beginning of the names of those files.
inline constexpr std::string_view kHfFolder = "../hf/";
/// The arguments of a run that loads the checkpoint.
inline constexpr std::string_view kMegatronArgsFile = "../megatron_args.txt";

/// The name of a file in the directory that the one of the tensors is in, as it is without "../". A checkpoint in a
/// single directory has such files below it.
inline std::string_view without_beside(std::string_view name) {
  return name.starts_with(kBesideTensors) ? name.substr(kBesideTensors.size()) : name;
}

inline bool is_megatron_args(std::string_view name) {
  return without_beside(name) == without_beside(kMegatronArgsFile);
}

/// The name that a file of kHfDirectory has in the Hugging Face directory; empty for other files.
inline std::string_view name_in_hf(std::string_view name) {
  const std::string_view folder = without_beside(kHfFolder), below = without_beside(name);
  return below.starts_with(folder) ? below.substr(folder.size()) : std::string_view();
}

struct CheckpointFiles {
  Format format = Format::Safetensors;
  /// The path that the user gave.
  std::filesystem::path path;
  /// Names of shards are relative to this.
  std::filesystem::path directory;
  /// The shards in the order in which they are read; the .distcp files of torch-dist are named by its .metadata
  /// instead.
  std::vector<std::string> shards;
  std::optional<ShardIndex> index;
  /// The index file, for messages; empty without an index.
  std::string index_file;
  /// Empty where there is none.
  std::filesystem::path config;
  std::filesystem::path record;
  /// glu_ckpt.extras.
  std::filesystem::path extras;
  std::vector<ExtraFile> extra_files;
  std::vector<std::string> left_out;
  std::vector<std::string> dangling;
  /// See CheckpointInfo.
  std::vector<std::string> warnings;
  /// Set where Megatron's tracker picked the directory: see Structure.
  std::string iteration_dir;
  std::string tracker;
};

/// The files that tensors are read from, a line each: path, inode, bytes, and when the file was last written.
std::string identity_of(const CheckpointInfo& info);
std::string identity_line(const std::string& path, u64 inode, i64 bytes, i64 modified_ns);

std::unique_ptr<Source> read_safetensors(const CheckpointFiles& files);
std::unique_ptr<Source> read_torch(const CheckpointFiles& files);
std::unique_ptr<Source> read_torch_dist(const CheckpointFiles& files);

/// The directory that open_source() reads where it is given this one: Megatron's tracker file names one below it.
std::filesystem::path checkpoint_directory(const std::filesystem::path& path);

/// The directory with Megatron's tracker file that the given one is in; empty where there is none.
std::filesystem::path run_directory(const std::filesystem::path& directory);

/// "is a GGUF file (llama.cpp), which is not read; ...": by the file's name or first bytes. Empty where neither tells.
std::string other_file_text(const std::filesystem::path& file);

/// The same for a directory in which no checkpoint was found.
std::string other_directory_text(const std::filesystem::path& directory);

}  // namespace glu_ckpt
