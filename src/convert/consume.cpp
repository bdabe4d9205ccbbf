#include "convert/consume.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "convert/check_output.hpp"
#include "convert/judge.hpp"
#include "convert/passes.hpp"
#include "core/fail.hpp"
#include "core/readable.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/staged_dir.hpp"
#include "layout/placement.hpp"
#include "model/known_orders.hpp"
#include "verify/checkpoint_digest.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

/// One conversion at a time, for the whole process sees the disk through it.
std::mutex& watch_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Returns the file that an earlier run kept of its source: in its staging directory, or in the output that it has just
/// finished.
std::optional<fs::path> kept_of_source(const fs::path& output) {
  const fs::path named = output_name(output);
  for (const fs::path& directory : {partial_of(named), named})
    if (link_kind(directory / StagedDir::kSourceName) == PathKind::File) return directory / StagedDir::kSourceName;
  return std::nullopt;
}

const std::vector<OpenedFile>& files_of(const Conversion& conversion) { return conversion.source.source->info().files; }

/// By output: the numbers of the files that it is made of, by `use(output, file)`.
template <typename Use>
void for_each_need(const Conversion& conversion, const Use& use) {
  const Source& source = *conversion.source.source;
  std::vector<std::vector<u32>> files(source.inventory().tensors.size());
  const auto add = [&](std::size_t output, std::size_t tensor) {
    if (files[tensor].empty()) files[tensor] = source.files_of(tensor);
    for (const u32 file : files[tensor]) use(output, std::size_t{file});
  };
  for (const Move& move : conversion.plan.moves) add(move.dst, move.src);
  for (const Compute& made : conversion.plan.computes) add(made.dst, made.src);
}

/// The order in which a conversion goes through its outputs so that files become free early.
struct Steps {
  std::vector<std::size_t> of_output;
  /// By file.
  std::vector<std::size_t> free_after;

  explicit Steps(const Conversion& conversion)
      : of_output(conversion.plan.outputs.size()), free_after(files_of(conversion).size()) {
    // An output is made when the last of its files has its turn.
    for_each_need(conversion,
                  [&](std::size_t output, std::size_t file) { of_output[output] = std::max(of_output[output], file); });
    std::vector<char> is_needed(free_after.size());
    for_each_need(conversion, [&](std::size_t output, std::size_t file) {
      free_after[file] = std::max(free_after[file], of_output[output]);
      is_needed[file] = 1;
    });
    // What is not needed at all goes last.
    for (std::size_t file = 0; file < free_after.size(); ++file)
      if (!is_needed[file]) free_after[file] = last();
  }

  std::size_t last() const { return free_after.empty() ? 0 : free_after.size() - 1; }
};

bool is_removed(const Conversion& conversion, const OpenedFile& file) {
  return conversion.consumed != nullptr && conversion.consumed->is_removed(file.path);
}

/// The most bytes that are taken beyond those in use now, where `left` says what of each output is to be written.
i64 most_taken(const Conversion& conversion, const std::vector<i64>& left) {
  const Steps steps(conversion);
  const fs::path output = directory_of(output_name(conversion.output));
  std::vector<i64> written(steps.free_after.size() + 1), freed(written.size());
  for (std::size_t t = 0; t < left.size(); ++t) written[steps.of_output[t]] += left[t];
  for (std::size_t f = 0; f < steps.free_after.size(); ++f) {
    const OpenedFile& file = files_of(conversion)[f];
    if (is_removed(conversion, file)) continue;
    if (is_on_same_filesystem(directory_of(file.path), output)) freed[steps.free_after[f]] += file.bytes;
  }
  i64 taken = 0, most = 0;
  for (std::size_t step = 0; step < written.size(); ++step) {
    taken += written[step];
    most = std::max(most, taken);
    // The last ones stay until the output is complete.
    if (step != steps.last()) taken -= freed[step];
  }
  return most;
}

/// The bytes that a run keeps beside the output until its end: the source's headers, an entry for each range written.
i64 note_bytes(const Conversion& conversion) {
  constexpr i64 kEntryBytes = 256, kSmallRange = i64{4} << 20;
  const i64 ranges = std::ssize(conversion.plan.outputs) + conversion.plan.bytes / kSmallRange;
  return conversion.consumed->kept_bytes() + kEntryBytes * ranges;
}

