#include "convert/conversion.hpp"

#include <fmt/format.h>

#include <mutex>
#include <new>
#include <set>

#include "convert/check_output.hpp"
#include "convert/choose_clones.hpp"
#include "convert/output_model.hpp"
#include "core/byte_fields.hpp"
#include "core/current_error.hpp"
#include "core/fail.hpp"
#include "exec/done_journal.hpp"
#include "exec/make_tasks.hpp"
#include "format/structure.hpp"
#include "io/file_backed.hpp"
#include "ranks/task_queue.hpp"
#include "report/report.hpp"
#include "report/tell.hpp"

namespace glu_ckpt::cli {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

i64 total_bytes(const std::vector<DoneRange>& ranges) {
  i64 bytes = 0;
  for (const DoneRange& range : ranges) bytes += range.bytes();
  return bytes;
}

/// Of a run that has begun: the machine failed, the run was stopped, or its name was taken meanwhile.
bool is_resumable(ErrorCode code) {
  constexpr int kMachineFailed = 5, kStopped = 6;
  return exit_status(code) == kMachineFailed || exit_status(code) == kStopped || code == ErrorCode::OutputExists;
}

class Conversion {
 public:
  Conversion(const Options& options, const Opened& opened, const Plan& plan, Format format, Backend& backend,
             Ranks& ranks)
      : ranks_(ranks),
        options_(options),
        opened_(opened),
        plan_(plan),
        format_(format),
        backend_(backend),
        clones_(ranks.size() > 1 ? ClonePlan() : choose_clones(options, *opened.source, plan, format)),
        inherits_(!clones_.empty() && options.verify == VerifyMode::Digest),
        known_(!has_unknown_glu(opened.recognition)),
        source_leaves_(opened.source->inventory(), opened.recognition),
        output_(output_model(plan, *opened.source, record_of(digest_to_record(source_leaves_.blank())))),
        output_leaves_(output_.inventory, output_.recognition) {}

  Converted run() {
    at_first_rank(ranks_, [&] { check_contents(options_, *opened_.source, "checking source"); });
    together(ranks_, [&] { backend_.ready(); });
    // For the experts, where it is not larger than memory.
    if (const FileBacked* files = opened_.source->file_backed(); files != nullptr && options_.verify == VerifyMode::Forward)
      files->keep_in_cache();
    create();
    try {
      move();
      // What is given back is lost to the whole process, and the experts need it again.
      if (options_.verify != VerifyMode::Forward) backend_.release();
      together(ranks_, [&] { check_source(); });
      sum_ranks();
      std::optional<Digest> digest;
      at_first_rank(ranks_, [&] { digest = prove_and_finish(); });
      return {known_ ? digest : std::nullopt, bytes_written_ + (sink_ ? sink_->bytes_written() : 0), clones_.bytes(),
              sample_};
    } catch (const Error& error) {
      keep_if_resumable(error.code());
      if (!is_resumable(error.code())) throw;
      fail_resumable(error);
    } catch (const std::bad_alloc&) {
      keep_if_resumable(ErrorCode::NoMemory);
      fail_resumable(current_error());
    }
  }

 private:
  Record record_of(const std::optional<Digest>& digest) const {
    const bool recorded = known_ && options_.verify != VerifyMode::None;
    return make_record(opened_.recognition, plan_, recorded ? digest : std::nullopt);
  }

  /// Of what was to be cloned; the file system may have refused all of it.
  bool is_sampled() const { return inherits_ && clones_.bytes() > 0; }

  /// What there is to record, where the digest of the bytes is or will be `digest`.
  std::optional<Digest> digest_to_record(const std::optional<Digest>& digest) const {
    return inherits_ ? recorded_digest() : digest;
  }

