/// convert and plan: the way of the data from the first call to the last.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>

#include "cli/session.hpp"
#include "core/fail.hpp"
#include "format/structure_view.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

namespace fs = std::filesystem;

bool is_inside(const fs::path& inner, const fs::path& outer) {
  const auto [end, at] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end() || (std::next(end) == outer.end() && end->empty());
}

/// Megatron keeps the iterations of a run side by side: more than one must not go.
bool only_one_iteration(const fs::path& path) {
  i64 directories = 0;
  for (const auto& entry : fs::directory_iterator(path)) directories += entry.is_directory() ? 1 : 0;
  return directories == 1;
}

bool is_tensor_file(const fs::path& path) {
  static const std::set<std::string> kSuffixes = {".safetensors", ".pt", ".pth", ".bin", ".distcp"};
  return kSuffixes.contains(path.extension().string());
}

/// Whether --overwrite may remove it: an empty directory, a file of tensors, or a checkpoint with no other
/// checkpoint in a directory below it.
bool is_replaceable(const fs::path& path) {
  if (!fs::is_directory(path)) return is_tensor_file(path);
  if (fs::is_empty(path)) return true;
  if (fs::exists(path / "latest_checkpointed_iteration.txt")) return only_one_iteration(path);
  bool checkpoint = false;
  for (auto it = fs::recursive_directory_iterator(path); it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    const bool rank = it.depth() == 1 && it->path().parent_path().filename().string().starts_with("mp_rank_");
    if (it.depth() > 0 && !rank && is_tensor_file(it->path())) return false;
    if (it.depth() == 0)
      checkpoint |= name == "glu_ckpt.json" || name == "model.safetensors" || name == ".metadata" ||
                    name.ends_with(".safetensors.index.json") || name == "pytorch_model.bin" ||
                    name == "pytorch_model.bin.index.json" || name.starts_with("mp_rank_");
  }
  return checkpoint;
}

/// What create_sink() would find in the way, found before the source is read.
void check_staging(const fs::path& output) {
  const fs::path named = output.has_filename() ? output : output.parent_path();
  const fs::path parent = named.has_parent_path() ? named.parent_path() : fs::path(".");
  if (!fs::is_directory(parent))
    fail(ErrorCode::NotFound, {output.string(), {}}, "{}: there is no directory {} to make it in", output.string(),
         parent.string());
  const fs::path partial = named.string() + ".partial";
  if (fs::exists(fs::symlink_status(partial)))
    fail(ErrorCode::OutputExists, {partial.string(), {}},
         "{}: exists already: an earlier run did not finish, or another is running; remove it and run again",
         partial.string());
}

/// Refused before any work: outputs that exist, or that would change the source.
void check_output(const Options& options) {
  const fs::path dst = fs::weakly_canonical(options.output);
  const fs::path src = fs::weakly_canonical(options.input);
  const bool inside = fs::is_directory(src) ? is_inside(dst, src) : dst == src;
  if (inside || is_inside(src, dst))
    fail(ErrorCode::OutputInsideSource, {options.output, {}},
         "{}: the output and the source {} overlap; the source is never written to", options.output, options.input);
  check_staging(options.output);
  if (!fs::exists(fs::symlink_status(options.output))) return;
  if (!options.overwrite)
    fail(ErrorCode::OutputExists, {options.output, {}}, "{} exists; choose another name, or --overwrite to replace it",
         options.output);
  if (!is_replaceable(options.output))
    fail(ErrorCode::OutputExists, {options.output, {}},
         "{} exists and is not a checkpoint, so --overwrite does not remove it; choose another name", options.output);
}

/// The files may lie elsewhere than the path says: a snapshot's symlinks point into a shared cache.
void check_output_is_no_source(const Options& options, const Source& source) {
  const fs::path dst = fs::weakly_canonical(options.output);
  const fs::path directory =
      fs::is_directory(source.path()) ? source.path() / source.structure().iteration_dir : source.path().parent_path();
  std::vector<fs::path> files;
  for (const std::string& name : source.inventory().files) files.push_back(directory / name);
  for (const ExtraFile& extra : source.extra_files()) files.push_back(extra.path);
  for (const fs::path& file : files)
    if (is_inside(fs::weakly_canonical(file), dst))
      fail(ErrorCode::OutputInsideSource, {options.output, {}},
           "{}: writing it would replace {}, which the source reads; the source is never written to", options.output,
           file.string());
}

