#pragma once
/// Says which run works in a staging directory, or consumes a source, for file systems whose locks do not reach other
/// hosts, or do nothing.

#include <filesystem>
#include <string_view>

#include "io/file.hpp"

namespace glu_ckpt {

/// What a run has of a directory.
enum class Owned {
  /// It writes its output there.
  Staging,
  /// It removes the files of its source there (--consume-source).
  Source,
};

/// A small file in a directory: host, boot, process and start of the run that works there. It goes when the run ends,
/// whichever way but being killed.
class RunOwner {
 public:
  static constexpr std::string_view kName = "glu_ckpt.journal.owner";

  /// Throws OutputBusy where a run works in the directory as far as can be told from here: its process lives, or it is
  /// on another host, of which nothing is seen here. A file that names no run is nobody's.
  static void check_free(const std::filesystem::path& directory, Owned owned = Owned::Staging);

  /// Makes this process the directory's owner. Throws as check_free(); OutputBusy where another one was quicker.
  explicit RunOwner(const std::filesystem::path& directory, Owned owned = Owned::Staging);

  /// Returns false where somebody has moved the directory, or declared this run dead and taken its place.
  bool is_in_place() const { return file_.is_at(file_.path()); }
  /// Removes the file if it is still this run's. Throws for nothing; returns an errno where it stays.
  int release();

 private:
  File file_;
  Owned owned_ = Owned::Staging;
};

}  // namespace glu_ckpt