  /// The record's digest is of everything, so it says nothing about what is left after a drop.
  std::optional<Digest> recorded_digest() const {
    const auto recorded = opened_.source->record().find("digest");
    if (recorded == opened_.source->record().end() || !opened_.recognition.dropped.empty()) return std::nullopt;
    const std::optional<Digest> digest = parse_digest(recorded->second);
    const Digest blank = source_leaves_.blank();
    if (!digest || digest->tensors != blank.tensors || digest->bytes != blank.bytes)
      fail_contradicted(recorded->second,
                        fmt::format("{} matrices and tensors of {} bytes", blank.tensors, blank.bytes));
    return digest;
  }

  [[noreturn]] void fail_contradicted(const std::string& recorded, const std::string& found) const {
    fail(ErrorCode::RecordContradicts, {options_.input, {}},
         "{}: its record says {}, its tensors give {}: it has changed since it was written. If that was meant, remove "
         "the record; otherwise find an intact copy",
         options_.input, recorded, found);
  }

  std::string how_to_resume() const {
    return fmt::format("What is done is kept in {}.partial: the same command with --resume goes on with it",
                       output_path(options_).string());
  }

  void check_source() const {
    check_unchanged(opened_.source->info());
    if (ranks_.rank() == 0 && config_ != config_of(*opened_.source))
      fail(ErrorCode::SourceChanged, {options_.input, {}},
           "{}: config.json was changed while this run read the tensors; run again", options_.input);
  }

  void keep_if_resumable(ErrorCode code) {
    if (!sink_) return;
    if (is_resumable(code))
      sink_->keep();
    else
      sink_->discard();
  }

  [[noreturn]] void fail_resumable(const Error& error) const {
    const Error told(error.code(), fmt::format("{}. {}", error.what(), how_to_resume()), error.file(), error.tensor());
    if (const auto* of_rank = dynamic_cast<const RankError*>(&error)) throw RankError(of_rank->rank(), told);
    throw told;
  }

  /// Rank 0 makes the staging directory, and then the others find it.
  void create() {
    together(ranks_, [&] { config_ = config_of(*opened_.source); });
    const std::string fingerprint = fingerprint_of(options_, opened_, plan_, format_, config_, clones_.bytes());
    const std::vector<std::byte> first = ranks_.broadcast(bytes_of(fingerprint));
    together(ranks_, [&] {
      if (first == bytes_of(fingerprint)) return;
      fail(ErrorCode::SourceChanged, {options_.input, {}},
           "{}: its files have other sizes or dates here than at rank 0; all ranks must see the same ones",
           options_.input);
    });
    at_first_rank(ranks_, [&] { open_sink(options_.resume ? SinkMode::Resume : SinkMode::Create, fingerprint); });
    try {
      together(ranks_, [&] {
        if (ranks_.rank() != 0) open_sink(SinkMode::Join, fingerprint);
      });
    } catch (const Error&) {
      // A rank that cannot join is no reason to lose what an earlier run did.
      if (sink_ && sink_->resumed()) sink_->keep();
      throw;
    }
  }

  void open_sink(SinkMode mode, const std::string& fingerprint) {
    SinkOptions to;
    to.path = options_.output;
    to.metadata = opened_.source->metadata();
    to.extra_files = opened_.source->extra_files();
    to.overwrite = options_.overwrite;
    to.record = record_of(digest_to_record(source_leaves_.blank()));
    to.options = options_.typed;
    to.format = format_;
    to.structure = structure_for(opened_.source->structure(), format_,
                                 options_.from.drop_optimizer ? IsDropped(is_optimizer_tensor) : IsDropped());
    to.source_format = opened_.source->format();
    to.mode = mode;
    to.rank = ranks_.rank();
    to.data_phases = plan_.data_phases;
    to.cloned_shards = clones_.shards();
    to.fingerprint = fingerprint;
    sink_ = create_sink(to, plan_.outputs);
  }

