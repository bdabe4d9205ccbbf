#include "arch/dense_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "layout/layout_table.hpp"

namespace glu_ckpt {
namespace {

using R = DenseRole;

constexpr DenseRow model_row(std::string_view key, R role) { return {Place::Model, key, {role}}; }
constexpr DenseRow layer_row(std::string_view key, R role, int when = kAlways) {
  return {Place::Layer, key, {role}, 1, when};
}
constexpr DenseRow optional_row(std::string_view key, R role, int when = kAlways) {
  return {Place::Layer, key, {role}, 1, when, true};
}
constexpr DenseRow mtp_row(std::string_view key, R role) { return {Place::Mtp, key, {role}}; }
constexpr DenseRow copy_row(Place place, std::string_view key, R role) {
  return {place, key, {role}, 1, kAlways, true, Groups::One, Form::Plain, ComputeOp::None, true};
}
/// A tensor of several matrices.
template <std::size_t N>
constexpr DenseRow fused_row(std::string_view key, const R (&roles)[N], Groups groups, int when,
                             Form form = Form::Plain) {
  DenseRow row{Place::Layer, key, {}, N, when, false, groups, form};
  for (std::size_t i = 0; i < N; ++i) row.roles[i] = roles[i];
  return row;
}

// ---- Hugging Face -----------------------------------------------------------------------------

constexpr auto kHfModel = std::to_array<DenseRow>({
    model_row("embed_tokens.weight", R::Embedding),
    model_row("norm.weight", R::FinalNorm),
    model_row("/lm_head.weight", R::Head),
    layer_row("input_layernorm.weight", R::AttentionNorm),
    layer_row("post_attention_layernorm.weight", R::MlpNorm),
});
/// A bias of these may be there or not; `{K}` is both.
constexpr auto kHfGrouped = std::to_array<DenseRow>({
    layer_row("self_attn.q_proj.{K}", R::Q, kGrouped),
    layer_row("self_attn.k_proj.{K}", R::K, kGrouped),
    layer_row("self_attn.v_proj.{K}", R::V, kGrouped),
    layer_row("self_attn.o_proj.{K}", R::AttentionOut, kGrouped),
});
constexpr auto kHfQkNorm = std::to_array<DenseRow>({
    layer_row("self_attn.q_norm.weight", R::QNorm, kGrouped),
    layer_row("self_attn.k_norm.weight", R::KNorm, kGrouped),
});
constexpr auto kHfOptionalQkNorm = std::to_array<DenseRow>({
    optional_row("self_attn.q_norm.weight", R::QNorm, kGrouped),
    optional_row("self_attn.k_norm.weight", R::KNorm, kGrouped),
});
constexpr auto kHfWideQkNorm = std::to_array<DenseRow>({
    layer_row("self_attn.q_norm.weight", R::WideQNorm, kGrouped),
    layer_row("self_attn.k_norm.weight", R::WideKNorm, kGrouped),
});
constexpr auto kHfLatent = std::to_array<DenseRow>({
    layer_row("self_attn.q_proj.weight", R::LatentQ, kLatent | kNoQLora),
    layer_row("self_attn.q_a_proj.weight", R::QDown, kLatent | kQLora),
    layer_row("self_attn.q_a_layernorm.weight", R::QLatentNorm, kLatent | kQLora),
    layer_row("self_attn.q_b_proj.weight", R::QUp, kLatent | kQLora),
    layer_row("self_attn.kv_a_proj_with_mqa.weight", R::KvDown, kLatent),
    layer_row("self_attn.kv_a_layernorm.weight", R::KvLatentNorm, kLatent),
    layer_row("self_attn.kv_b_proj.weight", R::KvUp, kLatent),
    layer_row("self_attn.o_proj.weight", R::AttentionOut, kLatent),
});
constexpr auto kHfDense = std::to_array<DenseRow>({
    layer_row("mlp.gate_proj.weight", R::MlpGate, kDense),
    layer_row("mlp.up_proj.weight", R::MlpUp, kDense),
    layer_row("mlp.down_proj.weight", R::MlpDown, kDense),
});
constexpr auto kHfRouter = std::to_array<DenseRow>({layer_row("mlp.gate.weight", R::Router, kExperts)});
constexpr auto kHfCorrectedRouter = std::to_array<DenseRow>({
    layer_row("mlp.gate.weight", R::Router, kExperts),
    optional_row("mlp.gate.e_score_correction_bias", R::CorrectionBias, kExperts),
});
constexpr auto kHfSharedGate = std::to_array<DenseRow>({
    layer_row("mlp.shared_expert_gate.weight", R::SharedGate, kExperts),
});
/// Multi-token prediction as DeepSeek stores it: in layers behind the last one, with the embedding and the head again.
constexpr auto kHfMtp = std::to_array<DenseRow>({
    mtp_row("enorm.weight", R::MtpEmbeddingNorm),
    mtp_row("hnorm.weight", R::MtpHiddenNorm),
    mtp_row("eh_proj.weight", R::MtpProjection),
    mtp_row("shared_head.norm.weight", R::MtpFinalNorm),
    copy_row(Place::Mtp, "embed_tokens.weight", R::Embedding),
    copy_row(Place::Mtp, "shared_head.head.weight", R::Head),
});
constexpr auto kMixtralRouter =
    std::to_array<DenseRow>({layer_row("block_sparse_moe.gate.weight", R::Router, kExperts)});
constexpr auto kMinimaxRouter = std::to_array<DenseRow>({
    layer_row("block_sparse_moe.gate.weight", R::Router, kExperts),
    optional_row("block_sparse_moe.e_score_correction_bias", R::CorrectionBias, kExperts),
});
constexpr auto kGraniteRouter =
    std::to_array<DenseRow>({layer_row("block_sparse_moe.router.layer.weight", R::Router, kExperts)});
constexpr auto kGptOss = std::to_array<DenseRow>({
    layer_row("mlp.router.{K}", R::Router, kExperts),
    layer_row("self_attn.sinks", R::Sinks, kGrouped),
});
constexpr auto kLlama4 = std::to_array<DenseRow>({
    layer_row("feed_forward.router.weight", R::Router, kExperts),
    layer_row("feed_forward.gate_proj.weight", R::MlpGate, kDense),
    layer_row("feed_forward.up_proj.weight", R::MlpUp, kDense),
    layer_row("feed_forward.down_proj.weight", R::MlpDown, kDense),
});
constexpr auto kErnieRouter = std::to_array<DenseRow>({
    layer_row("mlp.gate.weight", R::Router, kExperts),
    {Place::Layer,
     "mlp.moe_statics.e_score_correction_bias",
     {R::CorrectionBias},
     1,
     kExperts,
     true,
     Groups::One,
     Form::OneRow},
});

/// Qwen3-Next: q_proj holds, head by head, the rows of q and of the gate.
constexpr R kQAndGate[] = {R::Q, R::QGate};
constexpr R kDeltaQkvz[] = {R::DeltaQ, R::DeltaK, R::DeltaV, R::DeltaZ};
constexpr R kDeltaQkv[] = {R::DeltaQ, R::DeltaK, R::DeltaV};
constexpr R kDeltaBa[] = {R::DeltaBeta, R::DeltaAlpha};
constexpr R kConvQkv[] = {R::ConvQ, R::ConvK, R::ConvV};
constexpr auto kHfGatedAttention = std::to_array<DenseRow>({
    fused_row("self_attn.q_proj.{K}", kQAndGate, Groups::Heads, kGrouped),
    layer_row("self_attn.k_proj.{K}", R::K, kGrouped),
    layer_row("self_attn.v_proj.{K}", R::V, kGrouped),
    layer_row("self_attn.o_proj.{K}", R::AttentionOut, kGrouped),
    layer_row("self_attn.q_norm.weight", R::QNorm, kGrouped),
    layer_row("self_attn.k_norm.weight", R::KNorm, kGrouped),
});
constexpr auto kHfDelta = std::to_array<DenseRow>({
    fused_row("linear_attn.conv1d.weight", kConvQkv, Groups::One, kDelta, Form::Conv),
    layer_row("linear_attn.A_log", R::DeltaDecay, kDelta),
    layer_row("linear_attn.dt_bias", R::DeltaTimeBias, kDelta),
    {Place::Layer,
     "linear_attn.norm.weight",
     {R::DeltaNorm},
     1,
     kDelta,
     false,
     Groups::One,
     Form::Plain,
     ComputeOp::SubtractOne},
    layer_row("linear_attn.out_proj.weight", R::DeltaOut, kDelta),
});
constexpr auto kQwen3NextDelta = std::to_array<DenseRow>({
    fused_row("linear_attn.in_proj_qkvz.weight", kDeltaQkvz, Groups::DeltaKeyHeads, kDelta),
    fused_row("linear_attn.in_proj_ba.weight", kDeltaBa, Groups::DeltaKeyHeads, kDelta),
});
constexpr auto kQwen35Delta = std::to_array<DenseRow>({
    fused_row("linear_attn.in_proj_qkv.weight", kDeltaQkv, Groups::One, kDelta),
    layer_row("linear_attn.in_proj_z.weight", R::DeltaZ, kDelta),
    layer_row("linear_attn.in_proj_b.weight", R::DeltaBeta, kDelta),
    layer_row("linear_attn.in_proj_a.weight", R::DeltaAlpha, kDelta),
});
constexpr auto kQwen3NextMtp = std::to_array<DenseRow>({
    mtp_row("pre_fc_norm_embedding.weight", R::MtpEmbeddingNorm),
    mtp_row("pre_fc_norm_hidden.weight", R::MtpHiddenNorm),
    mtp_row("fc.weight", R::MtpProjection),
    mtp_row("norm.weight", R::MtpFinalNorm),
});

// ---- Megatron-Core's GPTModel, as torch_dist has it with TransformerEngine's modules -------------

constexpr R kQkv[] = {R::Q, R::K, R::V};
constexpr R kGatedQkv[] = {R::Q, R::QGate, R::K, R::V};
constexpr R kMlpGateUp[] = {R::MlpGate, R::MlpUp};
constexpr auto kMegatron = std::to_array<DenseRow>({
    model_row("embedding.word_embeddings.weight", R::Embedding),
    model_row("decoder.final_layernorm.weight", R::FinalNorm),
    model_row("output_layer.weight", R::Head),
    layer_row("self_attention.linear_qkv.layer_norm_weight", R::AttentionNorm, kGrouped),
    layer_row("input_layernorm.weight", R::AttentionNorm, kLatent),
    layer_row("self_attention.in_proj.layer_norm_weight", R::AttentionNorm, kDelta),
    layer_row("pre_mlp_layernorm.weight", R::MlpNorm, kExperts),
    layer_row("mlp.linear_fc1.layer_norm_weight", R::MlpNorm, kDense),
    fused_row("self_attention.linear_qkv.{K}", kQkv, Groups::KvHeads, kGrouped | kUngated),
    fused_row("self_attention.linear_qkv.{K}", kGatedQkv, Groups::KvHeads, kGrouped | kGated),
    optional_row("self_attention.q_layernorm.weight", R::QNorm, kGrouped | kHeadNorms),
    optional_row("self_attention.k_layernorm.weight", R::KNorm, kGrouped | kHeadNorms),
    optional_row("self_attention.q_layernorm.weight", R::WideQNorm, kGrouped | kWideNorms),
    optional_row("self_attention.k_layernorm.weight", R::WideKNorm, kGrouped | kWideNorms),
    optional_row("self_attention.core_attention.softmax_offset", R::Sinks, kGrouped),
    layer_row("self_attention.linear_proj.{K}", R::AttentionOut, kGrouped | kLatent),
    layer_row("mlp.linear_fc2.weight", R::MlpDown, kDense),
    fused_row("mlp.linear_fc1.weight", kMlpGateUp, Groups::One, kDense),
    layer_row("mlp.router.{K}", R::Router, kExperts),
    optional_row("mlp.router.expert_bias", R::CorrectionBias, kExperts),
    optional_row("mlp.shared_experts.gate_weight", R::SharedGate, kExperts),
});
constexpr auto kMegatronLatent = std::to_array<DenseRow>({
    layer_row("self_attention.linear_q_proj.weight", R::LatentQ, kLatent | kNoQLora),
    layer_row("self_attention.linear_q_down_proj.weight", R::QDown, kLatent | kQLora),
    layer_row("self_attention.linear_q_up_proj.layer_norm_weight", R::QLatentNorm, kLatent | kQLora),
    layer_row("self_attention.linear_q_up_proj.weight", R::QUp, kLatent | kQLora),
    layer_row("self_attention.linear_kv_down_proj.weight", R::KvDown, kLatent),
    layer_row("self_attention.linear_kv_up_proj.layer_norm_weight", R::KvLatentNorm, kLatent),
    layer_row("self_attention.linear_kv_up_proj.weight", R::KvUp, kLatent),
});
constexpr DenseRow conv_row(std::string_view key, R role) {
  return {Place::Layer, key, {role}, 1, kDelta, false, Groups::One, Form::Conv};
}
constexpr auto kMegatronDelta = std::to_array<DenseRow>({
    layer_row("self_attention.in_proj.weight.query", R::DeltaQ, kDelta),
    layer_row("self_attention.in_proj.weight.key", R::DeltaK, kDelta),
    layer_row("self_attention.in_proj.weight.value", R::DeltaV, kDelta),
    layer_row("self_attention.in_proj.weight.z", R::DeltaZ, kDelta),
    layer_row("self_attention.in_proj.weight.beta", R::DeltaBeta, kDelta),
    layer_row("self_attention.in_proj.weight.alpha", R::DeltaAlpha, kDelta),
    conv_row("self_attention.conv1d.weight.query", R::ConvQ),
    conv_row("self_attention.conv1d.weight.key", R::ConvK),
    conv_row("self_attention.conv1d.weight.value", R::ConvV),
    layer_row("self_attention.A_log", R::DeltaDecay, kDelta),
    layer_row("self_attention.dt_bias", R::DeltaTimeBias, kDelta),
    layer_row("self_attention.out_norm.weight", R::DeltaNorm, kDelta),
    layer_row("self_attention.out_proj.weight", R::DeltaOut, kDelta),
});
constexpr auto kMegatronMtp = std::to_array<DenseRow>({
    mtp_row("enorm.weight", R::MtpEmbeddingNorm),
    mtp_row("hnorm.weight", R::MtpHiddenNorm),
    mtp_row("eh_proj.weight", R::MtpProjection),
    mtp_row("final_layernorm.weight", R::MtpFinalNorm),
});
constexpr DenseNaming kMegatronNaming{
    .name = "megatron",
    .rows = {kMegatron, kMegatronLatent, kMegatronDelta, kMegatronMtp},
    .layers = "decoder.layers.",
    .mtp_layers = "mtp.layers.",
    .mtp_inner = ".transformer_layer.",
    .mtp_outer = "mtp.layers.#.",
    .mtp_inner_too = ".mtp_model_layer.",
    .stacks_layers = true,
    .pads_vocabulary = true,
};

// ---- torchtitan -------------------------------------------------------------------------------

constexpr auto kTitanModel = std::to_array<DenseRow>({
    model_row("tok_embeddings.weight", R::Embedding),
    model_row("norm.weight", R::FinalNorm),
    model_row("lm_head.weight", R::Head),
    layer_row("attention_norm.weight", R::AttentionNorm),
    layer_row("ffn_norm.weight", R::MlpNorm),
    layer_row("feed_forward.w1.weight", R::MlpGate, kDense),
    layer_row("feed_forward.w3.weight", R::MlpUp, kDense),
    layer_row("feed_forward.w2.weight", R::MlpDown, kDense),
    layer_row("moe.router.gate.{K}", R::Router, kExperts),
});
constexpr auto kTitanGrouped = std::to_array<DenseRow>({
    layer_row("attention.qkv_linear.wq.{K}", R::Q, kGrouped),
    layer_row("attention.qkv_linear.wk.{K}", R::K, kGrouped),
    layer_row("attention.qkv_linear.wv.{K}", R::V, kGrouped),
    layer_row("attention.wo.{K}", R::AttentionOut, kGrouped),
    optional_row("attention.q_norm.weight", R::QNorm, kGrouped),
    optional_row("attention.k_norm.weight", R::KNorm, kGrouped),
    optional_row("attention.sinks", R::Sinks, kGrouped),
});
constexpr auto kTitanLatent = std::to_array<DenseRow>({
    layer_row("attention.wq.weight", R::LatentQ, kLatent | kNoQLora),
    layer_row("attention.wq_a.weight", R::QDown, kLatent | kQLora),
    layer_row("attention.q_norm.weight", R::QLatentNorm, kLatent | kQLora),
    layer_row("attention.wq_b.weight", R::QUp, kLatent | kQLora),
    layer_row("attention.wkv_a.weight", R::KvDown, kLatent),
    layer_row("attention.kv_norm.weight", R::KvLatentNorm, kLatent),
    layer_row("attention.wkv_b.weight", R::KvUp, kLatent),
    layer_row("attention.wo.weight", R::AttentionOut, kLatent),
    optional_row("moe.expert_bias_E", R::CorrectionBias, kExperts),
});
constexpr auto kTitanMtp = std::to_array<DenseRow>({
    mtp_row("enorm.weight", R::MtpEmbeddingNorm),
    mtp_row("hnorm.weight", R::MtpHiddenNorm),
    mtp_row("eh_proj.weight", R::MtpProjection),
    mtp_row("mtp_norm.weight", R::MtpFinalNorm),
});
constexpr DenseNaming kTitanGroupedNaming{
    .name = "torchtitan", .rows = {kTitanModel, kTitanGrouped}, .layers = "layers."};
constexpr DenseNaming kTitanLatentNaming{
    .name = "torchtitan",
    .rows = {kTitanModel, kTitanLatent, kTitanMtp},
    .layers = "layers.",
    .mtp_layers = "mtp_layers.",
    .mtp_outer = "mtp_layers.#.",
};
constexpr auto kTitanDelta = std::to_array<DenseRow>({
    fused_row("attn.wq.weight", kQAndGate, Groups::Heads, kGrouped),
    layer_row("attn.wk.weight", R::K, kGrouped),
    layer_row("attn.wv.weight", R::V, kGrouped),
    layer_row("attn.wo.weight", R::AttentionOut, kGrouped),
    layer_row("attn.q_norm.weight", R::QNorm, kGrouped),
    layer_row("attn.k_norm.weight", R::KNorm, kGrouped),
    layer_row("attn.in_proj_q.weight", R::DeltaQ, kDelta),
    layer_row("attn.in_proj_k.weight", R::DeltaK, kDelta),
    layer_row("attn.in_proj_v.weight", R::DeltaV, kDelta),
    layer_row("attn.in_proj_z.weight", R::DeltaZ, kDelta),
    layer_row("attn.in_proj_b.weight", R::DeltaBeta, kDelta),
    layer_row("attn.in_proj_a.weight", R::DeltaAlpha, kDelta),
    conv_row("attn.conv_q.weight", R::ConvQ),
    conv_row("attn.conv_k.weight", R::ConvK),
    conv_row("attn.conv_v.weight", R::ConvV),
    layer_row("attn.A_log", R::DeltaDecay, kDelta),
    layer_row("attn.dt_bias", R::DeltaTimeBias, kDelta),
    {Place::Layer,
     "attn.norm.weight",
     {R::DeltaNorm},
     1,
     kDelta,
     false,
     Groups::One,
     Form::Plain,
     ComputeOp::SubtractOne},
    layer_row("attn.out_proj.weight", R::DeltaOut, kDelta),
    layer_row("moe.shared_experts.gate.weight", R::SharedGate, kExperts),
});
constexpr DenseNaming kTitanDeltaNaming{.name = "torchtitan", .rows = {kTitanModel, kTitanDelta}, .layers = "layers."};

// ---- families ---------------------------------------------------------------------------------

/// Keys of Hugging Face begin with a root, "model." mostly, and number the layers of multi-token prediction on from the
/// main stack's.
template <typename... Rows>
constexpr DenseNaming hf_naming(const Rows&... rows) {
  return {.name = "hf", .rows = {kHfModel, rows...}, .layers = "layers."};
}

template <typename... Rows>
constexpr DenseNaming qwen3_next_naming(const Rows&... rows) {
  DenseNaming naming =
      hf_naming(kHfGatedAttention, kHfDelta, kHfRouter, kHfSharedGate, kHfDense, kQwen3NextMtp, rows...);
  naming.mtp_layers = "/mtp.layers.";
  naming.mtp_outer = "/mtp.";
  return naming;
}

constexpr std::string_view kWideNormNeed =
    "its q and k norms span all heads, for which Megatron-Core's GPTModel needs the layer spec of Megatron-Bridge";

constexpr auto kFamilies = std::to_array<Family>({
    {.model_types = {"mixtral"},
     .naming = hf_naming(kHfGrouped, kMixtralRouter),
     .expert_naming = "hf:mixtral",
     .intermediate_is_experts = true},
    {.model_types = {"qwen2_moe"},
     .naming = hf_naming(kHfGrouped, kHfRouter, kHfSharedGate, kHfDense),
     .expert_naming = "hf:qwen2_moe"},
    {.model_types = {"qwen3_moe"},
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfRouter, kHfDense),
     .expert_naming = "hf:qwen3_moe",
     .torchtitan = &kTitanGroupedNaming},
    {.model_types = {"qwen3_vl_moe_text"},
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfRouter, kHfDense),
     .expert_naming = "hf:qwen3_vl_moe",
     .other_expert_naming = "hf:qwen3_vl_moe-v5",
     .torchtitan = &kTitanGroupedNaming,
     .packed_experts = true},
    {.model_types = {"deepseek_v2"},
     .naming = hf_naming(kHfLatent, kHfCorrectedRouter, kHfDense),
     .expert_naming = "hf:deepseek_v3",
     .torchtitan = &kTitanLatentNaming,
     .attention = Attention::Latent},
    {.model_types = {"deepseek_v3", "kimi_k2", "glm4_moe_lite"},
     .naming = hf_naming(kHfLatent, kHfCorrectedRouter, kHfDense, kHfMtp),
     .expert_naming = "hf:deepseek_v3",
     .torchtitan = &kTitanLatentNaming,
     .attention = Attention::Latent,
     .corrected_router = true},
    {.model_types = {"glm4_moe"},
     .naming = hf_naming(kHfGrouped, kHfOptionalQkNorm, kHfCorrectedRouter, kHfDense, kHfMtp),
     .expert_naming = "hf:deepseek_v3",
     .corrected_router = true},
    {.model_types = {"dots1"},
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfCorrectedRouter, kHfDense),
     .expert_naming = "hf:deepseek_v3",
     .corrected_router = true},
    {.model_types = {"gpt_oss"},
     .naming = hf_naming(kHfGrouped, kGptOss),
     .expert_naming = "hf:gpt_oss",
     .intermediate_is_experts = true,
     .packed_experts = true,
     .biases_everywhere = true},
    {.model_types = {"llama4_text"},
     .naming = hf_naming(kHfGrouped, kLlama4),
     .expert_naming = "hf:llama4_text",
     .intermediate_is_experts = true,
     .packed_experts = true},
    {.model_types = {"granitemoe"},
     .naming = hf_naming(kHfGrouped, kGraniteRouter),
     .expert_naming = "hf:granitemoe",
     .intermediate_is_experts = true,
     .packed_experts = true},
    {.model_types = {"ernie4_5_moe"},
     .naming = hf_naming(kHfGrouped, kErnieRouter, kHfDense),
     .expert_naming = "hf:deepseek_v3",
     .zero_correction_bias = true},
    {.model_types = {"qwen3_next"},
     .naming = qwen3_next_naming(kQwen3NextDelta),
     .expert_naming = "hf:qwen2_moe",
     .gated_attention = true},
    {.model_types = {"qwen3_5_moe_text"},
     .naming = qwen3_next_naming(kQwen35Delta),
     .expert_naming = "hf:qwen3_5_moe",
     .torchtitan = &kTitanDeltaNaming,
     .gated_attention = true,
     .packed_experts = true},
    {.model_types = {"olmoe"},
     .naming = hf_naming(kHfGrouped, kHfWideQkNorm, kHfRouter),
     .expert_naming = "hf:qwen3_moe",
     .wide_qk_norms = true,
     .intermediate_is_experts = true,
     .needs = kWideNormNeed},
    {.model_types = {"minimax_m2"},
     .naming = hf_naming(kHfGrouped, kHfWideQkNorm, kMinimaxRouter),
     .expert_naming = "hf:mixtral",
     .wide_qk_norms = true,
     .intermediate_is_experts = true,
     .needs = kWideNormNeed},
});

