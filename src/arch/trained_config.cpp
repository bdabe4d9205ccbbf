/// A family fits a trainer's arguments if its rows read all of them: none is strange to it, and none that changes the
/// model is left without a row. What config.json cannot say of a family that fits is named then.

#include "arch/trained_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "arch/model_args.hpp"
#include "families/arg_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr const char* kTypeOption = "--to";
constexpr const char* kFileOption = "--from-config";

/// A config.json that the rows of a family made of the arguments, and the reasons why it may not do.
struct Reading {
  const Family* family = nullptr;
  std::string text;
  std::vector<std::string> missing;
  std::vector<std::string> faults;
  std::vector<std::string> strange;
  std::vector<std::string> unsaid;
};

Reading read_as(const Family& family, SavedArgs& args) {
  args.missing.clear();
  args.faults.clear();
  args.strange.clear();
  args.unsaid.clear();
  std::string text = fmt::format("{{\n  \"architectures\": [\n    \"{}\"\n  ],\n  \"model_type\": \"{}\"",
                                 family.made_class(), family.model_type);
  std::vector<std::string_view> read;
  for (const std::span<const ArgRow> rows : family.args)
    for (const ArgRow& row : rows) {
      if (row.to_config == nullptr) continue;
      if (!row.argument.empty()) read.push_back(row.argument);
      const std::optional<std::string> value = row.to_config(args, row);
      if (value && !row.field.empty()) text += fmt::format(",\n  \"{}\": {}", family.own_word(row.field), *value);
    }
  constexpr std::string_view kWindow = "window_size";
  if (const std::string needed = args.window_fault(); !needed.empty())
    args.strange.push_back(fmt::format("{} {} instead of {}", kWindow, args.word(kWindow), needed));
  for (const ArgumentDifference& unread : unread_arguments(args, read))
    args.strange.push_back(fmt::format("{} {} instead of {}", unread.name, unread.saved, unread.asked));
  return {&family, text + "\n}\n", args.missing, args.faults, args.strange, args.unsaid};
}

/// Each once, however many rows name it.
std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (auto word = words.begin(); word != words.end(); ++word)
    if (std::find(words.begin(), word, *word) == word) text += (text.empty() ? "" : ", ") + *word;
  return text;
}

TrainedConfig none(std::string why, std::vector<std::string> options) {
  return {{}, std::move(why), std::move(options)};
}

TrainedConfig none_fits(const std::vector<Reading>& readings, const std::string& model_type) {
  if (readings.empty())
    return none(fmt::format("no config.json can be made from the saved arguments for models of type '{}'; "
                            "--from-config FILE names one",
                            model_type),
                {kFileOption});
  const auto& nearest = *std::ranges::min_element(
      readings, {}, [](const Reading& reading) { return reading.strange.size() + reading.missing.size(); });
  if (model_type.empty())
    return none(fmt::format("no family that is known has what the saved arguments say of the model, so that "
                            "--from-config FILE has to name a config.json; '{}' is the nearest: {}",
                            nearest.family->model_type, joined(nearest.strange)),
                {kFileOption});
  return none(fmt::format("the saved arguments are of a model that is none of type '{}': {}; --from-config FILE names "
                          "a config.json that says otherwise",
                          model_type, joined(nearest.strange)),
              {kFileOption});
}

TrainedConfig several_fit(const std::vector<Reading>& fits) {
  std::string types;
  for (const Reading& fit : fits)
    types += fmt::format("{}--to hf:{}", types.empty() ? "" : ", ", fit.family->model_type);
  return none(fmt::format("the saved arguments fit models of {} types and do not say which one this is: {}",
                          fits.size(), types),
              {kTypeOption});
}

/// The field's place in a text, as a word of its own; npos where it is not there.
std::size_t find_word(std::string_view text, std::string_view word) {
  const auto is_part = [&](std::size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1))
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return at;
  return text.npos;
}

/// The saved arguments that the members of rope_scaling are made of.
constexpr auto kRopeArguments = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"rope_scaling.factor", "rotary_scaling_factor"},
    {"rope_scaling.beta_fast", "yarn_beta_fast"},
    {"rope_scaling.beta_slow", "yarn_beta_slow"},
    {"rope_scaling.original_max_position_embeddings", "yarn_original_max_position_embeddings"},
    {"rope_scaling.mscale", "mscale"},
    {"rope_scaling.mscale_all_dim", "mscale_all_dim"},
    {"rope_scaling.attention_factor", "made of mscale and mscale_all_dim"},
});

}  // namespace

