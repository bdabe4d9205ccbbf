/// Nemotron-H with experts, of Nemotron 3: each layer is one mixer, and no MLP has a gate.

#include <algorithm>

#include "core/fail.hpp"
#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kNemotronExperts = std::to_array<Naming>({
    // Squared ReLU, no gate.
    {.name = "hf:nemotron_h",
     .stacks = kNemotronStacks,
     .indexed = kMixerIndexed,
     .grouped = kMixerGrouped,
     .shared = kMixerShared,
     .native_indexed_split = true,
     .native_grouped_split = true,
     .router = "mixer.gate.weight"},
});

constexpr DenseRole kInProjection[] = {DenseRole::MambaZ, DenseRole::MambaX, DenseRole::MambaB, DenseRole::MambaC,
                                       DenseRole::MambaTime};
constexpr DenseRole kConvolution[] = {DenseRole::MambaConvX, DenseRole::MambaConvB, DenseRole::MambaConvC};

constexpr DenseRow biased(DenseRow row) {
  row.biased = true;
  return row;
}

constexpr auto kNemotronRows = std::to_array<DenseRow>({
    model_row("embeddings.weight", DenseRole::Embedding),
    model_row("norm_f.weight", DenseRole::FinalNorm),
    model_row("/lm_head.weight", DenseRole::Head),
    layer_row("norm.weight", DenseRole::AttentionNorm, kMamba | kGrouped),
    layer_row("norm.weight", DenseRole::MlpNorm, kDense | kExperts),
    layer_row("mixer.q_proj.weight", DenseRole::Q, kGrouped),
    layer_row("mixer.k_proj.weight", DenseRole::K, kGrouped),
    layer_row("mixer.v_proj.weight", DenseRole::V, kGrouped),
    layer_row("mixer.o_proj.weight", DenseRole::AttentionOut, kGrouped),
    fused_row("mixer.in_proj.weight", kInProjection, Groups::One, kMamba),
    biased(fused_row("mixer.conv1d.{K}", kConvolution, Groups::One, kMamba, Form::Conv)),
    layer_row("mixer.up_proj.weight", DenseRole::MlpUp, kDense),
    layer_row("mixer.down_proj.weight", DenseRole::MlpDown, kDense),
    layer_row("mixer.gate.weight", DenseRole::Router, kExperts),
    optional_row("mixer.gate.e_score_correction_bias", DenseRole::CorrectionBias, kExperts),
    layer_row("mixer.fc1_latent_proj.weight", DenseRole::ExpertsDown, kExperts | kExpertLatent),
    layer_row("mixer.fc2_latent_proj.weight", DenseRole::ExpertsUp, kExperts | kExpertLatent),
});

std::string letters_of(const std::vector<LayerKind>& kinds) {
  std::string letters;
  for (const LayerKind kind : kinds)
    letters += kind.attention == Attention::Mamba     ? 'M'
               : kind.attention == Attention::Grouped ? '*'
               : kind.mlp == Mlp::Dense               ? '-'
                                                      : 'E';
  return letters;
}

[[noreturn]] void fail_arguments(std::string_view field, std::string_view value, std::string_view always) {
  fail(ErrorCode::NoMap, {},
       "config.json: {} is {}, but Megatron-Core's HybridModel has {}, and no argument changes it", field, value,
       always);
}