/// The format of DST: as asked, or what its extension says, or the source's.
Format target_format(const Options& options, const Source& source) {
  const std::string suffix = fs::path(options.output).extension().string();
  const bool torch = suffix == ".pt" || suffix == ".pth" || suffix == ".bin";
  const std::optional<Format> named = suffix == ".safetensors" ? std::optional(Format::Safetensors)
                                      : torch                  ? std::optional(Format::Torch)
                                                               : std::nullopt;
  if (named && options.format && *named != *options.format)
    fail(ErrorCode::Usage, {options.output, {}}, "{}: a name that ends in {} is a {} file, but --format says {}",
         options.output, suffix, to_string(*named), to_string(*options.format));
  return options.format ? *options.format : named.value_or(source.format());
}

Record make_record(const Recognition& recognition, const Plan& plan, const std::optional<Digest>& digest) {
  Record record{{"version", GLU_CKPT_VERSION}};
  const bool has_experts = !recognition.blocks.empty();
  if (has_experts) {
    record["experts"] = plan.to.experts;
    record["glu"] = to_string(plan.to.glu);
  }
  // A family that nobody named is not to be believed later.
  if (has_experts && (recognition.naming_settled || plan.to.naming != plan.from.naming))
    record["naming"] = plan.to.naming;
  if (plan.to.shared_glu) record["shared_glu"] = to_string(*plan.to.shared_glu);
  if (plan.to.optimizer_glu) record["optimizer_glu"] = to_string(*plan.to.optimizer_glu);
  if (digest) record["digest"] = record["source_digest"] = to_string(*digest);
  if (recognition.num_hidden_layers) record["num_hidden_layers"] = fmt::format("{}", *recognition.num_hidden_layers);
  return record;
}

Digest digest_with_progress(const Options& options, const Opened& opened, const Backend& backend,
                            const std::string& title) {
  const Inventory& inventory = opened.source->inventory();
  i64 bytes = tensor_bytes(inventory);
  for (const std::size_t index : opened.recognition.dropped) bytes -= inventory.tensors[index].bytes;
  report::Progress progress(progress_style(options), title, bytes);
  return compute_digest(opened.model(), backend, execute_options(options, progress));
}

/// The source's digest, checked against its own record.
Digest source_digest(const Options& options, const Opened& opened, const Backend& backend) {
  check_contents(options, *opened.source, "checking source");
  const Digest digest = digest_with_progress(options, opened, backend, "reading source");
  const auto recorded = opened.source->record().find("digest");
  // The record's digest is of everything, so it says nothing about what is left after a drop.
  const bool comparable = recorded != opened.source->record().end() && opened.recognition.dropped.empty();
  if (comparable && recorded->second != to_string(digest))
    fail(ErrorCode::RecordContradicts, {options.input, {}},
         "{}: its record says {}, its tensors give {}: it has changed since it was written. If that was meant, remove "
         "the record; otherwise find an intact copy",
         options.input, recorded->second, to_string(digest));
  return digest;
}

void check_staged(const Options& options, const Sink& sink, const Digest& expected, const Backend& backend) {
  if (options.verify == VerifyMode::Readback) drop_page_cache(sink.staged_path());
  const Opened staged = open_model(sink.staged_path().string(), {});
  check_contents(options, *staged.source, "checking checksums");
  const Digest found = digest_with_progress(options, staged, backend, "verifying");
  if (found != expected)
    fail(
        ErrorCode::VerifyFailed, {options.output, {}},
        "what was written does not read back as the same model: {} written, {} expected. Nothing was kept. Either this "
        "machine's disk or memory fails, or the output's layout is taken for another one: then please report it",
        to_string(found), to_string(expected));
}

/// The source's experts beside the staged copy's.
void check_forward(const Options& options, const Opened& opened, const Sink& sink) {
  const Opened staged = open_model(sink.staged_path().string(), {});
  const auto runner = open_runner(options);
  const VerifyForwardOptions forward = forward_options(options, opened, staged);
  for (const LayerForward& layer : run_forward(options, opened, staged, *runner, forward))
    if (!layer.ok())
      fail(ErrorCode::VerifyFailed, {options.output, {}},
           "{}. Nothing was kept; if the source's experts are sound, please report it",
           report::layer_forward_text(layer));
}

i64 peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return i64{1024} * usage.ru_maxrss;
}

std::string verified_text(VerifyMode mode) {
  if (mode == VerifyMode::Forward) return "forward";
  return mode == VerifyMode::Readback ? "readback" : "digest";
}

