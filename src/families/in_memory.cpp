/// Families that transformers 5 holds in memory under other words than the hub's (its conversion_mapping.py), and saves
/// so with save_original_format=False. Those whose experts alone become one tensor, under the hub's words, are in the
/// hub's rows.

#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kMixtralInMemory = std::to_array<std::string_view>({"mixtral", "minimax", "minimax_m2", "phimoe"});
constexpr auto kFeedForwardInMemory = std::to_array<std::string_view>({"jamba", "lfm2_moe"});
constexpr auto kGraniteInMemory =
    std::to_array<std::string_view>({"granitemoe", "granitemoeshared", "granitemoehybrid"});
constexpr auto kDeepseekV4InMemory = std::to_array<std::string_view>({"deepseek_v4"});
constexpr auto kNemotronInMemory = std::to_array<std::string_view>({"nemotron_h"});
constexpr auto kMemoryStacks = std::to_array<StackPrefix>({{"decoder", "model.layers."}});
constexpr auto kSharedExpertsInMemory = std::to_array<std::string_view>({"hy_v3", "laguna"});

constexpr auto kInMemoryExperts = std::to_array<Naming>({
    {.name = "hf:mixtral-v5",
     .in_memory_of = kMixtralInMemory,
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:jamba-v5",
     .in_memory_of = kFeedForwardInMemory,
     .stacks = kHfStacks,
     .indexed = kFeedForwardIndexed,
     .grouped = kFeedForwardGrouped,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "feed_forward.router.weight"},
    {.name = "hf:granitemoe-v5",
     .in_memory_of = kGraniteInMemory,
     .stacks = kHfStacks,
     .indexed = {"block_sparse_moe.experts.{E}.gate_up_proj{_K}", "block_sparse_moe.experts.{E}.gate_proj{_K}",
                 "block_sparse_moe.experts.{E}.up_proj{_K}", "block_sparse_moe.experts.{E}.down_proj{_K}"},
     .grouped = {"block_sparse_moe.experts.gate_up_proj{_K}", "block_sparse_moe.experts.gate_proj{_K}",
                 "block_sparse_moe.experts.up_proj{_K}", "block_sparse_moe.experts.down_proj{_K}"},
     .shared = {"shared_mlp.input_linear.{K}", "shared_mlp.gate_linear.{K}", "shared_mlp.up_linear.{K}",
                "shared_mlp.output_linear.{K}"},
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .native_shared_fused = true,
     .mtp_follows_decoder = true,
     .router = "block_sparse_moe.router.weight"},
    packed_beside_shared("hf:hy_v3-v5", kSharedExpertsInMemory),
    {.name = "hf:deepseek_v4-v5",
     .in_memory_of = kDeepseekV4InMemory,
     .stacks = kMemoryStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExperts,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:nemotron_h-v5",
     .in_memory_of = kNemotronInMemory,
     .stacks = kMemoryStacks,
     .indexed = kMixerIndexed,
     .grouped = kMixerGrouped,
     .shared = kMixerShared,
     .native_grouped_split = true,
     .router = "mixer.gate.weight"},
});

constexpr std::string_view kGateBias = ".mlp.gate.e_score_correction_bias";
constexpr auto kMemoryWords = std::to_array<MemoryWords>({
    {{"mixtral", "minimax", "minimax_m2"}, ".mlp.gate.weight", ".block_sparse_moe.gate.weight"},
    {{"minimax_m2"}, ".mlp.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias"},
    {{"phimoe"}, ".mlp.router.weight", ".block_sparse_moe.gate.weight"},
    {{"granitemoe", "granitemoeshared", "granitemoehybrid"},
     ".block_sparse_moe.router.weight",
     ".block_sparse_moe.router.layer.weight"},
    {{"ernie4_5_moe"}, ".mlp.gate.moe_statics.e_score_correction_bias", ".mlp.moe_statics.e_score_correction_bias"},
    {{"exaone_moe"}, kGateBias, ".mlp.e_score_correction_bias"},
    {{"hy_v3"}, ".mlp.gate.weight", ".mlp.router.gate.weight"},
    {{"hy_v3"}, ".mlp.e_score_correction_bias", ".mlp.expert_bias"},
    // transformers 5.24.0 saves it so: the turned round names of what sees take the text's layers with them.
    {{"kimi_k25"}, "^language_model.model.blocks.", "language_model.model.layers.", true},
    {{"kimi_k25"}, "^model.mm_projector.", "mm_projector."},
    {{"kimi_k25"}, "^vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."},
    {{"laguna"}, kGateBias, ".mlp.experts.e_score_correction_bias"},
    {{"axk1"}, ".mlp.post_mlp_layernorm.", ".post_mlp_layernorm."},
    {{"kolibri1"}, kGateBias, ".moe.router.expert_bias"},
    {{"kolibri1"}, ".post_self_attn_layernorm.", ".post_attn_norm."},
    {{"kolibri1"}, ".post_mlp_layernorm.", ".post_ffn_norm."},
    {{"mimo_v2_flash"}, ".self_attn.sinks", ".self_attn.attention_sink_bias"},
    {{"flint"}, ".self_attn.sinks", ".self_attn.softmax_offset"},
    {{"nemotron_h"}, "^model.", "backbone."},
    {{"deepseek_v4"}, ".self_attn.compressor.indexer.scorer.weights_proj.", ".attn.indexer.weights_proj."},
    {{"deepseek_v4"}, ".self_attn.compressor.indexer.q_b_proj.", ".attn.indexer.wq_b."},
    {{"deepseek_v4"}, ".self_attn.compressor.indexer.", ".attn.indexer.compressor."},
    {{"deepseek_v4"}, ".self_attn.sinks", ".attn.attn_sink"},
    {{"deepseek_v4"}, ".self_attn.q_b_proj.", ".attn.wq_b."},
    {{"deepseek_v4"}, ".self_attn.", ".attn."},
    {{"deepseek_v4"}, ".q_a_proj.", ".wq_a."},
    {{"deepseek_v4"}, ".q_a_norm.", ".q_norm."},
    {{"deepseek_v4"}, ".kv_proj.", ".wkv."},
    {{"deepseek_v4"}, ".o_a_proj.", ".wo_a."},
    {{"deepseek_v4"}, ".o_b_proj.", ".wo_b."},
    {{"deepseek_v4"}, ".compressor.gate_proj.", ".compressor.wgate."},
    {{"deepseek_v4"}, ".compressor.kv_norm.", ".compressor.norm."},
    {{"deepseek_v4"}, ".position_bias", ".ape"},
    {{"deepseek_v4"}, ".input_layernorm.", ".attn_norm."},
    {{"deepseek_v4"}, ".post_attention_layernorm.", ".ffn_norm."},
    {{"deepseek_v4"}, ".attn_hc.", ".hc_attn_"},
    {{"deepseek_v4"}, ".ffn_hc.", ".hc_ffn_"},
    {{"deepseek_v4"}, kGateBias, ".ffn.gate.bias"},
    {{"deepseek_v4"}, ".mlp.", ".ffn."},
    {{"deepseek_v4"}, "^model.hc_head.hc_", "hc_head_"},
    {{"deepseek_v4"}, "^model.embed_tokens.", "embed."},
    {{"deepseek_v4"}, "^model.", ""},
    {{"deepseek_v4"}, "^lm_head.", "head."},
});

}  // namespace

extern const Knowledge k_in_memory;
constinit const Knowledge k_in_memory{.experts = kInMemoryExperts, .memory_words = kMemoryWords};

}  // namespace glu_ckpt
