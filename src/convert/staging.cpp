#include "convert/staging.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>

#include "convert/check_output.hpp"
#include "convert/consume.hpp"
#include "core/fail.hpp"
#include "core/hash.hpp"
#include "core/readable.hpp"
#include "format/checkpoint_files.hpp"
#include "io/consumed_files.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/staged_dir.hpp"
#include "layout/adapter_names.hpp"
#include "plan/plan_bytes.hpp"

namespace glu_ckpt {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Returns whether a run that has begun can go on later: the machine failed, the run was stopped, or its name was taken
/// meanwhile.
bool is_resumable(ErrorCode code) {
  const ExitStatus status = exit_status(code);
  return status == ExitStatus::MachineFailed || status == ExitStatus::Stopped || code == ErrorCode::OutputExists;
}

/// A sentence for the error of a full disk. Empty where the file system cannot be asked, and for a run that resumes, of
/// whose output some is written. Throws NoSpace where it is sure that the output has no room: in memory nothing is
/// reserved, so the run would fill it first.
std::string ask_room(const Conversion& conversion, const ClonePlan& clones) {
  if (conversion.options.resume || conversion.consumed != nullptr) return {};
  std::optional<DiskRoom> room;
  try {
    room = disk_room(conversion, conversion.plan.bytes - clones.bytes());
  } catch (const Error&) {
    return {};
  }
  if (!room->is_enough() && room->filesystem.is_in_memory() && conversion.options.part.of == 0)
    fail(ErrorCode::NoSpace, {conversion.output.string(), {}}, "{}: {}; {}", conversion.output.string(), to_text(*room),
         ways_to_room(conversion));
  return fmt::format(". When this run began, {}", to_text(*room));
}

/// The sentence of the first rank: each would see other numbers, and all say one.
std::string room_of_all(const Conversion& conversion, const ClonePlan& clones, Ranks& ranks) {
  std::string asked;
  at_first_rank(ranks, [&] { asked = ask_room(conversion, clones); });
  const std::vector<std::byte> text = ranks.broadcast(bytes_of(asked));
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

[[noreturn]] void fail_resumable(const Conversion& conversion, const Error& error, const std::string& room) {
  const std::string text =
      fmt::format("{}{}. What is done is kept in {}: the same command{} goes on with it", error.what(),
                  error.code() == ErrorCode::NoSpace ? room : "", partial_of(output_name(conversion.output)).string(),
                  conversion.options.part.of > 0 ? "" : " with --resume");
  const Error resumable = Error(error.code(), text, error.file(), error.tensor()).with_missing_options({"--resume"});
  if (const auto* of_rank = dynamic_cast<const RankError*>(&error)) throw RankError(of_rank->rank(), resumable);
  throw resumable;
}

constexpr i64 kMaxConfigBytes = i64{64} << 20;

std::string content_line(const std::string& name, const std::string& text) {
  return fmt::format("{} {} {}\n", name, text.size(), hex(hash128(std::as_bytes(std::span(text)), 0)));
}

/// The lines of identity_of(). Of a source whose files an earlier run removed those of that run, where the files are
/// still the same ones or copies of them: whoever has one copy of a model may have to move it to another disk.
std::string identity_of_source(const Conversion& conversion) {
  const CheckpointInfo& info = conversion.source.source->info();
  if (conversion.consumed == nullptr || !conversion.consumed->was_loaded()) return identity_of(info);
  std::string text;
  for (const OpenedFile& file : info.files) {
    const auto first = conversion.consumed->found_first(file.path);
    text += first ? identity_line(first->path, first->identity.ino, first->identity.size, first->identity.mtime_ns)
                  : identity_line(canonical_path(file.path).string(), file.inode, file.bytes, file.modified_ns);
  }
  return text;
}

}  // namespace

std::string config_line(const Source& source) {
  const auto& files = source.extra_files();
  const auto config = std::ranges::find_if(files, [](const ExtraFile& file) {
    return file.name == "config.json" || name_in_hf(file.name) == "config.json" || file.name == kAdapterConfigName;
  });
  if (config == files.end()) return {};
  std::string text = read_small_file(config->path, kMaxConfigBytes, ErrorCode::ConfigJson);
  if (config->edit != nullptr) text = config->edit(text);
  return content_line("config", text);
}

OutputIdentity identify_output(const Conversion& conversion, i64 bytes_to_clone) {
  std::string config = config_line(*conversion.source.source);
  const ConvertOptions& options = conversion.options;
  const Hash128 planned = hash128(plan_bytes(conversion.plan), 0);
  std::string text =
      fmt::format("glu-ckpt {}\nplan {}\nformat {}\noverwrite {}\ndigest {}\n", GLU_CKPT_VERSION, hex(planned),
                  to_string(conversion.target.format), options.overwrite, options.proof != ProofMode::None);
  if (options.part.of > 0) text += fmt::format("{}{}\n", kPartsLine, options.part.of);
  if (bytes_to_clone > 0) text += fmt::format("clones {} verify {}\n", bytes_to_clone, static_cast<int>(options.proof));
  for (const auto& [name, value] : option_texts(options)) text += fmt::format("{}{} {}\n", kOptionLine, name, value);
  // A file that --keep-experts names may be another one by now.
  const Record& record = conversion.source.source->record();
  if (const auto part = record.find("part"); part != record.end()) text += fmt::format("part {}\n", part->second);
  text += identity_of_source(conversion) + config;
  for (const std::filesystem::path& file : conversion.source.source->info().deciding_files)
    text += content_line(file.filename().string(), read_small_file(file, kMaxConfigBytes, ErrorCode::ConfigJson));
  if (const std::string& named = options.from.config_file; !named.empty())
    text += content_line("named config", read_small_file(named, kMaxConfigBytes, ErrorCode::ConfigJson));
  return {std::move(config), std::move(text)};
}

OutputOptions output_options(const Conversion& conversion, Record record) {
  const Source& source = *conversion.source.source;
  OutputOptions to;
  to.path = conversion.output;
  to.metadata = source.metadata();
  if (conversion.source.recognition.is_adapter) to.only_file = "adapter_model.safetensors";
  to.extra_files = conversion.target.extra_files;
  to.made_files = conversion.target.made_files;
  to.overwrite = conversion.options.overwrite;
  to.record = std::move(record);
  to.options = option_texts(conversion.options);
  // An output is proved to be what a repository had at one commit.
  if (conversion.input.string().find("://") != std::string::npos)
    to.options["source"] = canonical_path(conversion.input).string();
  to.format = conversion.target.format;
  to.structure = conversion.target.structure;
  to.source_format = source.format();
  to.data_phases = conversion.plan.data_phases;
  return to;
}

namespace {

OutputMode mode_of(const ConvertOptions& options) {
  if (options.part.of > 0) return OutputMode::Part;
  return options.resume ? OutputMode::Resume : OutputMode::Create;
}

}  // namespace

Staging::Staging(const Conversion& conversion, const ExpectedOutput& expected, const ClonePlan& clones, Ranks& ranks)
    : Staging(conversion, expected, clones, ranks, mode_of(conversion.options)) {}

Staging::Staging(const Conversion& conversion, const ExpectedOutput& expected, const ClonePlan& clones, Ranks& ranks,
                 OutputMode mode)
    : conversion_(conversion), ranks_(ranks), room_(room_of_all(conversion, clones, ranks)) {
  together(ranks, [&] { identity_ = identify_output(conversion, clones.bytes()); });
  const std::vector<std::byte> first = ranks.broadcast(bytes_of(identity_.fingerprint));
  together(ranks, [&] {
    if (first == bytes_of(identity_.fingerprint)) return;
    fail(ErrorCode::SourceChanged, {conversion.input.string(), {}},
         "{}: its files have other sizes or dates here than at rank 0; all ranks must see the same ones",
         conversion.input.string());
  });
  at_first_rank(ranks, [&] { open(mode, expected, clones); });
  if (conversion.consumed != nullptr && conversion.consumed->was_loaded()) sink_->hold_source();
  try {
    together(ranks, [&] {
      if (ranks.rank() != 0) open(OutputMode::Join, expected, clones);
    });
  } catch (const Error&) {
    // A rank that cannot join is no reason to lose what an earlier run did.
    if (sink_ && sink_->resumed()) sink_->keep();
    throw;
  }
}

void Staging::open(OutputMode mode, const ExpectedOutput& expected, const ClonePlan& clones) {
  OutputOptions to = output_options(conversion_, expected.blank_record());
  to.mode = mode;
  to.rank = mode == OutputMode::Part ? static_cast<int>(conversion_.options.part.number) : ranks_.rank();
  to.cloned_shards = clones.shards();
  to.fingerprint = identity_.fingerprint;
  to.consumes_source = conversion_.consumed != nullptr;
  try {
    sink_ = create_output(to, conversion_.plan.outputs);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NoSpace) throw;
    throw Error(error.code(), error.what() + room_, error.file(), error.tensor());
  }
}

