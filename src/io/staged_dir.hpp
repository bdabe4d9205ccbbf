#pragma once
/// Output that appears whole or not at all: written into `<final>.partial`, then renamed.

#include <filesystem>
#include <string>

namespace glu_ckpt {

/// A staging directory beside its final path. Unless commit() or commit_file() is reached, the
/// destructor removes it and leaves the final path as it was.
class StagedDir {
 public:
  /// Throws OutputExists where the final path (unless `overwrite`) or the staging directory is there.
  StagedDir(const std::filesystem::path& final_path, bool overwrite);
  StagedDir(const StagedDir&) = delete;
  StagedDir& operator=(const StagedDir&) = delete;
  ~StagedDir();

  const std::filesystem::path& path() const { return staging_; }
  const std::filesystem::path& final_path() const { return final_; }

  /// Renames the directory to the final path. What was there before is removed after that.
  void commit();
  /// Renames the file `name` in it to the final path and removes the directory.
  void commit_file(const std::string& name);

 private:
  void install(const std::filesystem::path& from);
  void install_new(const std::filesystem::path& from);
  void install_over(const std::filesystem::path& from);

  std::filesystem::path final_;
  std::filesystem::path staging_;
  bool overwrite_;
  bool committed_ = false;
};

}  // namespace glu_ckpt
