/// The public calls that compare whole checkpoints by their paths.

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "layout/element_grid.hpp"
#include "model/known_orders.hpp"
#include "model/settle_copies.hpp"
#include "model/source_steps.hpp"
#include "model/stored_codes.hpp"
#include "verify/checkpoint_digest.hpp"
#include "verify/compare_models.hpp"
#include "verify/diff_items.hpp"
#include "verify/run_experts.hpp"

namespace glu_ckpt {
namespace {

/// Lets a config.json beside one of two checkpoints of one model speak for the other, whose tensors outside of the
/// experts would have no roles without it: it has none, or one of a type that no map knows, which says so.
void share_configuration(const RunOptions& run, const Checkpoint& from, Checkpoint& to, const SourceAnswers& answers) {
  if (from.recognition.architecture == nullptr || to.recognition.architecture != nullptr) return;
  const bool has_own = !to.hints.config.empty();
  try {
    to.recognition = recognize_model(to.source->inventory(), from.hints, to.source->record(), answers);
  } catch (const Error&) {
    if (!has_own) throw;
    return;  // They are two models.
  }
  if (!has_own)
    to.hints = from.hints;
  else
    tell_note(run, "{}: no map knows models of type '{}', so its tensors are taken for what those of {} are",
              to.source->path().string(), to.hints.model_type, from.source->path().string());
}

/// Says why one of two has more tensors: an optimizer's.
void tell_of_optimizer(const RunOptions& run, const SourceAnswers& answers, const Checkpoint& one,
                       const Checkpoint& other) {
  const auto has_state = [](const Checkpoint& checkpoint) {
    return std::ranges::any_of(checkpoint.source->inventory().tensors,
                               [](const TensorRef& tensor) { return is_optimizer_tensor(tensor.name); });
  };
  if (!answers.drop_optimizer && has_state(one) && !has_state(other))
    tell_note(run, "{} has an optimizer's state, and {} none: --optimizer drop compares the weights alone",
              one.source->path().string(), other.source->path().string());
}

/// Opens a checkpoint again with scales for blocks as small as the other one's: those are the same weights. Returns
/// whether it did.
bool share_scale_rows(const std::filesystem::path& path, const SourceAnswers& answers, const Checkpoint& other,
                      Checkpoint& checkpoint) {
  const i64 own = scale_rows_of(checkpoint.recognition.blocks), wanted = scale_rows_of(other.recognition.blocks);
  if (wanted == 0 || own <= wanted || own % wanted != 0) return false;
  SourceAnswers finer = answers;
  finer.scale_rows = wanted;
  checkpoint = open_checkpoint(path, finer);
  return true;
}

/// Opens a padded checkpoint again without its padding where the other one's experts are as wide as its own were: those
/// are the same weights, if what was added is zero. Returns it as it was, for its experts to run.
std::optional<Checkpoint> share_width(const RunOptions& run, const std::filesystem::path& path,
                                      const SourceAnswers& answers, const Checkpoint& other, Checkpoint& checkpoint) {
  const auto width_of = [](const Checkpoint& one) {
    const auto& blocks = one.recognition.blocks;
    const auto routed = std::ranges::find(blocks, ExpertSet::Routed, &ExpertBlock::set);
    return routed == blocks.end() ? 0 : routed->intermediate_size;
  };
  const i64 before = recorded_width_before_padding(checkpoint.source->record());
  if (before == 0 || before != width_of(other) || before == width_of(checkpoint)) return std::nullopt;
  SourceAnswers narrower = answers;
  narrower.pad_experts = 0;
  narrower.unpad = true;
  try {
    Checkpoint stored = std::exchange(checkpoint, open_checkpoint(path, narrower));
    tell_note(run, "{}: its experts are padded from a width of {} to {}; they are compared without the padding",
              path.string(), before, width_of(stored));
    return stored;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotExact) throw;
    tell_warning(run, "{}", error.what());
    return std::nullopt;
  }
}

/// Reads gate and up with one second scale where the other checkpoint was written so: those are the same weights.
/// Returns whether it did.
bool share_one_scale(const Checkpoint& other, Checkpoint& checkpoint) {
  if (!other.source->record().contains("second_scales") || checkpoint.source->record().contains("second_scales"))
    return false;
  return share_second_scales(checkpoint).pairs > 0;
}

/// Returns whether the answers make other tensors of those that are stored.
bool changes_tensors(const SourceAnswers& answers) {
  return answers.decode || !answers.encode.empty() || !answers.merge.empty() || !answers.dtypes.empty() ||
         !answers.fill_from.empty() || !answers.layers.empty() || !answers.keep_experts.empty() ||
         answers.pad_experts > 0 || answers.unpad || answers.drop_mtp || answers.drop_vision;
}

bool has_bf16(const Source& source) {
  return std::ranges::any_of(source.inventory().tensors,
                             [](const TensorRef& tensor) { return tensor.dtype == Dtype::BF16; });
}

/// What somebody wants to know of two checkpoints that differ.
enum class Question { AreTheyOne, HowFarApart };

/// Codes are other tensors than the weights that they stand for: where one of two checkpoints holds codes, this says
/// how they are compared as numbers.
void tell_of_codes(const RunOptions& run, const Checkpoint& source, const Checkpoint& other, Question question) {
  const Record &record = other.source->record(), &own = source.source->record();
  const std::vector<std::string> formats = quantized_formats(other);
  if (formats.empty() || own.contains("decoded_from")) return;  // tell_how_to_read() says how, then.
  const auto as = record.find("encoded_as"), by = record.find("encoder");
  const bool was_encoded = as != record.end() && !own.contains("encoded_as");
  const bool are_both_codes = !quantized_formats(source).empty();
  if (are_both_codes && !was_encoded) return;
  const std::string name = other.source->path().string(), of = source.source->path().string();
  if (question == Question::AreTheyOne && was_encoded)
    tell_note(run,
              "{}: was written as {}; {}--encode {}{} compares with {} so, and `glu-ckpt diff {} {} --decode bf16` "
              "measures what it lost",
              name, as->second, are_both_codes && record.contains("decoded_from") ? "--decode bf16 " : "", as->second,
              by == record.end() ? "" : " --encode-as " + by->second, of, of, name);
  else
    tell_note(
        run,
        "{}: holds codes and scales ({}), and {} holds {}, so they are compared as different tensors; {} compares "
        "the numbers that the codes stand for, and measures how far they are apart",
        name, fmt::join(formats, ", "), of, are_both_codes ? "others" : "weights",
        question == Question::HowFarApart ? std::string("--decode bf16")
                                          : fmt::format("`glu-ckpt diff {} {} --decode bf16`", of, name));
}

/// A part is compared with all of its source unless somebody says of what it is a part. --layers of verify does not:
/// it limits what is compared, and leaves out the embedding of a part, too. `of_other` are the answers about the other
/// one, which may be read as a part itself.
void tell_of_part(const RunOptions& run, const SourceAnswers& answers, const Checkpoint& source,
                  const SourceAnswers& of_other, const Checkpoint& other) {
  if (asks_for_part(of_other)) return;
  const Record &record = other.source->record(), &own = source.source->record();
  const auto part = record.find("part"), own_part = own.find("part");
  if (part == record.end() || (own_part != own.end() && own_part->second == part->second)) return;
  const auto options = record.find("part_options");
  const std::string all = options == record.end() ? "" : options->second;
  const std::pair<std::string_view, bool> given[] = {{"--from-layers", !answers.layers.empty()},
                                                     {"--keep-experts", !answers.keep_experts.empty()},
                                                     {"--drop", answers.drop_mtp || answers.drop_vision}};
  const auto lacks = [&](const auto& one) { return !one.second && all.find(one.first) != all.npos; };
  const auto is_given = [](const auto& one) { return one.second; };
  if (all.empty() ? std::ranges::any_of(given, is_given) : std::ranges::none_of(given, lacks)) return;
  tell_note(run, "{}: is a part ({}); {} compares with that part of {}", other.source->path().string(), part->second,
            all.empty() ? "--from-layers, --keep-experts or --drop" : all, source.source->path().string());
}

/// "the shared expert".
std::string whose_order_is_unknown(const LayoutAnswers& layout) {
  const auto is_unknown = [](const Glu& glu) { return glu.kind == Glu::Kind::Unknown; };
  std::vector<std::string_view> whose;
  if (is_unknown(layout.glu)) whose.emplace_back("the routed experts");
  if (layout.shared_glu && is_unknown(*layout.shared_glu)) whose.emplace_back("the shared expert");
  if (layout.optimizer_glu && is_unknown(*layout.optimizer_glu)) whose.emplace_back("the optimizer's state");
  return fmt::format("{}", fmt::join(whose, " and "));
}

/// A checkpoint that was decoded, or encoded anew, is compared with its source as that is stored unless somebody says
/// otherwise.
void tell_how_to_read(const RunOptions& run, const SourceAnswers& answers, const Checkpoint& source,
                      const Checkpoint& other, Question question) {
  const Record& record = other.source->record();
  if (const auto from = record.find("decoded_from");
      from != record.end() && !answers.decode && !quantized_formats(source).empty() && quantized_formats(other).empty())
    tell_note(run, "{}: was decoded from {}; --decode {} compares with what {} decodes to",
              other.source->path().string(), from->second, has_bf16(*other.source) ? "bf16" : "f32",
              source.source->path().string());
  const Record& own = source.source->record();
  if (const auto as = record.find("decoded_as"), by = own.find("decoded_as");
      as != record.end() && by != own.end() && as->second != by->second && answers.decode &&
      other.source->info().decoded_weights.empty())
    tell_note(run, "{}: was decoded as {} decodes; --decode-as {} reads {} so", other.source->path().string(),
              as->second, as->second, source.source->path().string());
  if (const auto from = record.find("filled_from");
      from != record.end() && !own.contains("filled_from") && answers.fill_from.empty())
    tell_note(run, "{}: tensors were filled from {}; --fill-from {} compares with {} so", other.source->path().string(),
              from->second, from->second, source.source->path().string());
  if (const auto merged = record.find("merged");
      merged != record.end() && !own.contains("merged") && answers.merge.empty())
    tell_note(run, "{}: the adapter {} was merged; --merge ADAPTER compares with {} so", other.source->path().string(),
              merged->second, source.source->path().string());
  if (const auto dtypes = record.find("dtypes");
      dtypes != record.end() && !own.contains("dtypes") && answers.dtypes.empty())
    tell_note(run, "{}: was cast to other dtypes; --dtype '{}'{} compares with {} so", other.source->path().string(),
              dtypes->second, record.contains("rounded") ? " --allow-narrowing" : "", source.source->path().string());
  if (answers.encode.empty() && !answers.decode) tell_of_codes(run, source, other, question);
}

/// One adapter in two layouts gives sums of experts that differ by roundings: says so where no more differs between a
/// model that was merged and one that --merge makes. What is in no expert has the same sum in both layouts.
void tell_of_merge_rounding(const RunOptions& run, const SourceAnswers& answers, const Checkpoint& other,
                            const Verdict& verdict) {
  // The greatest share of a tensor that roundings of bf16 may change.
  constexpr double kMostRounding = 1.0 / 64;
  if (answers.merge.empty() || !other.source->record().contains("merged") || !verdict.missing.empty() ||
      !verdict.extra.empty() || verdict.differences.tensors.empty())
    return;
  const bool is_rounding = std::ranges::all_of(verdict.differences.tensors, [](const TensorDiff& tensor) {
    return tensor.elements && tensor.elements->relative_norm() <= kMostRounding;
  });
  if (!is_rounding) return;
  const auto outside = std::ranges::find(verdict.differences.tensors, i64{-1}, &TensorDiff::expert);
  if (outside != verdict.differences.tensors.end())
    return tell_note(
        run,
        "{}: {} differs, which is in no expert, so roundings are not the reason: the adapter '{}' was merged "
        "into another base, or the output was changed since",
        other.source->path().string(), outside->name, other.source->record().at("merged"));
  tell_note(
      run,
      "no more differs than roundings may: PEFT rounds the products of packed experts before it adds them, and "
      "those of linear layers after, so that one adapter in two layouts gives two sums. --merge the files that "
      "were merged into {}, to compare bit for bit; `glu-ckpt verify` of the two adapters compares their products",
      other.source->path().string());
}

/// Returns whether nothing says in which order two checkpoints of the same tensors hold gate and up. Their rows are
/// compared as they are stored: where all are the same, so are the models, whatever the order.
bool are_alike_without_order(const Checkpoint& a, const Checkpoint& b) {
  const std::vector<std::string> missing = missing_answers(a.recognition);
  return !missing.empty() && missing == missing_answers(b.recognition) && same_tensors(a.model(), b.model());
}

/// Returns whether no more differs than FC1s, which may be the same in two orders.
bool only_orders_may_differ(const ComparedModels& compared) {
  if (compared.verdict.equal || !compared.verdict.missing.empty() || !compared.verdict.extra.empty()) return false;
  const auto is_whole_fc1 = [](const Item& item) { return item.block != nullptr && item.matrix->role == Role::GateUp; };
  const auto [x, y] = std::ranges::mismatch(compared.left, compared.right, [&](const Item& left, const Item& right) {
    return left.sum == right.sum || is_whole_fc1(left);
  });
  return x == compared.left.end();
}

/// A configuration that was made of a trainer's arguments says no more than those.
std::vector<ConfigDifference> compare_configs(const Checkpoint& a, const Checkpoint& b, const SourceAnswers& answers_a,
                                              const SourceAnswers& answers_b) {
  if (a.hints.config_is_made || b.hints.config_is_made || a.recognition.is_adapter) return {};
  // Where weights are decoded or encoded, so is what says how they are.
  const bool as_stored =
      !changes_tensors(answers_a) && !changes_tensors(answers_b) && same_tensors(a.model(), b.model());
  return config_differences(a.hints.config, b.hints.config,
                            as_stored ? QuantizationFields::Compare : QuantizationFields::Skip);
}

ComparedModels compare_stage(const RunOptions& run, const Model& a, const Model& b, const Backend& backend,
                             const VerifySubset& subset) {
  Stage stage(run, "verify", verify_bytes(a, b, subset));
  return compare_models(a, b, backend, stage.execute_options(), subset);
}

/// Reads again what differs, and measures it.
Verdict measure_differences(const RunOptions& run, const Model& a, const Model& b, const Backend& backend,
                            ComparedModels compared) {
  if (compared.verdict.equal) return std::move(compared.verdict);
  const std::vector<ItemPair> pairs = pair_models(a, b, compared.left, compared.right);
  Stage stage(run, "measuring what differs", diff_items_bytes(pairs, hashed_unequal));
  compared.verdict.differences = diff_items(a, b, pairs, backend, stage.execute_options(), hashed_unequal);
  return std::move(compared.verdict);
}

}  // namespace

