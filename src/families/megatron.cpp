/// Megatron-Core's GPTModel and HybridModel, as torch_dist has them with TransformerEngine's modules.

#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr DenseRole kQkv[] = {DenseRole::Q, DenseRole::K, DenseRole::V};
constexpr DenseRole kGatedQkv[] = {DenseRole::Q, DenseRole::QGate, DenseRole::K, DenseRole::V};
constexpr DenseRole kMlpGateUp[] = {DenseRole::MlpGate, DenseRole::MlpUp};
constexpr auto kMegatronRows = std::to_array<DenseRow>({
    model_row("embedding.word_embeddings.weight", DenseRole::Embedding),
    model_row("decoder.final_layernorm.weight", DenseRole::FinalNorm),
    model_row("output_layer.weight", DenseRole::Head),
    layer_row("self_attention.linear_qkv.layer_norm_weight", DenseRole::AttentionNorm, kGrouped),
    layer_row("input_layernorm.weight", DenseRole::AttentionNorm, kLatent),
    layer_row("self_attention.in_proj.layer_norm_weight", DenseRole::AttentionNorm, kDelta),
    layer_row("pre_mlp_layernorm.weight", DenseRole::MlpNorm, kExperts),
    layer_row("mlp.linear_fc1.layer_norm_weight", DenseRole::MlpNorm, kDense),
    fused_row("self_attention.linear_qkv.{K}", kQkv, Groups::KvHeads, kGrouped | kUngated),
    fused_row("self_attention.linear_qkv.{K}", kGatedQkv, Groups::KvHeads, kGrouped | kGated),
    optional_row("self_attention.q_layernorm.weight", DenseRole::QNorm, kGrouped | kHeadNorms),
    optional_row("self_attention.k_layernorm.weight", DenseRole::KNorm, kGrouped | kHeadNorms),
    optional_row("self_attention.q_layernorm.weight", DenseRole::WideQNorm, kGrouped | kWideNorms),
    optional_row("self_attention.k_layernorm.weight", DenseRole::WideKNorm, kGrouped | kWideNorms),
    optional_row("self_attention.core_attention.softmax_offset", DenseRole::Sinks, kGrouped),
    layer_row("self_attention.linear_proj.{K}", DenseRole::AttentionOut, kGrouped | kLatent),
    layer_row("mlp.linear_fc2.weight", DenseRole::MlpDown, kDense),
    fused_row("mlp.linear_fc1.weight", kMlpGateUp, Groups::GluBlocks, kDense),
    layer_row("mlp.router.{K}", DenseRole::Router, kExperts),
    optional_row("mlp.router.expert_bias", DenseRole::CorrectionBias, kExperts),
    optional_row("mlp.shared_experts.gate_weight", DenseRole::SharedGate, kExperts),
    // The local spec, without TransformerEngine, has norms by themselves.
    former_row(layer_row("input_layernorm.weight", DenseRole::AttentionNorm, kGrouped | kDelta)),
    former_row(layer_row("pre_mlp_layernorm.weight", DenseRole::MlpNorm, kDense)),
});
constexpr auto kMegatronLatent = std::to_array<DenseRow>({
    layer_row("self_attention.linear_q_proj.weight", DenseRole::LatentQ, kLatent | kNoQLora),
    layer_row("self_attention.linear_q_down_proj.weight", DenseRole::QDown, kLatent | kQLora),
    layer_row("self_attention.linear_q_up_proj.layer_norm_weight", DenseRole::QLatentNorm,
              kLatent | kQLora | kNotSparse),
    layer_row("self_attention.linear_q_up_proj.weight", DenseRole::QUp, kLatent | kQLora),
    layer_row("self_attention.linear_kv_down_proj.weight", DenseRole::KvDown, kLatent),
    layer_row("self_attention.linear_kv_up_proj.layer_norm_weight", DenseRole::KvLatentNorm, kLatent | kNotSparse),
    layer_row("self_attention.linear_kv_up_proj.weight", DenseRole::KvUp, kLatent),
    former_row(layer_row("self_attention.q_layernorm.weight", DenseRole::QLatentNorm, kLatent | kQLora | kNotSparse)),
    former_row(layer_row("self_attention.kv_layernorm.weight", DenseRole::KvLatentNorm, kLatent | kNotSparse)),
    layer_row("self_attention.q_layernorm.weight", DenseRole::QLatentNorm, kSparse),
    layer_row("self_attention.kv_layernorm.weight", DenseRole::KvLatentNorm, kSparse),
    layer_row("self_attention.core_attention.indexer.linear_wq_b.weight", DenseRole::IndexerQ, kIndexer),
    layer_row("self_attention.core_attention.indexer.linear_wk.weight", DenseRole::IndexerK, kIndexer),
    layer_row("self_attention.core_attention.indexer.k_norm.weight", DenseRole::IndexerKNorm, kIndexer),
    layer_row("self_attention.core_attention.indexer.k_norm.bias", DenseRole::IndexerKNormBias, kIndexer),
    layer_row("self_attention.core_attention.indexer.linear_weights_proj.weight", DenseRole::IndexerWeights, kIndexer),
});
constexpr auto kMegatronDelta = std::to_array<DenseRow>({
    layer_row("self_attention.in_proj.weight.query", DenseRole::DeltaQ, kDelta),
    layer_row("self_attention.in_proj.weight.key", DenseRole::DeltaK, kDelta),
    layer_row("self_attention.in_proj.weight.value", DenseRole::DeltaV, kDelta),
    layer_row("self_attention.in_proj.weight.z", DenseRole::DeltaZ, kDelta),
    layer_row("self_attention.in_proj.weight.beta", DenseRole::DeltaBeta, kDelta),
    layer_row("self_attention.in_proj.weight.alpha", DenseRole::DeltaAlpha, kDelta),
    conv_row("self_attention.conv1d.weight.query", DenseRole::ConvQ, kDelta),
    conv_row("self_attention.conv1d.weight.key", DenseRole::ConvK, kDelta),
    conv_row("self_attention.conv1d.weight.value", DenseRole::ConvV, kDelta),
    layer_row("self_attention.A_log", DenseRole::DeltaDecay, kDelta),
    layer_row("self_attention.dt_bias", DenseRole::DeltaTimeBias, kDelta),
    layer_row("self_attention.out_norm.weight", DenseRole::DeltaNorm, kDelta),
    layer_row("self_attention.out_proj.weight", DenseRole::DeltaOut, kDelta),
});
}  // namespace

