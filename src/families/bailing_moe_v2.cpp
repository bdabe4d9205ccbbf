/// Ling and Ring 2, whose class is not in transformers. Their q, k and v are one tensor: all of q, all of k, all of v.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr DenseRole kFusedQkv[] = {DenseRole::Q, DenseRole::K, DenseRole::V};
constexpr auto kBailingRows = std::to_array<DenseRow>({
    model_row("word_embeddings.weight", DenseRole::Embedding),
    model_row("norm.weight", DenseRole::FinalNorm),
    model_row("/lm_head.weight", DenseRole::Head),
    layer_row("input_layernorm.weight", DenseRole::AttentionNorm),
    layer_row("post_attention_layernorm.weight", DenseRole::MlpNorm),
    fused_row("attention.query_key_value.{K}", kFusedQkv, Groups::One, kGrouped),
    // Megatron-Core has a bias there only where all linear layers have one.
    layer_row("attention.dense.weight", DenseRole::AttentionOut, kGrouped),
    optional_row("attention.query_layernorm.weight", DenseRole::QNorm, kGrouped),
    optional_row("attention.key_layernorm.weight", DenseRole::KNorm, kGrouped),
    layer_row("mlp.gate.weight", DenseRole::Router, kExperts),
    optional_row("mlp.gate.expert_bias", DenseRole::CorrectionBias, kExperts),
});

constexpr auto kBailingArgs = std::to_array<ArgRow>({
    {"use_qk_norm", "qk_layernorm", write_qk_norms, head_norms},
    {"use_qkv_bias", "add_qkv_bias", nullptr, as_flag},
    {"partial_rotary_factor", "rotary_percent", nullptr, as_float},
});

constexpr auto kBailingMoeV2Families = std::to_array<Family>({
    {.model_type = "bailing_moe_v2",
     .model_class = "BailingMoeV2ForCausalLM",
     .naming = {.name = "hf", .rows = {kBailingRows, kHfDense, kPlainMtp}, .layers = "layers."},
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kBailingArgs, kUsualLayerArgs, kYarnArgs,
              kTwoWidthArgs, kTopkArgs, kCorrectedArgs, kDenseFirstArgs, kExpertBiasArgs, kNextTokenArgs},
     .expert_naming = "hf:deepseek_v3",
     .words = {{{"n_routed_experts", "num_experts"},
                {"n_shared_experts", "num_shared_experts"},
                {"attention_bias", "use_qkv_bias"},
                {"scoring_func", "score_function"}}},
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later",
     .has_class = false,
     .tried = false},
});

}  // namespace

extern const Knowledge k_bailing_moe_v2;
constinit const Knowledge k_bailing_moe_v2{.families = kBailingMoeV2Families};

}  // namespace glu_ckpt
