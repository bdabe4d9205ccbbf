#include "convert/move_pass.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "core/byte_fields.hpp"
#include "core/hash.hpp"
#include "core/readable.hpp"
#include "exec/execute_tasks.hpp"
#include "glu_ckpt/execute.hpp"
#include "io/journal.hpp"
#include "ranks/task_queue.hpp"

namespace glu_ckpt {
namespace {

/// An entry holds the tensor, begin and end, then of the source's and of the output's leaves the sum's low and high
/// half, the number and the bytes, then the number of NaNs, and the same four of all bytes where some are in no leaf;
/// 64 bits each, little-endian, as every machine that this runs on has them.
constexpr std::size_t kFields = 16;
using Fields = std::array<i64, kFields>;

void put_sum(const LeafSum& sum, i64* at) {
  at[0] = static_cast<i64>(sum.low);
  at[1] = static_cast<i64>(sum.high);
  at[2] = sum.leaves;
  at[3] = sum.bytes;
}

LeafSum take_sum(const i64* at) { return {static_cast<u64>(at[0]), static_cast<u64>(at[1]), at[2], at[3]}; }

Fields fields_of(const DoneRange& range) {
  Fields fields{static_cast<i64>(range.tensor), range.begin, range.end};
  put_sum(range.sums.source, &fields[3]);
  put_sum(range.sums.output, &fields[7]);
  fields[11] = range.sums.nans;
  put_sum(range.whole, &fields[12]);
  return fields;
}

DoneRange range_of(const std::byte* bytes) {
  Fields fields{};
  std::memcpy(fields.data(), bytes, sizeof fields);
  const RangeSums sums{take_sum(&fields[3]), take_sum(&fields[7]), fields[11]};
  return {static_cast<std::size_t>(fields[0]), fields[1], fields[2], sums, take_sum(&fields[12])};
}

/// Thread safe.
void append_done(Journal& journal, const DoneRange& range) {
  const Fields fields = fields_of(range);
  journal.append(std::as_bytes(std::span(fields)));
}

/// Notes the state that the source is read in from now on. Thread safe.
void append_source_state(Journal& journal, const Hash128& state) {
  const std::array<u64, 2> halves{state.low, state.high};
  journal.append(std::as_bytes(std::span(halves)));
}

/// Returns the ranges that were made of the source in this state, in the order in which they were finished. Entries of
/// another size come from another version and are left out. What was made of files that were removed since counts in
/// any state: it was proved before.
std::vector<DoneRange> read_done(const Journal& journal, const Hash128& state, const std::vector<char>& of_removed) {
  std::vector<DoneRange> ranges;
  bool is_of_state = false;
  for (const std::vector<std::byte>& entry : journal.entries()) {
    std::array<u64, 2> halves{};
    if (entry.size() == sizeof halves) {
      std::memcpy(halves.data(), entry.data(), sizeof halves);
      is_of_state = halves == std::array<u64, 2>{state.low, state.high};
    }
    if (entry.size() != sizeof(Fields)) continue;
    const DoneRange range = range_of(entry.data());
    if (is_of_state || (range.tensor < of_removed.size() && of_removed[range.tensor] != 0)) ranges.push_back(range);
  }
  return ranges;
}

/// Ranges as bytes, for another process of this run.
std::vector<std::byte> done_bytes(std::span<const DoneRange> ranges) {
  std::vector<std::byte> bytes(ranges.size() * sizeof(Fields));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Fields fields = fields_of(ranges[i]);
    std::memcpy(bytes.data() + i * sizeof fields, fields.data(), sizeof fields);
  }
  return bytes;
}

std::vector<DoneRange> parse_done(std::span<const std::byte> bytes) {
  std::vector<DoneRange> ranges;
  for (; bytes.size() >= sizeof(Fields); bytes = bytes.subspan(sizeof(Fields)))
    ranges.push_back(range_of(bytes.data()));
  return ranges;
}

i64 total_bytes(const std::vector<DoneRange>& ranges) {
  i64 bytes = 0;
  for (const DoneRange& range : ranges) bytes += range.bytes();
  return bytes;
}

/// Sums of ranges as they are finished, by any thread.
class MovedCounter {
 public:
  explicit MovedCounter(const ClonePlan& clones) : clones_(clones) {}

  void count(const DoneRange& range) {
    const std::lock_guard lock(mutex_);
    moved_.all += range.sums;
    if (!clones_.has(range.tensor)) moved_.uncloned += range.sums;
    if (range.sums.nans > 0) moved_.nans[range.tensor] += range.sums.nans;
  }
  const Moved& moved() const { return moved_; }