/// Refuses what Megatron-Core's mixers always have, or never.
void write_mixers(ArgsWriter& args, const ArgRow& row) {
  std::string letters = letters_of(args.model.kinds);
  // One pattern for each step of multi-token prediction.
  for (i64 step = args.mtp_steps(); step > 0; --step) letters.append("/").append(letters_of(args.model.mtp_kinds));
  args.add(row.argument, letters);
  if (args.mtp_steps() > 0 && args.model.mtp_repeats > 0) args.flag("mtp_use_repeated_layer");
  constexpr i64 kKernel = 4;
  if (const i64 kernel = args.model.extent(Dim::MambaKernel); kernel != kKernel)
    fail_arguments("conv_kernel", fmt::format("{}", kernel), "4");
  for (const std::string_view field : {"use_bias", "mamba_proj_bias", "attention_bias", "mlp_bias"})
    if (args.config.flag({field}).value_or(false)) fail_arguments(field, "true", "no such bias");
  if (!args.config.flag({"use_conv_bias"}).value_or(true)) fail_arguments("use_conv_bias", "false", "that bias");
  constexpr double kEpsilon = 1e-5;
  if (const double epsilon = args.needed_number("layer_norm_epsilon"); epsilon != kEpsilon)
    args.warn("layer_norm_epsilon is {}, but the norm inside of Megatron-Core's Mamba has 1e-05: logits differ",
              float_text(epsilon));
}

void write_squared_relu(ArgsWriter& args, const ArgRow& row) {
  args.flag(row.argument);
  args.flag("disable_bias_linear");
  if (const std::string act = args.config.text({row.field}); !act.empty() && act != "relu2")
    args.warn("{} is '{}'; --squared-relu computes relu2", row.field, act);
}

void write_latent_experts(ArgsWriter& args, const ArgRow& row) {
  if (const i64 width = args.model.extent(Dim::ExpertLatent); width > 0) args.add(row.argument, width);
}

/// transformers' words for a pattern's letters. Bars are where a run's pipeline is cut, and say nothing of the model.
std::string words_of(SavedArgs& args, std::string_view letters) {
  std::string words;
  for (const char letter : letters) {
    const std::string_view word = letter == 'M'   ? "linear_attention"
                                  : letter == '*' ? "full_attention"
                                  : letter == '-' ? "mlp"
                                  : letter == 'E' ? "moe"
                                                  : "";
    if (!word.empty())
      words += fmt::format("{}\"{}\"", words.empty() ? "" : ", ", word);
    else if (letter != '|')
      args.strange.push_back(fmt::format("hybrid_layer_pattern with {} instead of M, E, * and -", letter));
  }
  return "[" + words + "]";
}

JsonWord main_mixers(SavedArgs& args, const ArgRow& row) {
  const std::string pattern = args.text(row.argument);
  if (pattern.empty()) args.strange.emplace_back("no hybrid_layer_pattern instead of one");
  const std::string_view letters = std::string_view(pattern).substr(0, pattern.find('/'));
  const i64 layers = std::ssize(letters) - std::ranges::count(letters, '|');
  if (const auto said = args.integer("num_layers"); said && *said != layers && !pattern.empty())
    args.faults.push_back(fmt::format("num_layers is {}, where {} has {} layers", *said, row.argument, layers));
  return words_of(args, letters);
}

JsonWord mtp_mixers(SavedArgs& args, const ArgRow& row) {
  const std::string pattern = args.text(row.argument);
  const std::size_t bar = pattern.find('/');
  if (bar == pattern.npos) return std::nullopt;
  const std::string_view steps = std::string_view(pattern).substr(bar + 1);
  return words_of(args, steps.substr(0, steps.find('/')));
}

/// One for each part behind the main pattern, which counts for Megatron-Core as well.
JsonWord mtp_steps(SavedArgs& args, const ArgRow& row) {
  const std::string pattern = args.text("hybrid_layer_pattern");
  const i64 steps = std::ranges::count(pattern, '/');
  if (const auto said = args.integer(row.argument); said && *said != steps)
    args.strange.push_back(fmt::format("{} {} instead of the pattern's {}", row.argument, *said, steps));
  return fmt::format("{}", steps);
}

JsonWord latent_width(SavedArgs& args, const ArgRow& row) {
  const i64 width = args.integer(row.argument).value_or(0);
  return width > 0 ? fmt::format("{}", width) : "null";
}

JsonWord if_repeated(SavedArgs& args, const ArgRow& row) {
  return args.flag(row.argument) ? JsonWord("true") : std::nullopt;
}