extern constinit const DenseNaming kMegatronGptNaming{
    .name = "megatron",
    .rows = {kMegatronRows, kMegatronLatent, kMegatronDelta, kPlainMtp},
    .layers = "decoder.layers.",
    .mtp_layers = "mtp.layers.",
    .mtp_inner = ".transformer_layer.",
    .mtp_outer = "mtp.layers.#.",
    .mtp_inner_too = ".mtp_model_layer.",
    .stacks_layers = true,
    .pads_vocabulary = true,
};

namespace {

constexpr auto kMegatronHybrid = std::to_array<DenseRow>({
    model_row("embedding.word_embeddings.weight", DenseRole::Embedding),
    model_row("decoder.final_norm.weight", DenseRole::FinalNorm),
    model_row("output_layer.weight", DenseRole::Head),
    layer_row("self_attention.linear_qkv.layer_norm_weight", DenseRole::AttentionNorm, kGrouped),
    layer_row("mixer.in_proj.layer_norm_weight", DenseRole::AttentionNorm, kMamba),
    layer_row("pre_mlp_layernorm.weight", DenseRole::MlpNorm, kExperts),
    layer_row("mlp.linear_fc1.layer_norm_weight", DenseRole::MlpNorm, kDense),
    fused_row("self_attention.linear_qkv.weight", kQkv, Groups::KvHeads, kGrouped),
    layer_row("self_attention.linear_proj.weight", DenseRole::AttentionOut, kGrouped),
    layer_row("mlp.linear_fc1.weight", DenseRole::MlpUp, kDense),
    layer_row("mlp.linear_fc2.weight", DenseRole::MlpDown, kDense),
    layer_row("mlp.router.weight", DenseRole::Router, kExperts),
    optional_row("mlp.router.expert_bias", DenseRole::CorrectionBias, kExperts),
    layer_row("mlp.fc1_latent_proj.weight", DenseRole::ExpertsDown, kExperts | kExpertLatent),
    layer_row("mlp.fc2_latent_proj.weight", DenseRole::ExpertsUp, kExperts | kExpertLatent),
});
constexpr auto kMegatronMamba = std::to_array<DenseRow>({
    layer_row("mixer.in_proj.weight.z", DenseRole::MambaZ, kMamba),
    layer_row("mixer.in_proj.weight.x", DenseRole::MambaX, kMamba),
    layer_row("mixer.in_proj.weight.B", DenseRole::MambaB, kMamba),
    layer_row("mixer.in_proj.weight.C", DenseRole::MambaC, kMamba),
    layer_row("mixer.in_proj.weight.dt", DenseRole::MambaTime, kMamba),
    conv_row("mixer.conv1d.{K}.x", DenseRole::MambaConvX, kMamba),
    conv_row("mixer.conv1d.{K}.B", DenseRole::MambaConvB, kMamba),
    conv_row("mixer.conv1d.{K}.C", DenseRole::MambaConvC, kMamba),
});

}  // namespace

