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

constexpr std::string_view kQwen3OmniTowers[] = {
    "thinker.audio_tower.conv2d1.{K}",
    "thinker.audio_tower.conv2d2.{K}",
    "thinker.audio_tower.conv2d3.{K}",
    "thinker.audio_tower.conv_out.weight",
    "thinker.audio_tower.layers.{N}.fc1.{K}",
    "thinker.audio_tower.layers.{N}.fc2.{K}",
    "thinker.audio_tower.layers.{N}.final_layer_norm.{K}",
    "thinker.audio_tower.layers.{N}.self_attn.k_proj.{K}",
    "thinker.audio_tower.layers.{N}.self_attn.out_proj.{K}",
    "thinker.audio_tower.layers.{N}.self_attn.q_proj.{K}",
    "thinker.audio_tower.layers.{N}.self_attn.v_proj.{K}",
    "thinker.audio_tower.layers.{N}.self_attn_layer_norm.{K}",
    "thinker.audio_tower.ln_post.{K}",
    "thinker.audio_tower.proj1.{K}",
    "thinker.audio_tower.proj2.{K}",
    "thinker.visual.blocks.{N}.attn.proj.{K}",
    "thinker.visual.blocks.{N}.attn.qkv.{K}",
    "thinker.visual.blocks.{N}.mlp.linear_fc1.{K}",
    "thinker.visual.blocks.{N}.mlp.linear_fc2.{K}",
    "thinker.visual.blocks.{N}.norm1.{K}",
    "thinker.visual.blocks.{N}.norm2.{K}",
    "thinker.visual.merger.ln_q.{K}",
    "thinker.visual.merger.mlp.0.{K}",
    "thinker.visual.merger.mlp.2.{K}",
    "thinker.visual.merger_list.{N}.ln_q.{K}",
    "thinker.visual.merger_list.{N}.mlp.0.{K}",
    "thinker.visual.merger_list.{N}.mlp.2.{K}",
    "thinker.visual.patch_embed.proj.{K}",
    "thinker.visual.pos_embed.weight",
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
       "rope_theta": 1000000.0, "num_key_value_heads": 4, "norm_topk_prob": true})"},
});

}  // namespace

extern const Knowledge k_qwen3_omni_moe;
constinit const Knowledge k_qwen3_omni_moe{.experts = kQwen3OmniMoeExperts, .families = kQwen3OmniMoeFamilies};

}  // namespace glu_ckpt
