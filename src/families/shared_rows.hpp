#pragma once
/// What several families share: stacks of layers, spellings of experts, and rows of the tensors outside of them. A file
/// of a family is made of these and of rows of its own.

#include "families/family.hpp"

namespace glu_ckpt {

// ---- stacks of layers -------------------------------------------------------------------------

inline constexpr auto kHfStacks = std::to_array<StackPrefix>({
    {"decoder", "model.layers."},
    {"decoder", "model.language_model.layers."},
    {"mtp", "mtp.layers."},
    {"decoder", "layers.", ".", true},
});
inline constexpr auto kHfMultimodalStacks = std::to_array<StackPrefix>({
    {"decoder", "model.language_model.layers."},
    {"decoder", "model.layers."},
    {"mtp", "mtp.layers."},
});
// DeepSeek-V4's own keys begin with the stack; other programs put `model.` in front.
inline constexpr auto kDeepseekV4Stacks = std::to_array<StackPrefix>({
    {"decoder", "layers.", ".", true},
    {"mtp", "mtp.", ".", true},
    {"decoder", "model.layers."},
    {"decoder", "model.language_model.layers."},
    {"mtp", "mtp.layers."},
});
inline constexpr auto kMegatronStacks = std::to_array<StackPrefix>({
    {"decoder", "decoder.layers."},
    {"mtp", "mtp.layers.", ".transformer_layer."},
    {"mtp", "mtp.layers.", ".mtp_model_layer."},
    {"mtp", "mtp.layers.", ".mtp_model_layer.layers.", false, true},
});
inline constexpr auto kTorchtitanStacks = std::to_array<StackPrefix>({
    {"decoder", "layers.", ".", true},
    {"mtp", "mtp_layers.", ".", true},
});
inline constexpr auto kNemotronStacks = std::to_array<StackPrefix>({
    {"decoder", "backbone.layers."},
    {"mtp", "mtp.layers."},
});

// ---- Hugging Face spellings -------------------------------------------------------------------
// Grouped forms of per-expert families are the ones transformers v5 keeps in memory.

inline constexpr PartNames kProjIndexed{"mlp.experts.{E}.gate_up_proj.{K}", "mlp.experts.{E}.gate_proj.{K}",
                                        "mlp.experts.{E}.up_proj.{K}", "mlp.experts.{E}.down_proj.{K}"};
inline constexpr PartNames kProjGrouped{"mlp.experts.gate_up_proj{_K}", "mlp.experts.gate_proj{_K}",
                                        "mlp.experts.up_proj{_K}", "mlp.experts.down_proj{_K}"};
inline constexpr PartNames kSharedExperts{"mlp.shared_experts.gate_up_proj.{K}", "mlp.shared_experts.gate_proj.{K}",
                                          "mlp.shared_experts.up_proj.{K}", "mlp.shared_experts.down_proj.{K}"};
inline constexpr PartNames kSharedExpert{"mlp.shared_expert.gate_up_proj.{K}", "mlp.shared_expert.gate_proj.{K}",
                                         "mlp.shared_expert.up_proj.{K}", "mlp.shared_expert.down_proj.{K}"};
inline constexpr PartNames kSharedMlp{"mlp.shared_mlp.gate_up_proj.{K}", "mlp.shared_mlp.gate_proj.{K}",
                                      "mlp.shared_mlp.up_proj.{K}", "mlp.shared_mlp.down_proj.{K}"};
inline constexpr PartNames kSparseIndexed{"block_sparse_moe.experts.{E}.w13.{K}", "block_sparse_moe.experts.{E}.w1.{K}",
                                          "block_sparse_moe.experts.{E}.w3.{K}", "block_sparse_moe.experts.{E}.w2.{K}"};
inline constexpr PartNames kSparseGrouped{"block_sparse_moe.experts.w13{_K}", "block_sparse_moe.experts.w1{_K}",
                                          "block_sparse_moe.experts.w3{_K}", "block_sparse_moe.experts.w2{_K}"};
inline constexpr PartNames kSparseShared{
    "block_sparse_moe.shared_experts.gate_up_proj.{K}", "block_sparse_moe.shared_experts.gate_proj.{K}",
    "block_sparse_moe.shared_experts.up_proj.{K}", "block_sparse_moe.shared_experts.down_proj.{K}"};
inline constexpr PartNames kMixerIndexed{"mixer.experts.{E}.gate_up_proj.{K}", "mixer.experts.{E}.gate_proj.{K}",
                                         "mixer.experts.{E}.up_proj.{K}", "mixer.experts.{E}.down_proj.{K}"};
inline constexpr PartNames kMixerGrouped{"mixer.experts.gate_up_proj{_K}", "mixer.experts.gate_proj{_K}",
                                         "mixer.experts.up_proj{_K}", "mixer.experts.down_proj{_K}"};
inline constexpr PartNames kMixerShared{"mixer.shared_experts.gate_up_proj.{K}", "mixer.shared_experts.gate_proj.{K}",
                                        "mixer.shared_experts.up_proj.{K}", "mixer.shared_experts.down_proj.{K}"};
inline constexpr PartNames kFeedForwardIndexed{
    "feed_forward.experts.{E}.gate_up_proj.{K}", "feed_forward.experts.{E}.gate_proj.{K}",
    "feed_forward.experts.{E}.up_proj.{K}", "feed_forward.experts.{E}.down_proj.{K}"};
inline constexpr PartNames kFeedForwardGrouped{"feed_forward.experts.gate_up_proj{_K}",
                                               "feed_forward.experts.gate_proj{_K}", "feed_forward.experts.up_proj{_K}",
                                               "feed_forward.experts.down_proj{_K}"};
inline constexpr PartNames kFeedForwardShared{
    "feed_forward.shared_expert.gate_up_proj.{K}", "feed_forward.shared_expert.gate_proj.{K}",
    "feed_forward.shared_expert.up_proj.{K}", "feed_forward.shared_expert.down_proj.{K}"};
// Packed families store no `.weight`: their indexed forms are spelled without it too, so that the
// two orientations never share a key.
inline constexpr PartNames kPackedIndexed{"mlp.experts.{E}.gate_up_proj{_K}", "mlp.experts.{E}.gate_proj{_K}",
                                          "mlp.experts.{E}.up_proj{_K}", "mlp.experts.{E}.down_proj{_K}"};

// ---- biases that a flag declares ----------------------------------------------------------------

inline constexpr auto kOutBias = std::to_array<DeclaredBias>({{"attention_bias", "self_attn.o_proj"}});
inline constexpr auto kOutAndMlpBiases = std::to_array<DeclaredBias>({
    {"attention_bias", "self_attn.o_proj"},
    {"mlp_bias", "mlp.gate_proj"},
    {"mlp_bias", "mlp.up_proj"},
    {"mlp_bias", "mlp.down_proj"},
});
inline constexpr auto kLatentBiases = std::to_array<DeclaredBias>({
    {"attention_bias", "self_attn.q_a_proj"},
    {"attention_bias", "self_attn.kv_a_proj_with_mqa"},
    {"attention_bias", "self_attn.o_proj"},
});

// ---- rows -------------------------------------------------------------------------------------

constexpr DenseRow model_row(std::string_view key, DenseRole role) { return {Place::Model, key, {role}}; }
constexpr DenseRow layer_row(std::string_view key, DenseRole role, int when = kAlways) {
  return {Place::Layer, key, {role}, 1, when};
}
constexpr DenseRow optional_row(std::string_view key, DenseRole role, int when = kAlways) {
  return {Place::Layer, key, {role}, 1, when, true};
}
constexpr DenseRow zero_row(std::string_view key, DenseRole role, int when) {
  DenseRow row = optional_row(key, role, when);
  row.zero_if_unknown = true;
  return row;
}
constexpr DenseRow mtp_row(std::string_view key, DenseRole role, int when = kAlways) {
  return {Place::Mtp, key, {role}, 1, when};
}
constexpr DenseRow copy_row(Place place, std::string_view key, DenseRole role) {
  return {place, key, {role}, 1, kAlways, true, Groups::One, Form::Plain, ComputeOp::None, true};
}
/// The key of an older version of a program, or of one of its modules.
constexpr DenseRow former_row(DenseRow row) {
  row.former = row.optional = true;
  return row;
}
constexpr DenseRow paired_row(DenseRow row) {
  row.paired = true;
  return row;
}
/// A tensor of several matrices.
template <std::size_t N>
constexpr DenseRow fused_row(std::string_view key, const DenseRole (&roles)[N], Groups groups, int when,
                             Form form = Form::Plain) {
  DenseRow row{Place::Layer, key, {}, N, when, false, groups, form};
  for (std::size_t i = 0; i < N; ++i) row.roles[i] = roles[i];
  return row;
}
constexpr DenseRow conv_row(std::string_view key, DenseRole role, int when) {
  return {Place::Layer, key, {role}, 1, when, false, Groups::One, Form::Conv};
}

// ---- Hugging Face -----------------------------------------------------------------------------

inline constexpr auto kHfModel = std::to_array<DenseRow>({
    model_row("embed_tokens.weight", DenseRole::Embedding),
    model_row("norm.weight", DenseRole::FinalNorm),
    model_row("/lm_head.weight", DenseRole::Head),
    layer_row("input_layernorm.weight", DenseRole::AttentionNorm),
    layer_row("post_attention_layernorm.weight", DenseRole::MlpNorm),
});
/// A bias of these may be there or not; `{K}` is both.
inline constexpr auto kHfGrouped = std::to_array<DenseRow>({
    layer_row("self_attn.q_proj.{K}", DenseRole::Q, kGrouped),
    layer_row("self_attn.k_proj.{K}", DenseRole::K, kGrouped),
    layer_row("self_attn.v_proj.{K}", DenseRole::V, kGrouped),
    layer_row("self_attn.o_proj.{K}", DenseRole::AttentionOut, kGrouped),
});
inline constexpr auto kHfQkNorm = std::to_array<DenseRow>({
    layer_row("self_attn.q_norm.weight", DenseRole::QNorm, kGrouped),
    layer_row("self_attn.k_norm.weight", DenseRole::KNorm, kGrouped),
});
inline constexpr auto kHfOptionalQkNorm = std::to_array<DenseRow>({
    optional_row("self_attn.q_norm.weight", DenseRole::QNorm, kGrouped),
    optional_row("self_attn.k_norm.weight", DenseRole::KNorm, kGrouped),
});
inline constexpr auto kHfWideQkNorm = std::to_array<DenseRow>({
    layer_row("self_attn.q_norm.weight", DenseRole::WideQNorm, kGrouped),
    layer_row("self_attn.k_norm.weight", DenseRole::WideKNorm, kGrouped),
});
inline constexpr auto kHfLatent = std::to_array<DenseRow>({
    layer_row("self_attn.q_proj.weight", DenseRole::LatentQ, kLatent | kNoQLora),
    layer_row("self_attn.q_a_proj.weight", DenseRole::QDown, kLatent | kQLora),
    layer_row("self_attn.q_a_layernorm.weight", DenseRole::QLatentNorm, kLatent | kQLora),
    layer_row("self_attn.q_b_proj.weight", DenseRole::QUp, kLatent | kQLora),
    layer_row("self_attn.kv_a_proj_with_mqa.weight", DenseRole::KvDown, kLatent),
    layer_row("self_attn.kv_a_layernorm.weight", DenseRole::KvLatentNorm, kLatent),
    layer_row("self_attn.kv_b_proj.weight", DenseRole::KvUp, kLatent),
    layer_row("self_attn.o_proj.weight", DenseRole::AttentionOut, kLatent),
});
/// The indexer of DeepSeek's sparse attention.
inline constexpr auto kHfIndexer = std::to_array<DenseRow>({
    layer_row("self_attn.indexer.wq_b.weight", DenseRole::IndexerQ, kIndexer),
    layer_row("self_attn.indexer.wk.weight", DenseRole::IndexerK, kIndexer),
    layer_row("self_attn.indexer.k_norm.weight", DenseRole::IndexerKNorm, kIndexer),
    layer_row("self_attn.indexer.k_norm.bias", DenseRole::IndexerKNormBias, kIndexer),
    layer_row("self_attn.indexer.weights_proj.weight", DenseRole::IndexerWeights, kIndexer),
});
inline constexpr auto kHfDense = std::to_array<DenseRow>({
    layer_row("mlp.gate_proj.weight", DenseRole::MlpGate, kDense),
    layer_row("mlp.up_proj.weight", DenseRole::MlpUp, kDense),
    layer_row("mlp.down_proj.weight", DenseRole::MlpDown, kDense),
});
inline constexpr auto kHfRouter = std::to_array<DenseRow>({layer_row("mlp.gate.weight", DenseRole::Router, kExperts)});
inline constexpr auto kHfCorrectedRouter = std::to_array<DenseRow>({
    layer_row("mlp.gate.weight", DenseRole::Router, kExperts),
    optional_row("mlp.gate.e_score_correction_bias", DenseRole::CorrectionBias, kExperts),
});
inline constexpr auto kHfSharedGate = std::to_array<DenseRow>({
    layer_row("mlp.shared_expert_gate.weight", DenseRole::SharedGate, kExperts),
});
/// Multi-token prediction as DeepSeek stores it: in layers behind the last one, with the embedding and the head again.
inline constexpr auto kHfMtp = std::to_array<DenseRow>({
    mtp_row("enorm.weight", DenseRole::MtpEmbeddingNorm),
    mtp_row("hnorm.weight", DenseRole::MtpHiddenNorm),
    mtp_row("eh_proj.weight", DenseRole::MtpProjection),
    mtp_row("shared_head.norm.weight", DenseRole::MtpFinalNorm),
    copy_row(Place::Mtp, "embed_tokens.weight", DenseRole::Embedding),
    copy_row(Place::Mtp, "shared_head.head.weight", DenseRole::Head),
});

// ---- programs and families alike ----------------------------------------------------------------

/// The vision tower of Kimi-K2.5, which is the same around either type of its language model.
inline constexpr BesideKey kKimiProjectorKeys[] = {
    {"pre_norm.{K}", "hidden_size"},
    {"proj.0.{K}"},
    {"proj.2.{K}", ".text_config.hidden_size, ?"},
};
inline constexpr BesideKey kKimiTowerKeys[] = {
    {"encoder.blocks.{N}.mlp.fc0.{K}", "intermediate_size, hidden_size"},
    {"encoder.blocks.{N}.mlp.fc1.{K}", "hidden_size, intermediate_size"},
    {"encoder.blocks.{N}.norm0.{K}", "hidden_size"},
    {"encoder.blocks.{N}.norm1.{K}", "hidden_size"},
    {"encoder.blocks.{N}.wo.{K}", "hidden_size, hidden_size"},
    {"encoder.blocks.{N}.wqkv.{K}", "3*hidden_size, hidden_size"},
    {"encoder.final_layernorm.{K}", "hidden_size"},
    {"patch_embed.pos_emb.weight", "pos_emb_height, pos_emb_width, hidden_size"},
    {"patch_embed.proj.{K}", "hidden_size, 3, patch_size, patch_size"},
};
inline constexpr BesidePart kKimiTower[] = {
    {"mm_projector.", "vision_config", kKimiProjectorKeys},
    {"vision_tower.", "vision_config", kKimiTowerKeys, "num_hidden_layers"},
};

/// The vision tower of Qwen3-VL and of what came after it.
inline constexpr BesideKey kQwenTowerKeys[] = {
    {"blocks.{N}.attn.proj.{K}", "hidden_size, hidden_size"},
    {"blocks.{N}.attn.qkv.{K}", "3*hidden_size, hidden_size"},
    {"blocks.{N}.mlp.linear_fc1.{K}", "intermediate_size, hidden_size"},
    {"blocks.{N}.mlp.linear_fc2.{K}", "hidden_size, intermediate_size"},
    {"blocks.{N}.norm1.{K}", "hidden_size"},
    {"blocks.{N}.norm2.{K}", "hidden_size"},
    {"patch_embed.proj.{K}", "hidden_size, in_channels, temporal_patch_size, patch_size, patch_size"},
    {"pos_embed.weight", "num_position_embeddings, hidden_size"},
};
/// The patches of a square that become one token, side by side.
inline constexpr std::string_view kMerged = "hidden_size*spatial_merge_size*spatial_merge_size";
inline constexpr std::string_view kMergedTwice =
    "hidden_size*spatial_merge_size*spatial_merge_size, hidden_size*spatial_merge_size*spatial_merge_size";
inline constexpr std::string_view kMergedOut = "out_hidden_size, hidden_size*spatial_merge_size*spatial_merge_size";
inline constexpr BesideKey kQwenMergerKeys[] = {
    {"merger.linear_fc1.{K}", kMergedTwice},
    {"merger.linear_fc2.{K}", kMergedOut},
    {"merger.norm.{K}", "hidden_size"},
};

/// Around a layer of multi-token prediction that has nothing else.
inline constexpr auto kPlainMtp = std::to_array<DenseRow>({
    mtp_row("enorm.weight", DenseRole::MtpEmbeddingNorm),
    mtp_row("hnorm.weight", DenseRole::MtpHiddenNorm),
    mtp_row("eh_proj.weight", DenseRole::MtpProjection),
    mtp_row("final_layernorm.weight", DenseRole::MtpFinalNorm),
});
/// The same around several layers inside.
inline constexpr auto kNestedMtp = std::to_array<DenseRow>({
    mtp_row("enorm.weight", DenseRole::MtpEmbeddingNorm, kMtpFirst),
    mtp_row("hnorm.weight", DenseRole::MtpHiddenNorm, kMtpFirst),
    mtp_row("eh_proj.weight", DenseRole::MtpProjection, kMtpFirst),
    mtp_row("final_layernorm.weight", DenseRole::MtpFinalNorm, kMtpLast),
});
/// What mamba_ssm's mixer is called everywhere.
inline constexpr auto kMambaMixer = std::to_array<DenseRow>({
    layer_row("mixer.A_log", DenseRole::MambaDecay, kMamba),
    layer_row("mixer.D", DenseRole::MambaSkip, kMamba),
    layer_row("mixer.dt_bias", DenseRole::MambaTimeBias, kMamba),
    layer_row("mixer.norm.weight", DenseRole::MambaNorm, kMamba),
    layer_row("mixer.out_proj.weight", DenseRole::MambaOut, kMamba),
});

/// Qwen3-Next: q_proj holds, head by head, the rows of q and of the gate.
inline constexpr DenseRole kQAndGate[] = {DenseRole::Q, DenseRole::QGate};
inline constexpr DenseRole kDeltaQkvz[] = {DenseRole::DeltaQ, DenseRole::DeltaK, DenseRole::DeltaV, DenseRole::DeltaZ};
inline constexpr DenseRole kDeltaQkv[] = {DenseRole::DeltaQ, DenseRole::DeltaK, DenseRole::DeltaV};
inline constexpr DenseRole kDeltaBa[] = {DenseRole::DeltaBeta, DenseRole::DeltaAlpha};
inline constexpr DenseRole kConvQkv[] = {DenseRole::ConvQ, DenseRole::ConvK, DenseRole::ConvV};
inline constexpr auto kHfGatedAttention = std::to_array<DenseRow>({
    fused_row("self_attn.q_proj.{K}", kQAndGate, Groups::Heads, kGrouped),
    layer_row("self_attn.k_proj.{K}", DenseRole::K, kGrouped),
    layer_row("self_attn.v_proj.{K}", DenseRole::V, kGrouped),
    layer_row("self_attn.o_proj.{K}", DenseRole::AttentionOut, kGrouped),
    layer_row("self_attn.q_norm.weight", DenseRole::QNorm, kGrouped),
    layer_row("self_attn.k_norm.weight", DenseRole::KNorm, kGrouped),
});
inline constexpr auto kHfDelta = std::to_array<DenseRow>({
    fused_row("linear_attn.conv1d.weight", kConvQkv, Groups::One, kDelta, Form::Conv),
    layer_row("linear_attn.A_log", DenseRole::DeltaDecay, kDelta),
    layer_row("linear_attn.dt_bias", DenseRole::DeltaTimeBias, kDelta),
    {Place::Layer,
     "linear_attn.norm.weight",
     {DenseRole::DeltaNorm},
     1,
     kDelta,
     false,
     Groups::One,
     Form::Plain,
     ComputeOp::SubtractOne},
    layer_row("linear_attn.out_proj.weight", DenseRole::DeltaOut, kDelta),
});
inline constexpr auto kQwen3NextMtp = std::to_array<DenseRow>({
    mtp_row("pre_fc_norm_embedding.weight", DenseRole::MtpEmbeddingNorm),
    mtp_row("pre_fc_norm_hidden.weight", DenseRole::MtpHiddenNorm),
    mtp_row("fc.weight", DenseRole::MtpProjection),
    mtp_row("norm.weight", DenseRole::MtpFinalNorm),
});

/// One tensor for all experts, of gate and up and of down, beside a shared expert.
constexpr Naming packed_beside_shared(std::string_view name, std::span<const std::string_view> in_memory_of = {}) {
  return {.name = name,
          .in_memory_of = in_memory_of,
          .stacks = kHfStacks,
          .indexed = kProjIndexed,
          .grouped = kProjGrouped,
          .shared = kSharedExperts,
          .fused_glu = Glu::Kind::Contiguous,
          .native_grouped_fused = true,
          .mtp_follows_decoder = true,
          .router = "mlp.gate.weight"};
}

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

inline constexpr std::string_view kWideNormNeed =
    "its q and k norms span all heads, for which Megatron-Core's GPTModel needs the layer spec of Megatron-Bridge";

}  // namespace glu_ckpt
