#include "adapters/adapter_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "format/model_config.hpp"
#include "quant/match_target.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxDepth = 16;
constexpr double kMostRank = 1 << 20, kMostAlpha = 1e9;

constexpr auto kFields = std::to_array<JsonField>({
    {"peft_type", JsonType::Text},
    {"r", JsonType::Integer, 1, kMostRank},
    {"lora_alpha", JsonType::Number, -kMostAlpha, kMostAlpha},
    {"use_rslora", JsonType::Flag},
    {"use_dora", JsonType::Flag},
    {"rank_pattern", JsonType::Object},
    {"alpha_pattern", JsonType::Object},
    {"target_parameters", JsonType::List},
});

/// Starts from which training goes on with the model's own weights. PiSSA, OLoRA and others change these first.
constexpr auto kPlainStarts =
    std::to_array<std::string_view>({"gaussian", "eva", "orthogonal", "lora_ga", "mica", "true", "false"});
/// Objects and lists that say nothing of what is added.
constexpr auto kHarmless = std::to_array<std::string_view>({"eva_config", "lora_ga_config", "megatron_config"});

bool is_end_of(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

bool says_nothing(const JsonValue& value) {
  if (value.kind() == JsonKind::Null) return true;
  if (const auto flag = value.get<bool>()) return !*flag;
  if (const auto text = value.get<std::string_view>()) return text->empty() || *text == "none";
  return (value.kind() == JsonKind::Object || value.kind() == JsonKind::Array) && value.size() == 0;
}

/// Returns whether a field with a value makes the adapter more than products that are added.
bool adds_more(std::string_view name) {
  constexpr auto kWords =
      std::to_array<std::string_view>({"bias", "lora_bias", "fan_in_fan_out", "modules_to_save",
                                       "trainable_token_indices", "layer_replication", "alora_invocation_tokens"});
  if (name == "use_rslora" || name == "use_dora" || std::ranges::find(kHarmless, name) != kHarmless.end()) return false;
  return name.starts_with("use_") || name.ends_with("_config") || std::ranges::find(kWords, name) != kWords.end();
}

std::vector<std::pair<std::string, double>> pattern_in(const JsonValue& root, std::string_view name, double least,
                                                       const std::string& file) {
  std::vector<std::pair<std::string, double>> pattern;
  const auto object = root.find(name);
  if (!object || object->kind() != JsonKind::Object) return pattern;
  for (const JsonMember member : object->members()) {
    const auto value = member.value.get<double>();
    if (!value || !std::isfinite(*value) || *value < least || *value > kMostAlpha)
      fail(ErrorCode::ConfigJson, {file, {}}, "{}: {} of '{}' is no number that can be one", file, name, member.key);
    pattern.emplace_back(member.key, *value);
  }
  return pattern;
}

double value_for(const std::vector<std::pair<std::string, double>>& pattern, const std::string& module, double usual) {
  for (const auto& [key, value] : pattern) {
    const auto matches = matches_pattern(fmt::format("(.*\\.)?({})$", key), module);
    if (!matches)
      fail(ErrorCode::NotSupported, {}, "adapter_config.json: the pattern '{}' is not read here; write it out", key);
    if (*matches) return value;
  }
  return usual;
}

/// The number of a module's layer, as PEFT reads it: "model.layers.3.mlp.experts.0.up_proj" is in layer 3.
std::optional<i64> layer_of(const AdapterConfig& config, const std::string& module) {
  std::string_view list;
  std::size_t words = 0;
  for (std::size_t begin = 0, end = module.find('.'); end != module.npos;
       begin = end + 1, end = module.find('.', begin)) {
    const std::string_view word = std::string_view(module).substr(begin, end - begin);
    const auto is_list = [&](const std::string& name) { return name == list; };
    const bool is_numbered = config.layer_lists.empty() ? words >= 2 : std::ranges::any_of(config.layer_lists, is_list);
    if (const auto number = parse_number<i64>(word); number && is_numbered) return number;
    list = word;
    ++words;
  }
  return std::nullopt;
}

/// Returns whether PEFT adapts the module, by what the configuration says of modules and layers.
bool is_target(const AdapterConfig& config, const std::string& module) {
  bool is_named = config.target_pattern.empty()
                      ? config.target_modules.empty()
                      : matches_pattern(fmt::format("({})$", config.target_pattern), module).value_or(true);
  for (const std::string& target : config.target_modules) is_named |= is_end_of(module, target);
  for (const std::string& excluded : config.excluded_modules) is_named &= !is_end_of(module, excluded);
  if (!config.excluded_pattern.empty())
    is_named &= !matches_pattern(fmt::format("({})$", config.excluded_pattern), module).value_or(false);
  const bool is_whole_name = std::ranges::find(config.target_modules, module) != config.target_modules.end();
  if (!is_named || is_whole_name || !config.target_pattern.empty() || config.only_layers.empty()) return is_named;
  const std::optional<i64> layer = layer_of(config, module);
  return layer && std::ranges::find(config.only_layers, *layer) != config.only_layers.end();
}

}  // namespace

i64 AdapterConfig::rank_of(const std::string& module) const {
  return static_cast<i64>(value_for(rank_pattern, module, static_cast<double>(rank)));
}

double AdapterConfig::alpha_of(const std::string& module) const { return value_for(alpha_pattern, module, alpha); }

float AdapterConfig::scale_of(const std::string& module) const {
  const auto of_rank = static_cast<double>(rank_of(module));
  return static_cast<float>(alpha_of(module) / (rank_stabilized ? std::sqrt(of_rank) : of_rank));
}

