/// Qwen1.5-MoE and Qwen2-MoE.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kQwen2MoeExperts = std::to_array<Naming>({
    {.name = "hf:qwen2_moe",
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExpert,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
});

constexpr auto kQwen2Args = std::to_array<ArgRow>({{"qkv_bias", "add_qkv_bias", nullptr, as_flag}});

constexpr auto kQwen2MoeFamilies = std::to_array<Family>({
    {.model_type = "qwen2_moe",
     .model_class = "Qwen2MoeForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfRouter, kHfSharedGate, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQwen2Args, kUsualLayerArgs, kYarnArgs, kTwoWidthArgs,
              kQwenExpertArgs, kSharedExpertArgs, kTopkArgs, kSoftmaxArgs, kNormTopkArgs},
     .expert_naming = "hf:qwen2_moe",
     .window = Window::Unclear,
     .defaults = R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 16, "norm_topk_prob": false, "sliding_window": 4096,
       "qkv_bias": true, "shared_expert_intermediate_size": 5632})"},
});

}  // namespace

extern const Knowledge k_qwen2_moe;
constinit const Knowledge k_qwen2_moe{.experts = kQwen2MoeExperts, .families = kQwen2MoeFamilies};

}  // namespace glu_ckpt
