/// The part of CheckpointInfo that is about files.

#include <algorithm>
#include <set>

#include "core/fail.hpp"
#include "format/checkpoint_files.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

i64 CheckpointInfo::file_bytes() const {
  i64 bytes = 0;
  for (const OpenedFile& file : files) bytes += file.bytes;
  return bytes;
}

void check_unchanged(const CheckpointInfo& info) {
  for (const OpenedFile& was : info.files) {
    const std::string name = was.path.string();
    if (path_kind(was.path) != PathKind::File)
      fail(ErrorCode::SourceChanged, {name, {}}, "{}: is no longer there; it was when this run began", name);
    const FileIdentity now = File::open_read(was.path).identity();
    if (now.size != was.bytes)
      fail(ErrorCode::SourceChanged, {name, {}}, "{}: has {} bytes; it had {} when this run began", name, now.size,
           was.bytes);
    // The status may say nothing about the content: see has_status_as_opened().
    if (now.dev != was.device || now.ino != was.inode || now.mtime_ns != was.modified_ns)
      fail(ErrorCode::SourceChanged, {name, {}}, "{}: was {} while this run read it; run again", name,
           now.ino == was.inode ? "written to" : "replaced");
  }
}

std::vector<u32> files_of_all(const Source& source, const std::vector<std::size_t>& tensors) {
  std::set<u32> all;
  for (const std::size_t tensor : tensors) {
    const std::vector<u32> files = source.files_of(tensor);
    if (files.empty()) return {};
    all.insert(files.begin(), files.end());
  }
  return {all.begin(), all.end()};
}

bool has_status_as_opened(const CheckpointInfo& info) {
  return std::ranges::all_of(info.files, [](const OpenedFile& was) {
    return File::open_read(was.path).identity().ctime_ns == was.changed_ns;
  });
}

std::string identity_line(const std::string& path, u64 inode, i64 bytes, i64 modified_ns) {
  return fmt::format("file {} {} {} {}\n", path, inode, bytes, modified_ns);
}

std::string identity_of(const CheckpointInfo& info) {
  // Sizes and dates alone may be another model's: images and archives have one date for all files.
  std::string text;
  for (const OpenedFile& file : info.files)
    text += identity_line(canonical_path(file.path).string(), file.inode, file.bytes, file.modified_ns);
  return text;
}

}  // namespace glu_ckpt
