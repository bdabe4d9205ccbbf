#include "layout/layout_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "layout/key_pattern.hpp"

namespace glu_ckpt {
namespace {

using Names = PartNames;

// ---- stacks of layers -------------------------------------------------------------------------

constexpr auto kHfStacks = std::to_array<StackPrefix>({
    {"decoder", "model.layers."},
    {"decoder", "model.language_model.layers."},
    {"mtp", "mtp.layers."},
    {"decoder", "layers.", ".", true},
});
constexpr auto kHfMultimodalStacks = std::to_array<StackPrefix>({
    {"decoder", "model.language_model.layers."},
    {"decoder", "model.layers."},
    {"mtp", "mtp.layers."},
});
// DeepSeek-V4's own keys begin with the stack; other programs put `model.` in front.
constexpr auto kDeepseekV4Stacks = std::to_array<StackPrefix>({
    {"decoder", "layers.", ".", true},
    {"mtp", "mtp.", ".", true},
    {"decoder", "model.layers."},
    {"decoder", "model.language_model.layers."},
    {"mtp", "mtp.layers."},
});
constexpr auto kOmniStacks = std::to_array<StackPrefix>({
    {"decoder", "thinker.model.layers."},
    {"talker", "talker.model.layers."},
});
constexpr auto kMegatronStacks = std::to_array<StackPrefix>({
    {"decoder", "decoder.layers."},
    {"mtp", "mtp.layers.", ".transformer_layer."},
    {"mtp", "mtp.layers.", ".mtp_model_layer."},
    {"mtp", "mtp.layers.", ".mtp_model_layer.layers.", false, true},
});
constexpr auto kTorchtitanStacks = std::to_array<StackPrefix>({
    {"decoder", "layers.", ".", true},
    {"mtp", "mtp_layers.", ".", true},
});
constexpr auto kNemotronStacks = std::to_array<StackPrefix>({
    {"decoder", "backbone.layers."},
    {"decoder", "model.layers."},
    {"mtp", "mtp.layers."},
});

// ---- Hugging Face spellings -------------------------------------------------------------------
// Grouped forms of per-expert families are the ones transformers v5 keeps in memory.

constexpr Names kProjIndexed{"mlp.experts.{E}.gate_up_proj.{K}", "mlp.experts.{E}.gate_proj.{K}",
                             "mlp.experts.{E}.up_proj.{K}", "mlp.experts.{E}.down_proj.{K}"};
constexpr Names kProjGrouped{"mlp.experts.gate_up_proj{_K}", "mlp.experts.gate_proj{_K}", "mlp.experts.up_proj{_K}",
                             "mlp.experts.down_proj{_K}"};
constexpr Names kSharedExperts{"mlp.shared_experts.gate_up_proj.{K}", "mlp.shared_experts.gate_proj.{K}",
                               "mlp.shared_experts.up_proj.{K}", "mlp.shared_experts.down_proj.{K}"};
constexpr Names kSharedExpert{"mlp.shared_expert.gate_up_proj.{K}", "mlp.shared_expert.gate_proj.{K}",
                              "mlp.shared_expert.up_proj.{K}", "mlp.shared_expert.down_proj.{K}"};
constexpr Names kSharedMlp{"mlp.shared_mlp.gate_up_proj.{K}", "mlp.shared_mlp.gate_proj.{K}",
                           "mlp.shared_mlp.up_proj.{K}", "mlp.shared_mlp.down_proj.{K}"};
constexpr Names kSparseIndexed{"block_sparse_moe.experts.{E}.w13.{K}", "block_sparse_moe.experts.{E}.w1.{K}",
                               "block_sparse_moe.experts.{E}.w3.{K}", "block_sparse_moe.experts.{E}.w2.{K}"};
constexpr Names kSparseGrouped{"block_sparse_moe.experts.w13{_K}", "block_sparse_moe.experts.w1{_K}",
                               "block_sparse_moe.experts.w3{_K}", "block_sparse_moe.experts.w2{_K}"};
constexpr Names kSparseShared{
    "block_sparse_moe.shared_experts.gate_up_proj.{K}", "block_sparse_moe.shared_experts.gate_proj.{K}",
    "block_sparse_moe.shared_experts.up_proj.{K}", "block_sparse_moe.shared_experts.down_proj.{K}"};
constexpr Names kFeedForwardIndexed{"feed_forward.experts.{E}.gate_up_proj.{K}",
                                    "feed_forward.experts.{E}.gate_proj.{K}", "feed_forward.experts.{E}.up_proj.{K}",
                                    "feed_forward.experts.{E}.down_proj.{K}"};
constexpr Names kFeedForwardGrouped{"feed_forward.experts.gate_up_proj{_K}", "feed_forward.experts.gate_proj{_K}",
                                    "feed_forward.experts.up_proj{_K}", "feed_forward.experts.down_proj{_K}"};
constexpr Names kFeedForwardShared{"feed_forward.shared_expert.gate_up_proj.{K}",
                                   "feed_forward.shared_expert.gate_proj.{K}", "feed_forward.shared_expert.up_proj.{K}",
                                   "feed_forward.shared_expert.down_proj.{K}"};
// Packed families store no `.weight`: their indexed forms are spelled without it too, so that the
// two orientations never share a key.
constexpr Names kPackedIndexed{"mlp.experts.{E}.gate_up_proj{_K}", "mlp.experts.{E}.gate_proj{_K}",
                               "mlp.experts.{E}.up_proj{_K}", "mlp.experts.{E}.down_proj{_K}"};

constexpr auto kQwen3Types = std::to_array<std::string_view>({"olmoe", "mellum", "flex_olmo"});
constexpr auto kQwen2Types = std::to_array<std::string_view>({"qwen3_next", "laguna"});
constexpr auto kDeepseekTypes = std::to_array<std::string_view>(
    {"deepseek_v2", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe", "dots1", "solar_open",
     "kimi_k2", "cohere2_moe", "afmoe", "exaone_moe", "longcat_flash", "ernie4_5_moe", "ernie4_5_moe_vl", "bailing_moe",
     "bailing_moe_v2"});
constexpr auto kHunyuanTypes = std::to_array<std::string_view>({"hy_v3"});
constexpr auto kMixtralTypes =
    std::to_array<std::string_view>({"phimoe", "minimax", "minimax_m2", "minimax_m3", "minimax_m3_vl", "kimi_k3"});
constexpr auto kQwen35Types = std::to_array<std::string_view>({"qwen3_5_moe_text"});
constexpr auto kLlama4Types = std::to_array<std::string_view>({"llama4"});
constexpr auto kGraniteTypes = std::to_array<std::string_view>({"granitemoeshared", "granitemoehybrid"});
constexpr auto kQwen3VlTypes = std::to_array<std::string_view>({"qwen3_vl_moe"});
constexpr auto kGemma4Types = std::to_array<std::string_view>({"gemma4_text"});
constexpr auto kNone = std::array<std::string_view, 0>{};

// ---- the table --------------------------------------------------------------------------------
// A new family is one row here and one tiny checkpoint (CONTRIBUTING.md). Where several rows explain
// the keys equally well, the first is reported.

constexpr auto kNamings = std::to_array<Naming>({
    // Megatron-Core TEGroupedMLP, state_dict keys. Nothing on disk says in which order FC1's rows are.
    // `_w` and `_v` are Megatron's own words for the two halves (singleton shards, fsdp_dtensor).
    {.name = "megatron",
     .model_types = kNone,
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
     .router = "mlp.router.weight"},
    // Megatron-Core SequentialMLP.
    {.name = "megatron-sequential",
     .model_types = kNone,
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
     .router = "mlp.router.weight"},
    // Megatron-Core torch_dist: one key for all experts, and for all layers where they are alike. The indexed
    // form is that of singleton_local_shards.
    {.name = "megatron-dist",
     .model_types = kNone,
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
     .router = "mlp.router.weight"},
    // Hugging Face, one tensor per expert and projection.
    {.name = "hf:qwen3_moe",
     .model_types = kQwen3Types,
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:qwen2_moe",
     .model_types = kQwen2Types,
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExpert,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:deepseek_v3",
     .model_types = kDeepseekTypes,
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExperts,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:hunyuan_v1_moe",
     .model_types = kHunyuanTypes,
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedMlp,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.wg.weight"},
    {.name = "hf:qwen3_omni_moe",
     .model_types = kNone,
     .stacks = kOmniStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExpert,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:mixtral",
     .model_types = kMixtralTypes,
     .stacks = kHfStacks,
     .indexed = kSparseIndexed,
     .grouped = kSparseGrouped,
     .shared = kSparseShared,
     .native_indexed_split = true,
     .mtp_follows_decoder = true,
     .router = "block_sparse_moe.gate.weight"},
    {.name = "hf:jamba",
     .model_types = kNone,
     .stacks = kHfStacks,
     .indexed = kFeedForwardIndexed,
     .grouped = {"feed_forward.experts.gate_up_proj.{K}", "feed_forward.experts.gate_proj.{K}",
                 "feed_forward.experts.up_proj.{K}", "feed_forward.experts.down_proj.{K}"},
     .native_indexed_split = true,
     .mtp_follows_decoder = true,
     .router = "feed_forward.router.weight"},
    {.name = "hf:lfm2_moe",
     .model_types = kNone,
     .stacks = kHfStacks,
     .indexed = {"feed_forward.experts.{E}.w13.{K}", "feed_forward.experts.{E}.w1.{K}",
                 "feed_forward.experts.{E}.w3.{K}", "feed_forward.experts.{E}.w2.{K}"},
     .grouped = {"feed_forward.experts.w13{_K}", "feed_forward.experts.w1{_K}", "feed_forward.experts.w3{_K}",
                 "feed_forward.experts.w2{_K}"},
     .native_indexed_split = true,
     .mtp_follows_decoder = true,
     .router = "feed_forward.gate.weight"},
    {.name = "hf:deepseek_v4",
     .model_types = kNone,
     .stacks = kDeepseekV4Stacks,
     .indexed = {"ffn.experts.{E}.w13.{K}", "ffn.experts.{E}.w1.{K}", "ffn.experts.{E}.w3.{K}",
                 "ffn.experts.{E}.w2.{K}"},
     .grouped = {"ffn.experts.w13{_K}", "ffn.experts.w1{_K}", "ffn.experts.w3{_K}", "ffn.experts.w2{_K}"},
     .shared = {"ffn.shared_experts.w13.{K}", "ffn.shared_experts.w1.{K}", "ffn.shared_experts.w3.{K}",
                "ffn.shared_experts.w2.{K}"},
     .native_indexed_split = true,
     .scale_word = "scale",
     .router = "ffn.gate.weight"},
    // Squared ReLU, no gate.
    {.name = "hf:nemotron_h",
     .model_types = kNone,
     .stacks = kNemotronStacks,
     .indexed = {"mixer.experts.{E}.gate_up_proj.{K}", "mixer.experts.{E}.gate_proj.{K}",
                 "mixer.experts.{E}.up_proj.{K}", "mixer.experts.{E}.down_proj.{K}"},
     .grouped = {"mixer.experts.gate_up_proj{_K}", "mixer.experts.gate_proj{_K}", "mixer.experts.up_proj{_K}",
                 "mixer.experts.down_proj{_K}"},
     .shared = {"mixer.shared_experts.gate_up_proj.{K}", "mixer.shared_experts.gate_proj.{K}",
                "mixer.shared_experts.up_proj.{K}", "mixer.shared_experts.down_proj.{K}"},
     .native_indexed_split = true,
     .native_grouped_split = true,
     .router = "mixer.gate.weight"},
    // Hugging Face, packed: one tensor for all experts.
    {.name = "hf:qwen3_5_moe",
     .model_types = kQwen35Types,
     .stacks = kHfMultimodalStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExpert,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
    // transformers v5 writes [E, 2F, H] and the hub release [E, H, 2F], transposed, under the same keys
    // and model_type; FC1 and FC2 together tell the two apart (recognize.cpp).
    {.name = "hf:qwen3_vl_moe",
     .model_types = kNone,
     .stacks = kHfMultimodalStacks,
     .indexed = kPackedIndexed,
     .grouped = kProjGrouped,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:qwen3_vl_moe-v5",
     .model_types = kQwen3VlTypes,
     .stacks = kHfMultimodalStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:mistral4",
     .model_types = kNone,
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExperts,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.weight"},
    {.name = "hf:gpt_oss",
     .model_types = kNone,
     .stacks = kHfStacks,
     .indexed = kPackedIndexed,
     .grouped = kProjGrouped,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Interleaved,
     .fused_block_rows = 1,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.weight"},
    // Keys and shapes of gpt-oss, another order: nothing but the family's name tells them apart.
    {.name = "hf:openai_privacy_filter",
     .model_types = kNone,
     .stacks = kHfStacks,
     .indexed = kPackedIndexed,
     .grouped = kProjGrouped,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.weight"},
    {.name = "hf:llama4_text",
     .model_types = kLlama4Types,
     .stacks = kHfStacks,
     .indexed = {"feed_forward.experts.{E}.gate_up_proj{_K}", "feed_forward.experts.{E}.gate_proj{_K}",
                 "feed_forward.experts.{E}.up_proj{_K}", "feed_forward.experts.{E}.down_proj{_K}"},
     .grouped = kFeedForwardGrouped,
     .shared = kFeedForwardShared,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "feed_forward.router.weight"},
    {.name = "hf:granitemoe",
     .model_types = kGraniteTypes,
     .stacks = kHfStacks,
     .indexed = {"block_sparse_moe.input_linear.{E}.{K}", "block_sparse_moe.gate_linear.{E}.{K}",
                 "block_sparse_moe.up_linear.{E}.{K}", "block_sparse_moe.output_linear.{E}.{K}"},
     .grouped = {"block_sparse_moe.input_linear.{K}", "block_sparse_moe.gate_linear.{K}",
                 "block_sparse_moe.up_linear.{K}", "block_sparse_moe.output_linear.{K}"},
     .shared = {"shared_mlp.input_linear.{K}", "shared_mlp.gate_linear.{K}", "shared_mlp.up_linear.{K}",
                "shared_mlp.output_linear.{K}"},
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .native_shared_fused = true,
     .mtp_follows_decoder = true,
     .router = "block_sparse_moe.router.layer.weight"},
    {.name = "hf:jetmoe",
     .model_types = kNone,
     .stacks = kHfStacks,
     .indexed = {"mlp.input_linear.{E}.{K}", "mlp.gate_linear.{E}.{K}", "mlp.up_linear.{E}.{K}",
                 "mlp.output_linear.{E}.{K}"},
     .grouped = {"mlp.input_linear.{K}", "mlp.gate_linear.{K}", "mlp.up_linear.{K}", "mlp.output_linear.{K}"},
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.layer.weight"},
    {.name = "hf:gemma4",
     .model_types = kGemma4Types,
     .stacks = kHfMultimodalStacks,
     .indexed = {"experts.{E}.gate_up_proj.{K}", "experts.{E}.gate_proj.{K}", "experts.{E}.up_proj.{K}",
                 "experts.{E}.down_proj.{K}"},
     .grouped = {"experts.gate_up_proj{_K}", "experts.gate_proj{_K}", "experts.up_proj{_K}", "experts.down_proj{_K}"},
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "router.proj.weight"},
    {.name = "hf:aria",
     .model_types = kNone,
     .stacks = kHfMultimodalStacks,
     .indexed = {"mlp.experts.{E}.fc1.{K}", "mlp.experts.{E}.fc1_gate.{K}", "mlp.experts.{E}.fc1_up.{K}",
                 "mlp.experts.{E}.fc2.{K}"},
     .grouped = {"mlp.experts.fc1.{K}", "mlp.experts.fc1_gate.{K}", "mlp.experts.fc1_up.{K}", "mlp.experts.fc2.{K}"},
     .shared = kSharedExperts,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.weight"},
    {.name = "hf:step3p5",
     .model_types = kNone,
     .stacks = kHfStacks,
     .indexed = {"moe.experts.{E}.gate_up_proj.{K}", "moe.experts.{E}.gate_proj.{K}", "moe.experts.{E}.up_proj.{K}",
                 "moe.experts.{E}.down_proj.{K}"},
     .grouped = {"moe.gate_up_proj.{K}", "moe.gate_proj.{K}", "moe.up_proj.{K}", "moe.down_proj.{K}"},
     .shared = {"share_expert.gate_up_proj.{K}", "share_expert.gate_proj.{K}", "share_expert.up_proj.{K}",
                "share_expert.down_proj.{K}"},
     .native_grouped_split = true,
     .mtp_follows_decoder = true,
     .router = "moe.gate.weight"},
    // torchtitan: packed and split. The suffix names the axes (EFD: expert, FFN, model) since 2026-07.
    {.name = "torchtitan",
     .model_types = kNone,
     .stacks = kTorchtitanStacks,
     .indexed = {"moe.routed_experts.inner_experts.{E}.w13_{K}", "moe.routed_experts.inner_experts.{E}.w1_{K}",
                 "moe.routed_experts.inner_experts.{E}.w3_{K}", "moe.routed_experts.inner_experts.{E}.w2_{K}"},
     .grouped = {"moe.routed_experts.inner_experts.w13_EFD{_K}", "moe.routed_experts.inner_experts.w1_EFD{_K}",
                 "moe.routed_experts.inner_experts.w3_EFD{_K}", "moe.routed_experts.inner_experts.w2_EDF{_K}"},
     .shared = {"moe.shared_experts.w13.{K}", "moe.shared_experts.w1.{K}", "moe.shared_experts.w3.{K}",
                "moe.shared_experts.w2.{K}"},
     .native_grouped_split = true,
     .router = "moe.router.gate.weight"},
    {.name = "torchtitan-2025",
     .model_types = kNone,
     .stacks = kTorchtitanStacks,
     .indexed = {"moe.experts.{E}.w13{_K}", "moe.experts.{E}.w1{_K}", "moe.experts.{E}.w3{_K}",
                 "moe.experts.{E}.w2{_K}"},
     .grouped = {"moe.experts.w13{_K}", "moe.experts.w1{_K}", "moe.experts.w3{_K}", "moe.experts.w2{_K}"},
     .shared = {"moe.shared_experts.w13.{K}", "moe.shared_experts.w1.{K}", "moe.shared_experts.w3.{K}",
                "moe.shared_experts.w2.{K}"},
     .native_grouped_split = true,
     .router = "moe.router.gate.weight"},
});

std::string native_glu_text(const Naming& naming) {
  std::vector<std::string> forms;
  if (naming.native_indexed_split || naming.native_grouped_split) forms.emplace_back("split");
  if (naming.native_grouped_fused || naming.native_indexed_fused)
    forms.push_back(naming.fused_glu == Glu::Kind::Unknown ? "contiguous or interleaved:K"
                                                           : to_string(fixed_glu(naming)));
  return fmt::format("{}", fmt::join(forms, ", "));
}

}  // namespace

std::span<const Naming> namings() { return kNamings; }

std::string print_stack(const StackPrefix& prefix, std::string_view layer, std::string_view outer) {
  if (prefix.nested) return fmt::format("{}{}{}{}.", prefix.before, outer, prefix.after, layer);
  return fmt::format("{}{}{}", prefix.before, layer, prefix.after);
}

Glu fixed_glu(const Naming& naming) { return {naming.fused_glu, naming.fused_block_rows}; }

const PartNames& part_names(const Naming& naming, ExpertSet set, Experts experts) {
  if (set == ExpertSet::Shared) return naming.shared;
  return experts == Experts::Indexed ? naming.indexed : naming.grouped;
}

std::string_view part_template(const PartNames& names, Role role) {
  switch (role) {
    case Role::Gate: return names.gate;
    case Role::Up: return names.up;
    case Role::Down: return names.down;
    case Role::GateUp: return names.gate_up;
  }
  return {};
}

bool is_native(const Naming& naming, ExpertSet set, Experts experts, bool fused) {
  if (set == ExpertSet::Shared) return fused == naming.native_shared_fused;
  if (experts == Experts::Indexed) return fused ? naming.native_indexed_fused : naming.native_indexed_split;
  return fused ? naming.native_grouped_fused : naming.native_grouped_split;
}

const Naming* find_naming(std::string_view name) {
  for (const Naming& naming : kNamings)
    if (naming.name == name) return &naming;
  constexpr std::string_view kHf = "hf:";
  if (!name.starts_with(kHf)) return nullptr;
  const std::string_view model_type = name.substr(kHf.size());
  for (const Naming& naming : kNamings)
    if (std::ranges::find(naming.model_types, model_type) != naming.model_types.end()) return &naming;
  return nullptr;
}

namespace {

/// A key of FC1 in the form that the family's software writes first of all.
std::string example_key(const Naming& naming) {
  const StackPrefix& stack = naming.stacks.front();
  if (naming.stacks_layers) {
    const std::string part = print_part(naming.grouped.gate_up, TensorKind::Weight, "");
    return fmt::format("{}{} or {}{}", stack.before, part, print_stack(stack, "{L}", ""), part);
  }
  const bool indexed = naming.native_indexed_split || naming.native_indexed_fused;
  const PartNames& names = indexed ? naming.indexed : naming.grouped;
  const bool split = indexed ? !naming.native_indexed_fused : naming.native_grouped_split;
  return print_stack(stack, "{L}", "") + print_part(split ? names.up : names.gate_up, TensorKind::Weight, "{E}");
}

/// The programs that read these keys, if the checkpoint is whole and in a native form.
std::string loaded_by(std::string_view name) {
  if (name == "megatron-dist") return "Megatron-Core, from torch_dist (convert --to megatron)";
  if (name == "megatron-sequential") return "Megatron-Core with SequentialMLP";
  if (name.starts_with("megatron")) return "nothing as it is: Megatron-Core's keys within one process";
  if (name == "torchtitan") return "torchtitan 0.3.0 (convert --to torchtitan)";
  if (name.starts_with("torchtitan")) return "torchtitan before 0.3.0";
  return "transformers, vLLM, SGLang that know the family (convert --to hf)";
}

}  // namespace

std::vector<std::string> native_forms(const Naming& naming) {
  const std::string fused =
      naming.fused_glu == Glu::Kind::Unknown ? "contiguous or interleaved:K" : to_string(fixed_glu(naming));
  std::vector<std::string> forms;
  if (naming.native_indexed_split) forms.emplace_back("indexed split");
  if (naming.native_indexed_fused) forms.push_back("indexed " + fused);
  if (naming.native_grouped_split) forms.emplace_back("grouped split");
  if (naming.native_grouped_fused) forms.push_back("grouped " + fused);
  return forms;
}

std::vector<NamingSummary> naming_summaries() {
  std::vector<NamingSummary> rows;
  for (const Naming& naming : kNamings) {
    const bool indexed = naming.native_indexed_split || naming.native_indexed_fused;
    const bool grouped = naming.native_grouped_split || naming.native_grouped_fused;
    rows.push_back({std::string(naming.name),
                    {naming.model_types.begin(), naming.model_types.end()},
                    naming.axes == Axes::OutIn ? "[out, in]" : "[in, out]",
                    indexed && grouped ? "indexed, grouped"
                    : indexed          ? "indexed"
                                       : "grouped",
                    native_glu_text(naming),
                    example_key(naming),
                    native_forms(naming),
                    loaded_by(naming.name)});
  }
  return rows;
}

}  // namespace glu_ckpt