template <typename... Values>
[[noreturn]] void refuse(const std::string& name, fmt::format_string<Values...> text, Values&&... values) {
  fail(ErrorCode::SourceNeeded, {name, {}}, "{}: --consume-source does not remove it: {}", name,
       fmt::format(text, std::forward<Values>(values)...));
}

bool is_in_hub_cache(const fs::path& path) {
  bool is_model = false;
  for (const fs::path& part : path) {
    if (is_model && (part == "snapshots" || part == "blobs")) return true;
    is_model = part.string().starts_with("models--");
  }
  return false;
}

void check_file(const fs::path& path) {
  const std::string name = path.string();
  const bool is_link = link_kind(path) == PathKind::Symlink;
  if (is_in_hub_cache(canonical_path(path)) || (is_link && is_in_hub_cache(path)))
    refuse(name,
           "it is in a cache of the hub, which other programs read; `hf download ORG/NAME --local-dir DIR` makes "
           "a copy of your own");
  if (is_link) refuse(name, "it is a link to a file elsewhere");
  const File file = File::open_read(path);
  if (const i64 links = file.links(); links != 1)
    refuse(name, "the file has {} names (hard links), so that removing this one frees no space", links);
  if (!file.belongs_to_user()) refuse(name, "the file is another user's");
  if ((file.mode() & 0222) == 0) refuse(name, "the file is read-only");
}

void check_directory(const fs::path& directory) {
  // Not every file system has files without a name; then removing says it.
  if (File::unnamed(directory, false).is_open() || (errno != EROFS && errno != EACCES && errno != EPERM)) return;
  refuse(directory.string(), "nothing can be removed from this directory: {}", std::strerror(errno));
}

}  // namespace

void check_consuming_options(const fs::path& input, const ConvertOptions& options, int ranks) {
  const std::string name = input.string();
  const auto exclude = [&](bool is_given, std::string_view other, std::string_view why) {
    if (is_given) fail(ErrorCode::Usage, {name, {}}, "--consume-source and {} exclude one another: {}", other, why);
  };
  exclude(options.proof == ProofMode::None, "--verify none", "what is removed has to be proved first");
  exclude(options.proof == ProofMode::Forward, "--verify forward", "it runs the source's experts at the end");
  exclude(options.reflink == Reflink::Always, "--reflink always", "shared blocks are not freed");
  exclude(options.overwrite, "--overwrite", "the older output takes the room until the end; remove it first");
  exclude(ranks > 1, "MPI", "one process knows what the others have written only at the end");
  const auto keep = [&](bool is_given, std::string_view option, std::string_view why) {
    if (is_given) refuse(name, "with {} {}", option, why);
  };
  const SourceAnswers& from = options.from;
  constexpr std::string_view kRest = "the rest of the model would be lost with its files";
  keep(!from.layers.empty(), "--layers", kRest);
  keep(!from.keep_experts.empty(), "--experts or --keep-experts", kRest);
  keep(from.drop_mtp || from.drop_vision, "--drop", kRest);
  keep(from.drop_optimizer, "--optimizer drop", "the optimizer's state would be lost with its files");
  keep(!from.fill_from.empty(), "--fill-from", "the output has tensors of files that are not SRC's");
  keep(!from.encode.empty(), "--encode", "the output has rounded weights, and those before rounding would be lost");
  keep(from.allow_narrowing, "--allow-narrowing",
       "the output has rounded weights, and those before rounding would be lost");
  keep(!from.merge.empty(), "--merge", "the weights without the adapter would be lost");
  keep(from.unpad, "--unpad", "all that is taken off is compared with zero whenever the files are opened");
}

