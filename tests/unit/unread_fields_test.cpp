/// What a config.json says and nothing reads. The first configurations have the fields of published models, with fewer
/// layers where lists would be long: nothing in them is strange.

#include "arch/unread_fields.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "arch/model_args.hpp"

namespace glu_ckpt {
namespace {

std::vector<std::string> warnings_of(const std::string& config) {
  Recognition model;
  model.architecture = read_architecture(config);
  if (model.architecture == nullptr) return {"no family"};
  return megatron_args(config, model, {}).warnings;
}

/// The warnings that are about fields.
std::vector<std::string> of_fields(const std::string& config) {
  std::vector<std::string> warnings = warnings_of(config);
  std::erase_if(warnings, [](const std::string& text) {
    return text.find("config.json says") == text.npos && text.find(" in all models of type ") == text.npos;
  });
  return warnings;
}

const std::string kDeepseekR1 = R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "bos_token_id": 0,
  "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
  "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
  "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16", "transformers_version": "4.46.3", "use_cache": true, "v_head_dim": 128,
  "vocab_size": 129280})";

/// What lies around the language model says nothing of it; an older transformers wrote how tokens are chosen beside it.
const std::string kKimiK25 = R"({"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
  "media_placeholder_token_id": 163605, "ignore_index": -100, "use_unified_vision_chunk": true, "video_placeholder": "x",
  "vision_config": {"hidden_size": 1152, "merge_type": "sd2_tpool"}, "text_config": {"model_type": "kimi_k2",
  "add_cross_attention": false, "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "begin_suppress_tokens": null, "bos_token_id": 163584,
  "chunk_size_feed_forward": 0, "diversity_penalty": 0.0, "do_sample": false, "early_stopping": false,
  "eos_token_id": 163585, "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
  "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
  "length_penalty": 1.0, "max_length": 20, "max_position_embeddings": 262144, "moe_intermediate_size": 2048,
  "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 64, "num_beams": 1, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "pad_token_id": 163839, "pretraining_tp": 1,
  "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "return_dict": true, "rms_norm_eps": 1e-05,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
  "scoring_func": "sigmoid", "seq_aux": true, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "topk_group": 1,
  "topk_method": "noaux_tc", "typical_p": 1.0, "use_cache": true, "v_head_dim": 128, "vocab_size": 163840}})";

const std::string kGlm45Air = R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true,
  "attention_dropout": 0.0, "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338], "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 4096, "partial_rotary_factor": 0.5, "initializer_range": 0.02,
  "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe",
  "moe_intermediate_size": 1408, "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1,
  "n_routed_experts": 128, "n_shared_experts": 1, "routed_scaling_factor": 1.0, "num_experts_per_tok": 8,
  "first_k_dense_replace": 1, "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": false,
  "vocab_size": 151552})";

const std::string kLlama405b = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
  "hidden_size": 16384, "initializer_range": 0.02, "intermediate_size": 53248, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 128, "num_hidden_layers": 126,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": true,
  "vocab_size": 128256})";

const std::string kMinimaxM2 = R"({"architectures": ["MiniMaxM2ForCausalLM"], "attention_dropout": 0.0,
  "attn_type_list": [1, 1, 1, 1], "bos_token_id": null, "eos_token_id": null, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 1536, "layernorm_full_attention_beta": 1.0,
  "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0, "max_position_embeddings": 196608,
  "mlp_intermediate_size": 8192, "model_type": "minimax_m2", "mtp_transformer_layers": 1, "num_attention_heads": 48,
  "num_experts_per_tok": 8, "num_hidden_layers": 4, "num_key_value_heads": 8, "num_local_experts": 256,
  "num_mtp_modules": 3, "output_router_logits": false, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
  "rope_theta": 5000000, "rotary_dim": 64, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
  "scoring_func": "sigmoid", "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "sliding_window": null,
  "tie_word_embeddings": false, "transformers_version": "4.46.1", "use_cache": true, "use_mtp": true,
  "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064})";

const std::string kGptOss = R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true,
  "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
  "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 131072, "model_type": "gpt_oss",
  "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 2, "num_key_value_heads": 8,
  "num_local_experts": 128, "output_router_logits": false, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
  "swiglu_limit": 7.0, "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true,
  "vocab_size": 201088})";

const std::string kQwen3 = R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
  "max_position_embeddings": 40960, "max_window_layers": 94, "mlp_only_layers": [], "model_type": "qwen3_moe",
  "moe_intermediate_size": 1536, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4, "output_router_logits": false,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

const std::string kNemotron = R"({"architectures": ["NemotronHForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
  "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688, "hybrid_override_pattern": "MEM*-",
  "initializer_range": 0.02, "intermediate_size": 1856, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64,
  "mamba_hidden_act": "silu", "mamba_num_heads": 64, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
  "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
  "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
  "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 5, "num_key_value_heads": 2,
  "num_logits_to_keep": 1, "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null, "ssm_state_size": 128,
  "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001,
  "topk_group": 1, "torch_dtype": "bfloat16", "use_bias": false, "use_cache": true, "use_conv_bias": true,
  "use_mamba_kernels": true, "vocab_size": 131072})";

