/// --resume of a run that had finished.

#include <fmt/format.h>

#include "cli/choose_clones.hpp"
#include "cli/conversion.hpp"
#include "cli/output_model.hpp"
#include "core/fail.hpp"
#include "io/directory.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt::cli {

std::optional<Converted> find_complete(const Options& options, const Opened& opened, const Plan& plan, Format format,
                                       const Backend& backend) {
  const std::filesystem::path output = options.output;
  const std::filesystem::path partial = (output.has_filename() ? output : output.parent_path()).string() + ".partial";
  if (!options.resume || options.overwrite || !path_exists(output)) return std::nullopt;
  const auto fail_other = [&](const std::string& why) {
    fail(ErrorCode::OutputExists, {options.output, {}},
         "{} exists, and {}; choose another name, or --overwrite to replace it", options.output, why);
  };
  const Opened there = open_model(options.output, {});
  const OutputModel wanted = output_model(plan, *opened.source, make_record(opened.recognition, plan, std::nullopt));
  if (!same_layout(wanted.inventory, wanted.recognition, there.source->inventory(), there.recognition))
    fail_other("is not what this run would write");
  const Digest digest = digest_with_progress(options, opened.model(), backend, "comparing");
  const auto recorded = there.source->record().find("source_digest");
  const std::string of_output = recorded != there.source->record().end()
                                    ? recorded->second
                                    : to_string(digest_with_progress(options, there.model(), backend, "verifying"));
  if (of_output != to_string(digest)) fail_other("was made from another source");
  // A run that was killed once its output was in its place: what else it left goes with this.
  if (name_taken(partial) || path_exists(output / StagedDir::kJournalName))
    StagedDir(
        output, true, StagedMode::Resume,
        fingerprint_of(options, opened, plan, format, choose_clones(options, *opened.source, plan, format).bytes()));
  if (!options.quiet) fmt::print(stderr, "glu-ckpt: {} is complete: the earlier run had finished\n", options.output);
  return Converted{has_unknown_glu(opened.recognition) ? std::nullopt : std::optional(digest), 0, 0, std::nullopt};
}

}  // namespace glu_ckpt::cli
