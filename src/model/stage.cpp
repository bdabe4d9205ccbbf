#include "model/stage.hpp"

#include <algorithm>
#include <csignal>

#include "core/fail.hpp"
#include "core/usable_cores.hpp"
#include "model/locate_errors.hpp"
#include "model/optimizer_order.hpp"

namespace glu_ckpt {
namespace {

/// The stage that takes the workers most time; empty where none has taken any.
std::string_view bottleneck(const StageTimes& times) {
  const std::pair<i64, std::string_view> stages[] = {
      {times.reading, "reading"}, {times.writing, "writing"}, {times.hashing, "hashing"}, {times.moving, "device"}};
  const auto& [most, name] = *std::ranges::max_element(stages, {}, &std::pair<i64, std::string_view>::first);
  return most > 0 ? name : std::string_view();
}

}  // namespace

void StopToken::check() const {
  const int request = request_;
  if (request == 0) return;
  if (request == 1) fail(ErrorCode::Interrupted, {}, "stopped on request");
  for (const auto& [number, name] : {std::pair(SIGINT, "SIGINT"), std::pair(SIGTERM, "SIGTERM"),
                                     std::pair(SIGHUP, "SIGHUP"), std::pair(SIGUSR1, "SIGUSR1")})
    if (number == request - 1) fail(ErrorCode::Interrupted, {}, "stopped by {}", name);
  fail(ErrorCode::Interrupted, {}, "stopped by signal {}", request - 1);
}

Stage::Stage(const RunOptions& run, std::string_view title, i64 bytes) : run_(run) {
  if (run_.observer != nullptr) run_.observer->stage_begins(title, bytes);
}

Stage::~Stage() {
  if (run_.observer != nullptr) run_.observer->stage_ends();
}

std::function<void(i64)> Stage::on_progress() {
  return [this](i64 bytes) {
    if (run_.observer != nullptr) run_.observer->advance(bytes, bottleneck(times_));
    if (run_.stop != nullptr) run_.stop->check();
  };
}

ExecuteOptions Stage::execute_options() {
  ExecuteOptions execution;
  execution.jobs = jobs_of(run_);
  execution.memory_bytes = run_.memory_bytes;
  execution.on_progress = on_progress();
  return execution;
}

int jobs_of(const RunOptions& run) { return run.jobs > 0 ? run.jobs : usable_cores(); }

std::unique_ptr<Backend> open_backend(const RunOptions& run, const Plan* plan, bool computes) {
  const BackendOptions options{run.device_memory_bytes, computes};
  if (run.device != "auto") return make_backend(run.device, options);
  const DeviceChoice choice = choose_device(plan != nullptr ? gathered_bytes(*plan) : 0, jobs_of(run), options);
  if (plan != nullptr) tell_detail(run, "device {}: {}", choice.device, choice.reason);
  return make_backend(choice.device, options);
}

void watch_contents(const Source& source) {
  if (const ContentCheck* const check = source.content_check()) check->watch();
}

void check_contents(const RunOptions& run, const Source& source, std::string_view title) {
  const ContentCheck* const check = source.content_check();
  if (check == nullptr) return;
  Stage stage(run, title, check->bytes());
  check->run(jobs_of(run), stage.on_progress());
}

void check_master_weights(const RunOptions& run, const Checkpoint& checkpoint, const SourceAnswers& answers) {
  const OptimizerCheck found = locate_errors(
      *checkpoint.source, [&] { return check_optimizer_order(checkpoint.model(), answers.option_prefix); });
  if (found.agreeing + found.undecided + found.unread == 0) return;
  tell_detail(run,
              "{}: {} sampled rows of the master weights of {} FC1s round to the weights; {} FC1s say nothing about "
              "their order, {} were not looked at",
              checkpoint.source->path().string(), found.rows, found.agreeing, found.undecided, found.unread);
}

}  // namespace glu_ckpt
