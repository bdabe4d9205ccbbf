#include "io/staged_dir.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>

#include "core/fail.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// Returns the path without the trailing slash, and with a name where "." or ".." was given.
fs::path named_path(const fs::path& path) {
  const fs::path named = path.has_filename() ? path : path.parent_path();
  return named.filename() != "." && named.filename() != ".." ? named : canonical_path(named);
}

[[noreturn]] void fail_exists(const fs::path& path) {
  fail(ErrorCode::OutputExists, {path.string(), {}}, "{} exists; choose another name, or --overwrite to replace it",
       path.string());
}

[[noreturn]] void fail_busy(const fs::path& staging) {
  fail(ErrorCode::OutputBusy, {staging.string(), {}}, "{}: another run is writing this output; wait until it ends",
       staging.string());
}

/// A journal that cannot be opened is taken for one of another user's run that has ended.
bool is_locked(const fs::path& journal) {
  try {
    return File::open_write(journal).try_lock() == LockResult::Busy;
  } catch (const Error&) {
    return false;
  }
}

/// Says what may become of a staging directory that is in the way.
std::string_view way_on(const fs::path& staging) {
  return link_kind(staging / StagedDir::kSourceName) == PathKind::File
             ? "; do not remove it: --consume-source has removed files of the source, and what was in them is here "
               "alone"
             : ", or remove it";
}

/// Returns how many parts the run of a journal was cut into ("2"); empty where it was not.
std::string parts_of(std::string_view header) {
  const std::string line = fmt::format("\n{}", kPartsLine);
  const std::size_t at = header.find(line);
  if (at == header.npos) return {};
  const std::size_t begin = header.find_first_not_of(' ', at + line.size());
  return std::string(header.substr(begin, header.find('\n', begin) - begin));
}

/// The header of a journal; empty also where it cannot be read.
std::string header_at(const fs::path& journal) {
  try {
    return Journal::read_at(journal).header().value_or("");
  } catch (const Error&) {
    return {};
  }
}

std::string parts_at(const fs::path& journal) { return parts_of(header_at(journal)); }

/// Says what made the fingerprint of an earlier run with the same options another one.
std::string what_was_another(std::string_view found, std::string_view fingerprint) {
  // The first line that begins with the word and that the earlier run did not have.
  const auto other = [&](std::string_view word) -> std::string_view {
    for (std::size_t begin = 0; begin < fingerprint.size();) {
      const std::size_t end = std::min(fingerprint.find('\n', begin), fingerprint.size());
      const std::string_view line = fingerprint.substr(begin, end - begin);
      if (line.starts_with(word) && found.find(line) == found.npos) return line.substr(word.size());
      begin = end + 1;
    }
    return {};
  };
  if (!other("glu-ckpt ").empty()) return "another version of glu-ckpt";
  if (std::string_view file = other("file "); !file.empty()) {
    // Its inode, size and date are behind the name.
    for (int numbers = 3; numbers > 0; --numbers) file = file.substr(0, file.rfind(' '));
    return fmt::format("another source: {} is another file than then, or a copy of it", file);
  }
  if (!other("config ").empty() || !other("named config ").empty()) return "another config.json";
  return "another source or other options";
}

/// "--glu interleaved:32 --to megatron"
std::string options_in(std::string_view header) {
  std::string text;
  for (std::size_t begin = 0; begin < header.size();) {
    const std::size_t end = std::min(header.find('\n', begin), header.size());
    std::string_view line = header.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(kOptionLine)) continue;
    line.remove_prefix(kOptionLine.size());
    const std::size_t space = std::min(line.find(' '), line.size());
    std::string name(line.substr(0, space));
    std::ranges::replace(name, '_', '-');
    const std::string_view value = line.substr(space);
    text += fmt::format("{}--{}{}", text.empty() ? "" : " ", name, value == " true" ? "" : value);
  }
  return text;
}

/// renameat2() answers so where the file system lacks the flag.
bool is_no_rename_flag(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

}  // namespace

