/// GLM-4.5V's language model: GLM-4.5 without norms of q and k.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr BesideKey kGlm4vTowerKeys[] = {
    {"blocks.{N}.attn.proj.weight", "hidden_size, hidden_size"},
    {"blocks.{N}.attn.qkv.weight", "3*hidden_size, hidden_size"},
    {"blocks.{N}.mlp.down_proj.weight", "hidden_size, out_hidden_size"},
    {"blocks.{N}.mlp.gate_proj.weight", "out_hidden_size, hidden_size"},
    {"blocks.{N}.mlp.up_proj.weight", "out_hidden_size, hidden_size"},
    {"blocks.{N}.norm1.weight", "hidden_size"},
    {"blocks.{N}.norm2.weight", "hidden_size"},
    {"downsample.{K}", "out_hidden_size, hidden_size, spatial_merge_size, spatial_merge_size"},
    {"embeddings.position_embedding.weight", "?, hidden_size"},
    {"merger.down_proj.weight", "out_hidden_size, intermediate_size"},
    {"merger.gate_proj.weight", "intermediate_size, out_hidden_size"},
    {"merger.post_projection_norm.{K}", "out_hidden_size"},
    {"merger.proj.weight", "out_hidden_size, out_hidden_size"},
    {"merger.up_proj.weight", "intermediate_size, out_hidden_size"},
    {"patch_embed.proj.{K}", "hidden_size, in_channels, temporal_patch_size, patch_size, patch_size"},
    {"post_conv_layernorm.weight", "hidden_size"},
    {"post_layernorm.weight", "hidden_size"},
};
constexpr BesidePart kGlm4vTower[] = {{"model.visual.", "vision_config", kGlm4vTowerKeys, "depth"}};

/// The parts of what is turned that count a picture's time, rows and columns, half of it in all. A text has one
/// position for the three, so that no run of a GPTModel has an argument for them; the class has GLM-4.5V's.
constexpr i64 kTime = 8, kRows = 12, kColumns = 12;

JsonWord rope_with_sections(SavedArgs& args, const ArgRow& row) {
  if (const i64 dims = rotated_dims(args); dims != 2 * (kTime + kRows + kColumns))
    args.unsaid.push_back(
        fmt::format("mrope_section (its default [{}, {}, {}] is of {} dimensions, and rotary_percent {} of "
                    "kv_channels {} turns {})",
                    kTime, kRows, kColumns, 2 * (kTime + kRows + kColumns), args.word("rotary_percent"),
                    args.word("kv_channels"), dims));
  const std::string sections = fmt::format(",\n    \"mrope_section\": [{}, {}, {}]", kTime, kRows, kColumns);
  if (args.has_yarn()) return yarn_object(args, row, sections);
  return "{\n    \"rope_type\": \"default\"" + sections + "\n  }";
}

constexpr auto kGlm4vArgs = std::to_array<ArgRow>({
    {"attention_bias", "add_qkv_bias", nullptr, as_flag},
    {"rope_scaling", "rotary_scaling_factor", nullptr, rope_with_sections},
});

constexpr auto kGlm4vMoeFamilies = std::to_array<Family>({
    {.model_type = "glm4v_moe_text",
     .inner_class = "Glm4vMoeTextModel",
     .wrappers = {{{"glm4v_moe", "model.language_model.", kGlm4vTower}}},
     .naming = hf_naming(kHfGrouped, kHfCorrectedRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kUsualLayerArgs, kGlm4vArgs, kPartialRopeArgs,
              kTwoWidthArgs, kTopkArgs, kCorrectedArgs, kDenseFirstArgs, kExpertBiasArgs},
     .expert_naming = "hf:deepseek_v3",
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 65536,
       "rope_theta": 10000.0, "num_key_value_heads": 8, "attention_bias": true, "norm_topk_prob": true,
       "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
       "partial_rotary_factor": 0.5})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_glm4v_moe;
constinit const Knowledge k_glm4v_moe{.families = kGlm4vMoeFamilies};

}  // namespace glu_ckpt