struct Refusal {
  std::string_view model_type;
  std::string_view reason;
};
constexpr auto kRefusals = std::to_array<Refusal>({
    {"hunyuan_v1_moe",
     "it norms q and k after the rotation, Megatron-Core before it, and norms with weights do not commute"},
    {"phimoe",
     "its sparsemixer routing, the bias of its head and its LayerNorms have no place in Megatron-Core's GPTModel"},
});

/// The text in front of what stands beside the root: of "language_model.model.", "language_model.".
std::string_view beside(std::string_view root) {
  constexpr std::string_view kModel = "model.";
  if (root == "model.language_model.") return {};
  return root.ends_with(kModel) ? root.substr(0, root.size() - kModel.size()) : std::string_view();
}

std::string numbered(std::string_view text, i64 number) {
  const std::size_t at = text.find('#');
  if (at == text.npos) return std::string(text);
  return fmt::format("{}{}{}", text.substr(0, at), number, text.substr(at + 1));
}

}  // namespace

bool applies(const DenseRow& row, LayerKind kind, const Architecture& architecture) {
  const auto fits = [&](int mask, int bit) { return (row.when & mask) == 0 || (row.when & bit) != 0; };
  const int attention = kind.attention == Attention::Grouped  ? kGrouped
                        : kind.attention == Attention::Latent ? kLatent
                                                              : kDelta;
  return fits(kGrouped | kLatent | kDelta, attention) &&
         fits(kDense | kExperts, kind.mlp == Mlp::Dense ? kDense : kExperts) &&
         fits(kGated | kUngated, architecture.gated_attention ? kGated : kUngated) &&
         fits(kHeadNorms | kWideNorms, architecture.family->wide_qk_norms ? kWideNorms : kHeadNorms) &&
         fits(kQLora | kNoQLora, architecture.extent(Dim::QLora) > 0 ? kQLora : kNoQLora);
}

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view model_type) {
  if (model_type.empty()) return nullptr;
  for (const Family& family : kFamilies)
    if (std::ranges::find(family.model_types, model_type) != family.model_types.end()) return &family;
  return nullptr;
}