void StagedDir::fail_in_the_way(const fs::path& staging) {
  const std::string name = staging.string();
  if (link_kind(staging) != PathKind::Directory || link_kind(staging / kJournalName) != PathKind::File)
    fail(ErrorCode::OutputExists, {name, {}},
         "{}: is in the way and holds no work in progress of this program, so it is left alone; move it away", name);
  RunOwner::check_free(staging);
  if (is_locked(staging / kJournalName)) fail_busy(staging);
  if (const std::string parts = parts_at(staging / kJournalName); !parts.empty())
    fail(ErrorCode::OutputExists, {name, {}},
         "{}: runs of {} parts did not finish it: the same command with --part I/{}, for each I that is not done, goes "
         "on "
         "with it{}",
         name, parts, parts, way_on(staging));
  fail(ErrorCode::OutputExists, {name, {}}, "{}: an earlier run did not finish: --resume goes on with it{}", name,
       way_on(staging));
}

StagedDir::StagedDir(const fs::path& final_path, bool overwrite, StagedMode mode, std::string_view fingerprint,
                     int rank)
    : final_(named_path(final_path)), staging_(partial_of(final_)), overwrite_(overwrite) {
  joined_ = mode == StagedMode::Join;
  if (joined_) {
    if (link_kind(staging_) != PathKind::Directory)
      fail(ErrorCode::NotFound, {staging_.string(), {}}, "{}: the run to join has not made it", staging_.string());
    if (fingerprint.empty()) return;
    journal_ = std::make_unique<Journal>(File::create(fmt::format("{}.{}", journal_path().string(), rank)));
    journal_->begin(fingerprint);
    return;
  }
  if (!overwrite_ && name_taken(final_)) fail_exists(final_);
  if (mode == StagedMode::Anew) check_replaces_file();
  if (const fs::path old = final_.string() + ".replaced"; overwrite_ && name_taken(old))
    fail(ErrorCode::OutputExists, {old.string(), {}},
         "{}: an earlier run that was to replace {} was stopped and left the old one there; remove it, or give it its "
         "name back",
         old.string(), final_.string());
  const PathKind above = path_kind(directory_of(final_));
  if (above == PathKind::Missing || above == PathKind::File)
    fail(ErrorCode::NotFound, {final_.string(), {}}, "{}: the directory it would be in does not exist",
         final_.string());
  if (mode == StagedMode::Part || mode == StagedMode::Lead) {
    if (mode == StagedMode::Part)
      open_part(fingerprint, rank);
    else
      lead(fingerprint);
    return;
  }
  const bool can_resume = mode != StagedMode::Create && !fingerprint.empty();
  if (mode == StagedMode::Resume && can_resume && overwrite_) clear_up(fingerprint);
  // mkdir, not a look before it: of two runs at once, one gets the directory and the other an error.
  if (make_directory(staging_))
    create(fingerprint);
  else if (can_resume && link_kind(staging_) == PathKind::Directory)
    resume(fingerprint);
  else
    fail_in_the_way(staging_);
  if (mode == StagedMode::Anew && resumed_) begin_anew();
  // An earlier run's work is not for an error on the way to go with.
  owned_ = !resumed_;
}

/// A device, a FIFO or a directory is nobody's older output, and a rename would put a file in its place.
void StagedDir::check_replaces_file() const {
  const PathKind kind = path_kind(final_);
  if (kind == PathKind::File || kind == PathKind::Missing) return;
  fail(ErrorCode::OutputExists, {final_.string(), {}}, "{}: is {}, which no file replaces; choose another name",
       final_.string(), kind == PathKind::Directory ? "a directory" : "no regular file");
}

/// Removes what a short run left: it is not worth looking at.
void StagedDir::begin_anew() {
  if (const int error = remove_others(); error != 0) fail_errno(error, "remove what an earlier run left in", staging_);
  resumed_ = false;
}

StagedDir::~StagedDir() {
  if (owned_) (void)remove_all();
  (void)release_owner();
}