 private:
  const ClonePlan& clones_;
  std::mutex mutex_;
  Moved moved_;
};

/// Returns the outputs that are made of decoded weights, without those that repeat others.
std::vector<std::size_t> decoded_outputs(const Conversion& conversion) {
  const std::vector<std::size_t>& decoded = conversion.source.source->info().decoded_weights;
  std::set<std::size_t> outputs;
  for (const Move& move : conversion.plan.moves)
    if (std::ranges::binary_search(decoded, move.src)) outputs.insert(move.dst);
  for (const std::size_t repeating : conversion.plan.repeats) outputs.erase(repeating);
  return {outputs.begin(), outputs.end()};
}

/// Rank 0's tasks for all: another rank with other hardware would cut them elsewhere.
std::vector<Task> share_tasks(std::vector<Task> tasks, const Plan& plan, Ranks& ranks) {
  if (ranks.size() == 1) return tasks;
  ByteWriter out;
  out.number(std::ssize(tasks));
  for (const Task& task : tasks)
    for (const i64 number : {static_cast<i64>(task.tensor), task.begin, task.end, i64{task.short_runs}})
      out.number(number);
  const std::vector<std::byte> bytes = ranks.broadcast(out.take());
  ByteReader in(bytes, "a list of tasks");
  tasks.resize(in.count(4 * sizeof(i64)));
  for (Task& task : tasks) {
    task.tensor = static_cast<std::size_t>(in.number(0, std::ssize(plan.outputs) - 1));
    task.begin = in.number(0, plan.outputs[task.tensor].bytes);
    task.end = in.number(task.begin, plan.outputs[task.tensor].bytes);
    task.short_runs = in.number(0, 1) == 1;
  }
  return tasks;
}

/// The times of the last change of the source's files, which no program can set. A source that was rewritten with its
/// sizes and dates kept (cp -p) has others.
Hash128 source_state(const Conversion& conversion) {
  std::vector<i64> times;
  for (const OpenedFile& file : conversion.source.source->info().files) times.push_back(file.changed_ns);
  return hash128(std::as_bytes(std::span(times)), 0);
}

/// Returns what the journal says was made of the source as it is now. Links and permissions change the state, too: then
/// ranges are made again that need not be.
std::vector<DoneRange> read_earlier(const Conversion& conversion, Journal& journal) {
  const Hash128 state = source_state(conversion);
  std::vector<DoneRange> ranges = read_done(journal, state, made_of_removed(conversion));
  if (ranges.empty() && !journal.entries().empty())
    tell_note(conversion.run,
              "{}: its files were written to, or got other links or permissions, since the earlier run read them; what "
              "that run made of them is made again",
              conversion.input.string());
  return ranges;
}

/// The ranges that an earlier run wrote and that still hold what it wrote: each rank reads a share of them.
std::vector<DoneRange> prove_earlier(const Conversion& conversion, const ExpectedOutput& expected,
                                     const Staging& staging, Ranks& ranks) {
  std::vector<DoneRange> mine;
  StagedOutput& sink = staging.sink();
  const auto found = ranks.broadcast(done_bytes(sink.resumed() ? read_earlier(conversion, sink.journal()) : mine));
  const std::vector<DoneRange> all = parse_done(found);
  if (all.empty()) return {};
  for (std::size_t i = 0; i < all.size(); ++i)
    if (static_cast<int>(i % static_cast<std::size_t>(ranks.size())) == ranks.rank()) mine.push_back(all[i]);
  Stage stage(conversion.run, "checking what is done", total_bytes(mine));
  ExecuteOptions execution = stage.execute_options();
  execution.output_leaves = &expected.output_leaves();
  together(ranks, [&] { mine = prove_ranges(std::move(mine), conversion.plan, sink, execution); });
  std::vector<DoneRange> proved;
  for (const std::vector<std::byte>& part : ranks.gather(done_bytes(mine)))
    for (const DoneRange& range : parse_done(part)) proved.push_back(range);
  return parse_done(ranks.broadcast(done_bytes(proved)));
}

}  // namespace

std::vector<std::byte> moved_bytes(const Moved& moved, i64 bytes_written) {
  std::vector<DoneRange> written{{0, 0, bytes_written, moved.all}};
  for (const auto& [tensor, nans] : moved.nans) written.push_back({tensor, 0, 0, {{}, {}, nans}});
  return done_bytes(written);
}

void add_moved(std::span<const std::byte> of_another, Moved& moved) {
  const std::vector<DoneRange> ranges = parse_done(of_another);
  moved.all += ranges.at(0).sums;
  moved.bytes_written_elsewhere += ranges[0].end;
  for (const DoneRange& range : std::span(ranges).subspan(1)) moved.nans[range.tensor] += range.sums.nans;
}

