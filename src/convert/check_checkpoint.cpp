#include <algorithm>

#include "convert/conversion.hpp"
#include "format/check_files.hpp"
#include "format/checkpoint_files.hpp"
#include "format/manifest.hpp"
#include "format/record_file.hpp"
#include "glu_ckpt/check.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "io/directory.hpp"
#include "io/file_names.hpp"
#include "model/stored_model.hpp"
#include "verify/checkpoint_digest.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

class Checking {
 public:
  Checking(const fs::path& path, const RunOptions& run, ManifestUse use) : path_(path), run_(run), use_(use) {}

  CheckedCheckpoint run() {
    // That is no damage: the error says that there is nothing.
    if (path_kind(path_) == PathKind::Missing) (void)open_source(path_);
    check_recorded_files();
    check_listed_files();
    // A checkpoint with a file that differs is not opened.
    if (!found_.is_ok()) return std::move(found_);
    SourceAnswers answers;
    answers.adapter_layout = "stored";
    Checkpoint checkpoint = open_checkpoint(path_, answers);
    if (checkpoint.recognition.is_adapter && checkpoint.source->record().contains("digest"))
      checkpoint = open_checkpoint(path_);
    for (const std::string& text : flaw_texts(*checkpoint.source, checkpoint.hints, checkpoint.recognition))
      tell_warning(run_, "{}", text);
    add_unlisted_files(*checkpoint.source);
    compare_digests(checkpoint);
    check_contents(run_, *checkpoint.source, "checking checksums");
    found_.is_sound = true;
    found_.has_own_checksums = checkpoint.source->content_check() != nullptr;
    return std::move(found_);
  }

 private:
  void check_recorded_files() {
    if (path_kind(path_) != PathKind::Directory) return;
    const fs::path directory = checkpoint_directory(path_);
    const fs::path record = directory / kRecordFileName;
    if (path_kind(record) == PathKind::Missing) return;
    const InputPart part(record.string());
    const std::vector<FileRecord> files =
        parse_record_json(read_small_file(record, kMaxRecordBytes, ErrorCode::RecordInvalid), part).files;
    Stage stage(run_, "checking files", recorded_bytes(files));
    const bool is_alone = directory == path_ && run_directory(path_).empty();
    const FilesReach reach = is_alone ? FilesReach::Below : FilesReach::Beside;
    found_.files = check_files(directory, files, reach, part, jobs_of(run_), stage.on_progress());
    found_.has_checksums = !files.empty();
  }

  void check_listed_files() {
    if (is_file(path_ / kManifestFileName)) {
      found_.has_manifest = true;
      Stage stage(run_, "checking SHA-256", manifest_bytes(path_, manifest_names(path_)));
      found_.manifest = check_manifest(path_, use_, stage.on_progress());
    } else if (use_ == ManifestUse::Required) {
      found_.manifest = {{std::string(kManifestFileName), FileState::Missing, "is not there"}};
    }
  }

  void add_unlisted_files(const Source& source) {
    const fs::path directory = checkpoint_directory(source.path());
    const auto add = [&](const std::string& name, bool has_tensors) {
      if (std::ranges::find(found_.files, name, &CheckedFile::name) == found_.files.end())
        found_.files.push_back({name, FileState::NoChecksum,
                                found_.has_checksums ? "glu_ckpt.json does not list it" : "no glu_ckpt.json lists it",
                                has_tensors});
    };
    for (const OpenedFile& file : source.info().files)
      add(path_kind(path_) == PathKind::Directory ? file.path.lexically_relative(directory).string()
                                                  : file.path.filename().string(),
          true);
    for (const ExtraFile& file : source.extra_files()) add(file.name, false);
    // Where a record lists what was written, any other file was added. The tracker only led to this record.
    if (!found_.has_checksums || path_kind(path_) != PathKind::Directory) return;
    for (const std::string& name : manifest_names(path_)) {
      const auto is_listed = [&](const CheckedFile& file) { return file.name == name && file.state == FileState::Ok; };
      if (has_hidden_part(name) || name == kTrackerFile || std::ranges::any_of(found_.manifest, is_listed)) continue;
      const std::string here = (path_ / name).lexically_normal().lexically_relative(directory.lexically_normal());
      if (here != kRecordFileName) add(here, false);
    }
  }

  void compare_digests(Checkpoint& checkpoint) {
    const std::string recorded = recorded_digest_of(checkpoint);
    if (recorded.empty()) return;
    settle_copies(run_, checkpoint);
    found_.recorded_digest = recorded;
    const auto backend = open_backend(run_);
    backend->ready();
    watch_contents(*checkpoint.source);
    found_.digest = to_string(digest_stage(run_, checkpoint.model(), *backend, "digest"));
  }

  const fs::path& path_;
  const RunOptions& run_;
  ManifestUse use_;
  CheckedCheckpoint found_;
};

}  // namespace

bool CheckedCheckpoint::is_ok() const {
  const auto is_bad = [](const CheckedFile& file) {
    return file.state != FileState::Ok && file.state != FileState::NoChecksum;
  };
  return std::ranges::none_of(files, is_bad) && std::ranges::none_of(manifest, is_bad) &&
         (!digest || digest == recorded_digest);
}

bool CheckedCheckpoint::has_everything() const {
  const auto is_listed = [&](const CheckedFile& file) {
    const auto found = std::ranges::find(manifest, file.name, &CheckedFile::name);
    return found != manifest.end() && found->state == FileState::Ok;
  };
  return has_anything() && std::ranges::none_of(files, [&](const CheckedFile& file) {
           const bool is_covered = file.has_tensors && (digest || has_own_checksums);
           return file.state == FileState::NoChecksum && !is_covered && !is_listed(file);
         });
}

CheckedCheckpoint check(const fs::path& path, const RunOptions& run, ManifestUse use) {
  return Checking(path, run, use).run();
}

}  // namespace glu_ckpt
