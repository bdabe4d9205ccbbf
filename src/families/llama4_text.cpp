/// Llama 4's language model.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kLlama4 = std::to_array<DenseRow>({
    layer_row("feed_forward.router.weight", DenseRole::Router, kExperts),
    layer_row("feed_forward.gate_proj.weight", DenseRole::MlpGate, kDense),
    layer_row("feed_forward.up_proj.weight", DenseRole::MlpUp, kDense),
    layer_row("feed_forward.down_proj.weight", DenseRole::MlpDown, kDense),
});

constexpr auto kLlama4TextExperts = std::to_array<Naming>({
    {.name = "hf:llama4_text",
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
});

constexpr auto kLlama4Args = std::to_array<ArgRow>({
    {"num_local_experts", "num_experts", write_num_experts, as_integer},
    {"intermediate_size_mlp", "ffn_hidden_size", write_dense_width, as_integer},
    {"intermediate_size", "moe_ffn_hidden_size", write_expert_width, width_of_all},
    {"", "moe_shared_expert_intermediate_size", nullptr, shared_width},
    {"moe_layers", "moe_layer_freq", write_expert_layers, expert_layers},
    {"interleave_moe_layer_step", "moe_layer_freq", nullptr, expert_step},
    {"", "moe_router_score_function", nullptr, always, "sigmoid"},
    {"", "moe_apply_probs_on_input", nullptr, always, "True"},
    {"use_qk_norm", "qk_l2_norm", write_chunked_attention, as_flag},
    {"", "window_size", write_window, no_window},
    {"layer_types", "", nullptr, all_full_attention},
    {"no_rope_layers", "no_rope_freq", nullptr, all_with_rope},
    {"attn_temperature_tuning", "", nullptr, constant, "", "false"},
});

constexpr BesideKey kLlama4TowerKeys[] = {
    {"class_embedding", "hidden_size"},
    {"layernorm_post.{K}", "hidden_size"},
    {"layernorm_pre.{K}", "hidden_size"},
    {"model.layers.{N}.input_layernorm.{K}", "hidden_size"},
    {"model.layers.{N}.mlp.fc1.{K}", "intermediate_size, hidden_size"},
    {"model.layers.{N}.mlp.fc2.{K}", "hidden_size, intermediate_size"},
    {"model.layers.{N}.post_attention_layernorm.{K}", "hidden_size"},
    {"model.layers.{N}.self_attn.k_proj.{K}", "hidden_size, hidden_size"},
    {"model.layers.{N}.self_attn.o_proj.{K}", "hidden_size, hidden_size"},
    {"model.layers.{N}.self_attn.q_proj.{K}", "hidden_size, hidden_size"},
    {"model.layers.{N}.self_attn.v_proj.{K}", "hidden_size, hidden_size"},
    {"patch_embedding.linear.weight", "hidden_size, num_channels*patch_size*patch_size"},
    {"positional_embedding_vlm", "?, hidden_size"},
    {"vision_adapter.mlp.fc1.weight", "projector_input_dim, intermediate_size"},
    {"vision_adapter.mlp.fc2.weight", "projector_output_dim, projector_output_dim"},
};
constexpr BesideKey kLlama4ProjectorKeys[] = {
    {"linear_1.weight", ".text_config.hidden_size, vision_output_dim"},
};
constexpr BesidePart kLlama4Tower[] = {
    {"vision_model.", "vision_config", kLlama4TowerKeys, "num_hidden_layers"},
    {"multi_modal_projector.", "vision_config", kLlama4ProjectorKeys},
};

constexpr auto kLlama4TextFamilies = std::to_array<Family>({
    {.model_type = "llama4_text",
     .model_class = "Llama4ForCausalLM",
     .wrappers = {{{"llama4", "language_model.model.", kLlama4Tower}}},
     .naming = hf_naming(kHfGrouped, kLlama4),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kLlama4Args, kInterleavedRopeArgs, kTopkArgs},
     .expert_naming = "hf:llama4_text",
     .scores = Scores::Sigmoid,
     .renormalised = Renormalised::Never,
     .weights_on_input = true,
     .interleaved_rope = true,
     .chunked_attention = true,
     .dense_width_field = "intermediate_size_mlp",
     .shared_width_field = "intermediate_size",
     .other_root = "language_model.model.",
     .intermediate_is_experts = true,
     .packed_experts = true,
     .declared_biases = kOutBias,
     .defaults = R"({"num_experts_per_tok": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 500000.0, "num_key_value_heads": 8, "head_dim": 128, "use_qk_norm": true,
       "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "attn_temperature_tuning": true, "attn_scale": 0.1,
       "floor_scale": 8192.0})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_llama4_text;
constinit const Knowledge k_llama4_text{.experts = kLlama4TextExperts, .families = kLlama4TextFamilies};

}  // namespace glu_ckpt
