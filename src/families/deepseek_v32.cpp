/// DeepSeek-V3.2: DeepSeek-V3 with sparse attention.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

/// Rotary embedding turns the halves of an indexer's heads.
constexpr auto kHalvesArgs = std::to_array<ArgRow>({{"", "dsa_indexer_rope_interleaved", nullptr, only, "False"}});

constexpr auto kDeepseekV32Families = std::to_array<Family>({
    {.model_type = "deepseek_v32",
     .model_class = "DeepseekV32ForCausalLM",
     .naming = hf_naming(kHfLatent, kHfIndexer, kHfCorrectedRouter, kHfDense, kHfMtp),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kLatentArgs, kLatentYarnArgs, kSparseArgs, kHalvesArgs,
              kTwoWidthArgs, kTopkArgs, kCorrectedArgs, kDenseFirstArgs, kNoauxArgs, kNextTokenArgs},
     .expert_naming = "hf:deepseek_v3",
     .attention = Attention::Latent,
     .sparse_attention = true,
     .declared_biases = kLatentBiases,
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 163840,
       "rope_theta": 10000.0, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4,
       "first_k_dense_replace": 3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64,
       "n_shared_experts": 1, "q_lora_rank": 1536, "num_key_value_heads": 128})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_deepseek_v32;
constinit const Knowledge k_deepseek_v32{.families = kDeepseekV32Families};

}  // namespace glu_ckpt
