#pragma once
/// Directories and names: what is there, made, removed, renamed and flushed.

#include <filesystem>
#include <string>
#include <vector>

namespace glu_ckpt {

/// Missing: no such name, or a symlink to nowhere. Unknown: its name does not let it be looked at, for want of
/// permission for example. Where it is the disk that fails, all of these throw Io.
enum class PathKind { Missing, File, Directory, Symlink, Other, Unknown };

/// Follows symlinks, so never Symlink.
PathKind path_kind(const std::filesystem::path& path);
/// The kind of the name itself: Symlink where it is one, wherever it leads.
PathKind link_kind(const std::filesystem::path& path);

inline bool is_file(const std::filesystem::path& path) { return path_kind(path) == PathKind::File; }
inline bool is_directory_at(const std::filesystem::path& path) { return path_kind(path) == PathKind::Directory; }
bool path_exists(const std::filesystem::path& path);
/// Returns true for a dangling symlink too: it is in the way. Throws Io where that cannot be seen.
bool name_taken(const std::filesystem::path& path);

/// Returns true where both paths are names of one directory: a bind mount gives it a second one.
bool is_same_directory(const std::filesystem::path& a, const std::filesystem::path& b);

/// Returns true where both are on one file system, so that what is freed at one is free at the other.
bool is_on_same_filesystem(const std::filesystem::path& a, const std::filesystem::path& b);

/// Names in a directory, sorted by their bytes. Throws NotFound, Io.
std::vector<std::string> list_directory(const std::filesystem::path& path);
/// Returns the path without symlinks, "." and "..". It must exist. Throws NotFound, Io.
std::filesystem::path canonical_path(const std::filesystem::path& path);

/// Returns whether making something failed because the name is taken. A server of SFTP has no word for that, and sshfs
/// says EPERM. Else errno is `error`.
bool was_taken(int error, const std::filesystem::path& path);

/// False where the name is taken, by whatever. Throws NotFound where the directory above is missing, NoSpace, Io.
bool make_directory(const std::filesystem::path& path);

/// How it is known that what is removed or replaced is this program's own to remove. Whoever removes says it, and
/// docs/architecture.md lists every place by it.
enum class Own {
  /// This process made it under a name that was free: O_EXCL, mkdir or RENAME_NOREPLACE said so.
  MadeHere,
  /// It is in a staging directory, or is one, whose journal this process holds open and has locked.
  InStaging,
  /// It is the journal of an output, by its name and its content.
  OutputJournal,
  /// The user gave --overwrite, and what is there was looked at: a regular file, or a directory with nothing but a
  /// checkpoint's files (check_replaceable()).
  Replaced,
  /// It is a glu_ckpt.json, and was read as one.
  OutputRecord,
  /// The user gave --consume-source, and it is a file of the source as it was when it was opened, with one name; every
  /// byte that the output needs of it was written, flushed, and read back from the disk.
  Consumed,
  /// It is the note of a run (RunOwner) in a source that is consumed: this process's own, or one that names a run that
  /// has ended, or was torn by a power cut.
  RunNote,
};

/// The one function that removes: a file, a symlink (not what it points to), or a directory with everything in it. What
/// is gone already is no error. Goes on after an error; returns the errno of the first, 0 when nothing is left.
int remove_own(const std::filesystem::path& path, Own why);
/// Returns 0 or an errno. It cannot lose anything.
int remove_empty_directory(const std::filesystem::path& path);

/// Makes names that were created, renamed or removed in a directory durable.
void sync_directory(const std::filesystem::path& path);
/// The one function that replaces: what is at `to`, if anything, is gone.
void replace_own(const std::filesystem::path& from, const std::filesystem::path& to, Own why);
/// renameat2 with RENAME_NOREPLACE or RENAME_EXCHANGE, neither of which loses anything. Returns 0 or an errno.
int rename_with(const std::filesystem::path& from, const std::filesystem::path& to, unsigned flags);
/// The directory a path is in; "." for a bare name.
std::filesystem::path directory_of(const std::filesystem::path& path);

}  // namespace glu_ckpt