/// Returns an errno where the name stays.
int StagedDir::release_owner() {
  const int error = owner_ ? owner_->release() : 0;
  owner_.reset();
  return error;
}

fs::path StagedDir::file_of_part(int part, std::string_view ending) const {
  return fmt::format("{}.{}{}", journal_path().string(), part, ending);
}

/// Whoever is first makes the directory and its journal, which appears with its header whole; nobody locks it.
void StagedDir::open_part(std::string_view fingerprint, int part) {
  joined_ = true;
  (void)make_directory(staging_);
  if (link_kind(journal_path()) == PathKind::Missing) {
    if (link_kind(staging_) != PathKind::Directory || has_files()) fail_in_the_way(staging_);
    const fs::path made = file_of_part(part, ".new");
    if (const int error = remove_own(made, Own::InStaging); error != 0) fail_errno(error, "remove", made);
    Journal(File::create(made)).begin(fingerprint);
    int error = rename_with(made, journal_path(), RENAME_NOREPLACE);
    if (is_no_rename_flag(error)) error = rename_with(made, journal_path(), 0);
    if (error == EEXIST) error = remove_own(made, Own::InStaging);
    if (error != 0) fail_errno(error, "rename", made);
    sync_directory(staging_);
    sync_directory(directory_of(staging_));
  }
  const Journal common(File::open_write(journal_path()));
  if (!common.header() || *common.header() != fingerprint)
    fail_other_run(staging_, common.header().value_or(""), fingerprint);
  // A run that commits it has all parts.
  RunOwner::check_free(staging_);
  const fs::path path = file_of_part(part, "");
  File file = File::try_create(path);
  if (!file.is_open()) file = File::open_write(path);
  if (file.try_lock() == LockResult::Busy)
    fail(ErrorCode::OutputBusy, {staging_.string(), {}},
         "{}: another run is writing part {} of this output; wait until it ends", staging_.string(), part);
  journal_ = std::make_unique<Journal>(std::move(file));
  resumed_ = journal_->header() && *journal_->header() == fingerprint;
  if (resumed_) return;
  journal_->begin(fingerprint);
  sync_directory(staging_);
}

void StagedDir::lead(std::string_view fingerprint) {
  if (link_kind(staging_) != PathKind::Directory)
    fail(ErrorCode::NotFound, {staging_.string(), {}}, "{}: is not there any more", staging_.string());
  journal_ = lock_journal();
  if (!journal_->header() || *journal_->header() != fingerprint)
    fail_other_run(staging_, journal_->header().value_or(""), fingerprint);
  owner_.emplace(staging_);
  resumed_ = leads_ = true;
}

void StagedDir::fail_other_run(const fs::path& staging, const std::string& found, std::string_view fingerprint) {
  const std::string here = parts_of(fingerprint), there = parts_of(found);
  const std::string name = staging.string();
  if (here != there && !found.empty())
    fail(ErrorCode::ResumeMismatch, {name, {}}, "{}: was begun {}, and this run is one {}; {}, or remove the directory",
         name, there.empty() ? "by a run without --part" : fmt::format("in {} parts", there),
         here.empty() ? "without --part" : fmt::format("of {} parts", here),
         there.empty()
             ? "repeat the command that began it"
             : fmt::format("the same command with --part I/{}, for each I that is not done, goes on with it", there));
  const std::string asked = options_in(fingerprint), was = options_in(found);
  const auto text = [](const std::string& options) { return options.empty() ? "no options" : "'" + options + "'"; };
  if (asked != was)
    fail(ErrorCode::ResumeMismatch, {name, {}},
         "{}: the run that did not finish had {}, and this one has {}; repeat that one{}", name, text(was), text(asked),
         way_on(staging));
  fail(ErrorCode::ResumeMismatch, {name, {}}, "{}: the run that did not finish had {}; repeat that one{}", name,
       what_was_another(found, fingerprint), way_on(staging));
}