namespace {

/// Refuses what would not be in the output but goes with the files.
void check_nothing_lost(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  const auto& tensors = source->inventory().tensors;
  const std::string name = conversion.input.string();
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (source->files_of(t).empty())
      refuse(name,
             "'{}' is made of others (filled in, or seen in another layout) so that nobody knows which files it is "
             "from; convert without the option that asks for it",
             tensors[t].name);
  std::set<std::size_t> copies;
  for (const TensorCopy& copy : model.copies) copies.insert(copy.tensor);
  for (const std::size_t dropped : conversion.plan.dropped)
    if (!copies.contains(dropped))
      refuse(name, "'{}' is left out of the output, and would be lost with its file", tensors[dropped].name);
  if (has_unknown_glu(model))
    refuse(name, "the order of gate and up is not known, so nothing proves the output; {}{} says it",
           conversion.options.from.option_prefix,
           fmt::join(missing_answers(model), " and " + conversion.options.from.option_prefix));
}

/// Rows of a transposed matrix can be summed only where all of it passes at once.
void check_passes_whole(const Conversion& conversion) {
  ExecuteOptions execution;
  execution.jobs = jobs_of(conversion.run);
  execution.memory_bytes = conversion.run.memory_bytes;
  const i64 buffer = plan_workers(conversion.plan, *conversion.backend, execution).buffer_bytes;
  for (const ExpertBlock& block : conversion.source.recognition.blocks)
    for (const Matrix& matrix : block.matrices) {
      const i64 bytes = matrix.cols * matrix.place.col_step;
      if (is_transposed(matrix) && bytes > buffer)
        refuse(conversion.input.string(),
               "a matrix of its experts is stored transposed and takes {}, but buffers of {} are what --max-memory and "
               "--jobs allow; it has to pass whole to be proved",
               size_text(bytes), size_text(buffer));
    }
}

std::vector<i64> all_bytes(const Conversion& conversion) {
  std::vector<i64> bytes;
  for (const OutputTensor& output : conversion.plan.outputs) bytes.push_back(output.bytes);
  return bytes;
}

/// Refuses to go on as another run than the one that has removed files of the source.
[[noreturn]] void refuse_other_run(const fs::path& input, const fs::path& output, const ConvertOptions& options) {
  const Error refused(
      ErrorCode::ResumeMismatch,
      fmt::format("{}: was begun with --consume-source, and files of {} are gone; the same command with "
                  "--consume-source and --resume, and without --part and --overwrite, goes on",
                  output.string(), input.string()),
      output.string());
  if (options.part.of > 0 || options.overwrite) throw refused;
  throw refused.with_missing_options({"--consume-source"});
}

}  // namespace

SourceWatch::SourceWatch(const fs::path& input, const fs::path& output, const ConvertOptions& options) {
  const bool is_remote = input.string().find("://") != std::string::npos;
  if (options.consume_source && is_remote) refuse(input.string(), "it is on a server");
  const std::optional<fs::path> kept = options.resume && !is_remote ? kept_of_source(output) : std::nullopt;
  if (!options.consume_source && !kept) return;
  lock_ = std::unique_lock(watch_mutex());
  files_ = std::make_unique<ConsumedFiles>(input);
  if (kept) files_->load(*kept);
  if (files_->has_removed() && !options.consume_source) refuse_other_run(input, output, options);
  scope_.emplace(*files_);
}

void keep_source(const Conversion& conversion) {
  // They are written when the files may be gone.
  if (!conversion.consumed->was_loaded())
    for (const NamedObject& object : conversion.source.source->structure().objects) (void)object.read();
  std::vector<fs::path> paths;
  for (const OpenedFile& file : files_of(conversion)) paths.push_back(file.path);
  conversion.consumed->keep(paths);
}

void check_consumable(const Conversion& conversion) {
  const fs::path& input = conversion.input;
  if (link_kind(input) == PathKind::Symlink) refuse(input.string(), "it is a link to a checkpoint elsewhere");
  std::set<fs::path> directories;
  for (const OpenedFile& file : files_of(conversion)) {
    directories.insert(directory_of(file.path));
    if (!conversion.consumed->is_removed(file.path)) check_file(file.path);
  }
  for (const fs::path& directory : directories) {
    check_directory(directory);
    RunOwner::check_free(directory, Owned::Source);
  }
  check_nothing_lost(conversion);
  check_passes_whole(conversion);
}

