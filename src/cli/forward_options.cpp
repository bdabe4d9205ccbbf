/// Running the experts of two models, as verify --forward and convert --verify forward do.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cli/session.hpp"
#include "core/fail.hpp"
#include "report/report.hpp"
#include "report/tell.hpp"

namespace glu_ckpt::cli {
namespace {

/// Whether there is a config.json that may say what the experts compute.
bool has_config(const ModelHints& hints) {
  return !hints.model_type.empty() || !hints.text_model_type.empty() || !hints.hidden_act.empty() ||
         hints.swiglu_limit.has_value() || !hints.swiglu_other.empty();
}

/// The activation of all of a model's experts, by `hints`; empty where it has none.
std::optional<Activation> model_activation(const Options& options, const Opened& opened, const ModelHints& hints) {
  std::optional<Activation> chosen;
  for (const ExpertBlock& block : opened.recognition.blocks)
    if (!block.is_twin())
      chosen = with_place(*opened.source, [&] {
        return choose_activation(hints, options.forward.activation, block.glu.kind != Glu::Kind::None);
      });
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

/// Calls `action`; what it throws of a tensor says the file that holds it, A's where both have one of that name.
template <typename Action>
auto with_places(const Opened& a, const Opened& b, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    fail_with_place(error, has_tensor(*a.source, error.tensor()) ? *a.source : *b.source);
  }
}

}  // namespace

VerifyForwardOptions forward_options(const Options& options, const Opened& a, const Opened& b) {
  const ModelHints& hints_a = a.source->hints();
  const ModelHints& hints_b = b.source->hints();
  const auto of_a = model_activation(options, a, has_config(hints_a) ? hints_a : hints_b);
  const auto of_b = model_activation(options, b, has_config(hints_b) ? hints_b : hints_a);
  if (of_a && of_b && *of_a != *of_b)
    fail(ErrorCode::Usage, {}, "by its config.json {} computes {}, {} computes {}; say --activation",
         a.source->path().string(), activation_text(*of_a), b.source->path().string(), activation_text(*of_b));
  VerifyForwardOptions forward;
  forward.activation = of_a ? *of_a : of_b.value_or(Activation{});
  forward.fp32 = options.forward.fp32;
  forward.layers = options.subset.layers;
  forward.seed = options.subset.seed;
  forward.jobs = options.jobs;
  forward.memory_bytes = options.memory_bytes;
  // Throws what verify_forward() would.
  with_places(a, b, [&] { (void)forward_bytes(a.model(), b.model(), forward); });
  return forward;
}

std::vector<LayerForward> run_forward(const Options& options, const Opened& a, const Opened& b, MlpRunner& runner,
                                      VerifyForwardOptions forward) {
  const i64 bytes = forward_bytes(a.model(), b.model(), forward);
  const auto start = std::chrono::steady_clock::now();
  std::vector<LayerForward> layers;
  {
    report::Progress progress(progress_style(options), "running experts", bytes);
    forward.on_progress = execute_options(options, progress).on_progress;
    layers = with_places(a, b, [&] { return verify_forward(a.model(), b.model(), runner, forward); });
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (options.verbose)
    report::tell("glu-ckpt: {}: {} of weights in {:.3f} s, {}/s\n", runner.name(), report::size_text(bytes),
                 seconds.count(), report::size_text(static_cast<i64>(static_cast<double>(bytes) / seconds.count())));
  return layers;
}

}  // namespace glu_ckpt::cli