  /// Every byte of the output, by this run or by the one before.
  void move() {
    clone();
    ExecuteOptions execution;
    execution.output_leaves = &output_leaves_;
    execution.done = prove_earlier();
    if (ranks_.rank() == 0)
      for (const DoneRange& range : execution.done) count(range);
    if (!clones_.empty()) execution.clones = &clones_;
    execution.jobs = options_.jobs;
    execution.memory_bytes = options_.memory_bytes;
    // Rank 0's, since another rank with other hardware would cut them elsewhere.
    const std::vector<Task> tasks = share_tasks(make_tasks(plan_, backend_, execution));
    std::vector<i64> task_bytes;
    i64 left = 0;
    for (const Task& task : tasks) {
      task_bytes.push_back(task.end - task.begin);
      left += task_bytes.back();
    }
    left -= std::min(left, clones_.bytes());
    TaskQueue queue(ranks_, task_bytes);
    StageTimes times;
    execution.times = &times;
    report::Progress progress(progress_style(options_), "converting", left, &times);
    execution.on_progress = execute_options(options_, progress).on_progress;
    if (options_.verify != VerifyMode::None) execution.source_leaves = &source_leaves_;
    execution.on_done = [this](const DoneRange& range) {
      count(range);
      // What holds no whole leaves could never be proved.
      if (range.sums.output.bytes == range.bytes()) append_done(sink_->journal(), range);
    };
    together(ranks_, [&] {
      (void)execute_tasks(plan_, *opened_.source, *sink_, backend_, execution, tasks, [&] { return queue.next(); });
    });
  }

  /// Thread safe.
  void count(const DoneRange& range) {
    const std::lock_guard lock(mutex_);
    sums_ += range.sums;
    if (!clones_.has(range.tensor)) sums_of_whole_ += range.sums;
  }

  /// Made again on --resume: that costs less than finding out what is there.
  void clone() {
    if (clones_.empty()) return;
    report::Progress progress(progress_style(options_), "cloning", clones_.bytes());
    clone_ranges(clones_, plan_, *opened_.source, *sink_, execute_options(options_, progress));
  }

  std::vector<Task> share_tasks(std::vector<Task> tasks) {
    if (ranks_.size() == 1) return tasks;
    ByteWriter out;
    out.number(std::ssize(tasks));
    for (const Task& task : tasks)
      for (const i64 number : {static_cast<i64>(task.tensor), task.begin, task.end, i64{task.short_runs}})
        out.number(number);
    const std::vector<std::byte> bytes = ranks_.broadcast(out.take());
    ByteReader in(bytes, "a list of tasks");
    tasks.resize(in.count(4 * sizeof(i64)));
    for (Task& task : tasks) {
      task.tensor = static_cast<std::size_t>(in.number(0, std::ssize(plan_.outputs) - 1));
      task.begin = in.number(0, plan_.outputs[task.tensor].bytes);
      task.end = in.number(task.begin, plan_.outputs[task.tensor].bytes);
      task.short_runs = in.number(0, 1) == 1;
    }
    return tasks;
  }

  /// What the earlier run wrote and what still is as it was then: each rank looks at a share.
  std::vector<DoneRange> prove_earlier() {
    std::vector<DoneRange> mine;
    const auto found = ranks_.broadcast(done_bytes(sink_->resumed() ? read_done(sink_->journal()) : mine));
    const std::vector<DoneRange> all = parse_done(found);
    if (all.empty()) return {};
    for (std::size_t i = 0; i < all.size(); ++i)
      if (static_cast<int>(i % static_cast<std::size_t>(ranks_.size())) == ranks_.rank()) mine.push_back(all[i]);
    report::Progress progress(progress_style(options_), "checking what is done", total_bytes(mine));
    ExecuteOptions execution = execute_options(options_, progress);
    execution.output_leaves = &output_leaves_;
    together(ranks_, [&] { mine = prove_ranges(std::move(mine), plan_, *sink_, execution); });
    std::vector<DoneRange> proved;
    for (const std::vector<std::byte>& part : ranks_.gather(done_bytes(mine)))
      for (const DoneRange& range : parse_done(part)) proved.push_back(range);
    proved = parse_done(ranks_.broadcast(done_bytes(proved)));
    if (!options_.quiet)
      report::tell("glu-ckpt: resumed: {} of {} are done already\n",
                   report::size_text(total_bytes(proved) + clones_.bytes()), report::size_text(plan_.bytes));
    return proved;
  }

