#pragma once
/// Conversions that remove the files of their source while the output grows.

#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "convert/conversion.hpp"
#include "convert/staging.hpp"
#include "exec/execute_tasks.hpp"
#include "io/consumed_files.hpp"
#include "io/run_owner.hpp"

namespace glu_ckpt {

/// Lasts as long as one conversion whose source goes, or went in part before an earlier run was stopped. All others
/// find the disk as it is.
class SourceWatch {
 public:
  SourceWatch(const std::filesystem::path& input, const std::filesystem::path& output, const ConvertOptions& options);
  /// Null where nothing of the source is removed.
  ConsumedFiles* files() const { return files_.get(); }

 private:
  std::unique_lock<std::mutex> lock_;
  std::unique_ptr<ConsumedFiles> files_;
  std::optional<SystemCallsScope> scope_;
};

/// Ends the noting of what opening reads, once all of that is open. Requires Conversion::consumed.
void keep_source(const Conversion& conversion);

/// Refuses what does not go with ConvertOptions::consume_source. Throws SourceNeeded, Usage.
void check_consuming_options(const std::filesystem::path& input, const ConvertOptions& options, int ranks);

/// Refuses to remove sources that are not this user's alone, those of which something would be lost, and those whose
/// output could not be finished. Throws SourceNeeded.
void check_consumable(const Conversion& conversion);

/// The room that the output needs while files of the source go, at the most.
DiskRoom consuming_room(const Conversion& conversion);

/// What makes room for the output, as the end of a sentence: --consume-source is named where it would.
std::string ways_to_room(const Conversion& conversion);

/// Says where --consume-source takes no less room than a run without it would; empty elsewhere.
std::string wasted_consuming(const Conversion& conversion);

/// Refuses a run that has less, before it writes or removes anything; not one that resumes, which has written some.
/// Throws NoSpace.
void check_consuming_room(const Conversion& conversion);

/// Says of each output whether some of what it was made of has been removed. Empty where nothing has.
std::vector<char> made_of_removed(const Conversion& conversion);

/// Removes the files of the source, each when all outputs that need it are on the disk and proved.
class Consumer {
 public:
  Consumer(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging);
  ~Consumer();

  /// Keeps every other run from consuming the source: throws OutputBusy where one does. Takes what an earlier run
  /// wrote, and was read again. Where nothing has been removed yet, sees that the output can be finished: throws
  /// NoSpace where the rest does not fit, and whatever a finished output would be refused for.
  void begin(const std::vector<DoneRange>& earlier);
  /// Parts the tasks, in whose order files become free.
  std::vector<std::vector<Task>> steps(const std::vector<Task>& tasks) const;
  /// Takes what the step wrote. Reads again what was written since the last step that removed something, and removes
  /// the files that are free then; none after the last step.
  void end_step(std::size_t step, const std::vector<DoneRange>& written);
  /// Removes all others: the output is complete, and was opened and proved.
  void remove_rest();

 private:
  struct Written {
    RangeSums sums;
    i64 bytes = 0;
  };

  std::set<std::filesystem::path> source_directories() const;
  void own_source();
  int release_source();
  void check_room() const;
  void rehearse_finish() const;
  void rehearse_reading() const;
  void add(const DoneRange& range);
  void prove(std::size_t step);
  void prove_tensor(std::size_t tensor, const Written& written) const;
  void remove(const std::vector<std::size_t>& files);

  const Conversion& conversion_;
  const ExpectedOutput& expected_;
  const Staging& staging_;
  /// This run's notes, one in each directory of the source, while it removes files there.
  std::vector<RunOwner> owners_;
  /// By output: the step in which it is made.
  std::vector<std::size_t> step_of_;
  /// By file of the source: the step after which it is free.
  std::vector<std::size_t> free_after_;
  std::map<std::size_t, Written> written_;
  /// By output: bytes that are not written yet.
  std::vector<i64> left_;
  std::vector<DoneRange> unread_;
};

}  // namespace glu_ckpt
