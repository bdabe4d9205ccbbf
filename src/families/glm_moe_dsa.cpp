/// GLM-5, 5.1 and 5.2: latent and sparse attention; layers may share the indexer of an earlier one.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kGlmDsaArgs = std::to_array<ArgRow>({
    {"indexer_rope_interleave", "dsa_indexer_rope_interleaved", write_value, always, "True", "true"},
    {"", "no_dsa_indexer_rotate_activation", write_value, nullptr, "True"},
    {"mlp_layer_types", "moe_layer_freq", nullptr, layer_kinds},
});

constexpr auto kGlmMoeDsaFamilies = std::to_array<Family>({
    {.model_type = "glm_moe_dsa",
     .model_class = "GlmMoeDsaForCausalLM",
     .naming = hf_naming(kHfLatent, kHfIndexer, kHfCorrectedRouter, kHfDense, kHfMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kLatentYarnArgs, kSparseArgs, kTwoWidthArgs, kTopkArgs,
              kCorrectedArgs, kDenseFirstArgs, kNoauxArgs, kNextTokenArgs, kGlmDsaArgs},
     .expert_naming = "hf:deepseek_v3",
     .attention = Attention::Latent,
     .sparse_attention = true,
     .declared_biases = kLatentBiases,
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 202752,
       "rope_theta": 10000.0, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
       "first_k_dense_replace": 3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
       "n_shared_experts": 1, "q_lora_rank": 2048, "num_key_value_heads": 64})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_glm_moe_dsa;
constinit const Knowledge k_glm_moe_dsa{.families = kGlmMoeDsaFamilies};

}  // namespace glu_ckpt