void StagedDir::check_resumable(const fs::path& staging, std::string_view fingerprint) {
  if (link_kind(staging / kJournalName) != PathKind::File) return;
  const std::string found = header_at(staging / kJournalName);
  if (!found.empty() && found != kShortRun && found != fingerprint) fail_other_run(staging, found, fingerprint);
}

std::string StagedDir::options_of(const fs::path& staging) {
  if (link_kind(staging / kJournalName) != PathKind::File) return {};
  const std::string header = header_at(staging / kJournalName), parts = parts_of(header);
  std::string options = options_in(header);
  if (!parts.empty()) options += fmt::format("{}--part I/{}", options.empty() ? "" : " ", parts);
  return options;
}

void StagedDir::create(std::string_view fingerprint) {
  if (fingerprint.empty()) return;
  try {
    File file = File::try_create(journal_path());
    // A run that resumes may have found the directory while it was empty: it is that run's now.
    if (!file.is_open() || file.try_lock() == LockResult::Busy || file.size() != 0) fail_busy(staging_);
    begin_journal(std::make_unique<Journal>(std::move(file)), fingerprint);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::OutputBusy) (void)remove_all();
    throw;
  }
}

/// Removes what a run left that was killed after it had exchanged its output with the older one, which then has the
/// staging directory's name. The journal in the output shows it, for it goes last.
void StagedDir::clear_up(std::string_view fingerprint) const {
  const fs::path journal = final_ / kJournalName;
  if (link_kind(journal) != PathKind::File || link_kind(journal_path()) != PathKind::Missing) return;
  File file = File::open_write(journal);
  if (file.try_lock() == LockResult::Busy) fail_busy(staging_);
  const Journal found(std::move(file));
  if (found.header() != fingerprint) return;
  if (const int error = remove_own(staging_, Own::Replaced); error != 0) fail_errno(error, "remove", staging_);
  sync_directory(directory_of(staging_));
  remove_journal_of_output();
}

void StagedDir::remove_journal_of_output() const {
  for (const std::string& name : journals_of_others(final_))
    if (const int error = remove_own(final_ / name, Own::OutputJournal); error != 0)
      fail_errno(error, "remove", final_ / name);
  const fs::path journal = final_ / kJournalName;
  if (const int error = remove_own(journal, Own::OutputJournal); error != 0) fail_errno(error, "remove", journal);
  sync_directory(final_);
}

void StagedDir::remove_kept_source(const fs::path& output) {
  const fs::path path = output / kSourceName;
  if (link_kind(path) != PathKind::File) return;
  // Not flushed: if a crash brings it back, readers pass over it, and --resume removes it.
  if (const int error = remove_own(path, Own::OutputJournal); error != 0) fail_errno(error, "remove", path);
}

void StagedDir::resume(std::string_view fingerprint) { take_over(lock_journal(), fingerprint); }

std::unique_ptr<Journal> StagedDir::lock_journal() const {
  File file;
  try {
    file = open_journal();
  } catch (const Error& error) {
    // The run that had the directory has just ended, and removed or renamed it.
    if (error.code() == ErrorCode::NotFound) fail_busy(staging_);
    throw;
  }
  if (!file.is_open() || file.try_lock() == LockResult::Busy) fail_busy(staging_);
  // The directory may have been removed or renamed since the file was opened.
  if (!file.is_at(journal_path())) fail_busy(staging_);
  // Its journal is another run's to write: it is not so much as read.
  RunOwner::check_free(staging_);
  return std::make_unique<Journal>(std::move(file));
}

/// The journal of the staging directory that exists; a new one if that is empty. It is not open where another run was
/// quicker.
File StagedDir::open_journal() const {
  const PathKind kind = link_kind(journal_path());
  if (kind == PathKind::File) return File::open_write(journal_path());
  // A power cut may keep the owner's name and lose the journal's.
  if (kind != PathKind::Missing || has_files()) fail_in_the_way(staging_);
  return File::try_create(journal_path());
}

