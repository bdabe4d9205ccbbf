/// A resumed run that had finished before it was stopped.

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "convert/check_output.hpp"
#include "convert/expected_output.hpp"
#include "convert/passes.hpp"
#include "convert/staging.hpp"
#include "core/fail.hpp"
#include "format/checkpoint_files.hpp"
#include "format/extras.hpp"
#include "format/record_file.hpp"
#include "io/consumed_files.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/staged_dir.hpp"
#include "model/known_orders.hpp"
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

/// The files beside the tensors have to be there, as they were written, and as the source has them.
void check_side_files(const Conversion& conversion, const Source& output, const FailOther& fail_other) {
  const Source& source = *conversion.source.source;
  const std::filesystem::path directory = checkpoint_directory(output.path());
  const std::filesystem::path record = directory / kRecordFileName;
  if (!path_exists(record)) fail_other(fmt::format("lacks {}", kRecordFileName));
  const std::string text = read_small_file(record, kMaxRecordBytes, ErrorCode::RecordInvalid);
  const std::vector<FileRecord> written = parse_record_json(text, {record.string(), {}}).files;
  for (const ExtraFile& file : conversion.target.extra_files) {
    if (file.name == kRecordFileName || file.name == kExtrasFileName) continue;
    const auto was = std::ranges::find(written, file.name, &FileRecord::name);
    const std::filesystem::path copy = directory / file.name;
    if (was == written.end() || !path_exists(copy)) fail_other(fmt::format("lacks {}", file.name));
    if (record_of_file(File::open_read(copy), file.name) != *was)
      fail_other(fmt::format("its {} is not what was written", file.name));
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

}  // namespace

std::optional<Converted> find_consumed(const std::filesystem::path& input, const std::filesystem::path& output,
                                       const ConvertOptions& options, const RunOptions& run) {
  const std::filesystem::path partial = partial_of(output_name(output));
  const bool is_left = link_kind(partial) == PathKind::Directory && list_directory(partial).empty();
  const bool may_be = options.consume_source && options.resume && (is_left || !name_taken(partial)) &&
                      path_exists(output) && !has_tensor_files(input);
  if (!may_be) return std::nullopt;
  const Checkpoint there = open_checkpoint(output);
  const std::filesystem::path record = checkpoint_directory(there.source->path()) / kRecordFileName;
  const std::optional<Digest> recorded = parse_digest(recorded_digest_of(there));
  // A single file has no room for options.
  if (!recorded ||
      (path_exists(record) &&
       parse_record_json(read_small_file(record, kMaxRecordBytes, ErrorCode::RecordInvalid), {record.string(), {}})
               .options != option_texts(options)))
    return std::nullopt;
  const auto backend = open_backend(run);
  if (digest_stage(run, there.model(), *backend, "verifying") != *recorded) return std::nullopt;
  if (is_left) (void)remove_empty_directory(partial);
  tell_note(run, "{} is complete, and {} has no files of tensors any more: the earlier run had finished",
            output.string(), input.string());
  Converted complete;
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
