#pragma once
/// Output that appears whole or not at all: written into `<final>.partial`, then renamed.
///
/// With a fingerprint, a text that says what the run was asked, the first thing in `<final>.partial` is a journal with
/// it. The run that works there holds a lock on the journal and is named by a file beside it, for other hosts may not
/// see the lock. Where it stops, another one may resume: take the directory over with all that is in it.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/journal.hpp"
#include "io/run_owner.hpp"

namespace glu_ckpt {

/// Create: a new staging directory. Resume: one of an earlier run with the same fingerprint, else a new one. Anew: that
/// of an earlier run with the same fingerprint, emptied, else a new one. Join: that of another process of the same run,
/// which alone commits or removes it. Part: one that any number of processes with the same fingerprint make and write
/// to, and none of them commits. Lead: theirs, by the one that commits it once they are done.
enum class StagedMode { Create, Resume, Anew, Join, Part, Lead };

/// In the fingerprint of a run in parts, this line says how many there are.
inline constexpr std::string_view kPartsLine = "parts ";
/// Each option of a run has a line in its fingerprint: "option to megatron". A value of `true` is a flag that is given.
inline constexpr std::string_view kOptionLine = "option ";

/// A staging directory beside its final path. Unless commit(), commit_file() or keep() is reached, the destructor
/// removes it and leaves the final path as it was; one that was taken over from an earlier run stays, but for
/// discard().
class StagedDir {
 public:
  /// Name of the journal in the staging directory, and until commit() has ended in the output: readers pass it over.
  static constexpr std::string_view kJournalName = "glu_ckpt.journal";

  /// Name of what a run that removes its source keeps of that (ConsumedFiles): the last thing to go from an output.
  static constexpr std::string_view kSourceName = "glu_ckpt.journal.source";

  /// Returns true for the names of the journal, of those of other ranks, and of the file that names their run.
  static bool is_journal(std::string_view name) { return name.starts_with(kJournalName); }
  /// Says why a staging directory that exists is in the way of a run that does not resume.
  [[noreturn]] static void fail_in_the_way(const std::filesystem::path& staging);
  /// Throws ResumeMismatch where another run than that of the fingerprint left the staging directory, if there is one.
  /// Changes nothing.
  static void check_resumable(const std::filesystem::path& staging, std::string_view fingerprint);
  /// Returns the options of the run that left it: "--glu interleaved:32 --to megatron"; empty where it had none, or
  /// where nothing says so.
  static std::string options_of(const std::filesystem::path& staging);

  /// The fingerprint of runs that are short, and begin anew where they were killed.
  static constexpr std::string_view kShortRun = "glu-ckpt: a single file";

  /// There is no journal without a fingerprint, and Resume is Create.
  ///
  /// Throws OutputExists where the final path (unless `overwrite`) is there; where the staging directory is, for
  /// Create; where it holds something and no journal, for Resume. OutputBusy where another run works in it.
  /// ResumeMismatch where the earlier run was asked something else. NotFound where the directory above, or for Join the
  /// staging directory, is missing. NoSpace, Io.
  ///
  /// `rank` is that of a process that joins: it keeps a journal of its own, `<journal>.<rank>`, whose entries a later
  /// run that resumes finds in its own.
  StagedDir(const std::filesystem::path& final_path, bool overwrite, StagedMode mode = StagedMode::Create,
            std::string_view fingerprint = {}, int rank = 0);
  StagedDir(const StagedDir&) = delete;
  StagedDir& operator=(const StagedDir&) = delete;
  ~StagedDir();

  const std::filesystem::path& path() const { return staging_; }
  const std::filesystem::path& final_path() const { return final_; }

  /// False without a fingerprint.
  bool has_journal() const { return journal_ != nullptr; }
  /// Requires has_journal().
  Journal& journal() const { return *journal_; }
  /// A file of this name belongs to a part of the run.
  std::filesystem::path file_of_part(int part, std::string_view ending) const;
  /// Returns true where an earlier run's journal was taken over, with whatever else is in the directory.
  bool resumed() const { return resumed_; }
  /// The destructor then leaves the directory for a later run to resume.
  void keep() { owned_ = false; }
  /// The destructor then removes it, even where an earlier run's was taken over.
  void discard() { owned_ = !joined_; }

  /// Renames the directory to the final path, then removes what was there before, and last the journal: a run that is
  /// killed on the way leaves a directory that can be resumed or an output that is whole.
  void commit();
  /// Renames the file `name` in it to the final path and removes the directory.
  void commit_file(const std::string& name);

  /// Removes what is kept of a removed source from an output that is complete, if it is there.
  static void remove_kept_source(const std::filesystem::path& output);

 private:
  void create(std::string_view fingerprint);
  void begin_anew();
  void open_part(std::string_view fingerprint, int part);
  void lead(std::string_view fingerprint);
  void resume(std::string_view fingerprint);
  void clear_up(std::string_view fingerprint) const;
  File open_journal() const;
  std::unique_ptr<Journal> lock_journal() const;
  [[noreturn]] static void fail_other_run(const std::filesystem::path& staging, const std::string& found,
                                          std::string_view fingerprint);
  void take_over(std::unique_ptr<Journal> journal, std::string_view fingerprint);
  void begin_journal(std::unique_ptr<Journal> journal, std::string_view fingerprint);
  std::filesystem::path journal_path() const { return staging_ / kJournalName; }
  int remove_all();
  int release_owner();
  bool is_in_place() const;
  bool is_surely_in_place() const;
  int remove_others();
  bool has_files() const;
  std::vector<std::string> rank_journals() const;
  static std::vector<std::string> journals_of_others(const std::filesystem::path& directory);
  void take_rank_journals(std::string_view fingerprint);
  [[noreturn]] void fail_moved() const;
  void install(const std::filesystem::path& from);
  void install_new(const std::filesystem::path& from);
  void install_over(const std::filesystem::path& from);
  void remove_journal_of_output() const;
  void check_replaces_file() const;

  std::filesystem::path final_;
  std::filesystem::path staging_;
  bool overwrite_;
  /// The directory goes with this object.
  bool owned_ = false;
  bool resumed_ = false;
  bool joined_ = false;
  bool leads_ = false;
  /// What is kept of a source is in it, as remove_others() has seen.
  bool has_source_ = false;
  std::unique_ptr<Journal> journal_;
  std::optional<RunOwner> owner_;
};

/// Replaces `path`, a regular file or nothing, by `text` in one step. Throws OutputExists where something else is there
/// or at `<path>.partial`, which stays; NotFound, OutputBusy, NoSpace, Io.
void replace_small_file(const std::filesystem::path& path, std::string_view text);

/// A short run's output: one file, made anew where an earlier such run was killed.
class StagedFile {
 public:
  /// Throws as StagedDir(), and OutputExists where `path` is there and no regular file, whatever `overwrite` says.
  StagedFile(const std::filesystem::path& path, bool overwrite)
      : staged_(path, overwrite, StagedMode::Anew, StagedDir::kShortRun) {}

  /// Makes the file. Once.
  File create() const { return File::create(staged_.path() / name()); }
  /// Gives the file, which its writer has flushed, its final name.
  void commit() { staged_.commit_file(name()); }

 private:
  std::string name() const { return staged_.final_path().filename().string(); }

  StagedDir staged_;
};

}  // namespace glu_ckpt
