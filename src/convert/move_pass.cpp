#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "convert/passes.hpp"
#include "core/byte_fields.hpp"
#include "core/hash.hpp"
#include "core/readable.hpp"
#include "exec/done_log.hpp"
#include "exec/execute_tasks.hpp"
#include "glu_ckpt/execute.hpp"
#include "io/directory.hpp"
#include "io/staged_dir.hpp"
#include "ranks/task_queue.hpp"

namespace glu_ckpt {
namespace {

/// Returns the outputs that are made of decoded weights, without those that repeat others.
std::vector<std::size_t> decoded_outputs(const Conversion& conversion) {
  const std::vector<std::size_t>& decoded = conversion.source.source->info().decoded_weights;
  std::set<std::size_t> outputs;
  for (const Move& move : conversion.plan.moves)
    if (std::ranges::binary_search(decoded, move.src)) outputs.insert(move.dst);
  for (const std::size_t repeating : conversion.plan.repeats) outputs.erase(repeating);
  return {outputs.begin(), outputs.end()};
}

/// Orders the tasks of each file by the tensors that they are made of: the scales of a weight then follow its codes,
/// which need the same bytes (EncodedSource keeps the scales until then). In the file all scales may come first.
void order_by_source(std::vector<Task>& tasks, const Plan& plan) {
  std::vector<std::size_t> source_of(plan.outputs.size(), std::numeric_limits<std::size_t>::max());
  for (const Move& move : plan.moves) source_of[move.dst] = std::min(source_of[move.dst], move.src);
  std::map<std::size_t, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < tasks.size(); ++i) places[plan.outputs[tasks[i].tensor].shard].push_back(i);
  const std::vector<Task> given = tasks;
  for (const auto& [file, of_file] : places) {
    std::vector<std::size_t> sorted = of_file;
    std::ranges::stable_sort(sorted, {}, [&](std::size_t i) { return source_of[given[i].tensor]; });
    for (std::size_t i = 0; i < sorted.size(); ++i) tasks[of_file[i]] = given[sorted[i]];
  }
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

i64 bytes_done_before(const Conversion& conversion, const std::filesystem::path& staging) {
  const std::filesystem::path path = staging / StagedDir::kJournalName;
  if (!path_exists(path)) return 0;
  return total_bytes(read_done(Journal::read_at(path), source_state(conversion), made_of_removed(conversion)));
}

std::string nans_text(const Plan& plan, const std::map<std::size_t, i64>& nans) {
  if (nans.empty()) return {};
  i64 weights = 0;
  for (const auto& [output, count] : nans) weights += count;
  const std::string& first = plan.outputs[nans.begin()->first].name;
  if (weights == 1)
    return fmt::format(
        "1 decoded weight is NaN or infinite, as the source's code and scale have it: in '{}' of the output", first);
  return fmt::format(
      "{} decoded weights are NaN or infinite, as the source's codes and scales have them: in {} tensor{} of the "
      "output, "
      "first in '{}'",
      weights, nans.size(), nans.size() == 1 ? "" : "s", first);
}

void clone_pass(const Conversion& conversion, const Staging& staging, ClonePlan& clones) {
  Stage stage(conversion.run, "cloning", clones.bytes());
  clone_ranges(clones, conversion.plan, *conversion.source.source, staging.sink(), stage.execute_options());
}

Moved move_pass(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging,
                const ClonePlan& clones, Consumer* consumer, Ranks& ranks, const std::vector<DoneRange>& elsewhere) {
  const Plan& plan = conversion.plan;
  Journal* const journal = staging.sink().has_journal() ? &staging.sink().journal() : nullptr;
  DoneLog log(journal, &clones, consumer != nullptr ? DoneLog::Kept::Ranges : DoneLog::Kept::Sums);
  const std::vector<DoneRange> earlier = prove_earlier(conversion, expected, staging, ranks);
  if (!earlier.empty())
    tell_note(conversion.run, "resumed: {:.1f}% of {} are done already",
              100.0 * static_cast<double>(total_bytes(earlier) + clones.bytes()) / static_cast<double>(plan.bytes),
              size_text(plan.bytes));
  if (ranks.rank() == 0)
    for (const DoneRange& range : earlier) log.count(range);
  if (consumer != nullptr) consumer->begin(log.take());

  if (journal != nullptr) append_source_state(*journal, source_state(conversion));
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
  execution.log = &log;
  TaskPlan tasks = plan_tasks(plan, *conversion.backend, execution);
  if (!conversion.options.from.encode.empty()) order_by_source(tasks.tasks, plan);
  if (!conversion.source.source->is_cheap_in_parts()) tasks.workers.part_bytes = 0;
  tasks.tasks = share_tasks(std::move(tasks.tasks), plan, ranks);
  const auto run = [&] {
    TaskQueue queue(ranks, task_bytes(tasks.tasks), files_of(tasks.tasks, plan));
    together(ranks, [&] {
      (void)execute_tasks(plan, *conversion.source.source, staging.sink(), *conversion.backend, execution, tasks,
                          queue);
    });
  };
  if (consumer == nullptr) {
    run();
    return log.moved();
  }
  const std::vector<std::vector<Task>> steps = consumer->steps(tasks.tasks);
  for (std::size_t step = 0; step < steps.size(); ++step) {
    tasks.tasks = steps[step];
    run();
    consumer->end_step(step, log.take());
  }
  return log.moved();
}

Moved gather_pass(const Moved& mine, Staging& staging, Ranks& ranks) {
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