DiskRoom consuming_room(const Conversion& conversion) {
  // The name of each file, and the pages that a piece of a rehearsed output may touch.
  constexpr i64 kNotes = 4, kPagesOfPiece = 3;
  DiskRoom room{0, filesystem_of(directory_of(output_name(conversion.output)))};
  const SmallParts parts = small_parts(conversion, room.filesystem, SideFileSizes::Exact);
  const i64 block = room.filesystem.block_bytes;
  const i64 rehearsed = kPagesOfPiece * block * parts.wrapped;
  room.needed = std::max(most_taken(conversion, all_bytes(conversion)), rehearsed) + parts.headers + parts.beside +
                note_bytes(conversion) + block * (kNotes + std::ssize(files_of(conversion)));
  // An estimate that is too low would be found out only after files of the source were removed.
  room.least = room.needed;
  return room;
}

std::string ways_to_room(const Conversion& conversion) {
  std::string text(kMakeRoom);
  const ConvertOptions& options = conversion.options;
  const bool is_remote = conversion.input.string().find("://") != std::string::npos;
  if (options.consume_source || options.part.of > 0 || is_remote) return text;
  try {
    check_consuming_options(conversion.input, options, 1);
    check_nothing_lost(conversion);
    // Without its notes, which are small beside it.
    const FilesystemInfo filesystem = filesystem_of(directory_of(output_name(conversion.output)));
    const i64 needed = most_taken(conversion, all_bytes(conversion)) +
                       small_parts(conversion, filesystem, SideFileSizes::Exact).headers;
    if (needed >= filesystem.free_bytes) return text;
    text += fmt::format(", or let --consume-source remove SRC's files while DST grows: it needs about {}",
                        size_text(needed));
  } catch (const Error&) {
    // What speaks against it is no fault of this run.
  }
  return text;
}

std::string wasted_consuming(const Conversion& conversion) {
  if (!conversion.options.consume_source || conversion.options.resume || conversion.consumed == nullptr) return {};
  i64 with = 0, without = 0;
  try {
    with = consuming_room(conversion).needed;
    without = disk_room(conversion, conversion.plan.bytes).needed;
  } catch (const Error&) {
    return {};  // What is wrong with the place of the output is said where it is looked for.
  }
  if (with < without) return {};
  std::string_view why =
      "A model of this size has files so small that the notes about them, and the trial of the output before the first "
      "of them goes, take more blocks of the disk than they do";
  if (conversion.source.source->info().files.size() == 1)
    why = "SRC is one file, and that is removed when all of the output is written";
  else if (most_taken(conversion, all_bytes(conversion)) >= conversion.plan.bytes)
    why = "The last of the output needs every file of SRC";
  return fmt::format("--consume-source saves no room here: it needs {}, and a run without it {}. {}", size_text(with),
                     size_text(without), why);
}

void check_consuming_room(const Conversion& conversion) {
  if (conversion.options.resume) return;
  if (const DiskRoom room = consuming_room(conversion); !room.is_enough())
    fail(ErrorCode::NoSpace, {conversion.output.string(), {}}, "{}: {}; {}", conversion.output.string(), to_text(room),
         kMakeRoom);
}

std::vector<char> made_of_removed(const Conversion& conversion) {
  if (conversion.consumed == nullptr || !conversion.consumed->has_removed()) return {};
  std::vector<char> removed;
  for (const OpenedFile& file : files_of(conversion)) removed.push_back(conversion.consumed->is_removed(file.path));
  std::vector<char> made(conversion.plan.outputs.size());
  for_each_need(conversion, [&](std::size_t output, std::size_t file) {
    if (removed[file] != 0) made[output] = 1;
  });
  return made;
}

Consumer::Consumer(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging)
    : conversion_(conversion), expected_(expected), staging_(staging) {
  Steps steps(conversion);
  step_of_ = std::move(steps.of_output);
  free_after_ = std::move(steps.free_after);
}

/// The notes stay in a source of which files are gone: they say where its tensors are now.
Consumer::~Consumer() {
  if (!conversion_.consumed->has_removed()) {
    (void)release_source();
    return;
  }
  for (RunOwner& owner : owners_) owner.leave();
}

std::set<fs::path> Consumer::source_directories() const {
  std::set<fs::path> directories;
  // An index may spell one directory in several ways.
  for (const OpenedFile& file : files_of(conversion_)) directories.insert(canonical_path(directory_of(file.path)));
  return directories;
}

