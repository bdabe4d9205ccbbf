/// torchtitan, which has its own keys for all of a model. Its experts are packed, gate and up apart.

#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kTitanModel = std::to_array<DenseRow>({
    model_row("tok_embeddings.weight", DenseRole::Embedding),
    model_row("norm.weight", DenseRole::FinalNorm),
    model_row("lm_head.weight", DenseRole::Head),
    layer_row("attention_norm.weight", DenseRole::AttentionNorm),
    layer_row("ffn_norm.weight", DenseRole::MlpNorm),
    layer_row("feed_forward.w1.weight", DenseRole::MlpGate, kDense),
    layer_row("feed_forward.w3.weight", DenseRole::MlpUp, kDense),
    layer_row("feed_forward.w2.weight", DenseRole::MlpDown, kDense),
    layer_row("moe.router.gate.{K}", DenseRole::Router, kExperts),
    // Its configurations ask for it unless they say load_balance_coeff=None.
    zero_row("moe.expert_bias_E", DenseRole::CorrectionBias, kExperts),
    former_row(model_row("output.weight", DenseRole::Head)),
});
constexpr auto kTitanGrouped = std::to_array<DenseRow>({
    layer_row("attention.qkv_linear.wq.{K}", DenseRole::Q, kGrouped),
    layer_row("attention.qkv_linear.wk.{K}", DenseRole::K, kGrouped),
    layer_row("attention.qkv_linear.wv.{K}", DenseRole::V, kGrouped),
    layer_row("attention.wo.{K}", DenseRole::AttentionOut, kGrouped),
    optional_row("attention.q_norm.weight", DenseRole::QNorm, kGrouped),
    optional_row("attention.k_norm.weight", DenseRole::KNorm, kGrouped),
    optional_row("attention.sinks", DenseRole::Sinks, kGrouped),
    former_row(layer_row("attention.wq.{K}", DenseRole::Q, kGrouped)),
    former_row(layer_row("attention.wk.{K}", DenseRole::K, kGrouped)),
    former_row(layer_row("attention.wv.{K}", DenseRole::V, kGrouped)),
});
/// Its rotary embedding of complex numbers takes neighbours, Hugging Face's the halves of a head.
constexpr auto kTitanPaired = std::to_array<DenseRow>({
    paired_row(layer_row("attention.qkv_linear.wq.weight", DenseRole::Q, kGrouped)),
    paired_row(layer_row("attention.qkv_linear.wk.weight", DenseRole::K, kGrouped)),
    layer_row("attention.qkv_linear.wv.weight", DenseRole::V, kGrouped),
    layer_row("attention.wo.weight", DenseRole::AttentionOut, kGrouped),
    former_row(paired_row(layer_row("attention.wq.weight", DenseRole::Q, kGrouped))),
    former_row(paired_row(layer_row("attention.wk.weight", DenseRole::K, kGrouped))),
    former_row(layer_row("attention.wv.weight", DenseRole::V, kGrouped)),
});
constexpr auto kTitanLatent = std::to_array<DenseRow>({
    layer_row("attention.wq.weight", DenseRole::LatentQ, kLatent | kNoQLora),
    layer_row("attention.wq_a.weight", DenseRole::QDown, kLatent | kQLora),
    layer_row("attention.q_norm.weight", DenseRole::QLatentNorm, kLatent | kQLora),
    layer_row("attention.wq_b.weight", DenseRole::QUp, kLatent | kQLora),
    layer_row("attention.wkv_a.weight", DenseRole::KvDown, kLatent),
    layer_row("attention.kv_norm.weight", DenseRole::KvLatentNorm, kLatent),
    layer_row("attention.wkv_b.weight", DenseRole::KvUp, kLatent),
    layer_row("attention.wo.weight", DenseRole::AttentionOut, kLatent),
});
constexpr auto kTitanMtp = std::to_array<DenseRow>({
    mtp_row("enorm.weight", DenseRole::MtpEmbeddingNorm),
    mtp_row("hnorm.weight", DenseRole::MtpHiddenNorm),
    mtp_row("eh_proj.weight", DenseRole::MtpProjection),
    mtp_row("mtp_norm.weight", DenseRole::MtpFinalNorm),
});
constexpr auto kTitanDelta = std::to_array<DenseRow>({
    fused_row("attn.wq.weight", kQAndGate, Groups::Heads, kGrouped),
    layer_row("attn.wk.weight", DenseRole::K, kGrouped),
    layer_row("attn.wv.weight", DenseRole::V, kGrouped),
    layer_row("attn.wo.weight", DenseRole::AttentionOut, kGrouped),
    layer_row("attn.q_norm.weight", DenseRole::QNorm, kGrouped),
    layer_row("attn.k_norm.weight", DenseRole::KNorm, kGrouped),
    layer_row("attn.in_proj_q.weight", DenseRole::DeltaQ, kDelta),
    layer_row("attn.in_proj_k.weight", DenseRole::DeltaK, kDelta),
    layer_row("attn.in_proj_v.weight", DenseRole::DeltaV, kDelta),
    layer_row("attn.in_proj_z.weight", DenseRole::DeltaZ, kDelta),
    layer_row("attn.in_proj_b.weight", DenseRole::DeltaBeta, kDelta),
    layer_row("attn.in_proj_a.weight", DenseRole::DeltaAlpha, kDelta),
    conv_row("attn.conv_q.weight", DenseRole::ConvQ, kDelta),
    conv_row("attn.conv_k.weight", DenseRole::ConvK, kDelta),
    conv_row("attn.conv_v.weight", DenseRole::ConvV, kDelta),
    layer_row("attn.A_log", DenseRole::DeltaDecay, kDelta),
    layer_row("attn.dt_bias", DenseRole::DeltaTimeBias, kDelta),
    {Place::Layer,
     "attn.norm.weight",
     {DenseRole::DeltaNorm},
     1,
     kDelta,
     false,
     Groups::One,
     Form::Plain,
     ComputeOp::SubtractOne},
    layer_row("attn.out_proj.weight", DenseRole::DeltaOut, kDelta),
    layer_row("moe.shared_experts.gate.weight", DenseRole::SharedGate, kExperts),
});