void StagedDir::take_over(std::unique_ptr<Journal> journal, std::string_view fingerprint) {
  if (!journal->header()) {
    // A run writes no file before the header is on the disk.
    if (has_files())
      fail(ErrorCode::ResumeMismatch, {staging_.string(), {}},
           "{}: its journal is damaged, so nothing says what run made the files in it; remove the directory",
           staging_.string());
    return begin_journal(std::move(journal), fingerprint);
  }
  if (*journal->header() != fingerprint) fail_other_run(staging_, *journal->header(), fingerprint);
  owner_.emplace(staging_);
  journal_ = std::move(journal);
  take_rank_journals(fingerprint);
  resumed_ = true;
}

/// Returns true where there is more than the journal and the name of its run.
bool StagedDir::has_files() const {
  const std::vector<std::string> names = list_directory(staging_);
  return std::ranges::any_of(names, [](const std::string& name) { return !is_journal(name); });
}

/// Names of the journals of processes that joined the run.
std::vector<std::string> StagedDir::rank_journals() const { return journals_of_others(staging_); }

std::vector<std::string> StagedDir::journals_of_others(const fs::path& directory) {
  std::vector<std::string> names = list_directory(directory);
  std::erase_if(names, [](const std::string& name) {
    return !is_journal(name) || name == kJournalName || name == RunOwner::kName || name == kSourceName;
  });
  return names;
}

void StagedDir::take_rank_journals(std::string_view fingerprint) {
  const std::vector<std::string> names = rank_journals();
  for (const std::string& name : names) {
    // Parts keep other notes beside theirs.
    if (!std::isdigit(static_cast<unsigned char>(name.back()))) continue;
    const Journal other(File::open_write(staging_ / name));
    if (other.header() && *other.header() == fingerprint) journal_->take_over(other);
  }
  if (!names.empty()) journal_->sync();
  for (const std::string& name : names)
    if (const int error = remove_own(staging_ / name, Own::InStaging); error != 0)
      fail_errno(error, "remove", staging_ / name);
}

void StagedDir::begin_journal(std::unique_ptr<Journal> journal, std::string_view fingerprint) {
  owner_.emplace(staging_);
  journal_ = std::move(journal);
  journal_->begin(fingerprint);
  sync_directory(staging_);
  sync_directory(directory_of(staging_));
}

/// Returns true where the staging directory is still the one that is locked: somebody may have moved it, and another
/// run's may be in its place.
bool StagedDir::is_in_place() const {
  return (!journal_ || journal_->is_at(journal_path())) && (!owner_ || owner_->is_in_place());
}

/// Returns is_in_place() where nothing may be thrown. False if two tries fail.
bool StagedDir::is_surely_in_place() const {
  for (int tries = 0; tries < 2; ++tries) try {
      return is_in_place();
    } catch (const Error&) {
    }
  return false;
}

/// Throws for nothing: it is called where something has failed already. Returns an errno where something stays, then
/// with the journal.
int StagedDir::remove_all() {
  if (!is_surely_in_place()) return 0;
  // The journal last, and its lock after it: while anything else is here, no other run may take it over.
  if (remove_others() != 0)
    if (const int error = remove_others(); error != 0) return error;
  if (const int error = release_owner(); error != 0) return error;
  // As long as what is kept of a source is here, a run that resumes can open that: nothing goes after it.
  if (journal_ && has_source_)
    if (const int error = remove_own(journal_path(), Own::InStaging); error != 0) return error;
  const int error = remove_own(staging_, journal_ ? Own::InStaging : Own::MadeHere);
  journal_.reset();
  if (error == 0) return 0;
  // A network filesystem keeps an open file under another name until it is closed. Not the whole tree again: it may be
  // another run's by now.
  const int again = remove_empty_directory(staging_);
  return again == 0 || again == ENOENT ? 0 : error;
}