/// Another run may have removed files before this one owned the source: remove() calls check_source_unchanged() first.
void Consumer::own_source() {
  const fs::path named = output_name(conversion_.output);
  const fs::path output = canonical_path(directory_of(named)) / named.filename();
  for (const fs::path& directory : source_directories()) owners_.emplace_back(directory, Owned::Source, output);
}

/// Returns an errno where a note of this run stays.
int Consumer::release_source() {
  int first = 0;
  for (RunOwner& owner : owners_)
    if (const int error = owner.release(); first == 0) first = error;
  owners_.clear();
  return first;
}

void Consumer::begin(const std::vector<DoneRange>& earlier) {
  own_source();
  left_ = all_bytes(conversion_);
  for (const DoneRange& range : earlier) add(range);
  if (conversion_.consumed->has_removed()) return;
  check_room();
  rehearse_finish();
  rehearse_reading();
}

void Consumer::check_room() const {
  DiskRoom room{0, filesystem_of(directory_of(output_name(conversion_.output)))};
  const SmallParts parts = small_parts(conversion_, room.filesystem, SideFileSizes::Exact);
  i64 left = 0;
  for (const i64 bytes : left_) left += bytes;
  const double share = static_cast<double>(left) / static_cast<double>(std::max<i64>(conversion_.plan.bytes, 1));
  room.needed =
      most_taken(conversion_, left_) + parts.beside + static_cast<i64>(static_cast<double>(parts.headers) * share);
  room.least = room.needed;
  if (!room.is_enough())
    fail(ErrorCode::NoSpace, {conversion_.output.string(), {}},
         "{}: {}, counting what files of the source free on the way; nothing was removed. {}",
         conversion_.output.string(), to_text(room), kMakeRoom);
}

/// Makes the output without its tensors, and opens it: its headers, names, configuration and other files.
void Consumer::rehearse_finish() const {
  constexpr std::string_view kRehearsalName = "rehearsal";
  const fs::path directory = staging_.sink().source_file().parent_path() / kRehearsalName;
  if (!make_directory(directory)) fail_errno(EEXIST, "create", directory);
  {
    OutputOptions options = output_options(conversion_, expected_.blank_record());
    options.path = directory / output_name(conversion_.output).filename();
    options.mode = OutputMode::Rehearse;
    const std::unique_ptr<StagedOutput> trial = create_output(options, conversion_.plan.outputs);
    trial->finish(expected_.blank_record());
    (void)open_as_planned(conversion_, expected_, trial->staged_path());
  }
  if (const int error = remove_empty_directory(directory); error != 0) fail_errno(error, "remove", directory);
}

/// Reads all of a source whose bytes may be refused when they are read: its record says what they give, or they are
/// codes with scales.
void Consumer::rehearse_reading() const {
  if (believed_digest(conversion_).empty() && !conversion_.options.from.decode) return;
  check_recorded(conversion_, digest_stage(conversion_.run, conversion_.source.model(), *conversion_.backend,
                                           "reading source before its files go"));
}

void Consumer::add(const DoneRange& range) {
  left_[range.tensor] -= range.bytes();
  Written& written = written_[range.tensor];
  written.sums += range.sums;
  written.bytes += range.bytes();
}

std::vector<std::vector<Task>> Consumer::steps(const std::vector<Task>& tasks) const {
  std::vector<std::vector<Task>> steps(std::max<std::size_t>(1, free_after_.size()));
  for (const Task& task : tasks) steps[step_of_[task.tensor]].push_back(task);
  return steps;
}

void Consumer::end_step(std::size_t step, const std::vector<DoneRange>& written) {
  unread_.insert(unread_.end(), written.begin(), written.end());
  for (const DoneRange& range : written) add(range);
  const bool is_last = step + 1 >= free_after_.size();
  std::vector<std::size_t> free;
  for (std::size_t file = 0; file < free_after_.size(); ++file)
    if (free_after_[file] <= step && !conversion_.consumed->is_removed(files_of(conversion_)[file].path))
      free.push_back(file);
  if (!is_last && free.empty()) return;
  prove(step);
  if (is_last) return;
  // Others may have filled the disk since.
  if (!conversion_.consumed->has_removed()) check_room();
  remove(free);
}

