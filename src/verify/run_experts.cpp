#include "verify/run_experts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/fail.hpp"
#include "model/locate_errors.hpp"

namespace glu_ckpt {
namespace {

/// Returns true where there is a config.json that may say what the experts compute.
bool has_config(const ModelHints& hints) {
  return !hints.model_type.empty() || !hints.text_model_type.empty() || !hints.hidden_act.empty() ||
         hints.swiglu_limit.has_value() || !hints.swiglu_other.empty();
}

/// The activation of all of a model's experts, by `hints`; empty where it has none.
std::optional<Activation> model_activation(const ActivationAnswers& answers, const Checkpoint& checkpoint,
                                           const ModelHints& hints) {
  std::optional<Activation> chosen;
  for (const ExpertBlock& block : checkpoint.recognition.blocks)
    if (!block.is_optimizer_state())
      chosen = locate_errors(*checkpoint.source,
                             [&] { return choose_activation(hints, answers, block.glu.kind != Glu::Kind::None); });
  return chosen;
}

std::string activation_text(const Activation& activation) {
  return fmt::format("{} (alpha {}, limit {}, offset {})", to_string(activation.kind), activation.alpha,
                     activation.limit, activation.offset);
}

bool has_tensor(const Source& source, const std::string& name) {
  const auto& tensors = source.inventory().tensors;
  return std::ranges::find(tensors, name, &TensorRef::name) != tensors.end();
}

/// Calls `action`; what it throws about a tensor says the file that holds it, A's where both have one of that name.
template <typename Action>
auto locate_errors_of_both(const Checkpoint& a, const Checkpoint& b, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    fail_located(error, has_tensor(*a.source, error.tensor()) ? *a.source : *b.source);
  }
}

}  // namespace

std::unique_ptr<MlpRunner> open_runner(const RunOptions& run) {
  return make_mlp_runner(run.device == "auto" ? "cpu" : run.device, BackendOptions{run.device_memory_bytes});
}

VerifyForwardOptions forward_options(const ExpertCompute& compute, const VerifySubset& subset, const RunOptions& run,
                                     const Checkpoint& a, const Checkpoint& b) {
  const ModelHints& hints_a = a.source->hints();
  const ModelHints& hints_b = b.source->hints();
  const auto of_a = model_activation(compute.activation, a, has_config(hints_a) ? hints_a : hints_b);
  const auto of_b = model_activation(compute.activation, b, has_config(hints_b) ? hints_b : hints_a);
  if (of_a && of_b && *of_a != *of_b)
    fail(ErrorCode::Usage, {}, "by its config.json {} computes {}, {} computes {}; say --activation",
         a.source->path().string(), activation_text(*of_a), b.source->path().string(), activation_text(*of_b));
  VerifyForwardOptions forward;
  forward.activation = of_a ? *of_a : of_b.value_or(Activation{});
  forward.fp32 = compute.fp32;
  forward.layers = subset.layers;
  forward.seed = subset.seed;
  forward.jobs = jobs_of(run);
  forward.memory_bytes = run.memory_bytes;
  // Throws what verify_forward() would.
  locate_errors_of_both(a, b, [&] { (void)forward_bytes(a.model(), b.model(), forward); });
  return forward;
}

std::vector<LayerForward> run_experts(const RunOptions& run, const Checkpoint& a, const Checkpoint& b,
                                      MlpRunner& runner, VerifyForwardOptions forward) {
  const i64 bytes = forward_bytes(a.model(), b.model(), forward);
  const auto start = std::chrono::steady_clock::now();
  std::vector<LayerForward> layers;
  {
    Stage stage(run, "running experts", bytes);
    forward.on_progress = stage.on_progress();
    layers = locate_errors_of_both(a, b, [&] { return verify_forward(a.model(), b.model(), runner, forward); });
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double megabytes = static_cast<double>(bytes) / 1e6;
  tell_detail(run, "{}: {:.1f} MB of weights in {:.3f} s, {:.1f} MB/s", runner.name(), megabytes, seconds.count(),
              megabytes / seconds.count());
  return layers;
}

std::string to_sentence(const LayerForward& layer) {
  const std::string of = fmt::format("layer {}, {} experts", layer.layer, layer.set);
  if (!layer.fault.empty()) return fmt::format("{}: cannot be compared: {}", of, layer.fault);
  if (layer.differing_bits > 0)
    return fmt::format(
        "{}: {} bits of the outputs differ, first in expert {}, {} experts in all; largest absolute difference {:.3g}, "
        "largest relative difference {:.3g}",
        of, layer.differing_bits, layer.first_expert, layer.differing_experts, layer.max_abs, layer.max_rel);
  if (!layer.control_caught)
    return fmt::format(
        "{}: the control failed: with B's weights read in a deliberately wrong layout the outputs are the same, so "
        "equal outputs prove nothing",
        of);
  return fmt::format("{}: 0 bits differ on {} tokens", of, layer.tokens);
}

}  // namespace glu_ckpt