  /// Brings to rank 0 what the others know of the bytes that they wrote.
  void sum_ranks() {
    if (ranks_.size() == 1) return;
    std::vector<std::byte> sums;
    together(ranks_, [&] {
      if (ranks_.rank() != 0) sums = sink_->export_sums();
    });
    const auto all_sums = ranks_.gather(sums);
    const auto all_ranges = ranks_.gather(done_bytes(std::vector{DoneRange{0, 0, sink_->bytes_written(), sums_}}));
    // Closed before rank 0 removes the journals: a network filesystem keeps an open file under another name.
    if (ranks_.rank() != 0) sink_.reset();
    at_first_rank(ranks_, [&] {
      for (std::size_t rank = 1; rank < all_ranges.size(); ++rank) {
        sink_->import_sums(all_sums[rank]);
        const DoneRange range = parse_done(all_ranges[rank]).at(0);
        sums_ += range.sums;
        bytes_written_ += range.end;
      }
    });
  }

  /// The digest of what was read, checked against the source's own record and against what was written.
  std::optional<Digest> source_digest() {
    if (options_.verify == VerifyMode::None) return std::nullopt;
    if (is_sampled()) {
      whole_checked_ = check_whole();
      return recorded_digest();
    }
    const std::optional<Digest> passed = source_leaves_.digest(sums_.source);
    const Digest digest =
        passed ? *passed : digest_with_progress(options_, opened_.model(), backend_, "reading source again");
    const auto recorded = opened_.source->record().find("digest");
    // The record's digest is of everything, so it says nothing about what is left after a drop.
    const bool comparable = recorded != opened_.source->record().end() && opened_.recognition.dropped.empty();
    if (comparable && recorded->second != to_string(digest)) fail_contradicted(recorded->second, to_string(digest));
    if (const auto written = output_leaves_.digest(sums_.output)) check_digest(*written, digest);
    return digest;
  }

  /// Of tensors that were written whole, both sides passed; of the others a sample is read later. False where some
  /// leaves passed in parts only.
  bool check_whole() const {
    i64 bytes = 0;
    for (std::size_t t = 0; t < plan_.outputs.size(); ++t)
      if (!clones_.has(t)) bytes += plan_.outputs[t].bytes;
    const auto& [source, output] = sums_of_whole_;
    if (source.leaves != output.leaves || source.bytes != output.bytes) return false;
    if (source == output) return output.bytes == bytes;
    fail(ErrorCode::VerifyFailed, {options_.output, {}},
         "of the {} rows and blocks that were written, other bytes were read. Nothing was kept. Either this machine's "
         "memory fails, or the output's layout is taken for another one: then please report it",
         output.leaves);
  }

  void check_digest(const Digest& found, const Digest& expected) const {
    if (found == expected) return;
    fail(ErrorCode::VerifyFailed, {options_.output, {}},
         "what was written is not the same model: {} written, {} expected. Nothing was kept. Either this machine's "
         "memory (or its disk, with --verify readback) fails, or the output's layout is taken for another one: then "
         "please report it",
         to_string(found), to_string(expected));
  }

  /// What proves the output may read the source again. Of a source that has changed meanwhile that says nothing.
  std::optional<Digest> prove_and_finish() {
    try {
      const std::optional<Digest> digest = source_digest();
      finish(digest);
      return digest;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::VerifyFailed || error.code() == ErrorCode::RecordContradicts) check_source();
      throw;
    }
  }

