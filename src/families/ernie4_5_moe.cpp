/// ERNIE 4.5 MoE.

#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kErnieRouter = std::to_array<DenseRow>({
    layer_row("mlp.gate.weight", DenseRole::Router, kExperts),
    {Place::Layer,
     "mlp.moe_statics.e_score_correction_bias",
     {DenseRole::CorrectionBias},
     1,
     kExperts,
     true,
     Groups::One,
     Form::OneRow},
});

constexpr auto kErnie45MoeFamilies = std::to_array<Family>({
    {.model_type = "ernie4_5_moe",
     .naming = hf_naming(kHfGrouped, kErnieRouter, kHfDense),
     .expert_naming = "hf:deepseek_v3",
     .scores = Scores::Softmax,
     .renormalised = Renormalised::Always,
     .interleaved_rope = true,
     .zero_correction_bias = true,
     .defaults = R"({"num_experts_per_tok": 6, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 500000.0, "num_key_value_heads": 4, "moe_layer_start_index": 1, "tie_word_embeddings": true})"},
});

}  // namespace

extern const Knowledge k_ernie4_5_moe;
constinit const Knowledge k_ernie4_5_moe{.families = kErnie45MoeFamilies};

}  // namespace glu_ckpt