double AdapterConfig::alpha_for_scale(float scale, i64 of_rank) const {
  const auto divisor = static_cast<double>(of_rank);
  const auto gives = [&](double one) {
    return static_cast<float>(one / (rank_stabilized ? std::sqrt(divisor) : divisor)) == scale;
  };
  for (const auto& [key, value] : alpha_pattern)
    if (!gives(alpha) && gives(value)) return value;
  return alpha;
}

std::vector<std::string> target_contradictions(const AdapterConfig& config, const std::vector<std::string>& modules) {
  std::vector<std::string> unnamed, unused;
  for (const std::string& module : modules) {
    // Experts that PEFT has as parameters may be spelled as modules of their own in a file.
    if (!config.target_parameters.empty() && module.find(".experts.") != module.npos) continue;
    if (!is_target(config, module)) unnamed.push_back(module);
  }
  for (const std::string& target : config.target_modules)
    if (std::ranges::none_of(modules, [&](const std::string& module) { return is_end_of(module, target); }))
      unused.push_back(target);
  std::string fields = "target_modules";
  if (!config.excluded_modules.empty() || !config.excluded_pattern.empty()) fields += " without exclude_modules";
  if (!config.only_layers.empty()) fields += " in layers_to_transform";
  std::vector<std::string> texts;
  if (!unnamed.empty())
    texts.push_back(fmt::format(
        "{} of adapter_config.json does not name {} of the {} modules that have factors, such as '{}': PEFT leaves "
        "these factors out without an error",
        fields, unnamed.size(), modules.size(), unnamed.front()));
  if (!unused.empty())
    texts.push_back(fmt::format(
        "target_modules of adapter_config.json names {}, of which the adapter has no factors: PEFT starts such modules "
        "as zeros",
        fmt::join(unused, ", ")));
  return texts;
}

AdapterConfig read_adapter_config(const std::string& text, const std::string& file) {
  const std::string strict = without_python_numbers(text);
  const JsonDocument document(strict, kMaxDepth);
  if (document.fault()) fail(ErrorCode::ConfigJson, {file, {}}, "{}: {}", file, document.fault()->text());
  const JsonValue root = document.root();
  if (root.kind() != JsonKind::Object) fail(ErrorCode::ConfigJson, {file, {}}, "{}: is no object", file);
  for (const JsonField& field : kFields)
    if (const auto value = root.find(field.name))
      if (const std::string fault = fault_of(field, field.name, *value); !fault.empty())
        fail(ErrorCode::ConfigJson, {file, {}}, "{}: {}", file, fault);
  const auto refuse = [&](const std::string& what) {
    fail(ErrorCode::NotSupported, {file, {}},
         "{}: {}; adapters are read here that add products of two factors to the model's own weights, and nothing else",
         file, what);
  };
  if (const auto type = root.find<std::string_view>("peft_type").value_or("LORA"); type != "LORA")
    refuse(fmt::format("peft_type is '{}'", type));
  for (const JsonMember member : root.members()) {
    const bool is_start = member.key == "init_lora_weights";
    if (is_start && member.value.get<std::string_view>() &&
        std::ranges::find(kPlainStarts, *member.value.get<std::string_view>()) == kPlainStarts.end())
      refuse(fmt::format("init_lora_weights is '{}', which begins from other weights than the model's",
                         *member.value.get<std::string_view>()));
    if (adds_more(member.key) && !says_nothing(member.value)) refuse(fmt::format("{} is set", member.key));
  }
  AdapterConfig config;
  const auto rank = root.find<i64>("r");
  const auto alpha = root.find<double>("lora_alpha");
  if (!rank || !alpha) fail(ErrorCode::ConfigJson, {file, {}}, "{}: has no r or no lora_alpha", file);
  config.rank = *rank;
  config.alpha = *alpha;
  config.rank_stabilized = root.find<bool>("use_rslora").value_or(false);
  config.is_dora = root.find<bool>("use_dora").value_or(false);
  config.rank_pattern = pattern_in(root, "rank_pattern", 1, file);
  config.alpha_pattern = pattern_in(root, "alpha_pattern", -kMostAlpha, file);
  if (const auto mapping = root.find("auto_mapping"); mapping && mapping->kind() == JsonKind::Object) {
    config.base_class = mapping->find<std::string_view>("base_model_class").value_or("");
    config.is_by_unsloth = mapping->find<bool>("unsloth_fixed").value_or(false);
  }
  config.base_name = root.find<std::string_view>("base_model_name_or_path").value_or("");
  const auto read_modules = [&](std::string_view field, std::vector<std::string>& names, std::string& pattern) {
    const auto value = root.find(field);
    if (value && value->kind() == JsonKind::Array)
      for (const JsonValue item : value->items())
        if (const auto name = item.get<std::string_view>()) names.emplace_back(*name);
    const auto one = value ? value->get<std::string_view>() : std::nullopt;
    if (one && *one != "all-linear") pattern = *one;
  };
  read_modules("target_modules", config.target_modules, config.target_pattern);
  read_modules("exclude_modules", config.excluded_modules, config.excluded_pattern);
  if (const auto layers = root.find("layers_to_transform")) {
    if (const auto one = layers->get<i64>()) config.only_layers.push_back(*one);
    if (layers->kind() == JsonKind::Array)
      for (const JsonValue item : layers->items())
        if (const auto one = item.get<i64>()) config.only_layers.push_back(*one);
  }
  std::string layer_list;
  read_modules("layers_pattern", config.layer_lists, layer_list);
  if (!layer_list.empty()) config.layer_lists.push_back(layer_list);
  if (const auto list = root.find("target_parameters"); list && list->kind() == JsonKind::Array)
    for (const JsonValue item : list->items())
      if (const auto name = item.get<std::string_view>()) config.target_parameters.emplace_back(*name);
  return config;
}

}  // namespace glu_ckpt