/// Everything but the journal, the name of its run and what is kept of the source. Returns the errno of the first
/// failure.
int StagedDir::remove_others() {
  std::vector<std::string> names;
  try {
    names = list_directory(staging_);
  } catch (const Error&) {
    return EIO;
  }
  int first = 0;
  has_source_ = std::ranges::find(names, kSourceName) != names.end();
  for (const std::string& name : names) {
    if (name == kJournalName || name == RunOwner::kName || name == kSourceName) continue;
    const int error = remove_own(staging_ / name, journal_ ? Own::InStaging : Own::MadeHere);
    if (first == 0) first = error;
  }
  return first;
}

void StagedDir::commit() {
  // What parts have noted is needed until the output is in its place: no other run of one can make it anew.
  if (!leads_)
    for (const std::string& name : rank_journals())
      if (const int error = remove_own(staging_ / name, Own::InStaging); error != 0)
        fail_errno(error, "remove", staging_ / name);
  if (!is_in_place()) fail_moved();
  // An output names no run. Whoever takes the place now, on another host, is seen before the rename.
  if (const int error = release_owner(); error != 0) fail_errno(error, "remove", staging_ / RunOwner::kName);
  sync_directory(staging_);
  if (name_taken(staging_ / RunOwner::kName)) fail_moved();
  install(staging_);
  if (!journal_) return;
  // Locked up to here, so that nobody resumed what was about to be renamed. Closed before it is removed: a network
  // filesystem keeps an open file under another name.
  journal_.reset();
  remove_journal_of_output();
  // As long as it is here, a run that resumes can open the source.
  remove_kept_source(final_);
}

/// The journal stays until the file is in its place, so that a run which stops before that can be resumed.
void StagedDir::commit_file(const std::string& name) {
  sync_directory(staging_);
  install(staging_ / name);
  if (const int error = remove_all(); error != 0) fail_errno(error, "remove", staging_);
}

void StagedDir::fail_moved() const {
  fail(ErrorCode::Io, {staging_.string(), {}}, "{}: was moved or replaced while this run wrote to it",
       staging_.string());
}

void StagedDir::install(const fs::path& from) {
  if (!is_in_place()) fail_moved();
  if (overwrite_ && name_taken(final_))
    install_over(from);
  else
    install_new(from);
}

void StagedDir::install_new(const fs::path& from) {
  int error = rename_with(from, final_, RENAME_NOREPLACE);
  if (is_no_rename_flag(error)) {
    if (name_taken(final_)) fail_exists(final_);
    error = rename_with(from, final_, 0);
  }
  if (error == EEXIST) fail_exists(final_);
  if (error != 0) fail_errno(error, "rename to its final path", from);
  owned_ = false;
  sync_directory(directory_of(final_));
}

void StagedDir::install_over(const fs::path& from) {
  if (link_kind(from) != PathKind::Directory && link_kind(final_) != PathKind::Directory) {
    // The rename removes the older output at once.
    replace_own(from, final_, Own::Replaced);
    owned_ = false;
    return sync_directory(directory_of(final_));
  }
  fs::path old = from;
  const int error = rename_with(from, final_, RENAME_EXCHANGE);
  if (is_no_rename_flag(error)) {
    old = final_;
    old += ".replaced";
    // Nothing had this name when the run began.
    if (name_taken(old)) fail_exists(old);
    if (const int moved = rename_with(final_, old, 0); moved != 0) fail_errno(moved, "rename", final_);
    if (const int moved = rename_with(from, final_, 0); moved != 0) {
      (void)rename_with(old, final_, 0);
      fail_errno(moved, "rename to its final path", from);
    }
  } else if (error != 0) {
    fail_errno(error, "exchange with the old output", from);
  }
  owned_ = false;
  sync_directory(directory_of(final_));
  if (const int kept = remove_own(old, Own::Replaced); kept != 0) fail_errno(kept, "remove what was replaced,", old);
  sync_directory(directory_of(final_));
}

void replace_small_file(const fs::path& path, std::string_view text) {
  StagedFile staged(path, /*overwrite=*/true);
  const File file = staged.create();
  file.pwrite_exact(std::as_bytes(std::span(text)), 0);
  file.sync();
  staged.commit();
}

}  // namespace glu_ckpt
