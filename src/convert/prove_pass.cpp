#include <set>

#include "convert/check_output.hpp"
#include "convert/passes.hpp"
#include "core/fail.hpp"
#include "io/consumed_files.hpp"
#include "io/directory.hpp"
#include "model/settle_copies.hpp"
#include "verify/checkpoint_digest.hpp"
#include "verify/run_experts.hpp"
#include "verify/sample_rows.hpp"

namespace glu_ckpt {

Checkpoint open_as_planned(const Conversion& conversion, const ExpectedOutput& expected,
                           const std::filesystem::path& staged) {
  SourceAnswers answers;
  answers.adapter_layout = "stored";
  // No config.json may be beside it. The one that was named is that of the source as it is stored.
  if (!conversion.source.source->info().config_edit) answers.config_file = conversion.options.from.config_file;
  Checkpoint found = open_checkpoint(staged, answers);
  take_as_own(conversion.unlike_copies, found.source->inventory(), found.recognition);
  const std::string unlike = first_unlike(expected.model().shape(), {found.source->inventory(), found.recognition});
  if (!unlike.empty())
    fail(ErrorCode::VerifyFailed, {conversion.output.string(), {}},
         "what was written opens as another model than was planned: {}. Nothing was kept; please report it", unlike);
  return found;
}

void check_recorded(const Conversion& conversion, const Digest& digest) {
  const std::string recorded = believed_digest(conversion);
  if (!recorded.empty() && recorded != to_string(digest)) fail_contradicted(conversion, recorded, to_string(digest));
}

namespace {

/// The alternatives of what the bytes that passed have shown before the staged files are opened.
struct NothingShown {};
struct DigestShown {
  Digest source;
  /// The output's blocks passed whole, too, and gave the same digest.
  bool of_output = false;
};
struct ClonesShown {
  /// The source's, by its own record.
  std::optional<Digest> recorded;
  /// The blocks of tensors without clones passed whole, and were the same on both sides.
  bool of_uncloned = false;
};
using Shown = std::variant<NothingShown, DigestShown, ClonesShown>;

class Prover {
 public:
  Prover(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging, const ClonePlan& clones,
         const Moved& moved, Consumer* consumer)
      : conversion_(conversion),
        output_(conversion.output.string()),
        expected_(expected),
        staging_(staging),
        clones_(clones),
        moved_(moved),
        consumer_(consumer) {}

  Published run() const {
    const Shown shown = show();
    std::optional<Digest> digest;
    if (const auto* by_digest = std::get_if<DigestShown>(&shown)) digest = by_digest->source;
    if (const auto* by_clones = std::get_if<ClonesShown>(&shown)) digest = by_clones->recorded;
    const bool has_adapter = digest && conversion_.adapter.source != nullptr;
    if (has_adapter) digest = digest_of(conversion_.adapter, "reading factors");
    staging_.sink().finish(expected_.record(digest));
    if (conversion_.options.sha256_manifest) {
      Stage stage(conversion_.run, "hashing files", conversion_.plan.bytes);
      staging_.sink().write_manifest(stage.on_progress());
    }
    const Proof proof = prove(shown);
    if (has_adapter)
      check_digest(digest_of(open_checkpoint(staging_.sink().staged_path(), {}), "comparing factors"), *digest);
    // Objects, config.json and the other files were read after the tensors.
    staging_.check_source_unchanged();
    if (!has_status_as_opened(conversion_.source.source->info())) check_read_in_one_state(digest);
    // Hours may have passed since the older output was looked at.
    if (conversion_.options.overwrite && name_taken(conversion_.output)) check_replaceable(conversion_.output);
    if (consumer_ != nullptr) consumer_->remove_rest();
    staging_.sink().commit();
    return {proof, digest};
  }

 private:
  Digest digest_of(const Checkpoint& checkpoint, std::string_view title) const {
    return digest_stage(conversion_.run, checkpoint.model(), *conversion_.backend, title);
  }

  Shown show() const {
    if (conversion_.options.proof == ProofMode::None) return NothingShown{};
    // The file system may have refused all clones; then every byte was read.
    if (expected_.inherits_digest() && clones_.bytes() > 0)
      return ClonesShown{recorded_digest(conversion_, expected_.source_leaves().blank()), uncloned_agree()};
    return show_digests();
  }

  DigestShown show_digests() const {
    const Model source = conversion_.source.model();
    const std::optional<Digest> passed = expected_.source_leaves().digest(moved_.all.source);
    const std::optional<Digest> written = expected_.output_leaves().digest(moved_.all.output);
    // What an earlier run noted of the source may be damaged.
    const bool is_doubtful = staging_.sink().resumed() && passed && written && *passed != *written;
    const Digest digest = passed && !is_doubtful
                              ? *passed
                              : digest_stage(conversion_.run, source, *conversion_.backend, "reading source again");
    check_recorded(conversion_, digest);
    if (written) check_digest(*written, digest);
    return {digest, written.has_value()};
  }

