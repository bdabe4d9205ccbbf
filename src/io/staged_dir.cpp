#include "io/staged_dir.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "core/fail.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// True for a dangling symlink too: it is in the way.
bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

/// Without the trailing slash, and with a name where "." or ".." was given.
fs::path named_path(const fs::path& path) {
  fs::path named = path.has_filename() ? path : path.parent_path();
  if (named.filename() != "." && named.filename() != "..") return named;
  std::error_code error;
  named = fs::canonical(named, error);
  if (error) fail_errno(error.value(), "find", path);
  return named;
}

[[noreturn]] void fail_exists(const fs::path& path) {
  fail(ErrorCode::OutputExists, {path.string(), {}}, "{}: exists already; give --overwrite to replace it",
       path.string());
}

int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}

bool is_unsupported(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

}  // namespace

StagedDir::StagedDir(const fs::path& final_path, bool overwrite)
    : final_(named_path(final_path)), staging_(final_), overwrite_(overwrite) {
  staging_ += ".partial";
  if (!overwrite_ && is_there(final_)) fail_exists(final_);
  // mkdir, not a look before it: of two runs at once, one gets the directory and the other this error.
  if (::mkdir(staging_.c_str(), 0777) == 0) return;
  if (errno == EEXIST)
    fail(ErrorCode::OutputExists, {staging_.string(), {}},
         "{}: exists already: an earlier run did not finish, or another is running; remove it and run again",
         staging_.string());
  if (errno == ENOENT)
    fail(ErrorCode::NotFound, {final_.string(), {}}, "{}: the directory it would be in does not exist",
         final_.string());
  fail_errno(errno, "create", staging_);
}

StagedDir::~StagedDir() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void StagedDir::commit() {
  sync_directory(staging_);
  install(staging_);
}

void StagedDir::commit_file(const std::string& name) {
  sync_directory(staging_);
  install(staging_ / name);
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void StagedDir::install(const fs::path& from) {
  if (overwrite_ && is_there(final_))
    install_over(from);
  else
    install_new(from);
}

void StagedDir::install_new(const fs::path& from) {
  int error = rename_with(from, final_, RENAME_NOREPLACE);
  if (is_unsupported(error)) {
    if (is_there(final_)) fail_exists(final_);
    error = rename_with(from, final_, 0);
  }
  if (error == EEXIST) fail_exists(final_);
  if (error != 0) fail_errno(error, "rename to its final path", from);
  committed_ = true;
  sync_directory(directory_of(final_));
}

void StagedDir::install_over(const fs::path& from) {
  fs::path old = from;
  const int error = rename_with(from, final_, RENAME_EXCHANGE);
  if (is_unsupported(error)) {
    old = final_;
    old += ".replaced";
    rename_path(final_, old);
    rename_path(from, final_);
  } else if (error != 0) {
    fail_errno(error, "exchange with the old output", from);
  }
  committed_ = true;
  sync_directory(directory_of(final_));
  std::error_code ignored;
  fs::remove_all(old, ignored);
}

}  // namespace glu_ckpt
