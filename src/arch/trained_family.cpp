/// One table, kFits: a family of Megatron-Core's is a line in it.

#include "arch/trained_family.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace glu_ckpt {
namespace {

enum Trait : u32 {
  kLatentAttention = 1U << 0,
  kDeltaLayers = 1U << 1,
  kOutputGate = 1U << 2,
  kSigmoid = 1U << 3,
  kCorrection = 1U << 4,
  kQkNorm = 1U << 5,
  kWideQkNorm = 1U << 6,
  kQkvBias = 1U << 7,
  kAllBiases = 1U << 8,
  kSharedExpert = 1U << 9,
  kSharedExpertGate = 1U << 10,
  kInterleavedRope = 1U << 11,
  kLearnableSinks = 1U << 12,
  kL2Norm = 1U << 13,
  kDenseLayers = 1U << 14,
  kPartialRope = 1U << 15,
  kProbsOnInput = 1U << 16,
  kExpertGroups = 1U << 17,
  kPredictsTokens = 1U << 18,
  kWindow = 1U << 19,
  kYarn = 1U << 20,
  kPreSoftmax = 1U << 21,
  kScaledRouting = 1U << 22,
  kSwiglu = 1U << 23,
  kQuickGeglu = 1U << 24,
  kZeroCentred = 1U << 25,
  kLayersWithoutRope = 1U << 26,
  kNoRms = 1U << 27,
  kNoRope = 1U << 28,
};
constexpr auto kTraitNames = std::to_array<std::string_view>({
    "multi_latent_attention",
    "experimental_attention_variant gated_delta_net",
    "attention_output_gate",
    "moe_router_score_function sigmoid",
    "moe_router_enable_expert_bias",
    "qk_layernorm",
    "q and k norms over all heads",
    "add_qkv_bias",
    "add_bias_linear",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate",
    "rotary_interleaved",
    "softmax_type learnable",
    "qk_l2_norm",
    "dense layers in moe_layer_freq",
    "rotary_percent",
    "moe_apply_probs_on_input",
    "moe_router_num_groups",
    "mtp_num_layers",
    "window_size",
    "YaRN",
    "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor",
    "swiglu",
    "quick_geglu",
    "apply_layernorm_1p",
    "no_rope_freq",
    "a normalization other than RMSNorm",
    "a position_embedding_type other than rope and yarn",
});
static_assert(kTraitNames.size() == 29);

std::string trait_text(u32 traits) {
  std::string text;
  for (std::size_t i = 0; i < kTraitNames.size(); ++i)
    if ((traits >> i & 1U) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", kTraitNames[i]);
  return text;
}

constexpr u32 kLikeV3 = kSwiglu | kSigmoid | kCorrection | kSharedExpert;
constexpr u32 kMayLikeV3 = kDenseLayers | kExpertGroups | kScaledRouting;
constexpr u32 kLikeQwenNext =
    kSwiglu | kDeltaLayers | kOutputGate | kQkNorm | kZeroCentred | kSharedExpert | kSharedExpertGate;
constexpr auto kFits = std::to_array<TrainedFamily>({
    {"mixtral", "MixtralForCausalLM", kMixtralBit, kSwiglu, 0},
    {"granitemoe", "GraniteMoeForCausalLM", kGraniteBit, kSwiglu, 0},
    {"qwen2_moe", "Qwen2MoeForCausalLM", kQwen2Bit, kSwiglu | kSharedExpert | kSharedExpertGate,
     kQkvBias | kDenseLayers | kPreSoftmax},
    {"qwen3_moe", "Qwen3MoeForCausalLM", kQwen3Bit, kSwiglu | kQkNorm, kDenseLayers | kPreSoftmax},
    {"deepseek_v2", "DeepseekV2ForCausalLM", kV2Bit, kSwiglu | kLatentAttention | kPreSoftmax | kSharedExpert,
     kQkNorm | kDenseLayers | kScaledRouting | kYarn},
    {"deepseek_v3", "DeepseekV3ForCausalLM", kV3Bit, kLikeV3 | kLatentAttention,
     kMayLikeV3 | kQkNorm | kYarn | kPredictsTokens},
    {"kimi_k2", "DeepseekV3ForCausalLM", kKimiBit, kLikeV3 | kLatentAttention, kMayLikeV3 | kQkNorm | kYarn},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", kLiteBit, kLikeV3 | kLatentAttention,
     kMayLikeV3 | kQkNorm | kYarn | kPredictsTokens},
    {"glm4_moe", "Glm4MoeForCausalLM", kGlmBit, kLikeV3,
     kMayLikeV3 | kQkNorm | kQkvBias | kPartialRope | kPredictsTokens},
    {"dots1", "Dots1ForCausalLM", kDotsBit, kLikeV3 | kQkNorm, kMayLikeV3},
    {"gpt_oss", "GptOssForCausalLM", kGptOssBit, kQuickGeglu | kAllBiases | kLearnableSinks,
     kQkvBias | kWindow | kYarn},
    {"llama4_text", "Llama4ForCausalLM", kLlamaBit,
     kSwiglu | kSigmoid | kProbsOnInput | kInterleavedRope | kSharedExpert, kL2Norm | kDenseLayers},
    {"qwen3_next", "Qwen3NextForCausalLM", kNextBit, kLikeQwenNext,
     kPreSoftmax | kPartialRope | kDenseLayers | kPredictsTokens},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", kQwen35Bit, kLikeQwenNext,
     kPartialRope | kDenseLayers | kPredictsTokens},
    {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", kErnieBit, kSwiglu | kInterleavedRope, kSharedExpert | kDenseLayers},
});

bool has_wide_norms(const SavedArgs& args) {
  constexpr std::string_view kNorm = ".self_attention.q_layernorm.weight";
  for (const TensorRef& tensor : args.tensors().tensors)
    if (tensor.name.ends_with(kNorm) && !tensor.shape.empty())
      return tensor.shape.back() != args.integer("kv_channels").value_or(tensor.shape.back());
  return false;
}

}  // namespace

