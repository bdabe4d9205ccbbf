/// --resume of a run that had finished.

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "convert/check_output.hpp"
#include "convert/choose_clones.hpp"
#include "convert/conversion.hpp"
#include "convert/output_model.hpp"
#include "core/fail.hpp"
#include "format/extras.hpp"
#include "format/record_file.hpp"
#include "io/directory.hpp"
#include "io/staged_dir.hpp"
#include "report/tell.hpp"

namespace glu_ckpt::cli {
namespace {

using FailOther = std::function<void(const std::string&)>;

/// What cannot be read as a checkpoint is not what this run would write.
Opened open_output(const std::string& path, const FailOther& fail_other) {
  try {
    return open_model(path, {});
  } catch (const Error& error) {
    constexpr int kMachineFailed = 5;
    if (exit_status(error.code()) == kMachineFailed) throw;
    fail_other(fmt::format("cannot be read as a checkpoint ({})", error.what()));
    throw;
  }
}

/// The files beside the tensors have to be there, as they were written; the source's may be logs that have grown since.
void check_side_files(const Source& source, const Source& output, const FailOther& fail_other) {
  const std::filesystem::path record = output.path() / kRecordFileName;
  if (!path_exists(record)) fail_other(fmt::format("lacks {}", kRecordFileName));
  const std::string text = read_small_file(record, kMaxRecordBytes, ErrorCode::RecordInvalid);
  const std::vector<FileRecord> written = parse_record_json(text, {record.string(), {}}).files;
  for (const ExtraFile& file : source.extra_files()) {
    if (file.name == kRecordFileName || file.name == kExtrasFileName) continue;
    const auto was = std::ranges::find(written, file.name, &FileRecord::name);
    const std::filesystem::path copy = output.path() / file.name;
    if (was == written.end() || !path_exists(copy)) fail_other(fmt::format("lacks {}", file.name));
    if (record_of_file(File::open_read(copy), file.name) != *was) fail_other(fmt::format("its {} is not what was written", file.name));
  }
  if (const std::string config = config_of(source); config != config_of(output))
    fail_other("its config.json is another one than the source's");
}

}  // namespace

std::optional<Converted> find_complete(const Options& options, const Opened& opened, const Plan& plan, Format format,
                                       const Backend& backend) {
  const std::filesystem::path output = options.output;
  const std::filesystem::path partial = output_path(options).string() + ".partial";
  if (!options.resume || options.overwrite || !path_exists(output)) return std::nullopt;
  const auto fail_other = [&](const std::string& why) {
    fail(ErrorCode::OutputExists, {options.output, {}},
         "{} exists, and {}; choose another name, or --overwrite to replace it", options.output, why);
  };
  const Opened there = open_output(options.output, fail_other);
  const OutputModel wanted = output_model(plan, *opened.source, make_record(opened.recognition, plan, std::nullopt));
  const bool same_files = there.source->format() == format &&
                          (format != Format::Safetensors || there.source->inventory().files.size() == plan.num_shards);
  if (!same_files || !same_layout(wanted.inventory, wanted.recognition, there.source->inventory(), there.recognition))
    fail_other("is not what this run would write");
  if (is_directory_at(output)) check_side_files(*opened.source, *there.source, fail_other);
  const Digest digest = digest_with_progress(options, opened.model(), backend, "comparing");
  if (options.verify == VerifyMode::Readback) drop_page_cache(output);
  if (digest_with_progress(options, there.model(), backend, "verifying") != digest)
    fail_other("does not hold the same model: another source's, or damaged");
  // A run that was killed once its output was in its place: what else it left goes with this.
  if (name_taken(partial) || path_exists(output / StagedDir::kJournalName))
    StagedDir(output, true, StagedMode::Resume,
              fingerprint_of(options, opened, plan, format, config_of(*opened.source),
                             choose_clones(options, *opened.source, plan, format).bytes()))
        .discard();
  if (!options.quiet) report::tell("glu-ckpt: {} is complete: the earlier run had finished\n", options.output);
  return Converted{has_unknown_glu(opened.recognition) ? std::nullopt : std::optional(digest), 0, 0, std::nullopt,
                   true};
}

}  // namespace glu_ckpt::cli
