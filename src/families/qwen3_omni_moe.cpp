/// The language model that thinks in Qwen3-Omni: Qwen3-MoE. What sees, hears and talks beside it is not converted.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kOmniStacks = std::to_array<StackPrefix>({
    {"decoder", "thinker.model.layers."},
    {"talker", "talker.model.layers."},
});

constexpr auto kQwen3OmniMoeExperts = std::to_array<Naming>({
    {.name = "hf:qwen3_omni_moe",
     .stacks = kOmniStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedExpert,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .router = "mlp.gate.weight"},
});

constexpr BesideKey kOmniAudioKeys[] = {
    {"conv2d1.{K}", "downsample_hidden_size, 1, 3, 3"},
    {"conv2d2.{K}", "downsample_hidden_size, downsample_hidden_size, 3, 3"},
    {"conv2d3.{K}", "downsample_hidden_size, downsample_hidden_size, 3, 3"},
    {"conv_out.weight", "d_model, ?"},
    {"layers.{N}.fc1.{K}", "encoder_ffn_dim, d_model"},
    {"layers.{N}.fc2.{K}", "d_model, encoder_ffn_dim"},
    {"layers.{N}.final_layer_norm.{K}", "d_model"},
    {"layers.{N}.self_attn.k_proj.{K}", "d_model, d_model"},
    {"layers.{N}.self_attn.out_proj.{K}", "d_model, d_model"},
    {"layers.{N}.self_attn.q_proj.{K}", "d_model, d_model"},
    {"layers.{N}.self_attn.v_proj.{K}", "d_model, d_model"},
    {"layers.{N}.self_attn_layer_norm.{K}", "d_model"},
    {"ln_post.{K}", "d_model"},
    {"proj1.{K}", "d_model, d_model"},
    {"proj2.{K}", "output_dim, d_model"},
};
constexpr BesideKey kOmniMergerKeys[] = {
    {"merger.ln_q.{K}", "hidden_size"},
    {"merger.mlp.0.{K}", kMergedTwice},
    {"merger.mlp.2.{K}", kMergedOut},
    {"merger_list.{N}.ln_q.{K}", kMerged},
    {"merger_list.{N}.mlp.0.{K}", kMergedTwice},
    {"merger_list.{N}.mlp.2.{K}", kMergedOut},
};
constexpr std::string_view kTalkerExperts = "text_config.num_hidden_layers, text_config.num_experts";
constexpr BesideKey kOmniTalkerKeys[] = {
    {"codec_head.weight", "text_config.vocab_size, text_config.hidden_size"},
    {"hidden_projection.linear_fc1.{K}", "text_config.intermediate_size, thinker_hidden_size"},
    {"hidden_projection.linear_fc2.{K}", "text_config.hidden_size, text_config.intermediate_size"},
    {"text_projection.linear_fc1.{K}", "text_config.intermediate_size, thinker_hidden_size"},
    {"text_projection.linear_fc2.{K}", "text_config.hidden_size, text_config.intermediate_size"},
    {"model.codec_embedding.weight", "text_config.vocab_size, text_config.hidden_size"},
    {"model.layers.{N}.input_layernorm.weight", "text_config.hidden_size"},
    {"model.layers.{N}.mlp.experts.{N}.down_proj.weight", "text_config.hidden_size, text_config.moe_intermediate_size",
     kTalkerExperts},
    {"model.layers.{N}.mlp.experts.{N}.gate_proj.weight", "text_config.moe_intermediate_size, text_config.hidden_size",
     kTalkerExperts},
    {"model.layers.{N}.mlp.experts.{N}.up_proj.weight", "text_config.moe_intermediate_size, text_config.hidden_size",
     kTalkerExperts},
    {"model.layers.{N}.mlp.gate.weight", "text_config.num_experts, text_config.hidden_size"},
    {"model.layers.{N}.mlp.shared_expert.down_proj.weight",
     "text_config.hidden_size, text_config.shared_expert_intermediate_size"},
    {"model.layers.{N}.mlp.shared_expert.gate_proj.weight",
     "text_config.shared_expert_intermediate_size, text_config.hidden_size"},
    {"model.layers.{N}.mlp.shared_expert.up_proj.weight",
     "text_config.shared_expert_intermediate_size, text_config.hidden_size"},
    {"model.layers.{N}.mlp.shared_expert_gate.weight", "1, text_config.hidden_size"},
    {"model.layers.{N}.post_attention_layernorm.weight", "text_config.hidden_size"},
    {"model.layers.{N}.self_attn.k_norm.weight", "text_config.head_dim"},
    {"model.layers.{N}.self_attn.k_proj.weight",
     "text_config.num_key_value_heads*text_config.head_dim, text_config.hidden_size"},
    {"model.layers.{N}.self_attn.o_proj.weight",
     "text_config.hidden_size, text_config.num_attention_heads*text_config.head_dim"},
    {"model.layers.{N}.self_attn.q_norm.weight", "text_config.head_dim"},
    {"model.layers.{N}.self_attn.q_proj.weight",
     "text_config.num_attention_heads*text_config.head_dim, text_config.hidden_size"},
    {"model.layers.{N}.self_attn.v_proj.weight",
     "text_config.num_key_value_heads*text_config.head_dim, text_config.hidden_size"},
    {"model.norm.weight", "text_config.hidden_size"},
};
constexpr BesideKey kOmniPredictorKeys[] = {
    // One less than num_code_groups.
    {"lm_head.{N}.weight", "vocab_size, hidden_size", "?"},
    {"model.codec_embedding.{N}.weight", "vocab_size, hidden_size", "?"},
    {"model.layers.{N}.input_layernorm.weight", "hidden_size"},
    {"model.layers.{N}.mlp.down_proj.weight", "hidden_size, intermediate_size"},
    {"model.layers.{N}.mlp.gate_proj.weight", "intermediate_size, hidden_size"},
    {"model.layers.{N}.mlp.up_proj.weight", "intermediate_size, hidden_size"},
    {"model.layers.{N}.post_attention_layernorm.weight", "hidden_size"},
    {"model.layers.{N}.self_attn.k_norm.weight", "head_dim"},
    {"model.layers.{N}.self_attn.k_proj.weight", "num_key_value_heads*head_dim, hidden_size"},
    {"model.layers.{N}.self_attn.o_proj.weight", "hidden_size, num_attention_heads*head_dim"},
    {"model.layers.{N}.self_attn.q_norm.weight", "head_dim"},
    {"model.layers.{N}.self_attn.q_proj.weight", "num_attention_heads*head_dim, hidden_size"},
    {"model.layers.{N}.self_attn.v_proj.weight", "num_key_value_heads*head_dim, hidden_size"},
    {"model.norm.weight", "hidden_size"},
};
/// The decoder behind these is a list of modules of several kinds.
constexpr BesideKey kOmniCodeKeys[] = {
    {"code_embedding.weight", "codebook_size*num_quantizers, hidden_size"},
    {"pre_transformer.layers.{N}.input_layernorm.weight", "hidden_size"},
    {"pre_transformer.layers.{N}.mlp.down_proj.weight", "hidden_size, intermediate_size"},
    {"pre_transformer.layers.{N}.mlp.gate_proj.weight", "intermediate_size, hidden_size"},
    {"pre_transformer.layers.{N}.mlp.up_proj.weight", "intermediate_size, hidden_size"},
    {"pre_transformer.layers.{N}.mlp_layer_scale.scale", "hidden_size"},
    {"pre_transformer.layers.{N}.post_attention_layernorm.weight", "hidden_size"},
    {"pre_transformer.layers.{N}.self_attn.k_proj.weight", "?, hidden_size"},
    {"pre_transformer.layers.{N}.self_attn.o_proj.weight", "hidden_size, ?"},
    {"pre_transformer.layers.{N}.self_attn.q_proj.weight", "?, hidden_size"},
    {"pre_transformer.layers.{N}.self_attn.v_proj.weight", "?, hidden_size"},
    {"pre_transformer.layers.{N}.self_attn_layer_scale.scale", "hidden_size"},
    {"pre_transformer.norm.weight", "hidden_size"},
    {"upsample.{N}.0.conv.{K}", "hidden_size, hidden_size, ?", "upsampling_ratios"},
    {"upsample.{N}.1.dwconv.conv.{K}", "hidden_size, 1, 7", "upsampling_ratios"},
    {"upsample.{N}.1.gamma", "hidden_size", "upsampling_ratios"},
    {"upsample.{N}.1.norm.{K}", "hidden_size", "upsampling_ratios"},
    {"upsample.{N}.1.pwconv1.{K}", "4*hidden_size, hidden_size", "upsampling_ratios"},
    {"upsample.{N}.1.pwconv2.{K}", "hidden_size, 4*hidden_size", "upsampling_ratios"},
};
constexpr BesidePart kQwen3OmniTowers[] = {
    {"thinker.audio_tower.", "thinker_config.audio_config", kOmniAudioKeys, "encoder_layers"},
    {"thinker.visual.", "thinker_config.vision_config", kQwenTowerKeys, "depth"},
    {"thinker.visual.", "thinker_config.vision_config", kOmniMergerKeys, "deepstack_visual_indexes"},
    {"talker.", "talker_config", kOmniTalkerKeys, "text_config.num_hidden_layers", "enable_audio_output"},
    {"talker.code_predictor.", "talker_config.code_predictor_config", kOmniPredictorKeys, "num_hidden_layers",
     "enable_audio_output"},
    {"code2wav.", "code2wav_config", kOmniCodeKeys, "num_hidden_layers", "enable_audio_output"},
};

constexpr auto kQwen3OmniMoeFamilies = std::to_array<Family>({
    {.model_type = "qwen3_omni_moe_text",
     .wrappers = {{{"qwen3_omni_moe", "thinker.model.", kQwen3OmniTowers}}},
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kHfRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kUsualLayerArgs, kYarnArgs,
              kTwoWidthArgs, kQwenExpertArgs, kTopkArgs, kSoftmaxArgs, kNormTopkArgs},
     .expert_naming = "hf:qwen3_omni_moe",
     .root = "thinker.model.",
     .declared_biases = kOutBias,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 1000000.0, "num_key_value_heads": 4, "norm_topk_prob": true})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_qwen3_omni_moe;
constinit const Knowledge k_qwen3_omni_moe{.experts = kQwen3OmniMoeExperts, .families = kQwen3OmniMoeFamilies};

}  // namespace glu_ckpt