const std::string kQwen35 = R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 248056,
  "model_type": "qwen3_5_moe", "text_config": {"attention_bias": false, "attention_dropout": 0.0,
  "attn_output_gate": true, "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
  "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
  "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 1024, "mtp_num_hidden_layers": 1,
  "mtp_use_dedicated_embeddings": false, "num_attention_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
  "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001,
  "shared_expert_intermediate_size": 1024, "use_cache": true, "vocab_size": 248320, "mamba_ssm_dtype": "float32",
  "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
    "rope_theta": 10000000, "partial_rotary_factor": 0.25}}, "tie_word_embeddings": false,
  "vision_config": {"depth": 27}, "vision_start_token_id": 248053})";

const std::string kOlmoe = R"({"model_type": "olmoe", "num_hidden_layers": 2, "hidden_size": 64,
  "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3})";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  return text.replace(text.find(what), what.size(), by);
}

std::string with(std::string config, const std::string& more) { return config.insert(1, more + ", "); }

TEST(UnreadFields, PublishedConfigurationsHaveNone) {
  for (const std::string& config :
       {kDeepseekR1, kKimiK25, kGlm45Air, kLlama405b, kMinimaxM2, kGptOss, kQwen3, kNemotron, kQwen35, kOlmoe}) {
    const std::vector<std::string> warnings = of_fields(config);
    EXPECT_TRUE(warnings.empty()) << config.substr(0, 60) << ": " << warnings.front();
  }
}

TEST(UnreadFields, AreNamedWithTheirValue) {
  const std::pair<std::string, std::string> planted[] = {
      {with(kOlmoe, R"("clip_qkv": 8.0)"), "clip_qkv 8.0"},
      {with(kQwen3, R"("swiglu_limits": [7.0, 0.5])"), "swiglu_limits [7.0, 0.5]"},
      {replaced(kDeepseekR1, R"("moe_layer_freq": 1)", R"("moe_layer_freq": 2)"), "moe_layer_freq 2"},
      {with(kLlama405b, R"("logit_scale": 0.0625)"), "logit_scale 0.0625"},
      {with(kGlm45Air, R"("final_logit_softcapping": 30.0)"), "final_logit_softcapping 30.0"},
      {R"({"text_config": )" + with(kQwen3, R"("hc_mult": 4)") + R"(, "model_type": "x", "hc_mult": 4})", "hc_mult 4"},
  };
  for (const auto& [config, words] : planted) {
    const std::vector<std::string> warnings = of_fields(config);
    ASSERT_EQ(warnings.size(), 1u) << words;
    EXPECT_NE(warnings[0].find("config.json says " + words + ","), std::string::npos) << warnings[0];
  }
}

TEST(UnreadFields, OfTheScalingAreNamed) {
  EXPECT_EQ(of_fields(replaced(kDeepseekR1, R"("beta_slow")", R"("low_freq_factor": 2.0, "beta_slow")")).size(), 1u);
}

TEST(UnreadFields, ThatAllModelsHaveAlikeMayNotSayAnotherThing) {
  const std::string nemotron = R"({"model_type": "nemotron_h", "layers_block_type": ["linear_attention", "moe"],
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 80, "moe_intermediate_size": 48,
    "n_routed_experts": 8, "mamba_hidden_act": )";
  EXPECT_TRUE(of_fields(nemotron + R"("silu"})").empty());
  const std::vector<std::string> warnings = of_fields(nemotron + R"("gelu"})");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].find(R"(mamba_hidden_act is "gelu", and "silu" in all models)"), 0u) << warnings[0];
}

bool warns(const std::string& config, const std::string& words) {
  return std::ranges::any_of(warnings_of(config),
                             [&](const std::string& text) { return text.find(words) != text.npos; });
}

std::string small(const std::string& type, const std::string& fields, const std::string& key_heads = "4") {
  return R"({"model_type": ")" + type + R"(", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "vocab_size": 100, "intermediate_size": 48, "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 1, "q_lora_rank": 24, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 16, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8,
    "n_group": 1, "topk_group": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "norm_topk_prob": true,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "num_key_value_heads": )" +
         key_heads + (fields.empty() ? "}" : ", " + fields + "}");
}

