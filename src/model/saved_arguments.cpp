#include "model/saved_arguments.hpp"

#include <fmt/format.h>

#include "arch/megatron_args.hpp"
#include "arch/model_args.hpp"
#include "families/architecture.hpp"

namespace glu_ckpt {
namespace {

std::vector<ArgumentDifference> differences_of(const ModelHints& hints, const Recognition& model,
                                               const Inventory& tensors) {
  if (hints.trained_args.empty() || model.architecture == nullptr || model.dense_naming == nullptr ||
      !model.misfits.empty())
    return {};
  try {
    return argument_differences(megatron_args(hints.config, model, {}).text, hints.trained_args, tensors);
  } catch (const Error&) {
    return {};  // A configuration that does not say all that a run needs asks for nothing.
  }
}

}  // namespace

std::vector<std::string> unread_argument_texts(const Source& source, const ModelHints& hints) {
  std::vector<std::string> texts;
  for (const UnreadArg& arg : hints.trained_unread)
    texts.push_back(
        arg.name.empty()
            ? fmt::format("{}: the arguments that the trainer saved cannot be read, so they say nothing of the order "
                          "of gate and up: {}",
                          source.path().string(), arg.why)
            : fmt::format("{}: of the arguments that the trainer saved, '{}' {}; it is not read, and was not run. The "
                          "arguments that can be read count",
                          source.path().string(), arg.name, arg.why));
  return texts;
}

std::string why_arguments_do_not_do(const ModelHints& hints) {
  if (hints.trained_unread.empty()) return {};
  const UnreadArg& arg = hints.trained_unread.front();
  const std::string what =
      arg.name.empty() ? fmt::format("cannot be read: {}", arg.why)
                       : fmt::format("cannot all be read: '{}' {}, which may belong to the model", arg.name, arg.why);
  return fmt::format(
      "there is no config.json, and the arguments that the trainer saved {}; --from-config FILE names one", what);
}

std::vector<std::string> contradiction_texts(const ModelHints& hints, const Recognition& model,
                                             const Inventory& tensors) {
  std::vector<std::string> texts;
  if (hints.config_is_made) return texts;
  for (const ArgumentDifference& found : differences_of(hints, model, tensors))
    texts.push_back(fmt::format(
        "the trainer saved {} {} with its arguments, and config.json asks for {}: one of the two is not of this model, "
        "and config.json counts",
        found.name, found.saved, found.asked));
  return texts;
}

void require_all_arguments(const Inventory& tensors, ModelHints& hints, Recognition& model) {
  if (!hints.config_is_made) return;
  const std::vector<ArgumentDifference> differences = differences_of(hints, model, tensors);
  if (differences.empty()) return;
  std::string text;
  for (const ArgumentDifference& found : differences)
    text += fmt::format("{}{} {} (a config.json of type '{}' can say {} alone)", text.empty() ? "" : ", ", found.name,
                        found.saved, model.architecture->model_type, found.asked);
  hints.no_config = fmt::format(
      "of the arguments that the trainer saved, no config.json that is known can say {}; --from-config FILE "
      "names one that does",
      text);
  hints.config_options = {"--from-config"};
  model.no_architecture = hints.no_config;
  model.architecture = nullptr;
  model.dense_naming = nullptr;
  model.dense.clear();
  model.copies.clear();
}

}  // namespace glu_ckpt
