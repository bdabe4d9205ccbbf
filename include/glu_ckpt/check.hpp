#pragma once
/// A checkpoint compared with what its own record and checksums say.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// Unlisted: a file more than a manifest that was asked for lists.
enum class FileState { Ok, Differs, Missing, NoChecksum, Unlisted };

/// One file of a checkpoint, compared with the line that glu_ckpt.json has for it.
struct CheckedFile {
  /// Relative to the directory of the checkpoint.
  std::string name;
  FileState state = FileState::Ok;
  /// Says what was compared, or what differs: "header and data", "its data differ".
  std::string detail;
  /// It holds tensors, which a digest or checksums of the format cover, too.
  bool has_tensors = false;
};

struct CheckedCheckpoint {
  /// There is a glu_ckpt.json with checksums of files.
  bool has_checksums = false;
  /// Files that glu_ckpt.json lists, in its order, then files of the checkpoint that it does not list.
  std::vector<CheckedFile> files;
  /// The directory has a glu_ckpt.sha256. `manifest` has the files that it lists, relative to the directory that was
  /// named, then those that it does not.
  bool has_manifest = false;
  std::vector<CheckedFile> manifest;
  /// The checkpoint was opened and what its format checks was sound: headers, sizes, checksums inside zips, hashes in
  /// integrity.json. It is not opened where a file differs or is missing.
  bool is_sound = false;
  /// The digest that the record gives, and the digest of the tensors. There is no second one where the first one is
  /// missing or the checkpoint was not opened.
  std::optional<std::string> recorded_digest;
  std::optional<std::string> digest;

  /// The format itself has checksums of data: in zips, or in integrity.json.
  bool has_own_checksums = false;

  /// Returns true where nothing that was compared differs.
  bool is_ok() const;
  /// Returns true where anything says what the data should be. Otherwise they were not compared.
  bool has_anything() const { return has_checksums || has_manifest || has_own_checksums || digest.has_value(); }
  /// Returns whether something says of every file what it should hold: not of an added one, nor of config.json where
  /// the record was removed.
  bool has_everything() const;
};

/// Optional: a glu_ckpt.sha256 is compared where there is one. Required: it is missing where there is none.
enum class ManifestUse { Optional, Required };

/// Reads everything. Throws what open_source() and the checks of the formats throw, RecordInvalid, Io and Interrupted.
CheckedCheckpoint check(const std::filesystem::path& path, const RunOptions& run = {},
                        ManifestUse use = ManifestUse::Optional);

}  // namespace glu_ckpt
