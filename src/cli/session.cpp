#include "cli/session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "core/fail.hpp"
#include "io/directory.hpp"
#include "report/tell.hpp"
#include "verify/check_twins.hpp"

namespace glu_ckpt::cli {
namespace {

/// Exit statuses of errors about the source.
constexpr int kBrokenStatus = 3;
constexpr int kRefusedStatus = 4;

std::atomic<int> stop_signal{0};

std::string answer_about(const ExpertBlock& block) {
  if (block.set == ExpertSet::Shared) return "shared-glu";
  return block.is_twin() ? "optimizer-glu" : "glu";
}

void note_signal(int number) { stop_signal = number; }

/// The file of the source that holds the tensor.
std::filesystem::path file_of(const Source& source, const TensorRef& tensor) {
  if (!is_directory_at(source.path())) return source.path();
  return source.path() / source.structure().iteration_dir / source.inventory().files.at(tensor.file);
}

}  // namespace

void fail_with_place(const Error& error, const Source& source) {
  const int status = exit_status(error.code());
  if (!error.file().empty() || (status != kBrokenStatus && status != kRefusedStatus)) throw error;
  const auto& tensors = source.inventory().tensors;
  const auto named = std::ranges::find(tensors, error.tensor(), &TensorRef::name);
  if (error.tensor().empty() || named == tensors.end())
    fail_at(error.code(), {source.path().string(), std::nullopt, error.tensor()}, "{}", error.what());
  // A sound tensor that cannot be converted has no byte at fault.
  const auto offset = status == kBrokenStatus ? std::optional(named->offset) : std::nullopt;
  fail_at(error.code(), {file_of(source, *named).string(), offset, error.tensor()}, "{}", error.what());
}

Opened open_model(const std::string& path, const SourceAnswers& answers) {
  Opened opened;
  opened.source = open_source(path);
  const Source& source = *opened.source;
  opened.recognition =
      with_place(source, [&] { return recognize(source.inventory(), source.hints(), source.record(), answers); });
  return opened;
}

bool has_unknown_glu(const Recognition& recognition) {
  for (const ExpertBlock& block : recognition.blocks)
    if (block.glu.kind == Glu::Kind::Unknown) return true;
  return false;
}

void require_known_glu(const Opened& opened, const ExpertBlock& block, const std::string& option) {
  if (block.glu.kind != Glu::Kind::Unknown) return;
  fail(ErrorCode::UnknownGlu, {opened.source->path().string(), {}},
       "{}: {}layer {}, {} experts: names and shapes do not tell in which order FC1 holds gate and up. Say {} "
       "contiguous|interleaved:K if you know, or record it once with `glu-ckpt stamp`",
       opened.source->path().string(), block.is_twin() ? block.state + " of " : "", layer_label(block),
       to_string(block.set), option.substr(0, option.rfind("glu")) + answer_about(block));
}

void require_known_glu(const Opened& opened, const std::string& option) {
  for (const ExpertBlock& block : opened.recognition.blocks) require_known_glu(opened, block, option);
}

std::unique_ptr<Backend> open_backend(const Options& options, i64 gathered) {
  if (options.device != "auto") return make_backend(options.device, options.backend);
  const DeviceChoice choice = choose_device(gathered, options.jobs, options.backend);
  if (options.verbose) report::tell("glu-ckpt: device {}: {}\n", choice.device, choice.reason);
  return make_backend(choice.device, options.backend);
}

std::unique_ptr<MlpRunner> open_runner(const Options& options) {
  return make_mlp_runner(options.device == "auto" ? "cpu" : options.device, options.backend);
}

report::ProgressStyle progress_style(const Options& options) {
  if (options.quiet || options.progress == ProgressMode::Never) return report::ProgressStyle::None;
  if (options.progress == ProgressMode::Json) return report::ProgressStyle::Json;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (options.progress == ProgressMode::Always || terminal)
    return terminal ? report::ProgressStyle::Bar : report::ProgressStyle::Lines;
  return report::ProgressStyle::Lines;
}

ExecuteOptions execute_options(const Options& options, report::Progress& progress) {
  ExecuteOptions execution;
  execution.jobs = options.jobs;
  execution.memory_bytes = options.memory_bytes;
  execution.on_progress = [&progress](i64 bytes) {
    progress.add(bytes);
    if (const int number = stop_signal; number != 0) fail(ErrorCode::Interrupted, {}, "stopped by signal {}", number);
  };
  return execution;
}

void check_contents(const Options& options, const Source& source, const std::string& title) {
  const ContentCheck* const check = source.content_check();
  if (check == nullptr) return;
  report::Progress progress(progress_style(options), title, check->bytes());
  check->run(options.jobs, execute_options(options, progress).on_progress);
}

void check_twin_orders(const Options& options, const Opened& opened, const SourceAnswers& answers) {
  const TwinCheck found =
      with_place(*opened.source, [&] { return check_twins(opened.model(), answers.option_prefix); });
  if (!options.verbose || found.agreeing + found.undecided + found.unread == 0) return;
  report::tell(
      "glu-ckpt: {}: {} sampled rows of the master weights of {} FC1s round to the weights; {} FC1s say nothing "
      "about their order, {} were not looked at\n",
      opened.source->path().string(), found.rows, found.agreeing, found.undecided, found.unread);
}

void watch_signals() {
  // What is ignored stays so: nohup, and the background of a shell, mean it.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    if (std::signal(number, note_signal) == SIG_IGN) std::signal(number, SIG_IGN);
}

void print_out(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) fail(ErrorCode::Io, {}, "cannot write to standard output");
}

i64 tensor_bytes(const Inventory& inventory) {
  i64 bytes = 0;
  for (const TensorRef& tensor : inventory.tensors) bytes += tensor.bytes;
  return bytes;
}

Digest digest_with_progress(const Options& options, const Model& model, const Backend& backend,
                            const std::string& title) {
  i64 bytes = tensor_bytes(model.source->inventory());
  for (const std::size_t index : model.recognition->dropped) bytes -= model.source->inventory().tensors[index].bytes;
  report::Progress progress(progress_style(options), title, bytes);
  return compute_digest(model, backend, execute_options(options, progress));
}

}  // namespace glu_ckpt::cli
