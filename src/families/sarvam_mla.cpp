/// Sarvam with latent attention: DeepSeek-V3 under another name.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kSarvamMlaFamilies = std::to_array<Family>({
    {.model_type = "sarvam_mla",
     .model_class = "SarvamMLAForCausalLM",
     .naming = hf_naming(kHfLatent, kHfCorrectedRouter, kHfDense, kHfMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kLatentYarnArgs, kTwoWidthArgs, kTopkArgs,
              kCorrectedArgs, kDenseFirstArgs, kExpertBiasArgs, kNextTokenArgs},
     .expert_naming = "hf:deepseek_v3",
     .attention = Attention::Latent,
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
       "rope_theta": 10000.0, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
       "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
       "qk_nope_head_dim": 128, "v_head_dim": 128})"},
});

}  // namespace

extern const Knowledge k_sarvam_mla;
constinit const Knowledge k_sarvam_mla{.families = kSarvamMlaFamilies};

}  // namespace glu_ckpt
