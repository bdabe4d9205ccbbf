/// Names of activations, and which one a model's experts have.

#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "core/fail.hpp"
#include "families/family.hpp"
#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {
namespace {

struct ActivationRow {
  ActivationKind kind;
  std::string_view name;
  bool has_alpha;
  bool has_limit;
  bool has_offset;
  /// The constants that its users agree on, where nothing else is said.
  Activation defaults;
};

constexpr float kQuickAlpha = 1.702F;
constexpr float kQuickLimit = 7.0F;
constexpr float kSituGateBound = 4.0F;
constexpr float kSituLinearBound = 25.0F;

constexpr auto kActivations = std::to_array<ActivationRow>({
    {ActivationKind::Swiglu, "swiglu", false, false, false, {}},
    {ActivationKind::ClampedSwiglu, "clamped_swiglu", false, true, false, {}},
    {ActivationKind::GegluTanh, "geglu_tanh", false, false, false, {}},
    {ActivationKind::GegluErf, "geglu_erf", false, false, false, {}},
    {ActivationKind::QuickGeglu, "quick_geglu", true, false, true, {.alpha = kQuickAlpha, .offset = 0}},
    {ActivationKind::ClampedQuickGeglu,
     "clamped_quick_geglu",
     true,
     true,
     true,
     {.alpha = kQuickAlpha, .limit = kQuickLimit, .offset = 1}},
    {ActivationKind::Reglu, "reglu", false, false, false, {}},
    {ActivationKind::Glu, "glu", false, false, false, {}},
    {ActivationKind::SituGlu, "situ_glu", true, true, false, {.alpha = kSituGateBound, .limit = kSituLinearBound}},
    {ActivationKind::SquaredRelu, "squared_relu", false, false, false, {}},
});

const ActivationRow& row_of(ActivationKind kind) { return kActivations[static_cast<std::size_t>(kind)]; }

/// transformers' names (activations.py), of the gate.
std::optional<ActivationKind> kind_of_hidden_act(std::string_view name) {
  if (name == "silu" || name == "swish") return ActivationKind::Swiglu;
  if (name == "gelu" || name == "gelu_python") return ActivationKind::GegluErf;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return ActivationKind::GegluTanh;
  if (name == "quick_gelu") return ActivationKind::QuickGeglu;
  if (name == "relu") return ActivationKind::Reglu;
  if (name == "sigmoid") return ActivationKind::Glu;
  if (name == "relu2") return ActivationKind::SquaredRelu;
  return std::nullopt;
}

/// The answers of config.json.
ActivationAnswers config_answers(const ModelHints& hints) {
  const auto limit = hints.swiglu_limit ? std::optional(static_cast<float>(*hints.swiglu_limit)) : std::nullopt;
  const Family* const family = find_family(hints.text_model_type.empty() ? hints.model_type : hints.text_model_type);
  if (!hints.swiglu_other.empty())
    fail(ErrorCode::UnknownActivation, {},
         "config.json has {}, which settles the activation in a way that is not known here; say --activation",
         hints.swiglu_other);
  // Its hidden_act, "silu", is not used; the constants stand in its code, where config.json has none.
  if (family != nullptr && family->quick_geglu)
    return {.kind = ActivationKind::ClampedQuickGeglu,
            .alpha = hints.swiglu_alpha ? static_cast<float>(*hints.swiglu_alpha) : kQuickAlpha,
            .limit = limit ? *limit : kQuickLimit,
            .offset = 1.0F};
  if (hints.swiglu_alpha)
    fail(ErrorCode::UnknownActivation, {},
         "config.json has swiglu_alpha {}, which is known of gpt-oss alone; say --activation", *hints.swiglu_alpha);
  if (hints.hidden_act.empty())
    fail(ErrorCode::UnknownActivation, {}, "no config.json says hidden_act; say --activation, for example swiglu");
  const auto kind = kind_of_hidden_act(hints.hidden_act);
  if (!kind)
    fail(ErrorCode::UnknownActivation, {}, "hidden_act '{}' of config.json is not known here; say --activation",
         hints.hidden_act);
  if (!limit) return {.kind = kind, .alpha = {}, .limit = {}, .offset = {}};
  if (*kind != ActivationKind::Swiglu)
    fail(ErrorCode::UnknownActivation, {}, "config.json has swiglu_limit {} beside hidden_act '{}'; say --activation",
         *limit, hints.hidden_act);
  return {.kind = ActivationKind::ClampedSwiglu, .alpha = {}, .limit = limit, .offset = {}};
}

/// The user's constant, or config's; `has` says whether the activation has such a constant at all.
void take(const char* option, bool has, const std::optional<float>& given, const std::optional<float>& config,
          const ActivationRow& row, float& value) {
  if (given && !has) fail(ErrorCode::Usage, {}, "{} has no {}", row.name, option);
  if (given || (config && has)) value = given ? *given : *config;
}

}  // namespace

std::string_view to_string(ActivationKind kind) { return row_of(kind).name; }

std::vector<std::string_view> activation_names() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kActivations));
  for (const ActivationRow& row : kActivations) names.push_back(row.name);
  return names;
}

ActivationKind parse_activation(std::string_view text) {
  for (const ActivationRow& row : kActivations)
    if (row.name == text) return row.kind;
  fail(ErrorCode::Usage, {}, "'{}' is not an activation; there are {}", text, fmt::join(activation_names(), ", "));
}

Activation choose_activation(const ModelHints& hints, const ActivationAnswers& answers, bool gated) {
  const ActivationAnswers config = answers.kind ? ActivationAnswers{} : config_answers(hints);
  const ActivationRow& row = row_of(answers.kind ? *answers.kind : *config.kind);
  Activation activation = row.defaults;
  activation.kind = row.kind;
  take("--alpha", row.has_alpha, answers.alpha, config.alpha, row, activation.alpha);
  take("--limit", row.has_limit, answers.limit, config.limit, row, activation.limit);
  take("--offset", row.has_offset, answers.offset, config.offset, row, activation.offset);
  if (row.kind == ActivationKind::ClampedSwiglu && !answers.limit && !config.limit)
    fail(ErrorCode::UnknownActivation, {}, "{} has no limit of its own; say --limit", row.name);
  if (activation.is_gated() != gated)
    fail(ErrorCode::UnknownActivation, {}, "{} is for experts {} a gate, and these have {}; say --activation", row.name,
         activation.is_gated() ? "with" : "without", gated ? "one" : "none");
  return activation;
}

}  // namespace glu_ckpt
