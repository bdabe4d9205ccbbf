#pragma once
/// The SHA-256 of every file of a directory, as `sha256sum` prints and checks it. Unlike the sums in glu_ckpt.json it
/// stands up to a forger, for one who has signed, or keeps, this one file.

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fail.hpp"
#include "glu_ckpt/check.hpp"
#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

inline constexpr std::string_view kManifestFileName = "glu_ckpt.sha256";

/// A line of it.
struct ManifestLine {
  std::string sha256;
  /// Relative to the directory of the manifest.
  std::string name;
};

/// Returns the manifest's text for the files of manifest_names().
std::string print_manifest(const std::filesystem::path& root, const std::function<void(i64)>& on_progress);

/// Throws RecordInvalid for what is not a line of `sha256sum`.
std::vector<ManifestLine> parse_manifest(std::string_view text, const InputPart& part);

/// Returns whether desktops, downloaders or version control may have left the file: a part of its path, relative to the
/// checkpoint, begins with a dot. No checkpoint is read from such files, but for PyTorch's .metadata.
bool has_hidden_part(const std::filesystem::path& path);

/// Files below `root`, at any depth, without the manifest itself and the journals of the run that makes the output, or
/// of one that was killed when it had put it in its place; and their bytes.
std::vector<std::string> manifest_names(const std::filesystem::path& root);
i64 manifest_bytes(const std::filesystem::path& root, const std::vector<std::string>& names);

/// Each file beside its line, in the order of the lines, then the files that have none: Unlisted where a manifest is
/// required and the file is not hidden.
std::vector<CheckedFile> check_manifest(const std::filesystem::path& root, ManifestUse use,
                                        const std::function<void(i64)>& on_progress);

/// Megatron's file with the SHA-256 of every other file of the checkpoint.
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