/// The plan, proved, with what the user should know about the source beside it.
Plan proved_plan(const Options& options, const Opened& opened) {
  check_output_is_no_source(options, *opened.source);
  const Inventory& have = opened.source->inventory();
  Plan plan = with_place(*opened.source, [&] {
    return make_plan(have, opened.recognition,
                     {options.to, options.max_shard_bytes, options.force,
                      target_format(options, *opened.source) != opened.source->format()});
  });
  check_plan(have, plan);
  if (!plan.dropped.empty())
    plan.notes.push_back(fmt::format("{} tensors of the optimizer are left out", plan.dropped.size()));
  for (const std::string& name : opened.source->left_out())
    plan.notes.push_back(fmt::format("{} is not part of the checkpoint and is left behind", name));
  return plan;
}

void print_report(const Options& options, const report::Conversion& conversion) {
  if (options.json) {
    print_out(report::conversion_json(conversion) + "\n");
    return;
  }
  if (!options.quiet)
    for (const std::string& note : conversion.plan->notes) fmt::print(stderr, "glu-ckpt: note: {}\n", note);
  if (!options.quiet) print_out(report::conversion_text(conversion));
}

/// A refusal is what a plan is asked for, so it is part of the answer as well as the error.
int report_refusal(const Options& options, const Error& error) {
  constexpr int kExitRefused = 4;
  if (exit_status(error.code()) == kExitRefused && options.json) {
    report::Conversion conversion;
    conversion.output = options.output;
    conversion.dry_run = true;
    conversion.refusals.push_back(error.what());
    print_out(report::conversion_json(conversion) + "\n");
  }
  throw error;
}

int show_plan(const Options& options) {
  try {
    check_output(options);
    const Opened opened = open_model(options.input, options.from);
    const Plan plan = proved_plan(options, opened);
    const auto backend = open_backend(options, gathered_bytes(plan));
    backend->ready();
    report::Conversion conversion{options.output, &plan, true, 0, 0, 0, backend->name(), {}, {}, {}};
    conversion.bytes_written = plan.bytes;
    ExecuteOptions execution;
    execution.jobs = options.jobs;
    execution.memory_bytes = options.memory_bytes;
    conversion.peak_memory = peak_memory() + planned_buffer_bytes(plan, *backend, execution);
    print_report(options, conversion);
    return 0;
  } catch (const Error& error) {
    return report_refusal(options, error);
  }
}

}  // namespace

int cmd_convert(const Options& options) {
  if (options.command == Command::Plan) return show_plan(options);
  check_output(options);
  watch_signals();
  const auto start = std::chrono::steady_clock::now();
  // A GPU that was named opens while the source is read; auto is decided by the plan.
  std::unique_ptr<Backend> backend;
  if (options.device != "auto") backend = open_backend(options, 0);
  const Opened opened = open_model(options.input, options.from);
  const Plan plan = proved_plan(options, opened);
  check_twin_orders(options, opened, options.from);
  if (!backend) backend = open_backend(options, gathered_bytes(plan));
  if (options.verify == VerifyMode::Forward) {
    require_known_glu(opened, "--from-glu");
    // What is wrong with running the source's experts shows before anything is written.
    (void)forward_options(options, opened, opened);
  }
  // Without a known order there is no layout-invariant digest to record; the copy is checked all the same.
  const bool known = !has_unknown_glu(opened.recognition);
  std::optional<Digest> digest;
  if (options.verify != VerifyMode::None) digest = source_digest(options, opened, *backend);
  backend->ready();
  const Record record = make_record(opened.recognition, plan, known ? digest : std::nullopt);
  const Format format = target_format(options, *opened.source);
  const StructureView structured(*opened.source, format,
                                 options.from.drop_optimizer ? IsDropped(is_optimizer_tensor) : IsDropped());
  const auto sink = create_sink({options.output, opened.source->metadata(), opened.source->extra_files(),
                                 options.overwrite, record, options.typed, format, &structured},
                                plan.outputs);
  {
    report::Progress progress(progress_style(options), "converting", plan.bytes);
    execute(plan, *opened.source, *sink, *backend, execute_options(options, progress));
  }
  // What is given back is lost to the whole process, and the experts need it again.
  if (options.verify != VerifyMode::Forward) backend->release();
  sink->finish(record);
  if (digest) check_staged(options, *sink, *digest, *backend);
  if (options.verify == VerifyMode::Forward) check_forward(options, opened, *sink);
  sink->commit();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  report::Conversion conversion{
      options.output, &plan, false, sink->bytes_written(), seconds.count(), peak_memory(), backend->name(), {}, {}, {}};
  if (known) conversion.digest = digest;
  if (digest) conversion.verified = verified_text(options.verify);
  print_report(options, conversion);
  return 0;
}

}  // namespace glu_ckpt::cli