extern constinit const DenseNaming kMegatronHybridNaming{
    .name = "megatron",
    .rows = {kMegatronHybrid, kMegatronMamba, kMambaMixer, kNestedMtp},
    .layers = "decoder.layers.",
    .mtp_layers = "mtp.layers.",
    .mtp_inner = ".mtp_model_layer.layers.",
    .mtp_outer = "mtp.layers.#.",
    .mtp_nests = true,
    .pads_vocabulary = true,
};

namespace {

constexpr auto kMegatronExperts = std::to_array<Naming>({
    // Megatron-Core TEGroupedMLP, state_dict keys. Nothing on disk says in which order FC1's rows are.
    // `_w` and `_v` are Megatron's own words for the two halves (singleton shards, fsdp_dtensor).
    {.name = "megatron",
     .stacks = kMegatronStacks,
     .indexed = {"mlp.experts.linear_fc1.{K}{E}", "mlp.experts.linear_fc1.{K}{E}_w", "mlp.experts.linear_fc1.{K}{E}_v",
                 "mlp.experts.linear_fc2.{K}{E}"},
     .grouped = {"mlp.experts.linear_fc1.{K}", "mlp.experts.linear_fc1.{K}_w", "mlp.experts.linear_fc1.{K}_v",
                 "mlp.experts.linear_fc2.{K}"},
     .shared = {"mlp.shared_experts.linear_fc1.{K}", "mlp.shared_experts.linear_fc1.{K}_w",
                "mlp.shared_experts.linear_fc1.{K}_v", "mlp.shared_experts.linear_fc2.{K}"},
     .native_indexed_split = true,
     .native_indexed_fused = true,
     .native_grouped_fused = true,
     .native_shared_fused = true,
     .plain_fc1_is_fused = true,
     .halves_by_position = true,
     .counts_in_process = true,
     .reads_flat = true,
     .router = "mlp.router.weight"},
    // Megatron-Core SequentialMLP.
    {.name = "megatron-sequential",
     .stacks = kMegatronStacks,
     .indexed = {"mlp.experts.local_experts.{E}.linear_fc1.{K}", "mlp.experts.local_experts.{E}.linear_fc1.{K}_w",
                 "mlp.experts.local_experts.{E}.linear_fc1.{K}_v", "mlp.experts.local_experts.{E}.linear_fc2.{K}"},
     .grouped = {"mlp.experts.local_experts.linear_fc1.{K}", "mlp.experts.local_experts.linear_fc1.{K}_w",
                 "mlp.experts.local_experts.linear_fc1.{K}_v", "mlp.experts.local_experts.linear_fc2.{K}"},
     .shared = {"mlp.shared_experts.linear_fc1.{K}", "mlp.shared_experts.linear_fc1.{K}_w",
                "mlp.shared_experts.linear_fc1.{K}_v", "mlp.shared_experts.linear_fc2.{K}"},
     .native_indexed_fused = true,
     .native_shared_fused = true,
     .plain_fc1_is_fused = true,
     .halves_by_position = true,
     .counts_in_process = true,
     .reads_flat = true,
     .router = "mlp.router.weight"},
    // Megatron-Core torch_dist: one key for all experts, and for all layers where they are alike. The indexed
    // form is that of singleton_local_shards.
    {.name = "megatron-dist",
     .stacks = kMegatronStacks,
     .indexed = {"mlp.experts.experts.{E}.linear_fc1.{K}", "mlp.experts.experts.{E}.linear_fc1.{K}_w",
                 "mlp.experts.experts.{E}.linear_fc1.{K}_v", "mlp.experts.experts.{E}.linear_fc2.{K}"},
     .grouped = {"mlp.experts.experts.linear_fc1.{K}", "mlp.experts.experts.linear_fc1.{K}_w",
                 "mlp.experts.experts.linear_fc1.{K}_v", "mlp.experts.experts.linear_fc2.{K}"},
     .shared = {"mlp.shared_experts.linear_fc1.{K}", "mlp.shared_experts.linear_fc1.{K}_w",
                "mlp.shared_experts.linear_fc1.{K}_v", "mlp.shared_experts.linear_fc2.{K}"},
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .native_shared_fused = true,
     .plain_fc1_is_fused = true,
     .halves_by_position = true,
     .stacks_layers = true,
     .reads_flat = true,
     .router = "mlp.router.weight"},
});

}  // namespace

extern const Knowledge k_megatron;
constinit const Knowledge k_megatron{.experts = kMegatronExperts};

}  // namespace glu_ckpt
