#pragma once
/// Whether a checkpoint still is what its own record and checksums say.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

class Backend;

enum class FileState { Ok, Differs, Missing, NoChecksum };

/// One file of a checkpoint, compared with the line that glu_ckpt.json has for it.
struct CheckedFile {
  /// Relative to the directory of the checkpoint.
  std::string name;
  FileState state = FileState::Ok;
  /// Says what was compared, or what differs: "header and data", "its data differ".
  std::string detail;
};

struct CheckedCheckpoint {
  /// There is a glu_ckpt.json with checksums of files.
  bool has_checksums = false;
  /// Files that glu_ckpt.json lists, in its order, then files of the checkpoint that it does not list.
  std::vector<CheckedFile> files;
  /// The checkpoint was opened and what its format checks was sound: headers, sizes, checksums inside zips, hashes in
  /// integrity.json. It is not opened where a file differs or is missing.
  bool is_sound = false;
  /// The digest that the record gives, and the digest of the tensors. There is no second one where the first one is
  /// missing or the checkpoint was not opened.
  std::optional<std::string> recorded_digest;
  std::optional<std::string> digest;

  /// Nothing that was compared differs.
  bool is_ok() const;
};

struct CheckOptions {
  int jobs = 1;
  i64 memory_bytes = i64{1} << 30;
  /// Called when another part of the work begins, with its title and the bytes that it will read. May be empty.
  std::function<void(std::string_view, i64)> on_stage = {};
  /// Gets the bytes that were read since its last call, from any thread; it may throw to stop. May be empty.
  std::function<void(i64)> on_progress = {};
};

/// Reads everything. Throws what open_source() and the checks of the formats throw, RecordInvalid, and Io.
CheckedCheckpoint check(const std::filesystem::path& path, const Backend& backend, const CheckOptions& options);

}  // namespace glu_ckpt
