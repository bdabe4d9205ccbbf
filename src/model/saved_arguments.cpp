#include "model/saved_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "arch/model_args.hpp"
#include "arch/model_view.hpp"
#include "arch/recognize_model.hpp"
#include "arch/trained_config.hpp"
#include "families/architecture.hpp"
#include "families/saved_args.hpp"
#include "format/model_config.hpp"

namespace glu_ckpt {
namespace {

std::vector<ArgumentDifference> differences_of(const ModelHints& hints, const Recognition& model,
                                               const Inventory& tensors) {
  if (hints.trained.args.empty() || model.architecture == nullptr || model.dense_naming == nullptr ||
      !model.misfits.empty())
    return {};
  try {
    return argument_differences(megatron_args(hints.config, model, {}).text, hints.trained.args, tensors);
  } catch (const Error&) {
    return {};  // A configuration that does not say all that a run needs asks for nothing.
  }
}

}  // namespace

std::vector<std::string> unread_argument_texts(const Source& source, const ModelHints& hints) {
  std::vector<std::string> texts;
  for (const UnreadArg& arg : hints.trained.unread)
    texts.push_back(
        arg.name.empty()
            ? fmt::format("{}: the arguments that the trainer saved cannot be read, so they say nothing of the order "
                          "of gate and up: {}",
                          source.path().string(), arg.why)
            : fmt::format("{}: of the arguments that the trainer saved, '{}' {}; it is not read, and was not run. The "
                          "arguments that can be read count",
                          source.path().string(), arg.name, arg.why));
  for (const UnreadArg& arg : hints.listed.unread)
    texts.push_back(
        arg.name.empty()
            ? fmt::format("{}, so it says nothing of the order of gate and up", arg.why)
            : fmt::format("{}: in its megatron_args.txt, {} {}; it says nothing of the order of gate and up",
                          source.path().string(), arg.name, arg.why));
  return texts;
}

std::string why_arguments_do_not_do(const ModelHints& hints) {
  if (hints.trained.unread.empty()) return {};
  const UnreadArg& arg = hints.trained.unread.front();
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

std::vector<std::string> listed_order_texts(const Source& source, const ModelHints& hints, const Recognition& model) {
  std::vector<std::string> texts;
  const LayoutAnswers& layout = model.layout;
  const bool is_read = !hints.listed.args.empty() && hints.listed.unread.empty();
  if (!is_read || layout.is_dense() || !layout.naming.starts_with("megatron")) return texts;
  // One that says another order contradicts the record, or the options, and is refused (GluAnswers).
  const auto compare = [&](const Glu& stored, const std::string& listed, std::string_view rows,
                           std::string_view option) {
    if (!listed.empty() || stored.kind != Glu::Kind::Interleaved) return;
    texts.push_back(fmt::format(
        "{0}: gate and up of {1} are {2}, and its megatron_args.txt has no {3}, so a run that is started with that "
        "file reads them as contiguous. Find out which of the two is right; if the file is wrong, let it say '{3} {4}'",
        source.path().string(), rows, to_string(stored), option, stored.block_rows));
  };
  compare(layout.glu, hints.listed.glu, "the routed experts", "--moe-mlp-glu-interleave-size");
  if (layout.shared_glu)
    compare(*layout.shared_glu, hints.listed.shared_glu, "the shared expert",
            "--moe-shared-expert-glu-interleave-size");
  return texts;
}

std::vector<std::string> run_flaw_texts(const Source& source, const ModelHints& hints) {
  std::vector<std::string> nearest;
  if (!hints.config.empty() || hints.trained.args.empty()) return nearest;
  const Inventory& tensors = source.inventory();
  const ModelView view = view_model(tensors, hints);
  const auto has = [&](std::string_view name) {
    return std::ranges::find(view.of(tensors).tensors, name, &TensorRef::name) != view.of(tensors).tensors.end();
  };
  if (has("decoder.final_layernorm.weight") && !has(kEmbeddingKey))
    return {fmt::format("'{}' is missing, which every model that Megatron-LM trains has", kEmbeddingKey)};
  bool first = true;
  for (const std::string& config : fitting_configs(hints.trained.args, view.of(tensors))) {
    std::vector<std::string> texts;
    try {
      const ModelHints made = parse_config(config, source.path().string());
      const Recognition model = recognize_model(tensors, made, {}, {});
      const auto add = [&](const std::string& text) {
        texts.push_back(
            fmt::format("the arguments that the trainer saved make a config.json of type '{}', and by it "
                        "the model is not whole: {}",
                        made.model_type, text));
      };
      for (const ModelFlaw& flaw : model.flaws)
        if (flaw.kind == ModelFlaw::Kind::Broken) add(flaw.text);
      for (const DenseMisfit& misfit : model.misfits) add(misfit.fault);
    } catch (const Error& error) {
      texts.emplace_back(error.what());
    }
    if (texts.empty()) return texts;
    if (first || texts.size() < nearest.size()) nearest = std::move(texts);
    first = false;
  }
  return nearest;
}

Error with_configuration(const Error& error, const ModelHints& hints) {
  constexpr ErrorCode kOfConfigs[] = {ErrorCode::ConfigJson,    ErrorCode::ModelShape,  ErrorCode::ModelIncomplete,
                                      ErrorCode::ExpertMissing, ErrorCode::ExpertExtra, ErrorCode::ExpertShape,
                                      ErrorCode::LayerMissing,  ErrorCode::NoMap,       ErrorCode::UnknownTensor,
                                      ErrorCode::CopyDiffers};
  constexpr std::string_view kConfig = "config.json";
  std::string text = error.what();
  const std::size_t at = text.find(kConfig);
  // The way out of a refusal names one, too.
  const bool is_way_out = error.code() == ErrorCode::NoMap && text.find("config.json: ") == text.npos;
  const bool is_of_config = std::ranges::find(kOfConfigs, error.code()) != std::end(kOfConfigs);
  if (is_of_config && !is_way_out && !hints.named_config.empty() && text.find(hints.named_config) == text.npos)
    return Error(error.code(), fmt::format("{}. Is {} the config.json of this model?", text, hints.named_config),
                 error.file(), error.tensor())
        .with_missing_options(error.missing_options());
  if (!hints.config_is_made || is_way_out || !is_of_config) return error;
  if (at == text.npos && error.code() == ErrorCode::CopyDiffers) return error;
  if (at == text.npos) {
    text += fmt::format(". Which tensors there are is said by the saved arguments ({})",
                        arguments_of_tensors(hints.model_type));
  } else {
    const std::string arguments = arguments_of_fields(hints.model_type, text);
    text.replace(
        at, kConfig.size(),
        fmt::format("the config.json made of the saved arguments{}", arguments.empty() ? "" : " (" + arguments + ")"));
  }
  return Error(error.code(), text, error.file(), error.tensor()).with_missing_options(error.missing_options());
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