void Consumer::prove(std::size_t step) {
  staging_.sink().settle_on_disk();
  RunOptions silent = conversion_.run;
  silent.observer = nullptr;
  Stage stage(silent, "", 0);
  ExecuteOptions execution = stage.execute_options();
  execution.output_leaves = &expected_.output_leaves();
  if (const auto lost = first_lost(unread_, staging_.sink(), execution)) {
    const std::string name = conversion_.output.string(), tensor = conversion_.plan.outputs[lost->tensor].name;
    fail(ErrorCode::VerifyFailed, {name, tensor},
         "{}: bytes [{}, {}) of '{}' were written, and the disk gives others back. The source's files that they are "
         "from were not removed. This machine's disk or memory fails",
         name, lost->begin, lost->end, tensor);
  }
  unread_.clear();
  for (auto entry = written_.begin(); entry != written_.end();) {
    const auto& [tensor, written] = *entry;
    const bool is_made = step_of_[tensor] <= step;
    if (is_made) prove_tensor(tensor, written);
    entry = is_made ? written_.erase(entry) : std::next(entry);
  }
}

/// Compares the leaves that were read for a tensor with those that it holds.
void Consumer::prove_tensor(std::size_t tensor, const Written& written) const {
  const OutputTensor& output = conversion_.plan.outputs[tensor];
  const std::string name = conversion_.output.string();
  const bool repeats = std::ranges::binary_search(conversion_.plan.repeats, tensor);
  if (written.bytes == output.bytes && (repeats || written.sums.source == written.sums.output)) return;
  const bool passed = written.bytes == output.bytes && written.sums.source.leaves == written.sums.output.leaves &&
                      written.sums.source.bytes == written.sums.output.bytes;
  fail(ErrorCode::VerifyFailed, {name, output.name},
       "{}: '{}' {}. The source's files that it is made of were not removed; please report it", name, output.name,
       passed ? "is not what was read for it" : "cannot be proved, for some rows of it did not pass whole");
}

void Consumer::remove(const std::vector<std::size_t>& files) {
  if (files.empty()) return;
  StagedOutput& sink = staging_.sink();
  ConsumedFiles& consumed = *conversion_.consumed;
  staging_.check_source_unchanged();
  for (const RunOwner& owner : owners_)
    if (!owner.is_in_place())
      fail(ErrorCode::OutputBusy, {conversion_.input.string(), {}},
           "{}: somebody removed the note that this run converts it and removes its files ({}); nothing more is "
           "removed. "
           "--resume goes on when no other run has the source",
           conversion_.input.string(), RunOwner::kName);
  if (link_kind(sink.source_file()) != PathKind::File)
    consumed.save(sink.source_file(), staging_.fingerprint(), copies_text(conversion_.unlike_copies));
  sink.hold_source();
  sink.journal().sync();
  std::set<fs::path> directories;
  for (const std::size_t file : files) {
    const fs::path& path = files_of(conversion_)[file].path;
    check_file(path);
    consumed.release(path);
    if (const int error = remove_own(path, Own::Consumed); error != 0) fail_errno(error, "remove", path);
    directories.insert(directory_of(path));
    tell_detail(conversion_.run, "removed {}: the output has what it needs of it", path.string());
  }
  for (const fs::path& directory : directories) sync_directory(directory);
}

void Consumer::remove_rest() {
  std::vector<std::size_t> rest;
  for (std::size_t file = 0; file < free_after_.size(); ++file)
    if (!conversion_.consumed->is_removed(files_of(conversion_)[file].path)) rest.push_back(file);
  remove(rest);
  if (const int error = release_source(); error != 0)
    fail_errno(error, "remove", directory_of(files_of(conversion_).front().path) / RunOwner::kName);
  // Nobody comes back to an output that is complete.
  for (const fs::path& directory : source_directories()) sync_directory(directory);
  i64 bytes = 0;
  for (const OpenedFile& file : files_of(conversion_)) bytes += file.bytes;
  tell_note(conversion_.run, "{}: {} file{} of tensors ({}) {} removed; what else is there stays",
            conversion_.input.string(), files_of(conversion_).size(), files_of(conversion_).size() == 1 ? "" : "s",
            size_text(bytes), files_of(conversion_).size() == 1 ? "was" : "were");
}

}  // namespace glu_ckpt
