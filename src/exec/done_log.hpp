#pragma once
/// The ranges of an output that are written: summed, noted in the journal for a run that goes on later, and as bytes
/// for another process of the same run.

#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/hash.hpp"
#include "exec/clone_plan.hpp"
#include "glu_ckpt/execute.hpp"
#include "io/journal.hpp"

namespace glu_ckpt {

/// The sums of what passed through memory on the way.
struct Moved {
  RangeSums all;
  /// The sums of tensors of which nothing is cloned.
  RangeSums uncloned;
  /// The NaN elements of each output that has decoded weights and any NaN.
  std::map<std::size_t, i64> nans;
  /// The bytes that other ranks wrote.
  i64 bytes_written_elsewhere = 0;
};

class DoneLog {
 public:
  enum class Kept { Sums, Ranges };
  /// `journal` is null where no run goes on later, `clones` where nothing is cloned.
  DoneLog(Journal* journal, const ClonePlan* clones, Kept kept = Kept::Sums)
      : journal_(journal), clones_(clones), kept_(kept) {}

  /// Notes a range that was written. Thread safe.
  void add(const DoneRange& range);
  /// Counts one that an earlier run wrote and noted. Thread safe.
  void count(const DoneRange& range);
  /// Returns the ranges since the last call, where they are kept.
  std::vector<DoneRange> take();
  const Moved& moved() const { return moved_; }

 private:
  Journal* journal_;
  const ClonePlan* clones_;
  Kept kept_;
  std::mutex mutex_;
  Moved moved_;
  std::vector<DoneRange> ranges_;
};

/// Notes the state that the source is read in from now on. Thread safe.
void append_source_state(Journal& journal, const Hash128& state);

/// Returns the ranges that were made of the source in this state, in the order in which they were finished. Entries of
/// another size come from another version and are left out. What was made of files that were removed since counts in
/// any state: it was proved before. `of_removed` says of each output whether some of it was.
std::vector<DoneRange> read_done(const Journal& journal, const Hash128& state, const std::vector<char>& of_removed);

/// Ranges as bytes, for another process of this run, and back.
std::vector<std::byte> done_bytes(std::span<const DoneRange> ranges);
std::vector<DoneRange> parse_done(std::span<const std::byte> bytes);

i64 total_bytes(const std::vector<DoneRange>& ranges);

/// What a process moved, and the bytes that it wrote, for the one that commits; and back, added to what that knows.
std::vector<std::byte> moved_bytes(const Moved& moved, i64 bytes_written);
void add_moved(std::span<const std::byte> of_another, Moved& moved);

}  // namespace glu_ckpt
