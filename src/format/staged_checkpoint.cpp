#include "format/staged_checkpoint.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/fail.hpp"
#include "core/hash.hpp"
#include "core/parallel.hpp"
#include "format/extras.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

StagedMode staged_mode(SinkMode mode) {
  switch (mode) {
    case SinkMode::Create: return StagedMode::Create;
    case SinkMode::Resume: return StagedMode::Resume;
    case SinkMode::Join: return StagedMode::Join;
  }
  return StagedMode::Create;
}

/// What the files of an output may keep of their data to hash it later: with up to 32 workers a part of half a block
/// waits for each.
constexpr i64 kHashMemoryBytes = i64{16} << 20;

}  // namespace

bool names_single_file(const fs::path& path) {
  static constexpr std::array<std::string_view, 4> kSuffixes = {".safetensors", ".pt", ".pth", ".bin"};
  const std::string name = path.filename().string();
  return std::ranges::any_of(kSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

StagedCheckpoint::StagedCheckpoint(const SinkOptions& options, const std::string& inner)
    : options_(options),
      inner_(names_single_file(options.path) ? std::string() : inner),
      single_file_(names_single_file(options.path)),
      staged_(options.path, options.overwrite, staged_mode(options.mode), options.fingerprint, options.rank),
      spool_(staged_.path()),
      hash_memory_(kHashMemoryBytes) {
  if (!inner_.empty()) make_subdirectories(inner_);
}

void StagedCheckpoint::require_owner(std::string_view action) const {
  if (!owns())
    fail(ErrorCode::Io, {options_.path.string(), {}},
         "{}: a process that joined the run cannot {} it; the one that made it does", options_.path.string(), action);
}

fs::path StagedCheckpoint::root() const { return staged_.path() / inner_; }

/// Where a file of this name is to be created; its directories are made.
fs::path StagedCheckpoint::claim(const std::string& name) {
  if (!names_.insert(name).second)
    fail(ErrorCode::NameCollision, {name, {}}, "two output files would be called '{}'", name);
  make_subdirectories(fs::path(inner_) / fs::path(name).parent_path());
  return root() / name;
}

OutputFile& StagedCheckpoint::open_file(const std::string& name, i64 bytes, i64 header_bytes, Space space) {
  const fs::path path = claim(name);
  file_names_.push_back(name);
  // Resume without an earlier run is a new output.
  const bool is_new = options_.mode == SinkMode::Resume && !staged_.resumed();
  // Cloned parts are not read, so the data of a file with clones have no checksum.
  OutputFileOptions options{bytes, header_bytes, space, nullptr, nullptr};
  if (space == Space::AsWritten)
    options.spool = &spool_;
  else
    options.hash_memory = &hash_memory_;
  return files_.emplace_back(path, is_new ? StagedMode::Create : staged_mode(options_.mode), options);
}

void StagedCheckpoint::remove_others() {
  if (!staged_.resumed()) return;
  std::set<fs::path> keep = {staged_.path() / StagedDir::kJournalName};
  for (const OutputFile& file : files_)
    for (const fs::path& name : file.names()) keep.insert(name);
  remove_others_in(staged_.path(), keep);
}

void StagedCheckpoint::remove_others_in(const fs::path& directory, const std::set<fs::path>& keep) {
  for (const std::string& name : list_directory(directory)) {
    const fs::path path = directory / name;
    if (keep.contains(path)) continue;
    const bool is_ours = subdirectories_.contains(path.lexically_relative(staged_.path()));
    if (is_ours && link_kind(path) == PathKind::Directory) {
      remove_others_in(path, keep);
    } else if (const int error = remove_tree(path); error != 0) {
      fail_errno(error, "remove", path);
    }
  }
}

void StagedCheckpoint::publish_files() {
  spool_.flush();
  parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { files_[i].publish(); });
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const OutputFile& file = files_[i];
    records_[file_names_[i]] = {file_names_[i], file.bytes(), file.header_bytes(), hex(file.header_hash()),
                                file.data_hash() ? hex(*file.data_hash()) : ""};
  }
}

std::vector<std::byte> StagedCheckpoint::export_sums(std::span<const std::byte> more) {
  spool_.flush();
  parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { files_[i].flush(); });
  ByteWriter out;
  for (const OutputFile& file : files_) file.export_hashes(out);
  out.text({reinterpret_cast<const char*>(more.data()), more.size()});
  return out.take();
}

std::string StagedCheckpoint::import_sums(std::span<const std::byte> sums) {
  see_others();
  ByteReader in(sums, "checksums of another process of the run");
  for (OutputFile& file : files_) file.import_hashes(in);
  std::string more = in.text();
  in.end();
  return more;
}

void StagedCheckpoint::see_others() {
  if (!sees_others_) parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { files_[i].see_others(); });
  sees_others_ = true;
}

void StagedCheckpoint::write_text(const std::string& name, std::string_view text) {
  write_small_file(claim(name), text);
  records_[name] = record_of_text(text, name);
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
  const File to = File::create(path);
  const auto copy = [&](std::span<const std::byte> block, i64 offset) { to.pwrite_exact(block, offset); };
  const FileRecord& record = records_[extra.name] = record_of_file(from, extra.name, {0, 1, copy});
  to.set_mode((from.mode() & 0777) | 0200);
  to.sync();
  count(record.bytes);
}

void StagedCheckpoint::make_subdirectories(const fs::path& relative) {
  fs::path path;
  for (const fs::path& part : relative) {
    if (part.empty()) continue;
    path /= part;
    const fs::path directory = staged_.path() / path;
    if (!make_directory(directory) && !is_directory_at(directory)) fail_errno(EEXIST, "create", directory);
    subdirectories_.insert(path);
  }
}

void StagedCheckpoint::write_record_file(const Record& record) {
  RecordFile content{record, options_.options, {}};
  for (const auto& [name, file] : records_) content.files.push_back(file);
  write_text(std::string(kRecordFileName), print_record_json(content));
}

void StagedCheckpoint::sync_directories() const {
  for (const fs::path& subdirectory : subdirectories_) sync_directory(staged_.path() / subdirectory);
}

fs::path StagedCheckpoint::staged_path() const { return single_file_ ? staged_.path() / file_name() : staged_.path(); }

void StagedCheckpoint::commit() {
  require_owner("commit");
  if (single_file_)
    staged_.commit_file(file_name());
  else
    staged_.commit();
}

Journal& StagedCheckpoint::journal() {
  if (!has_journal())
    fail(ErrorCode::Io, {options_.path.string(), {}}, "{}: this run keeps no journal", options_.path.string());
  return staged_.journal();
}

}  // namespace glu_ckpt
