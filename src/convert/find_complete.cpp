/// A resumed run that had finished before it was stopped.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "convert/check_output.hpp"
#include "convert/expected_output.hpp"
#include "convert/passes.hpp"
#include "convert/staging.hpp"
#include "core/fail.hpp"
#include "format/checkpoint_files.hpp"
#include "format/extras.hpp"
#include "format/manifest.hpp"
#include "format/model_config.hpp"
#include "format/record_file.hpp"
#include "io/consumed_files.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/staged_dir.hpp"
#include "layout/adapter_names.hpp"
#include "model/known_orders.hpp"
#include "model/stored_model.hpp"
#include "verify/checkpoint_digest.hpp"

namespace glu_ckpt {
namespace {

using FailOther = std::function<void(const std::string&)>;

/// A file that cannot be read as a checkpoint is not what this run would write.
Checkpoint open_output(const std::filesystem::path& path, const FailOther& fail_other) {
  try {
    SourceAnswers answers;
    answers.adapter_layout = "stored";
    return open_checkpoint(path, answers);
  } catch (const Error& error) {
    if (exit_status(error.code()) == ExitStatus::MachineFailed) throw;
    fail_other(fmt::format("cannot be read as a checkpoint ({})", error.what()));
    throw;
  }
}

/// Returns whether the file begins with all bytes of the other one.
bool begins_with(const File& file, const File& start) {
  if (file.size() < start.size()) return false;
  bool same = true;
  std::vector<std::byte> there;
  for_each_block(start, [&](std::span<const std::byte> block, i64 offset) {
    if (!same) return;
    there.resize(block.size());
    file.pread_exact(there, offset);
    same = std::ranges::equal(there, block);
  });
  return same;
}

/// Refuses a copy of another file than the source has now. A file that has only grown may be a log that somebody goes
/// on writing, and is told of.
void check_still_copied(const Conversion& conversion, const ExtraFile& file, const std::filesystem::path& copied,
                        const FailOther& fail_other) {
  // Only config.json is ever edited, and config_line() compares that one.
  if (file.edit != nullptr) return;
  const File now = File::open_read(file.path), copy = File::open_read(copied);
  if (!begins_with(now, copy))
    fail_other(fmt::format("its {} is another one than the source's, {}", file.name, file.path.string()));
  if (now.size() > copy.size())
    tell_note(conversion.run, "{} has grown by {} bytes since it was copied; the copy stays as it is",
              file.path.string(), now.size() - copy.size());
}

/// Compares all files but those of tensors, which their digest compares, with what the record says of them.
void check_written_files(const Source& output, const std::filesystem::path& directory,
                         const std::vector<FileRecord>& written, const FailOther& fail_other) {
  std::set<std::filesystem::path> of_tensors;
  for (const OpenedFile& file : output.info().files) of_tensors.insert(file.path.lexically_normal());
  for (const FileRecord& was : written) {
    const std::filesystem::path at = directory / was.name;
    if (of_tensors.contains(at.lexically_normal())) continue;
    if (!path_exists(at)) fail_other(fmt::format("lacks {}", was.name));
    if (!was.data_xxh3_128.empty() &&
        record_of_file(File::open_read(at), was.name, {.header_bytes = was.header_bytes}) != was)
      fail_other(fmt::format("its {} is not what was written", was.name));
  }
}

/// The files beside the tensors have to be there, as they were written, and as the source has them.
void check_side_files(const Conversion& conversion, const Source& output, const FailOther& fail_other) {
  const Source& source = *conversion.source.source;
  const std::filesystem::path directory = checkpoint_directory(output.path());
  const std::filesystem::path record = directory / kRecordFileName;
  if (!path_exists(record)) fail_other(fmt::format("lacks {}", kRecordFileName));
  const std::string text = read_small_file(record, kMaxRecordBytes, ErrorCode::RecordInvalid);
  const std::vector<FileRecord> written = parse_record_json(text, {record.string(), {}}).files;
  check_written_files(output, directory, written, fail_other);
  if (conversion.options.sha256_manifest && !is_file(output.path() / kManifestFileName))
    fail_other(fmt::format("lacks {}", kManifestFileName));
  for (const ExtraFile& file : conversion.target.extra_files) {
    if (file.name == kRecordFileName || file.name == kExtrasFileName) continue;
    const auto was = std::ranges::find(written, file.name, &FileRecord::name);
    const std::filesystem::path copy = directory / file.name;
    if (was == written.end() || !path_exists(copy)) fail_other(fmt::format("lacks {}", file.name));
    check_still_copied(conversion, file, copy, fail_other);
  }
  if (const std::string config = config_line(source); config != config_line(output))
    fail_other("its config.json is another one than the source's");
}

/// The digest of the source, or, where its files were removed for this output, the one that the output records.
Digest source_digest(const Conversion& conversion, const Checkpoint& output, const FailOther& fail_other) {
  if (conversion.consumed == nullptr || !conversion.consumed->has_removed())
    return digest_stage(conversion.run, conversion.source.model(), *conversion.backend, "comparing");
  const std::string wanted = identify_output(conversion, 0).fingerprint;
  if (conversion.consumed->fingerprint() != wanted) fail_other("is another run's output");
  const std::optional<Digest> recorded = parse_digest(recorded_digest_of(output));
  if (!recorded) fail_other("has no record of its digest");
  return *recorded;
}

bool has_tensor_files(const std::filesystem::path& path) {
  if (!is_directory_at(path)) return path_exists(path);
  return std::ranges::any_of(list_directory(path), [&](const std::string& name) {
    return format_of_name(name) || name.ends_with(kDistcpSuffix) || is_directory_at(path / name);
  });
}

/// Returns whether two files config.json are of one type and have as many experts.
bool is_of_same_model(const std::filesystem::path& a, const std::filesystem::path& b) {
  constexpr i64 kMostBytes = i64{64} << 20;
  const auto read = [&](const std::filesystem::path& path) {
    return parse_config(read_small_file(path, kMostBytes, ErrorCode::ConfigJson), path.string());
  };
  const ModelHints of_a = read(a), of_b = read(b);
  return of_a.model_type == of_b.model_type && of_a.num_experts == of_b.num_experts;
}

/// Returns whether a directory without files of tensors may be what is left of the output's source: it has other files
/// of a checkpoint, and those that the output has copies of are the same. A conversion may edit config.json, but not
/// what model it is of.
bool may_be_rest_of_source(const std::filesystem::path& input, const std::filesystem::path& output,
                           const std::vector<FileRecord>& written) {
  constexpr std::string_view kConfig = "config.json";
  constexpr std::string_view kRest[] = {kConfig, kAdapterConfigName, ".metadata", "common.pt", kTrackerFile};
  // What a format writes anew is no copy.
  constexpr std::string_view kMadeAnew[] = {".metadata", "metadata.json", "common.pt"};
  if (!is_directory_at(input)) return false;
  bool is_checkpoint = false;
  for (const std::string& name : list_directory(input)) {
    is_checkpoint |= std::ranges::find(kRest, name) != std::end(kRest) || name.ends_with(".index.json");
    const auto was = std::ranges::find_if(written, [&](const FileRecord& file) {
      return std::filesystem::path(file.name).filename() == name && !file.data_xxh3_128.empty();
    });
    const bool is_made = name.ends_with(".index.json") || std::ranges::find(kMadeAnew, name) != std::end(kMadeAnew);
    if (was == written.end() || is_made || !is_file(input / name)) continue;
    if (name == kConfig) {
      if (!is_of_same_model(input / name, output / was->name)) return false;
      continue;
    }
    const File now = File::open_read(input / name);
    if (record_of_file(now, was->name, {.header_bytes = was->header_bytes}) != *was) return false;
  }
  return is_checkpoint;
}

}  // namespace

std::optional<Converted> find_consumed(const std::filesystem::path& input, const std::filesystem::path& output,
                                       const ConvertOptions& options, const RunOptions& run, bool reads_tensors) {
  const std::filesystem::path partial = partial_of(output_name(output));
  const bool is_left = link_kind(partial) == PathKind::Directory && list_directory(partial).empty();
  const bool may_be = options.consume_source && options.resume && (is_left || !name_taken(partial)) &&
                      path_exists(output) && !has_tensor_files(input);
  if (!may_be) return std::nullopt;
  const Checkpoint there = open_checkpoint(output);
  const std::filesystem::path record = checkpoint_directory(there.source->path()) / kRecordFileName;
  const std::optional<Digest> recorded = parse_digest(recorded_digest_of(there));
  // A single file has no room for options, nor for the names of files.
  RecordFile written;
  if (path_exists(record))
    written =
        parse_record_json(read_small_file(record, kMaxRecordBytes, ErrorCode::RecordInvalid), {record.string(), {}});
  if (!recorded || (path_exists(record) && written.options != option_texts(options)) ||
      !may_be_rest_of_source(input, record.parent_path(), written.files))
    return std::nullopt;
  const auto fail_other = [&](const std::string& why) {
    fail(ErrorCode::OutputExists, {output.string(), {}},
         "{} exists, and {}; {} has no files of tensors any more, for the run that made this output of them had "
         "finished",
         output.string(), why, input.string());
  };
  check_written_files(*there.source, record.parent_path(), written.files, fail_other);
  const auto backend = open_backend(run);
  if (reads_tensors && digest_stage(run, there.model(), *backend, "verifying") != *recorded) return std::nullopt;
  if (reads_tensors && is_left) (void)remove_empty_directory(partial);
  tell_note(run, "{} is complete, and {} has no files of tensors any more: the earlier run had finished",
            output.string(), input.string());
  Converted complete;
  complete.plan.from = complete.plan.to = there.recognition.layout;
  complete.loads_in = loads_in(*there.source, there.hints, there.recognition, false);
  complete.proof = ProvedByDigest{};
  complete.digest = recorded;
  complete.was_complete = true;
  complete.device = backend->name();
  return complete;
}

namespace {

/// Opens an output that is there, and refuses one of which headers and files beside them show that this run would not
/// write it.
Checkpoint open_same_output(const Conversion& conversion, CopyReading reading, const FailOther& fail_other) {
  const std::filesystem::path& output = conversion.output;
  Checkpoint there = open_output(output, fail_other);
  take_as_own(find_unlike_copies(conversion.run, *there.source, there.recognition.copies, reading),
              there.source->inventory(), there.recognition);
  const OutputModel wanted = output_model(conversion, make_record(conversion, std::nullopt));
  const Source& written = *there.source;
  const bool same_files =
      written.format() == conversion.target.format && (conversion.target.format != Format::Safetensors ||
                                                       written.inventory().files.size() == conversion.plan.num_shards);
  if (!same_files || !same_layout(wanted.shape(), {written.inventory(), there.recognition}))
    fail_other("is not what this run would write");
  if (is_directory_at(output)) check_side_files(conversion, written, fail_other);
  return there;
}

FailOther refuse_output(const std::filesystem::path& output) {
  return [output](const std::string& why) {
    fail(ErrorCode::OutputExists, {output.string(), {}},
         "{} exists, and {}; choose another name, or --overwrite to replace it", output.string(), why);
  };
}

}  // namespace

bool may_be_complete(const Conversion& conversion) {
  if (!path_exists(conversion.output)) return false;
  (void)open_same_output(conversion, CopyReading::Sample, refuse_output(conversion.output));
  return true;
}

std::optional<Converted> find_complete(const Conversion& conversion) {
  const std::filesystem::path& output = conversion.output;
  const ConvertOptions& options = conversion.options;
  if (!path_exists(output)) return std::nullopt;
  const FailOther fail_other = refuse_output(output);
  const Checkpoint there = open_same_output(conversion, CopyReading::Whole, fail_other);
  const Digest digest = source_digest(conversion, there, fail_other);
  const bool readback = options.proof == ProofMode::Readback;
  if (readback) drop_page_cache(output);
  if (digest_stage(conversion.run, there.model(), *conversion.backend, "verifying") != digest)
    fail_other("does not hold the same model: another source's, or damaged");
  // A run that was killed once its output was in its place: what else it left goes with this.
  const std::filesystem::path partial = partial_of(output_name(output));
  if (name_taken(partial) || path_exists(output / StagedDir::kJournalName))
    StagedDir(output, true, StagedMode::Resume,
              identify_output(conversion, choose_clones(conversion).bytes()).fingerprint)
        .discard();
  StagedDir::remove_kept_source(output_name(output));
  tell_note(conversion.run, "{} is complete: the earlier run had finished", output.string());
  const bool known = !has_unknown_glu(conversion.source.recognition);
  Converted complete;
  complete.proof = options.proof == ProofMode::None ? Proof(NotProved{}) : Proof(ProvedByDigest{readback});
  complete.digest = known ? std::optional(digest) : std::nullopt;
  complete.was_complete = true;
  complete.device = conversion.backend->name();
  return complete;
}

}  // namespace glu_ckpt
