#pragma once
/// integrity.json of Megatron: the SHA-256 of every other file of the checkpoint.

#include <filesystem>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

inline constexpr std::string_view kIntegrityName = "integrity.json";

/// Returns true where an output of `format` has the file, because its source, of the same format, had it.
inline bool needs_integrity(const Structure& structure, Format format) {
  return structure.has_integrity && format == Format::TorchDist;
}

/// Returns the text of integrity.json for the files `names` under `root`, each of which is read once.
std::string print_integrity(const std::filesystem::path& root, const std::vector<std::string>& names);

/// 64 hexadecimal digits. Reads the file once, in blocks.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace glu_ckpt