std::string arguments_of_fields(const std::string& model_type, std::string_view text) {
  const Family* const family = find_family(model_type);
  std::vector<std::string> found;
  const auto look_for = [&](std::string_view field, std::string_view argument) {
    if (!field.empty() && !argument.empty() && field != argument && find_word(text, field) != text.npos)
      found.push_back(fmt::format("{} is {}", field, argument));
  };
  for (const auto& [field, argument] : kRopeArguments) look_for(field, argument);
  constexpr std::string_view kRope = "rope_scaling";
  if (family != nullptr)
    for (const std::span<const ArgRow> rows : family->args)
      for (const ArgRow& row : rows)
        if (row.to_config != nullptr && row.field != kRope) look_for(family->own_word(row.field), row.argument);
  return joined(found);
}

std::string arguments_of_tensors(const std::string& model_type) {
  constexpr auto kOfTensors = std::to_array<std::string_view>({
      "num_layers",
      "moe_layer_freq",
      "linear_attention_freq",
      "hybrid_layer_pattern",
      "q_lora_rank",
      "dsa_indexer_topk_freq",
      "qk_layernorm",
      "add_qkv_bias",
      "mtp_num_layers",
  });
  const Family* const family = find_family(model_type);
  std::vector<std::string> found;
  if (family != nullptr)
    for (const std::span<const ArgRow> rows : family->args)
      for (const ArgRow& row : rows)
        if (row.to_config != nullptr && std::ranges::find(kOfTensors, row.argument) != kOfTensors.end())
          found.emplace_back(row.argument);
  return joined(found);
}

bool has_vocabulary(const std::string& args) { return SavedArgs(args, {}).integer("vocab_size").has_value(); }

std::vector<std::string> fitting_configs(const std::string& args_text, const Inventory& tensors) {
  SavedArgs args(args_text, tensors);
  std::vector<std::string> configs;
  if (!args.is_object() || args.tensor(kEmbeddingKey) == nullptr) return configs;
  for (const Family& family : families()) {
    if (family.made_class().empty()) continue;
    Reading reading = read_as(family, args);
    if (reading.strange.empty() && reading.missing.empty() && reading.faults.empty() && reading.unsaid.empty())
      configs.push_back(std::move(reading.text));
  }
  return configs;
}

TrainedConfig make_trained_config(const std::string& args_text, const Inventory& tensors,
                                  const std::string& model_type) {
  SavedArgs args(args_text, tensors);
  if (!args.is_object() || args.tensor(kEmbeddingKey) == nullptr)
    return none(
        "there is no config.json that says what model this is, and the names of the tensors are not those of a "
        "GPTModel whose saved arguments would; --from-config FILE names that of the model with which the run began, "
        "and "
        "--to hf:TYPE --scope experts writes the routed experts alone, without one",
        {kFileOption});
  std::vector<Reading> readings;
  for (const Family& family : families())
    if (!family.made_class().empty() && (model_type.empty() || family.model_type == model_type))
      readings.push_back(read_as(family, args));
  std::vector<Reading> fits;
  for (const Reading& reading : readings)
    if (reading.strange.empty()) fits.push_back(reading);
  if (fits.empty()) return none_fits(readings, model_type);
  // A family whose config.json cannot say all is none of several that fit. One that no argument says all of is.
  if (std::ranges::any_of(fits, [](const Reading& fit) { return fit.faults.empty() && fit.missing.empty(); }))
    std::erase_if(fits, [](const Reading& fit) { return !fit.faults.empty() || !fit.missing.empty(); });
  if (fits.size() > 1 && fits.front().missing.empty() && fits.front().faults.empty()) return several_fit(fits);
  const Reading& fit = fits.front();
  if (!fit.missing.empty())
    return none(fmt::format("the saved arguments do not say {}, so that --from-config FILE has to name a config.json",
                            joined(fit.missing)),
                {kFileOption});
  if (!fit.faults.empty()) return none("of the saved arguments, " + joined(fit.faults), {kFileOption});
  if (!fit.unsaid.empty())
    return none(
        fmt::format("no argument says {}; --from-config FILE names a config.json that does", joined(fit.unsaid)),
        {kFileOption});
  return {fit.text, {}, {}};
}

}  // namespace glu_ckpt
