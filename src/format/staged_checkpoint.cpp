#include "format/staged_checkpoint.hpp"

#include <algorithm>
#include <array>
#include <system_error>

#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "format/extras.hpp"
#include "format/record_file.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;

bool names_single_file(const fs::path& path) {
  static constexpr std::array<std::string_view, 4> kSuffixes = {".safetensors", ".pt", ".pth", ".bin"};
  const std::string name = path.filename().string();
  return std::ranges::any_of(kSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

StagedCheckpoint::StagedCheckpoint(const SinkOptions& options, const std::string& inner)
    : options_(options),
      inner_(names_single_file(options.path) ? std::string() : inner),
      single_file_(names_single_file(options.path)),
      staged_(options.path, options.overwrite) {
  if (!inner_.empty()) make_subdirectories(inner_);
}

fs::path StagedCheckpoint::root() const { return staged_.path() / inner_; }

fs::path StagedCheckpoint::claim(const std::string& name) {
  if (!names_.insert(name).second)
    fail(ErrorCode::NameCollision, {name, {}}, "two output files would be called '{}'", name);
  make_subdirectories(fs::path(inner_) / fs::path(name).parent_path());
  return root() / name;
}

void StagedCheckpoint::write_text(const std::string& name, std::string_view text) {
  write_small_file(claim(name), text);
  count(static_cast<i64>(text.size()));
}

void StagedCheckpoint::write_tracker(std::string_view text) {
  if (inner_.empty()) return;
  write_small_file(staged_.path() / "latest_checkpointed_iteration.txt", text);
  count(static_cast<i64>(text.size()));
}

void StagedCheckpoint::copy_extra_files() {
  for (const ExtraFile& extra : options_.extra_files) copy_extra_file(extra);
}

/// What was written here stays: an extra file of the same name is from the source's own layout.
void StagedCheckpoint::copy_extra_file(const ExtraFile& extra) {
  if (extra.name == kRecordFileName || extra.name == kExtrasFileName || names_.contains(extra.name)) return;
  const fs::path path = claim(extra.name);
  const File from = File::open_read(extra.path);
  const i64 bytes = from.size();
  const File to = File::create(path);
  to.copy_from(from, 0, 0, bytes);
  to.set_mode((from.mode() & 0777) | 0200);
  to.sync();
  count(bytes);
}

void StagedCheckpoint::make_subdirectories(const fs::path& relative) {
  std::error_code error;
  fs::path path;
  for (const fs::path& part : relative) {
    if (part.empty()) continue;
    path /= part;
    fs::create_directory(staged_.path() / path, error);
    if (error) fail_errno(error.value(), "create", staged_.path() / path);
    subdirectories_.insert(path);
  }
}

void StagedCheckpoint::write_record_file(const Record& record) {
  const std::vector<std::string> names(names_.begin(), names_.end());
  RecordFile content{record, options_.options, std::vector<FileHash>(names.size())};
  parallel_for(names.size(), kFileThreads,
               [&](std::size_t i, int) { content.files[i] = hash_file(root() / names[i], names[i]); });
  write_text(std::string(kRecordFileName), print_record_json(content));
}

void StagedCheckpoint::sync_directories() const {
  for (const fs::path& subdirectory : subdirectories_) sync_directory(staged_.path() / subdirectory);
}

fs::path StagedCheckpoint::staged_path() const { return single_file_ ? staged_.path() / file_name() : staged_.path(); }

void StagedCheckpoint::commit() {
  if (single_file_)
    staged_.commit_file(file_name());
  else
    staged_.commit();
}

}  // namespace glu_ckpt
