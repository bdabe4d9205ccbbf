#include "format/check_files.hpp"

#include "core/fail.hpp"
#include "format/checkpoint_files.hpp"
#include "format/inner_path.hpp"
#include "io/directory.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// Compares what was read with what both sides know.
CheckedFile compare_file(const FileRecord& recorded, const FileRecord& found) {
  std::string differing;
  if (!recorded.header_xxh3_128.empty() && recorded.header_xxh3_128 != found.header_xxh3_128)
    differing = "its header differs";
  if (!recorded.data_xxh3_128.empty() && recorded.data_xxh3_128 != found.data_xxh3_128)
    differing += differing.empty() ? "its data differ" : ", its data differ";
  if (!differing.empty()) return {recorded.name, FileState::Differs, differing};
  if (recorded.data_xxh3_128.empty())
    return {recorded.name, FileState::NoChecksum, "only its header is recorded: parts of its data were cloned"};
  return {recorded.name, FileState::Ok, recorded.header_bytes > 0 ? "header and data" : "all bytes"};
}

CheckedFile check_file(const fs::path& path, const FileRecord& recorded, int jobs,
                       const std::function<void(i64)>& on_progress) {
  if (path_kind(path) == PathKind::Missing) return {recorded.name, FileState::Missing, "is not there"};
  const File file = File::open_read(path);
  if (const i64 bytes = file.size(); bytes != recorded.bytes)
    return {recorded.name, FileState::Differs, fmt::format("has {} bytes, {} are recorded", bytes, recorded.bytes)};
  if (recorded.header_xxh3_128.empty() && recorded.data_xxh3_128.empty())
    return {recorded.name, FileState::NoChecksum, "only its size is recorded"};
  const auto use = [&](std::span<const std::byte> part, i64) {
    if (on_progress) on_progress(std::ssize(part));
  };
  return compare_file(recorded, record_of_file(file, recorded.name, {recorded.header_bytes, jobs, use}));
}

}  // namespace

i64 recorded_bytes(const std::vector<FileRecord>& files) {
  i64 bytes = 0;
  for (const FileRecord& file : files) bytes += file.bytes;
  return bytes;
}

std::vector<CheckedFile> check_files(const fs::path& directory, const std::vector<FileRecord>& files, FilesReach reach,
                                     const InputPart& record, int jobs, const std::function<void(i64)>& on_progress) {
  std::vector<CheckedFile> checked;
  for (const FileRecord& file : files) {
    const std::string fault =
        inner_path_fault(reach == FilesReach::Beside ? without_beside(file.name) : std::string_view(file.name));
    if (!fault.empty())
      fail_at(ErrorCode::RecordInvalid, {record, std::nullopt}, "files lists '{}', {}", file.name, fault);
    checked.push_back(check_file(directory / file.name, file, jobs, on_progress));
  }
  return checked;
}

}  // namespace glu_ckpt