Verdict verify(const std::filesystem::path& path_a, const std::filesystem::path& path_b, const VerifyOptions& options,
               const RunOptions& run) {
  // A and B are decoded by two roads where both are.
  SourceAnswers answers_a = options.a;
  answers_a.decode_plainly = true;
  Checkpoint a = open_and_warn(run, path_a, answers_a);
  Checkpoint b = open_and_warn(run, path_b, options.b);
  const std::optional<Checkpoint> padded_a = share_width(run, path_a, answers_a, b, a);
  const std::optional<Checkpoint> padded_b = share_width(run, path_b, options.b, a, b);
  // Each of these reads one side otherwise than it is stored.
  bool reads_otherwise = padded_a || padded_b;
  reads_otherwise |= share_scale_rows(path_a, answers_a, b, a) || share_scale_rows(path_b, options.b, a, b);
  reads_otherwise |= share_one_scale(a, b) || share_one_scale(b, a);
  share_configuration(run, a, b, options.b);
  share_configuration(run, b, a, options.a);
  const auto require_orders = [&] { require_known_glu(a, options.a.option_prefix, b, options.b.option_prefix); };
  const bool as_stored = !options.forward && are_alike_without_order(a, b);
  if (!as_stored) require_orders();
  const auto backend = open_backend(run);
  backend->ready();
  std::unique_ptr<MlpRunner> runner;
  VerifyForwardOptions forward;
  if (options.forward) {
    if (options.a.pad_experts > 0)
      tell_note(run, "--pad-experts {} pads A before its experts run; without that option A runs as it is stored",
                options.a.pad_experts);
    runner = open_runner(run);
    forward = forward_options(options.compute, options.subset, run, a, b);
  }
  bool has_rounded = false;
  const bool is_all = options.subset.is_all();
  if (is_all) {
    watch_contents(*a.source);
    watch_contents(*b.source);
    has_rounded = settle_copies(run, a, b);
  }
  ComparedModels compared = compare_stage(run, a.model(), b.model(), *backend, options.subset);
  if (is_all) {
    check_contents(run, *a.source, "checking A");
    check_contents(run, *b.source, "checking B");
  }
  check_master_weights(run, a, options.a);
  check_master_weights(run, b, options.b);
  if (as_stored && only_orders_may_differ(compared)) require_orders();
  Verdict verdict = measure_differences(run, a.model(), b.model(), *backend, std::move(compared));
  // Adapters are compared as factors of each expert, however their files have them.
  verdict.same_layout = verdict.same_layout && !has_rounded && !reads_otherwise && !a.recognition.is_adapter;
  verdict.is_as_answered = changes_tensors(options.a) || changes_tensors(options.b);
  if (verdict.missing.empty() && verdict.extra.empty())
    verdict.differences.configs = compare_configs(a, b, options.a, options.b);
  if (as_stored)
    tell_note(run,
              "nothing says in which order the two hold gate and up rows of {}: these were compared as they are stored",
              whose_order_is_unknown(a.recognition.layout));
  if (!verdict.equal || verdict.compared < verdict.in_both) {
    tell_of_part(run, options.a, a, options.b, b);
    tell_of_part(run, options.b, b, options.a, a);
    tell_of_optimizer(run, options.a, a, b);
    tell_of_optimizer(run, options.b, b, a);
  }
  if (!verdict.equal) {
    tell_how_to_read(run, options.a, a, b, Question::AreTheyOne);
    tell_how_to_read(run, options.b, b, a, Question::AreTheyOne);
    tell_of_merge_rounding(run, options.a, b, verdict);
  }
  if (!runner) return verdict;
  verdict.forward = run_experts(run, padded_a ? *padded_a : a, padded_b ? *padded_b : b, *runner, forward);
  for (const LayerForward& layer : verdict.forward) verdict.equal = verdict.equal && layer.ok();
  return verdict;
}