std::string nans_text(const Plan& plan, const std::map<std::size_t, i64>& nans) {
  if (nans.empty()) return {};
  i64 weights = 0;
  for (const auto& [output, count] : nans) weights += count;
  const std::string& first = plan.outputs[nans.begin()->first].name;
  if (weights == 1) return fmt::format("1 decoded weight is NaN, as the source has it: in '{}' of the output", first);
  return fmt::format("{} decoded weights are NaN, as the source has them: in {} tensor{} of the output, first in '{}'",
                     weights, nans.size(), nans.size() == 1 ? "" : "s", first);
}

void clone_pass(const Conversion& conversion, const Staging& staging, ClonePlan& clones) {
  if (clones.empty()) return;
  Stage stage(conversion.run, "cloning", clones.bytes());
  clone_ranges(clones, conversion.plan, *conversion.source.source, staging.sink(), stage.execute_options());
}

Moved move_pass(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging,
                const ClonePlan& clones, Consumer* consumer, Ranks& ranks, const std::vector<DoneRange>& elsewhere) {
  const Plan& plan = conversion.plan;
  MovedCounter counter(clones);
  const std::vector<DoneRange> earlier = prove_earlier(conversion, expected, staging, ranks);
  if (!earlier.empty())
    tell_note(conversion.run, "resumed: {:.1f}% of {} are done already",
              100.0 * static_cast<double>(total_bytes(earlier) + clones.bytes()) / static_cast<double>(plan.bytes),
              size_text(plan.bytes));
  if (ranks.rank() == 0)
    for (const DoneRange& range : earlier) counter.count(range);
  if (consumer != nullptr) consumer->begin(earlier);

  if (staging.sink().has_journal()) append_source_state(staging.sink().journal(), source_state(conversion));
  const i64 left = plan.bytes - total_bytes(earlier) - total_bytes(elsewhere) - clones.bytes();
  Stage stage(conversion.run, "converting", std::max<i64>(0, left));
  ExecuteOptions execution = stage.execute_options();
  execution.writes_wait = !staging.sink().is_in_memory();
  execution.output_leaves = &expected.output_leaves();
  if (conversion.options.proof != ProofMode::None) execution.source_leaves = &expected.source_leaves();
  execution.count_nans_of = decoded_outputs(conversion);
  execution.done = earlier;
  execution.done.insert(execution.done.end(), elsewhere.begin(), elsewhere.end());
  execution.clones = clones.empty() ? nullptr : &clones;
  execution.times = &stage.times();
  execution.on_done = [&](const DoneRange& range) {
    counter.count(range);
    append_done(staging.sink().journal(), range);
    if (consumer != nullptr) consumer->count(range);
  };
  TaskPlan tasks = plan_tasks(plan, *conversion.backend, execution);
  tasks.tasks = share_tasks(std::move(tasks.tasks), plan, ranks);
  if (consumer != nullptr) {
    const std::vector<std::vector<Task>> steps = consumer->steps(tasks.tasks);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      tasks.tasks = steps[step];
      std::atomic<i64> given{0};
      (void)execute_tasks(plan, *conversion.source.source, staging.sink(), *conversion.backend, execution, tasks, [&] {
        const i64 number = given++;
        return number < std::ssize(tasks.tasks) ? number : -1;
      });
      consumer->end_step(step);
    }
    return counter.moved();
  }
  std::vector<i64> task_bytes;
  for (const Task& task : tasks.tasks) task_bytes.push_back(task.end - task.begin);
  TaskQueue queue(ranks, task_bytes);
  together(ranks, [&] {
    (void)execute_tasks(plan, *conversion.source.source, staging.sink(), *conversion.backend, execution, tasks,
                        [&] { return queue.next(); });
  });
  return counter.moved();
}

Moved gather_pass(const Moved& mine, Staging& staging, Ranks& ranks) {
  if (ranks.size() == 1) return mine;
  const bool is_first = ranks.rank() == 0;
  std::vector<std::byte> sums;
  together(ranks, [&] {
    if (!is_first) sums = staging.sink().export_sums();
  });
  const auto all_sums = ranks.gather(sums);
  const auto all_moved = ranks.gather(moved_bytes(mine, staging.sink().bytes_written()));
  if (!is_first) staging.close();
  Moved total = mine;
  at_first_rank(ranks, [&] {
    for (std::size_t rank = 1; rank < all_moved.size(); ++rank) {
      staging.sink().import_sums(all_sums[rank]);
      add_moved(all_moved[rank], total);
    }
  });
  return total;
}

}  // namespace glu_ckpt
