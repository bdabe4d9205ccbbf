#include "model/source_hints.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "arch/model_view.hpp"
#include "arch/trained_config.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "format/model_config.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "layout/optimizer_names.hpp"
#include "model/known_orders.hpp"
#include "model/saved_arguments.hpp"
#include "model/stored_model.hpp"
#include "quant/find_quantized.hpp"
#include "quant/quantization_files.hpp"
#include "quant/quantization_text.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMostQuantizationFileBytes = i64{64} << 20;

/// A config.json that was named says more than one that lies beside the checkpoint, and that more than a recorded one.
ModelHints config_hints(const Source& source, const SourceAnswers& answers) {
  // Arguments of a run are in no config.json.
  const auto with_trained = [&](ModelHints hints) {
    hints.trained = source.hints().trained;
    hints.listed = source.hints().listed;
    return hints;
  };
  if (answers.config_file.empty()) {
    const auto recorded = source.record().find("config");
    if (!source.hints().config.empty() || recorded == source.record().end()) return source.hints();
    return with_trained(parse_config(recorded->second, source.path().string()));
  }
  constexpr i64 kMaxNamedConfigBytes = i64{16} << 20;
  std::string text = read_small_file(answers.config_file, kMaxNamedConfigBytes, ErrorCode::ConfigJson);
  // It is that of the model that is stored.
  if (source.info().config_edit) text = source.info().config_edit(text);
  ModelHints hints = with_trained(parse_config(text, answers.config_file));
  hints.named_config = answers.config_file;
  return hints;
}

/// Makes the hints from a trainer's arguments where nothing else says what model it is.
ModelHints trained_hints(ModelHints hints, const Source& source, const std::string& model_type) {
  hints.no_config = why_arguments_do_not_do(hints);
  if (!hints.no_config.empty()) hints.config_options = {"--from-config"};
  if (!hints.no_config.empty() || hints.trained.args.empty()) return hints;
  const ModelView view = view_model(source.inventory(), hints);
  TrainedConfig made = make_trained_config(hints.trained.args, view.of(source.inventory()), model_type);
  hints.no_config = std::move(made.why_none);
  hints.config_options = std::move(made.options);
  if (made.text.empty()) return hints;
  ModelHints read = parse_config(made.text, "the config.json made from " + source.path().string());
  read.trained = std::move(hints.trained);
  read.listed = std::move(hints.listed);
  read.config_is_made = true;
  return read;
}

/// Reads the config.json of the hints and, where it has no quantization_config, the record of a conversion that made
/// scales for blocks of fewer rows.
QuantConfig recorded_quant_config(const Source& source, const ModelHints& hints) {
  QuantConfig config = read_quant_config(hints.config);
  if (!config.method.empty() || config.block_rows) return config;
  const auto recorded = source.record().find("scale_rows");
  if (recorded == source.record().end()) return config;
  config.block_rows = parse_number<i64>(recorded->second);
  if (config.block_rows && *config.block_rows < 1) config.block_rows.reset();
  return config;
}

}  // namespace

std::string stale_quantization(const Source& source, const SourceAnswers& answers) {
  if (!lone_shard_text(source).empty() || holds_any_codes(source.inventory())) return {};
  // What was decoded is told of elsewhere.
  if (!source.info().decoded_weights.empty()) return {};
  if (const std::string method = stated_method("config.json", config_hints(source, answers).config); !method.empty())
    return fmt::format("quantization_config ('{}') of config.json", method);
  for (const ExtraFile& file : source.info().extra_files) {
    if (!is_quantization_file(file.name)) continue;
    const std::string text = read_small_file(file.path, kMostQuantizationFileBytes, ErrorCode::ConfigJson);
    if (const std::string method = stated_method(file.name, text); !method.empty())
      return fmt::format("{} ('{}')", file.name, method);
  }
  return {};
}

ModelHints hints_of(const Source& source, const SourceAnswers& answers) {
  ModelHints hints = config_hints(source, answers);
  if (!stale_quantization(source, answers).empty()) hints.config = without_quantization(hints.config);
  if (hints.config.empty() && answers.trained_type)
    hints = trained_hints(std::move(hints), source, *answers.trained_type);
  hints.scale_rows = block_rows_of(read_quant_config(hints.config));
  return hints;
}

QuantConfig quant_config_of(const Source& source, const ModelHints& hints) {
  QuantConfig config = recorded_quant_config(source, hints);
  if (!holds_any_codes(source.inventory())) return config;
  for (const ExtraFile& file : source.info().extra_files)
    if (is_quantization_file(file.name) && file.name.find('/') == std::string::npos)
      config = with_quantization_file(std::move(config), file.name,
                                      read_small_file(file.path, kMostQuantizationFileBytes, ErrorCode::ConfigJson));
  return config;
}

void fail_without_model(const Source& source, const ModelHints& hints, const Recognition& model,
                        const SourceAnswers& answers, const std::string& what) {
  const std::string path = source.path().string();
  const std::string text = fmt::format("{}: {} {}", path, what, model.no_architecture);
  const bool has_no_config = hints.config.empty() && answers.config_file.empty();
  if (!has_no_config) throw Error(ErrorCode::NoMap, text, path);
  std::vector<std::string> options;
  for (const std::string& answer : missing_answers(model)) options.push_back(answers.option_prefix + answer);
  const auto is_state = [](const TensorRef& tensor) { return is_optimizer_tensor(tensor.name); };
  if (!answers.drop_optimizer && std::ranges::any_of(source.inventory().tensors, is_state))
    options.emplace_back("--optimizer");
  const std::string beside =
      options.empty() ? std::string() : fmt::format(", and needs {} beside it", fmt::join(options, " and "));
  const bool is_said = text.find("--from-config FILE") != text.npos;
  options.insert(options.begin(), "--from-config");
  throw Error(ErrorCode::NoMap,
              fmt::format("{}; --from-config FILE {}{}", text,
                          is_said ? "does" : "says it: the config.json of the model that the run began with", beside),
              path)
      .with_missing_options(std::move(options));
}

}  // namespace glu_ckpt