void Staging::end_failed_pass() {
  const auto settle = [&](ErrorCode code) {
    if (!sink_) return;
    if (is_resumable(code))
      sink_->keep();
    else
      sink_->discard();
  };
  const auto stays = [&](ErrorCode code) { return is_resumable(code) || (sink_ && sink_->holds_source()); };
  try {
    throw;
  } catch (const Error& error) {
    settle(error.code());
    if (!stays(error.code())) throw;
    fail_resumable(conversion_, error, room_);
  } catch (const std::bad_alloc&) {
    settle(ErrorCode::NoMemory);
    fail_resumable(conversion_, current_error(), room_);
  }
}

void Staging::check_source_unchanged() const {
  const Source& source = *conversion_.source.source;
  check_unchanged(source.info());
  if (ranks_.rank() == 0 && identity_.config != config_line(source))
    fail(ErrorCode::SourceChanged, {conversion_.input.string(), {}},
         "{}: config.json was changed while this run read the tensors; run again", conversion_.input.string());
}

SmallParts small_parts(const Conversion& conversion, const FilesystemInfo& filesystem, SideFileSizes sizes) {
  constexpr i64 kRecordBytes = i64{4} << 10, kRecordLineBytes = 256, kSideBytesOfTensor = 256;
  const OutputOptions to = output_options(conversion, make_record(conversion, Digest()));
  const std::unique_ptr<OutputFormat> format = make_output_format(to, conversion.plan.outputs);
  SmallParts parts;
  const std::vector<TensorFile> files = format->files();
  parts.headers = -conversion.plan.bytes;
  for (const TensorFile& file : files) parts.headers += file.bytes;
  parts.wrapped = static_cast<i64>(format->num_crcs());
  const auto add = [&](i64 bytes) { parts.beside += bytes + filesystem.block_bytes; };
  if (sizes == SideFileSizes::Estimated)
    add(kSideBytesOfTensor * std::ssize(conversion.plan.outputs));
  else if (!names_single_file(to.path))
    for (const SideFile& side : format->side_files()) add(std::ssize(side.text));
  for (const SideFile& made : to.made_files) add(std::ssize(made.text));
  for (const ExtraFile& extra : to.extra_files) add(File::open_read(extra.path).size());
  add(kRecordBytes + kRecordLineBytes * std::ssize(files));
  return parts;
}

DiskRoom disk_room(const Conversion& conversion, i64 bytes_written) {
  DiskRoom room{0, filesystem_of(directory_of(output_name(conversion.output)))};
  const SmallParts parts = small_parts(conversion, room.filesystem, SideFileSizes::Estimated);
  room.least = bytes_written + parts.headers;
  room.needed = room.least + parts.beside;
  return room;
}

std::string to_text(const DiskRoom& room) {
  const i64 free = room.filesystem.free_bytes;
  std::string text = fmt::format("the output needs {} on {}, where {} are free", size_text(room.needed),
                                 room.filesystem.type, size_text(free));
  if (!room.is_enough()) text += fmt::format(": {} are missing", size_text(room.needed - free));
  return text;
}

}  // namespace glu_ckpt