  /// Compares the source with what was read of it, for it may have been rewritten with its dates kept.
  void check_read_in_one_state(const std::optional<Digest>& digest) const {
    if (conversion_.consumed != nullptr && conversion_.consumed->has_removed())
      fail(ErrorCode::SourceChanged, {conversion_.input.string(), {}},
           "{}: files that are left of it were written to while this run read them, or got other links or permissions",
           conversion_.input.string());
    const Source& source = *conversion_.source.source;
    const auto states = [&] {
      std::vector<FileIdentity> all;
      for (const OpenedFile& file : source.info().files) all.push_back(File::open_read(file.path).identity());
      return all;
    };
    const std::vector<FileIdentity> before = states();
    if (digest &&
        digest_stage(conversion_.run, conversion_.source.model(), *conversion_.backend,
                     "reading source again, for its status changed") == *digest &&
        states() == before)
      return;
    fail(ErrorCode::SourceChanged, {conversion_.input.string(), {}},
         "{}: its files were written to while this run read them, or got other links or permissions; run again",
         conversion_.input.string());
  }

  /// Compares the tensors that were written whole, of which both sides passed. False where some blocks passed in parts
  /// only.
  bool uncloned_agree() const {
    i64 bytes = 0;
    for (std::size_t t = 0; t < conversion_.plan.outputs.size(); ++t)
      if (!clones_.has(t)) bytes += conversion_.plan.outputs[t].bytes;
    const LeafSum &source = moved_.uncloned.source, &output = moved_.uncloned.output;
    if (source.leaves != output.leaves || source.bytes != output.bytes) return false;
    if (source == output) return output.bytes == bytes;
    fail(ErrorCode::VerifyFailed, {output_, {}},
         "of the {} rows and blocks that were written, other bytes were read. Nothing was kept. Either this machine's "
         "memory fails, or the output's layout is taken for another one: then please report it",
         output.leaves);
  }

  void check_digest(const Digest& found, const Digest& expected) const {
    if (found == expected) return;
    fail(ErrorCode::VerifyFailed, {output_, {}},
         "what was written is not the same model: {} written, {} expected. Nothing was kept. Either this machine's "
         "memory (or its disk, with --verify readback) fails, or the output's layout is taken for another one: then "
         "please report it",
         to_string(found), to_string(expected));
  }

  Proof prove(const Shown& shown) const {
    if (std::holds_alternative<NothingShown>(shown)) return NotProved{};
    const bool readback = conversion_.options.proof == ProofMode::Readback;
    if (readback) drop_page_cache(staging_.sink().staged_path());
    const Checkpoint staged = open_as_planned(conversion_, expected_, staging_.sink().staged_path());
    if (readback) check_contents(conversion_.run, *staged.source, "checking checksums");
    if (const auto* by_clones = std::get_if<ClonesShown>(&shown)) return prove_by_sample(staged, *by_clones);
    const DigestShown& by_digest = std::get<DigestShown>(shown);
    if (readback || !by_digest.of_output)
      check_digest(digest_stage(conversion_.run, staged.model(), *conversion_.backend, "verifying"), by_digest.source);
    if (conversion_.options.proof != ProofMode::Forward) return ProvedByDigest{readback};
    check_experts(staged);
    return ProvedByForward{};
  }

  /// Compares rows of all tensors that have clones, or that uncloned_agree() did not see whole, by the staged copy's
  /// own placements beside the source's.
  ProvedBySample prove_by_sample(const Checkpoint& staged, const ClonesShown& shown) const {
    const auto& outputs = conversion_.plan.outputs;
    std::set<std::string> names;
    for (std::size_t t = 0; t < outputs.size(); ++t)
      if (clones_.has(t) || !shown.of_uncloned) names.insert(outputs[t].name);
    std::vector<std::size_t> tensors;
    const auto& there = staged.source->inventory().tensors;
    for (std::size_t t = 0; t < there.size(); ++t)
      if (names.contains(there[t].name)) tensors.push_back(t);
    ExecuteOptions execution;
    execution.jobs = jobs_of(conversion_.run);
    const Sample sample = sample_rows(conversion_.source.model(), staged.model(), tensors, *conversion_.backend,
                                      execution, conversion_.options.seed);
    if (sample.difference.empty()) return {sample.rows, sample.bytes};
    fail(ErrorCode::VerifyFailed, {output_, {}},
         "what was cloned is not what the source holds: {} differs. Nothing was kept. Either this machine's disk "
         "fails, or the output's layout is taken for another one: then please report it",
         sample.difference);
  }

  void check_experts(const Checkpoint& staged) const {
    const Checkpoint& source = conversion_.source;
    const auto runner = open_runner(conversion_.run);
    const VerifyForwardOptions forward = forward_options(
        conversion_.options.compute, {.seed = conversion_.options.seed}, conversion_.run, source, staged);
    for (const LayerForward& layer : run_experts(conversion_.run, source, staged, *runner, forward))
      if (!layer.ok())
        fail(ErrorCode::VerifyFailed, {output_, {}},
             "{}. Nothing was kept; if the source's experts are sound, please report it", to_sentence(layer));
  }

  const Conversion& conversion_;
  std::string output_;
  const ExpectedOutput& expected_;
  const Staging& staging_;
  const ClonePlan& clones_;
  const Moved& moved_;
  /// Null where the source stays.
  Consumer* consumer_;
};

}  // namespace

Published prove_and_publish(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging,
                            const ClonePlan& clones, const Moved& moved, Consumer* consumer) {
  try {
    return Prover(conversion, expected, staging, clones, moved, consumer).run();
  } catch (const Error& error) {
    // A proof may read the source again, and says nothing where that has changed meanwhile.
    if (error.code() == ErrorCode::VerifyFailed || error.code() == ErrorCode::RecordContradicts)
      staging.check_source_unchanged();
    throw;
  }
}

}  // namespace glu_ckpt