u32 traits_of(SavedArgs& args) {
  u32 traits = 0;
  const auto set = [&](bool is, Trait trait) { traits |= is ? static_cast<u32>(trait) : 0U; };
  const bool latent = args.flag("multi_latent_attention");
  const std::string embedding = args.text("position_embedding_type");
  const auto any = [](const std::vector<bool>& flags) { return std::ranges::find(flags, true) != flags.end(); };
  set(latent, kLatentAttention);
  set(any(args.delta_layers()) && !args.text("experimental_attention_variant").empty(), kDeltaLayers);
  set(args.flag("attention_output_gate"), kOutputGate);
  set(args.text("moe_router_score_function") == "sigmoid", kSigmoid);
  set(args.flag("moe_router_enable_expert_bias"), kCorrection);
  set(args.flag("qk_layernorm"), kQkNorm);
  set(has_wide_norms(args), kWideQkNorm);
  set(args.flag("add_qkv_bias"), kQkvBias);
  set(args.flag("add_bias_linear"), kAllBiases);
  set(args.integer("moe_shared_expert_intermediate_size").value_or(0) > 0, kSharedExpert);
  set(args.flag("moe_shared_expert_gate"), kSharedExpertGate);
  set(args.flag("rotary_interleaved") && !latent, kInterleavedRope);
  set(args.text("softmax_type") == "learnable", kLearnableSinks);
  set(args.flag("qk_l2_norm"), kL2Norm);
  const std::vector<bool> experts = args.expert_layers();
  set(std::ranges::find(experts, false) != experts.end(), kDenseLayers);
  set(args.number("rotary_percent").value_or(1.0) != 1.0 && !latent, kPartialRope);
  set(args.flag("moe_apply_probs_on_input"), kProbsOnInput);
  set(args.integer("moe_router_num_groups").value_or(1) > 1, kExpertGroups);
  set(args.integer("mtp_num_layers").value_or(0) > 0, kPredictsTokens);
  set(args.window().has_value(), kWindow);
  set(latent ? args.text("rope_type") == "yarn" : embedding == "yarn", kYarn);
  set(args.flag("moe_router_pre_softmax"), kPreSoftmax);
  set(args.number("moe_router_topk_scaling_factor").value_or(1.0) != 1.0, kScaledRouting);
  set(args.flag("swiglu"), kSwiglu);
  set(args.flag("quick_geglu"), kQuickGeglu);
  // The second is the field that newer versions make arguments of.
  set(args.flag("apply_layernorm_1p") || args.flag("layernorm_zero_centered_gamma"), kZeroCentred);
  set(any(args.ropeless_layers()), kLayersWithoutRope);
  set(args.has("normalization") && args.text("normalization") != "RMSNorm", kNoRms);
  set(!embedding.empty() && embedding != "rope" && embedding != "yarn", kNoRope);
  return traits;
}

std::vector<const TrainedFamily*> fitting_families(u32 traits, const std::string& model_type) {
  std::vector<const TrainedFamily*> fits;
  for (const TrainedFamily& fit : kFits)
    if ((traits & fit.required) == fit.required && (traits & ~(fit.required | fit.possible)) == 0 &&
        (model_type.empty() || fit.model_type == model_type))
      fits.push_back(&fit);
  return fits;
}

std::string why_none_fits(u32 traits, const std::string& model_type) {
  const std::string has = trait_text(traits);
  if (model_type.empty())
    return fmt::format(
        "no family that is known has what the saved arguments say of the model ({}), so that "
        "--from-config FILE has to name a config.json",
        has);
  const auto found = std::ranges::find(kFits, model_type, &TrainedFamily::model_type);
  if (found == kFits.end())
    return fmt::format(
        "no config.json can be made from the saved arguments for models of type '{}'; "
        "--from-config FILE names one",
        model_type);
  const u32 lacking = found->required & ~traits, surplus = traits & ~(found->required | found->possible);
  std::string why;
  if (lacking != 0) why += "without " + trait_text(lacking);
  if (surplus != 0) why += fmt::format("{}with {}", why.empty() ? "" : " and ", trait_text(surplus));
  return fmt::format(
      "the saved arguments are of a model {}, which is none of type '{}'; --from-config FILE names "
      "a config.json that says otherwise",
      why, model_type);
}

}  // namespace glu_ckpt
