#include <algorithm>

#include "format/check_files.hpp"
#include "format/checkpoint_files.hpp"
#include "format/record_file.hpp"
#include "glu_ckpt/check.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/verify.hpp"
#include "io/directory.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

class Checking {
 public:
  Checking(const fs::path& path, const Backend& backend, const CheckOptions& options)
      : path_(path), backend_(backend), options_(options) {}

  CheckedCheckpoint run() {
    check_recorded_files();
    // What a file that differs would say of itself adds nothing.
    if (!found_.is_ok()) return std::move(found_);
    const std::unique_ptr<Source> source = open_source(path_);
    add_unlisted_files(*source);
    if (const ContentCheck* const contents = source->content_check(); contents != nullptr) {
      begin("checking checksums", contents->bytes());
      contents->run(options_.jobs, options_.on_progress);
    }
    found_.is_sound = true;
    compare_digests(*source);
    return std::move(found_);
  }

 private:
  void begin(std::string_view title, i64 bytes) const {
    if (options_.on_stage) options_.on_stage(title, bytes);
  }

  void check_recorded_files() {
    if (path_kind(path_) != PathKind::Directory) return;
    const fs::path directory = checkpoint_directory(path_);
    const fs::path record = directory / kRecordFileName;
    if (path_kind(record) == PathKind::Missing) return;
    const InputPart part(record.string());
    const std::vector<FileRecord> files =
        parse_record_json(read_small_file(record, kMaxRecordBytes, ErrorCode::RecordInvalid), part).files;
    begin("checking files", recorded_bytes(files));
    found_.files = check_files(directory, files, part, options_.jobs, options_.on_progress);
    found_.has_checksums = !files.empty();
  }

  void add_unlisted_files(const Source& source) {
    const fs::path directory = checkpoint_directory(source.path());
    const auto add = [&](const std::string& name) {
      if (std::ranges::find(found_.files, name, &CheckedFile::name) == found_.files.end())
        found_.files.push_back({name, FileState::NoChecksum, "is not in a glu_ckpt.json"});
    };
    for (const OpenedFile& file : source.info().files)
      add(path_kind(path_) == PathKind::Directory ? file.path.lexically_relative(directory).string()
                                                  : file.path.filename().string());
    for (const ExtraFile& file : source.extra_files()) add(file.name);
  }

  void compare_digests(const Source& source) {
    const auto recorded = source.record().find("digest");
    if (recorded == source.record().end()) return;
    found_.recorded_digest = recorded->second;
    const Recognition recognition = recognize(source.inventory(), source.hints(), source.record(), {});
    i64 bytes = 0;
    for (const TensorRef& tensor : source.inventory().tensors) bytes += tensor.bytes;
    begin("digest", bytes);
    ExecuteOptions execution;
    execution.jobs = options_.jobs;
    execution.memory_bytes = options_.memory_bytes;
    execution.on_progress = options_.on_progress;
    found_.digest = to_string(compute_digest({&source, &recognition}, backend_, execution));
  }

  const fs::path& path_;
  const Backend& backend_;
  const CheckOptions& options_;
  CheckedCheckpoint found_;
};

}  // namespace

bool CheckedCheckpoint::is_ok() const {
  const auto is_bad = [](const CheckedFile& file) {
    return file.state == FileState::Differs || file.state == FileState::Missing;
  };
  return std::ranges::none_of(files, is_bad) && (!digest || digest == recorded_digest);
}

CheckedCheckpoint check(const fs::path& path, const Backend& backend, const CheckOptions& options) {
  return Checking(path, backend, options).run();
}

}  // namespace glu_ckpt