  void finish(const std::optional<Digest>& digest) {
    sink_->finish(record_of(digest_to_record(digest)));
    if (options_.verify != VerifyMode::None) check_staged(digest);
    sink_->commit();
  }

  /// The finished files, opened as any reader would, before they get their name.
  void check_staged(const std::optional<Digest>& expected) {
    if (options_.verify == VerifyMode::Readback) drop_page_cache(sink_->staged_path());
    const Opened staged = open_model(sink_->staged_path().string(), {});
    if (const std::string unlike =
            first_unlike(output_.inventory, output_.recognition, staged.source->inventory(), staged.recognition);
        !unlike.empty())
      fail(ErrorCode::VerifyFailed, {options_.output, {}},
           "what was written opens as another model than was planned: {}. Nothing was kept; please report it", unlike);
    if (options_.verify == VerifyMode::Readback) check_contents(options_, *staged.source, "checking checksums");
    if (is_sampled())
      check_sample(staged);
    else if (options_.verify == VerifyMode::Readback || !output_leaves_.digest(sums_.output))
      check_digest(digest_with_progress(options_, staged.model(), backend_, "verifying"), *expected);
    if (options_.verify == VerifyMode::Forward) check_forward(staged);
  }

  /// Rows of all tensors that have clones, or that check_whole() did not see whole, by the staged copy's own placements
  /// beside the source's.
  void check_sample(const Opened& staged) {
    std::set<std::string> names;
    for (std::size_t t = 0; t < plan_.outputs.size(); ++t)
      if (clones_.has(t) || !whole_checked_) names.insert(plan_.outputs[t].name);
    std::vector<std::size_t> tensors;
    const auto& there = staged.source->inventory().tensors;
    for (std::size_t t = 0; t < there.size(); ++t)
      if (names.contains(there[t].name)) tensors.push_back(t);
    ExecuteOptions execution;
    execution.jobs = options_.jobs;
    sample_ = sample_rows(opened_.model(), staged.model(), tensors, backend_, execution, options_.subset.seed);
    if (!sample_->difference.empty())
      fail(ErrorCode::VerifyFailed, {options_.output, {}},
           "what was cloned is not what the source holds: {} differs. Nothing was kept. Either this machine's disk "
           "fails, or the output's layout is taken for another one: then please report it",
           sample_->difference);
  }

  /// The source's experts beside the staged copy's.
  void check_forward(const Opened& staged) const {
    const auto runner = open_runner(options_);
    const VerifyForwardOptions forward = forward_options(options_, opened_, staged);
    for (const LayerForward& layer : run_forward(options_, opened_, staged, *runner, forward))
      if (!layer.ok())
        fail(ErrorCode::VerifyFailed, {options_.output, {}},
             "{}. Nothing was kept; if the source's experts are sound, please report it",
             report::layer_forward_text(layer));
  }

  Ranks& ranks_;
  const Options& options_;
  const Opened& opened_;
  const Plan& plan_;
  Format format_;
  Backend& backend_;
  ClonePlan clones_;
  /// What is cloned will not be read: then the only digest to record is that of the source's own record.
  bool inherits_;
  /// Without a known order there is no layout-invariant digest to record; the copy is checked all the same.
  bool known_;
  ModelLeaves source_leaves_;
  OutputModel output_;
  ModelLeaves output_leaves_;
  /// When the run began.
  std::string config_;
  std::unique_ptr<Sink> sink_;
  std::mutex mutex_;
  RangeSums sums_;
  /// By other ranks.
  i64 bytes_written_ = 0;
  /// Of tensors of which nothing is cloned.
  RangeSums sums_of_whole_;
  bool whole_checked_ = false;
  std::optional<Sample> sample_;
};

}  // namespace

Converted convert(const Options& options, const Opened& opened, const Plan& plan, Format format, Backend& backend,
                  Ranks& ranks) {
  return Conversion(options, opened, plan, format, backend, ranks).run();
}

}  // namespace glu_ckpt::cli