/// transformers bounds the steps of Mamba from below, by 0.001 in all published models; Megatron-Core does not.
void warn_of_least_step(ArgsWriter& args, const ArgRow& row) {
  constexpr double kUsualLeast = 0.001;
  if (const double least = args.config.number({row.field}).value_or(kUsualLeast); least > kUsualLeast)
    args.warn("{} is {}, below which transformers lets no step of Mamba fall, but Megatron-Core does: logits differ",
              row.field, float_text(least));
}

constexpr auto kNemotronArgs = std::to_array<ArgRow>({
    {"layers_block_type", "hybrid_layer_pattern", write_mixers, main_mixers},
    {"mtp_layers_block_type", "hybrid_layer_pattern", nullptr, mtp_mixers},
    {"num_nextn_predict_layers", "mtp_num_layers", nullptr, mtp_steps},
    {"mtp_use_repeated_layer", "mtp_use_repeated_layer", nullptr, if_repeated},
    {"", "is_hybrid_model", nullptr, as_flag},
    {"", "position_embedding_type", nullptr, always, "none"},
    {"", "window_size", nullptr, no_window},
    {"", "no_rope_freq", nullptr, all_with_rope},
    {"mlp_hidden_act", "squared_relu", write_squared_relu, always, "True", "\"relu2\""},
    {"mamba_num_heads", "mamba_num_heads", write_extent<Dim::MambaHeads>, as_integer},
    {"mamba_head_dim", "mamba_head_dim", write_integer, as_integer},
    {"n_groups", "mamba_num_groups", write_integer, as_integer},
    {"ssm_state_size", "mamba_state_dim", write_integer, as_integer},
    {"conv_kernel", "", nullptr, constant, "", "4"},
    {"mamba_hidden_act", "", nullptr, constant, "", "\"silu\""},
    {"time_step_min", "", warn_of_least_step},
    {"n_routed_experts", "num_experts", write_num_experts, as_integer},
    {"moe_latent_size", "moe_latent_size", write_latent_experts, latent_width},
    {"moe_shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", nullptr, shared_width},
    {"norm_topk_prob", "moe_router_score_function", nullptr, always, "sigmoid", "true"},
    {"n_group", "moe_router_num_groups", nullptr, expert_groups},
    {"topk_group", "moe_router_group_topk", nullptr, as_one_or_more},
    {"routed_scaling_factor", "moe_router_topk_scaling_factor", nullptr, as_factor},
});

constexpr auto kNemotronFamilies = std::to_array<Family>({
    {.model_type = "nemotron_h",
     .model_class = "NemotronHForCausalLM",
     .naming = {.name = "hf",
                .rows = {kNemotronRows, kMambaMixer, kNestedMtp},
                .layers = "layers.",
                .mtp_layers = "/mtp.layers.",
                .mtp_outer = "/mtp.layers.#."},
     .args = {kModelArgs, kGroupedArgs, kNoBiasArgs, kNemotronArgs, kTwoWidthArgs, kTopkArgs, kExpertBiasArgs},
     .expert_naming = "hf:nemotron_h",
     .megatron = &kMegatronHybridNaming,
     .hybrid = true,
     .ungated = true,
     .shared_width_field = "moe_shared_expert_intermediate_size",
     .words = {{{"rms_norm_eps", "layer_norm_epsilon"}}},
     .root = "backbone.",
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later (its HybridModel)",
     .defaults = R"({"num_experts_per_tok": 2, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 4096,
       "num_key_value_heads": 8, "head_dim": 128, "norm_topk_prob": true, "routed_scaling_factor": 1.0, "n_group": 1,
       "topk_group": 1, "conv_kernel": 4, "n_groups": 8, "ssm_state_size": 128, "mamba_num_heads": 128,
       "mamba_head_dim": 64, "moe_shared_expert_intermediate_size": 7688})",
     .counts_key_heads = true,
     .loose_field = "routed_scaling_factor"},
});

}  // namespace

extern const Knowledge k_nemotron_h;
constinit const Knowledge k_nemotron_h{.experts = kNemotronExperts, .families = kNemotronFamilies};

}  // namespace glu_ckpt