bool spells_experts_of(const Architecture& architecture, std::string_view naming) {
  const Family& family = *architecture.family;
  const Naming* const row = find_naming(naming);
  return naming == "hf:" + architecture.model_type || row == find_naming(family.expert_naming) ||
         (!family.other_expert_naming.empty() && row == find_naming(family.other_expert_naming));
}

std::string_view refusal_of(std::string_view model_type) {
  const auto found = std::ranges::find(kRefusals, model_type, &Refusal::model_type);
  return found == kRefusals.end() ? std::string_view() : found->reason;
}

const DenseNaming& megatron_naming() { return kMegatronNaming; }

std::string print_tail(const DenseRow& row, TensorKind kind) {
  constexpr std::size_t kKindBytes = 3;
  if (!row.has_kinds()) return std::string(row.key);
  return std::string(row.key.substr(0, row.key.size() - kKindBytes)) + std::string(to_string(kind));
}

std::string with_root(std::string_view root, std::string_view key) {
  if (key.starts_with('/')) return std::string(beside(root)) + std::string(key.substr(1));
  return std::string(root) + std::string(key);
}

std::string print_layer_prefix(const DenseNaming& naming, std::string_view root, std::string_view stack, i64 layer,
                               i64 num_layers) {
  if (stack != "mtp") return fmt::format("{}{}.", with_root(root, naming.layers), layer);
  if (naming.mtp_layers.empty()) return fmt::format("{}{}.", with_root(root, naming.layers), layer + num_layers);
  return fmt::format("{}{}{}", with_root(root, naming.mtp_layers), layer, naming.mtp_inner);
}

std::string print_key(const DenseNaming& naming, const DenseRow& row, std::string_view root, std::string_view stack,
                      i64 layer, TensorKind kind, i64 num_layers) {
  const std::string key = print_tail(row, kind);
  if (row.place == Place::Model) return with_root(root, key);
  if (row.place == Place::Mtp && !naming.mtp_outer.empty())
    return numbered(with_root(root, naming.mtp_outer), layer) + key;
  return print_layer_prefix(naming, root, stack, layer, num_layers) + key;
}

}  // namespace glu_ckpt