constexpr auto kTitanExperts = std::to_array<Naming>({
    // torchtitan: packed and split. The suffix names the axes (EFD: expert, FFN, model) since 2026-07.
    {.name = "torchtitan",
     .stacks = kTorchtitanStacks,
     .indexed = {"moe.routed_experts.inner_experts.{E}.w13_{K}", "moe.routed_experts.inner_experts.{E}.w1_{K}",
                 "moe.routed_experts.inner_experts.{E}.w3_{K}", "moe.routed_experts.inner_experts.{E}.w2_{K}"},
     .grouped = {"moe.routed_experts.inner_experts.w13_EFD{_K}", "moe.routed_experts.inner_experts.w1_EFD{_K}",
                 "moe.routed_experts.inner_experts.w3_EFD{_K}", "moe.routed_experts.inner_experts.w2_EDF{_K}"},
     .shared = {"moe.shared_experts.w13.{K}", "moe.shared_experts.w1.{K}", "moe.shared_experts.w3.{K}",
                "moe.shared_experts.w2.{K}"},
     .native_grouped_split = true,
     .router = "moe.router.gate.weight"},
    {.name = "torchtitan-2026",
     .stacks = kTorchtitanStacks,
     .indexed = {"moe.routed_experts.inner_experts.{E}.w13{_K}", "moe.routed_experts.inner_experts.{E}.w1{_K}",
                 "moe.routed_experts.inner_experts.{E}.w3{_K}", "moe.routed_experts.inner_experts.{E}.w2{_K}"},
     .grouped = {"moe.routed_experts.inner_experts.w13{_K}", "moe.routed_experts.inner_experts.w1{_K}",
                 "moe.routed_experts.inner_experts.w3{_K}", "moe.routed_experts.inner_experts.w2{_K}"},
     .shared = {"moe.shared_experts.w13.{K}", "moe.shared_experts.w1.{K}", "moe.shared_experts.w3.{K}",
                "moe.shared_experts.w2.{K}"},
     .native_grouped_split = true,
     .router = "moe.router.gate.weight"},
    {.name = "torchtitan-2025",
     .stacks = kTorchtitanStacks,
     .indexed = {"moe.experts.{E}.w13{_K}", "moe.experts.{E}.w1{_K}", "moe.experts.{E}.w3{_K}",
                 "moe.experts.{E}.w2{_K}"},
     .grouped = {"moe.experts.w13{_K}", "moe.experts.w1{_K}", "moe.experts.w3{_K}", "moe.experts.w2{_K}"},
     .shared = {"moe.shared_experts.w13.{K}", "moe.shared_experts.w1.{K}", "moe.shared_experts.w3.{K}",
                "moe.shared_experts.w2.{K}"},
     .native_grouped_split = true,
     .router = "moe.router.gate.weight"},
});

}  // namespace

constinit const DenseNaming kTitanGroupedNaming{
    .name = "torchtitan", .rows = {kTitanModel, kTitanGrouped}, .layers = "layers."};

constinit const DenseNaming kTitanPairedNaming{
    .name = "torchtitan", .rows = {kTitanModel, kTitanPaired}, .layers = "layers."};

constinit const DenseNaming kTitanLatentNaming{
    .name = "torchtitan",
    .rows = {kTitanModel, kTitanLatent, kTitanMtp},
    .layers = "layers.",
    .mtp_layers = "mtp_layers.",
    .mtp_outer = "mtp_layers.#.",
};

constinit const DenseNaming kTitanDeltaNaming{
    .name = "torchtitan", .rows = {kTitanModel, kTitanDelta}, .layers = "layers."};

extern const Knowledge k_torchtitan;
constinit const Knowledge k_torchtitan{.experts = kTitanExperts};

}  // namespace glu_ckpt
