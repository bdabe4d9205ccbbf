/// Adds a record to a checkpoint in place.

#include <algorithm>

#include "core/fail.hpp"
#include "format/output_format.hpp"
#include "format/record_file.hpp"
#include "format/safetensors_header.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

OutputTensor as_output(const TensorRef& tensor, i64 data_start) {
  return {tensor.name, tensor.dtype, tensor.shape, tensor.bytes, 0, tensor.offset - data_start, tensor.name};
}

/// The header is of another length now, so the data moves: into a new file beside the old one.
template <typename Edit>
void edit_record_of_file(const fs::path& path, const Edit& edit) {
  const File old = File::open_read(path);
  ParsedHeader header = read_header(old);
  edit(header.metadata);
  i64 data_bytes = 0;
  for (const TensorRef& tensor : header.tensors) data_bytes += tensor.bytes;
  const i64 data_start = old.size() - data_bytes;
  std::vector<OutputTensor> tensors;
  for (const TensorRef& tensor : header.tensors) tensors.push_back(as_output(tensor, data_start));
  // The data is in phase with the old file, so that a file system that can share extents copies nothing.
  const std::string text = print_header(tensors, header.metadata, shareable_phase(data_start));
  const auto header_bytes = static_cast<i64>(text.size());

  StagedFile staged(path, /*overwrite=*/true);
  const File file = staged.create();
  file.reserve(header_bytes + data_bytes);
  file.pwrite_exact(std::as_bytes(std::span(text)), 0);
  file.copy_from(old, data_start, header_bytes, data_bytes);
  file.set_mode(old.mode());
  file.sync();
  staged.commit();
}

/// Options, checksums of files and fields that `record` does not have stay.
void write_record_to_directory(const fs::path& directory, const Record& record) {
  const fs::path path = directory / kRecordFileName;
  RecordFile content;
  if (path_exists(path))
    content = parse_record_json(read_small_file(path, kMaxRecordBytes, ErrorCode::RecordInvalid), path.string());
  for (const auto& [key, value] : record) content.record.insert_or_assign(key, value);
  replace_small_file(path, print_record_json(content));
}

void check_takes_record(const fs::path& path) {
  if (format_of_name(path) == Format::Torch)
    fail(ErrorCode::NotSupported, {path.string(), {}},
         "{}: a record can be added to a safetensors file or to a directory; give this file a directory of its own and "
         "stamp that",
         path.string());
}

void remove_from_directory(const fs::path& directory, const std::vector<std::string>& keys) {
  const fs::path path = directory / kRecordFileName;
  if (!path_exists(path)) return;
  RecordFile content =
      parse_record_json(read_small_file(path, kMaxRecordBytes, ErrorCode::RecordInvalid), path.string());
  for (const std::string& key : keys) content.record.erase(key);
  content.record.erase("version");
  if (content.record.empty() && content.options.empty() && content.metadata.empty() && content.files.empty()) {
    if (const int error = remove_own(path, Own::OutputRecord); error != 0) fail_errno(error, "remove", path);
    return sync_directory(directory);
  }
  content.record["version"] = GLU_CKPT_VERSION;
  replace_small_file(path, print_record_json(content));
}

}  // namespace

void write_record(const fs::path& path, const Record& record) {
  if (is_directory_at(path)) return write_record_to_directory(path, record);
  check_takes_record(path);
  edit_record_of_file(path, [&](std::map<std::string, std::string>& metadata) { put_record(metadata, record); });
}

void remove_from_record(const fs::path& path, const std::vector<std::string>& keys) {
  if (is_directory_at(path)) return remove_from_directory(path, keys);
  check_takes_record(path);
  edit_record_of_file(path, [&](std::map<std::string, std::string>& metadata) {
    for (const std::string& key : keys) metadata.erase("glu_ckpt." + key);
    const bool says_more = std::ranges::any_of(metadata, [](const auto& entry) {
      return entry.first.starts_with("glu_ckpt.") && entry.first != "glu_ckpt.version";
    });
    if (!says_more) metadata.erase("glu_ckpt.version");
  });
}

fs::path record_file_of(const fs::path& path) { return is_directory_at(path) ? path / kRecordFileName : path; }

}  // namespace glu_ckpt
