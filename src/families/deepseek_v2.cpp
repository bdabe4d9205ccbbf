/// DeepSeek-V2.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kDeepseekV2Args = std::to_array<ArgRow>({
    {"n_routed_experts", "num_experts", write_num_experts, as_integer},
    {"n_shared_experts", "moe_shared_expert_intermediate_size", nullptr, shared_experts},
    {"first_k_dense_replace", "moe_layer_freq", write_expert_layers, first_dense},
    {"norm_topk_prob", "moe_router_pre_softmax", nullptr, always, "True", "false"},
    {"topk_method", "moe_router_num_groups", nullptr, no_groups, "", "\"greedy\""},
    {"routed_scaling_factor", "moe_router_topk_scaling_factor", nullptr, as_factor},
});

constexpr auto kDeepseekV2Families = std::to_array<Family>({
    {.model_type = "deepseek_v2",
     .model_class = "DeepseekV2ForCausalLM",
     .naming = hf_naming(kHfLatent, kHfRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kLatentYarnArgs, kTwoWidthArgs, kTopkArgs,
              kSoftmaxArgs, kDeepseekV2Args},
     .expert_naming = "hf:deepseek_v3",
     .torchtitan = &kTitanLatentNaming,
     .attention = Attention::Latent,
     .divides_or_scales = true,
     .declared_biases = kLatentBiases,
     .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0,
       "norm_topk_prob": false, "routed_scaling_factor": 1.0, "topk_method": "greedy", "n_shared_experts": 2,
       "q_lora_rank": 1536})"},
});

}  // namespace

extern const Knowledge k_deepseek_v2;
constinit const Knowledge k_deepseek_v2{.families = kDeepseekV2Families};

}  // namespace glu_ckpt