std::vector<LayerForward> verify_forward(const std::filesystem::path& path_a, const std::filesystem::path& path_b,
                                         const VerifyOptions& options, const RunOptions& run) {
  const Checkpoint a = open_and_warn(run, path_a, options.a);
  const Checkpoint b = open_and_warn(run, path_b, options.b);
  require_known_glu(a, options.a.option_prefix, b, options.b.option_prefix);
  const auto runner = open_runner(run);
  return run_experts(run, a, b, *runner, forward_options(options.compute, options.subset, run, a, b));
}

namespace {

void warn_of_damage(const RunOptions& run, const Checkpoint& checkpoint, std::string_view title) {
  try {
    check_contents(run, *checkpoint.source, title);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Interrupted) throw;
    tell_warning(run, "{}", error.what());
  }
}

}  // namespace

Diff diff(const std::filesystem::path& path_a, const std::filesystem::path& path_b, const DiffOptions& options,
          const RunOptions& run) {
  Checkpoint a = open_and_warn(run, path_a, options.a);
  Checkpoint b = open_and_warn(run, path_b, options.b);
  (void)share_width(run, path_a, options.a, b, a);
  (void)share_width(run, path_b, options.b, a, b);
  (void)share_scale_rows(path_a, options.a, b, a);
  (void)share_scale_rows(path_b, options.b, a, b);
  (void)share_one_scale(a, b);
  (void)share_one_scale(b, a);
  share_configuration(run, a, b, options.b);
  share_configuration(run, b, a, options.a);
  if (has_unknown_glu(a.recognition) && has_unknown_glu(b.recognition)) {
    tell_warning(run,
                 "nothing says in which order the two hold gate and up rows, so each FC1 is compared as it is stored; "
                 "{}glu and {}glu say it",
                 options.a.option_prefix, options.b.option_prefix);
  } else {
    require_known_glu(a, options.a.option_prefix, b, options.b.option_prefix);
  }
  const auto backend = open_backend(run);
  backend->ready();
  // A tensor that is a copy in one checkpoint and differs from its original in the other one is compared by its name.
  const std::vector<UnlikeCopy> own_in_a = settle_copies(run, a);
  take_as_own(own_in_a, b.source->inventory(), b.recognition);
  take_as_own(settle_copies(run, b), a.source->inventory(), a.recognition);
  check_master_weights(run, a, options.a);
  check_master_weights(run, b, options.b);
  Diff found;
  {
    Stage stage(run, "diff", diff_bytes(a.model(), b.model(), options.tensors));
    found = diff(a.model(), b.model(), *backend, stage.execute_options(), options.tensors);
  }
  if (std::ranges::none_of(found.tensors, [](const TensorDiff& tensor) { return tensor.only_in.has_value(); }))
    found.configs = compare_configs(a, b, options.a, options.b);
  if (found.equal) return found;
  tell_of_optimizer(run, options.a, a, b);
  tell_of_optimizer(run, options.b, b, a);
  tell_of_part(run, options.a, a, options.b, b);
  tell_of_part(run, options.b, b, options.a, a);
  tell_how_to_read(run, options.a, a, b, Question::HowFarApart);
  tell_how_to_read(run, options.b, b, a, Question::HowFarApart);
  // A difference may be damage; reading equal ones once more would only cost time.
  warn_of_damage(run, a, "checking A");
  warn_of_damage(run, b, "checking B");
  return found;
}

Digest digest_of(Checkpoint& checkpoint, const SourceAnswers& answers, const RunOptions& run) {
  require_known_glu(checkpoint, answers.option_prefix);
  const auto backend = open_backend(run);
  backend->ready();
  settle_copies(run, checkpoint);
  watch_contents(*checkpoint.source);
  const Digest found = digest_stage(run, checkpoint.model(), *backend, "digest");
  check_contents(run, *checkpoint.source, "checking checksums");
  check_master_weights(run, checkpoint, answers);
  return found;
}

Digest digest_stage(const RunOptions& run, const Model& model, const Backend& backend, std::string_view title) {
  Stage stage(run, title, tensor_bytes(model));
  return compute_digest(model, backend, stage.execute_options());
}

CheckpointDigest digest(const std::filesystem::path& path, const SourceAnswers& answers, const RunOptions& run) {
  Checkpoint checkpoint = open_and_warn(run, path, answers);
  const Digest found = digest_of(checkpoint, answers, run);
  return {found, recorded_digest_of(checkpoint), checkpoint.hints.config_is_made ? "" : checkpoint.hints.config};
}

}  // namespace glu_ckpt