/// The classes of transformers 5.24.0 differ in whether they take null for "as many as there are heads".
TEST(UnreadFields, NullIsNamedWhereTheClassStops) {
  for (const char* const type : {"deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "mistral", "glm4_moe", "qwen3_moe"})
    EXPECT_TRUE(warns(small(type, "", "null"), "config.json says null of num_key_value_heads")) << type;
  for (const char* const type : {"deepseek_v2", "deepseek_v3", "dots1", "llama", "mistral4", "olmoe", "qwen2", "qwen3"})
    EXPECT_FALSE(warns(small(type, "", "null"), "config.json says null")) << type;
  EXPECT_FALSE(warns(small("glm4_moe_lite", R"("first_k_dense_replace": null)"), "config.json says null"));
  EXPECT_TRUE(warns(small("deepseek_v3", R"("first_k_dense_replace": null)"), "config.json says null"));
  const std::string last = R"("max_window_layers": null, "sliding_window": )";
  EXPECT_FALSE(warns(small("dots1", last + "null"), "config.json says null"));
  EXPECT_TRUE(warns(small("qwen3", last + "null"), "config.json says null of max_window_layers"));
}

TEST(UnreadFields, WholeNumbersAreNamedWhereTheClassTakesFloatsAlone) {
  const std::string one = R"("routed_scaling_factor": 1)", words = "1 of routed_scaling_factor: transformers";
  for (const char* const type : {"deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm4_moe_lite", "solar_open"}) {
    EXPECT_TRUE(warns(small(type, one), words)) << type;
    EXPECT_FALSE(warns(small(type, R"("routed_scaling_factor": 1.0)"), words)) << type;
  }
  // Nemotron-H's takes either, Qwen3's has no such field, and two families have no class in transformers.
  for (const char* const type : {"qwen3_moe", "kimi_k2", "bailing_moe_v2"})
    EXPECT_FALSE(warns(small(type, one), words)) << type;
  EXPECT_FALSE(
      warns(replaced(kNemotron, R"("routed_scaling_factor": )", R"("routed_scaling_factor": 5, "x": )"), words));
  EXPECT_TRUE(warns(with(kOlmoe, R"("initializer_range": 1)"), "1 of initializer_range"));
  EXPECT_TRUE(warns(replaced(kGptOss, R"("swiglu_limit": 7.0)", R"("swiglu_limit": 7)"), "7 of swiglu_limit"));
}

/// What a class computes with and cannot.
TEST(UnreadFields, ValuesAtWhichProgramsStopAreNamed) {
  EXPECT_TRUE(warns(
      replaced(small("deepseek_v3", R"("routed_scaling_factor": 1.0)"), R"("q_lora_rank": 24)", R"("q_lora_rank": 0)"),
      "q_lora_rank is 0"));
  const auto yarn = [](const std::string& type, const std::string& theta, const std::string& positions) {
    return replaced(small(type, R"("routed_scaling_factor": 1.0)"),
                    R"({"rope_theta": 10000.0, "rope_type": "default"})",
                    R"({"rope_type": "yarn", "factor": 4.0, "rope_theta": )" + theta +
                        R"(, "original_max_position_embeddings": )" + positions + "}");
  };
  for (const char* const type : {"qwen3_moe", "deepseek_v3"}) {
    EXPECT_TRUE(warns(yarn(type, "1.0", "4096"), "rope_theta is 1 beside YaRN")) << type;
    EXPECT_FALSE(warns(yarn(type, "2.0", "4096"), "rope_theta is")) << type;
    EXPECT_TRUE(warns(yarn(type, "2.0", "1024.5"), "original_max_position_embeddings ")) << type;
  }
  EXPECT_FALSE(warns(yarn("qwen3_moe", "2.0", "1024.0"), "original_max_position_embeddings"));
}

/// Of the families with a class in transformers, one has none where nothing is said.
TEST(UnreadFields, AMissingNumberOfSharedExpertsIsNamed) {
  const auto warned = [](const std::string& type) {
    const std::string config =
        replaced(small(type, R"("routed_scaling_factor": 1.0)"), R"("n_shared_experts": 1, )", "");
    Recognition model;
    model.architecture = read_architecture(config);
    ExpertBlock& shared = model.blocks.emplace_back();
    shared.set = ExpertSet::Shared;
    shared.intermediate_size = 48;
    return std::ranges::any_of(megatron_args(config, model, {}).warnings, [](const std::string& text) {
      return text.find("does not say n_shared_experts") != text.npos;
    });
  };
  EXPECT_TRUE(warned("dots1"));
  for (const char* const type : {"deepseek_v3", "glm4_moe", "bailing_moe_v2", "kimi_k2", "solar_open"})
    EXPECT_FALSE(warned(type)) << type;
}

TEST(UnreadFields, AWordForScoresThatIsNotTheFamilysIsNamed) {
  const std::vector<std::string> warnings =
      warnings_of(replaced(kMinimaxM2, R"("scoring_func": "sigmoid")", R"("scoring_func": "softmax")"));
  EXPECT_TRUE(std::ranges::any_of(warnings, [](const std::string& text) {
    return text.starts_with("scoring_func is 'softmax', but models of type 'minimax_m2' score experts by a sigmoid");
  }));
}

}  // namespace
}  // namespace glu_ckpt
