#pragma once
/// Says which run works in a staging directory, or consumes a source, for file systems whose locks do not reach other
/// hosts, or do nothing.

#include <filesystem>
#include <string>
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

/// A small file in a directory: host, boot, process and start of the run that works there; of one that consumes a
/// source, its output as well. It goes when the run ends, whichever way but being killed. Only where files of the
/// source are gone then and the output is not complete, it stays and says that the run has ended.
class RunOwner {
 public:
  static constexpr std::string_view kName = "glu_ckpt.journal.owner";

  /// Throws OutputBusy where a run works in the directory as far as can be told from here: its process lives, or it is
  /// on another host, of which nothing is seen here. A torn file that names no run is nobody's. Throws SourceNeeded
  /// where a source has another file by that name.
  static void check_free(const std::filesystem::path& directory, Owned owned = Owned::Staging);

  /// A sentence about files that are missing in a directory because a run that consumes it has removed them: what run,
  /// and the way on. `otherwise` where nothing there says so.
  static std::string why_missing(const std::filesystem::path& directory, std::string_view otherwise = {});

  /// Makes this process the directory's owner. Throws as check_free(); OutputBusy where another one was quicker.
  explicit RunOwner(const std::filesystem::path& directory, Owned owned = Owned::Staging,
                    const std::filesystem::path& output = {});

  /// Returns false where somebody has moved the directory, or declared this run dead and taken its place.
  bool is_in_place() const { return file_.is_at(file_.path()); }
  /// Removes the file if it is still this run's. Throws for nothing; returns an errno where it stays.
  int release();
  /// Lets the file stay, and say that the run has ended, if it is still this run's. Throws for nothing: where it cannot
  /// be written, the file goes on saying that the run works here.
  void leave();

 private:
  bool is_still_ours() const;

  File file_;
  Owned owned_ = Owned::Staging;
};

}  // namespace glu_ckpt
