/// config.json from the arguments that Megatron-LM saved.

#include "arch/trained_config.hpp"

#include <gtest/gtest.h>

#include "families/architecture.hpp"
#include "families/config_fields.hpp"
#include "support/saved_fields.hpp"

namespace glu_ckpt {
namespace {

SavedFields changed(SavedFields fields, const SavedFields& other) {
  for (const auto& [name, value] : other) fields[name] = value;
  return fields;
}

SavedFields deepseek() {
  return changed(kQwen3, {{"multi_latent_attention", "true"},
                          {"moe_router_score_function", "\"sigmoid\""},
                          {"moe_router_enable_expert_bias", "true"},
                          {"moe_shared_expert_intermediate_size", "96"},
                          {"moe_layer_freq", "[0, 1, 1]"},
                          {"q_lora_rank", "null"},
                          {"kv_lora_rank", "24"},
                          {"qk_head_dim", "16"},
                          {"qk_pos_emb_head_dim", "8"},
                          {"v_head_dim", "20"},
                          {"rope_type", "\"rope\""}});
}

TrainedConfig made(const SavedFields& fields, const std::string& type = {},
                   const std::string& embedding = "embedding.word_embeddings.weight") {
  Inventory tensors;
  TensorRef tensor;
  tensor.name = embedding;
  tensor.shape = {128, 64};
  tensors.tensors.push_back(tensor);
  return make_trained_config(json_text(fields), tensors, type);
}

/// Where one of YaRN's two scales is 0, transformers takes no notice of the other.
TEST(TrainedConfig, SaysTheScaleOfYarn) {
  const auto factor_of = [](const std::string& mscale, const std::string& all_dim) {
    const TrainedConfig found = made(changed(deepseek(), {{"rope_type", "\"yarn\""},
                                                          {"rotary_scaling_factor", "4.0"},
                                                          {"mscale", mscale},
                                                          {"mscale_all_dim", all_dim}}),
                                     "deepseek_v3");
    EXPECT_NE(found.text, "") << found.why_none;
    return ConfigFields(found.text).number({"rope_scaling.attention_factor"}).value_or(0.0);
  };
  EXPECT_EQ(factor_of("1.0", "0.0"), 0.0);
  EXPECT_EQ(factor_of("0.5", "0.25"), 0.0);
  EXPECT_NEAR(factor_of("5.049432643111371", "0.0"), 1.7, 1e-12);
  EXPECT_NEAR(factor_of("0.0", "1.0"), 1.0 / 1.1386294361119891, 1e-12);
}

TEST(TrainedConfig, SaysWhatTheArgumentsSay) {
  const TrainedConfig found = made(kQwen3);
  ASSERT_EQ(found.why_none, "");
  const auto model = read_architecture(found.text);
  ASSERT_NE(model, nullptr) << found.text;
  EXPECT_EQ(model->model_type, "qwen3_moe");
  EXPECT_EQ(model->layers, 3);
  EXPECT_EQ(model->kv_heads, 2);
  EXPECT_EQ(model->extent(Dim::HeadDim), 32);
  EXPECT_EQ(model->extent(Dim::Vocab), 100);
  EXPECT_EQ(model->expert_width, 48);
  EXPECT_FALSE(model->tied);
  const ConfigFields fields(found.text);
  EXPECT_EQ(fields.flag({"norm_topk_prob"}), true);
  EXPECT_EQ(fields.number({"rope_theta"}), 50000.0);
  EXPECT_EQ(fields.number({"rms_norm_eps"}), 1e-6);
  EXPECT_FALSE(fields.has("bos_token_id"));
}

/// Megatron-Core's YaRN is one argument of the position embedding, and no family's alone.
TEST(TrainedConfig, YarnIsOneOfPlainFamiliesToo) {
  const SavedFields yarn = changed(kQwen3, {{"position_embedding_type", "\"yarn\""},
                                            {"rotary_scaling_factor", "4.0"},
                                            {"original_max_position_embeddings", "4096"},
                                            {"yarn_original_max_position_embeddings", "64"}});
  const ConfigFields fields(made(yarn).text);
  EXPECT_EQ(fields.text({"rope_scaling.rope_type"}), "yarn");
  EXPECT_EQ(fields.number({"rope_scaling.factor"}), 4.0);
  EXPECT_EQ(fields.integer({"rope_scaling.original_max_position_embeddings"}), 64);
  EXPECT_NE(made(changed(yarn, {{"rotary_scaling_factor", "null"}})).why_none.find("rotary_scaling_factor"),
            std::string::npos);
}

/// Megatron-LM saves what its parser has for experts in a dense run, too.
TEST(TrainedConfig, ADenseRunHasNoExperts) {
  const SavedFields dense =
      changed(kQwen3, {{"num_experts", "null"}, {"moe_ffn_hidden_size", "null"}, {"moe_router_topk", "2"}});
  EXPECT_EQ(ConfigFields(made(dense).text).text({"model_type"}), "qwen3");
  const SavedFields plain = changed(dense, {{"qk_layernorm", "false"}});
  EXPECT_NE(made(plain).why_none.find("llama"), std::string::npos) << made(plain).why_none;
  EXPECT_NE(made(plain).why_none.find("mistral"), std::string::npos) << made(plain).why_none;
  EXPECT_EQ(ConfigFields(made(changed(plain, {{"add_qkv_bias", "true"}})).text).text({"model_type"}), "qwen2");
  const ConfigFields windowed(made(changed(plain, {{"window_size", "[7, 0]"}})).text);
  EXPECT_EQ(windowed.text({"model_type"}), "mistral");
  EXPECT_EQ(windowed.integer({"sliding_window"}), 8);

  EXPECT_EQ(made(changed(dense, {{"moe_ffn_hidden_size", "48"}})).text, "");
  EXPECT_EQ(made(dense, {}, "decoder.layers.0.mlp.experts.experts.linear_fc1.weight").text, "");

  const SavedFields scaled = changed(plain, {{"use_rope_scaling", "true"}, {"rope_scaling_factor", "8.0"}});
  const ConfigFields llama(made(scaled).text);
  EXPECT_EQ(llama.text({"rope_scaling.rope_type"}), "llama3");
  EXPECT_EQ(llama.number({"rope_scaling.factor"}), 8.0);
  EXPECT_EQ(llama.integer({"rope_scaling.original_max_position_embeddings"}), 8192);
  const TrainedConfig other = made(changed(scaled, {{"rope_scaling_factor", "32.0"}}));
  EXPECT_NE(other.why_none.find("rope_scaling_factor"), std::string::npos) << other.why_none << other.text;
}

/// Each argument without which a key would be a guess.
TEST(TrainedConfig, WhatIsNotSaidIsAskedFor) {
  for (const char* const name : {"hidden_size", "num_attention_heads", "kv_channels", "num_query_groups", "num_experts",
                                 "moe_ffn_hidden_size", "moe_router_topk", "moe_router_pre_softmax", "rotary_base",
                                 "norm_epsilon", "max_position_embeddings", "untie_embeddings_and_output_weights"}) {
    SavedFields fields = kQwen3;
    fields.erase(name);
    const TrainedConfig found = made(fields);
    EXPECT_EQ(found.text, "") << name;
    EXPECT_NE(found.why_none.find(name), std::string::npos) << found.why_none;
    EXPECT_EQ(found.options, std::vector<std::string>{"--from-config"});
  }
  SavedFields fields = kQwen3;
  fields.erase("rotary_base");
  fields.erase("moe_router_topk");
  const std::string why = made(fields).why_none;
  EXPECT_NE(why.find("rotary_base, moe_router_topk"), std::string::npos) << why;
}

TEST(TrainedConfig, RowsStandForAVocabularyThatNobodySaid) {
  const TrainedConfig found = made(changed(kQwen3, {{"vocab_size", "null"}}));
  EXPECT_EQ(ConfigFields(found.text).integer({"vocab_size"}), 128);
  EXPECT_FALSE(has_vocabulary(json_text(changed(kQwen3, {{"vocab_size", "null"}}))));
  EXPECT_TRUE(has_vocabulary(json_text(kQwen3)));
}

TEST(TrainedConfig, SeveralTypesThatFitAreAskedFor) {
  const TrainedConfig open = made(changed(kQwen3, {{"qk_layernorm", "false"}}));
  EXPECT_EQ(open.options, std::vector<std::string>{"--to"});
  EXPECT_NE(open.why_none.find("--to hf:mixtral, --to hf:granitemoe"), std::string::npos) << open.why_none;
  EXPECT_EQ(read_architecture(made(changed(kQwen3, {{"qk_layernorm", "false"}}), "mixtral").text)->model_type,
            "mixtral");
  EXPECT_EQ(made(deepseek()).options, std::vector<std::string>{"--to"});
}

/// What one family has and no other, in a model that is none of it, must not pass for that model.
TEST(TrainedConfig, WhatNoFamilyHasIsNamed) {
  const SavedFields strange[] = {
      {{"add_qkv_bias", "true"}},
      {{"add_bias_linear", "true"}},
      {{"rotary_interleaved", "true"}},
      {{"softmax_type", "\"learnable\""}},
      {{"rotary_percent", "0.5"}},
      {{"window_size", "[127, 0]"}},
      {{"no_rope_freq", "[0, 1, 0]"}},
      {{"normalization", "\"LayerNorm\""}},
      {{"moe_router_num_groups", "4"}},
      {{"position_embedding_type", "\"learned_absolute\""}},
      {{"mtp_num_layers", "1"}},
      {{"apply_layernorm_1p", "true"}},
      {{"attention_output_gate", "true"}},
      {{"moe_shared_expert_intermediate_size", "56"}},
      {{"swiglu", "false"}},
  };
  for (const SavedFields& field : strange) {
    const auto& [name, value] = *field.begin();
    const TrainedConfig found = made(changed(kQwen3, field));
    EXPECT_EQ(found.text, "") << name;
    EXPECT_EQ(found.options, std::vector<std::string>{"--from-config"}) << name;
    EXPECT_NE(made(changed(kQwen3, field), "qwen3_moe").why_none.find("none of type 'qwen3_moe'"), std::string::npos);
  }
}

TEST(TrainedConfig, PatternsOfLayersAreKept) {
  EXPECT_EQ(ConfigFields(made(deepseek(), "deepseek_v3").text).integer({"first_k_dense_replace"}), 1);
  EXPECT_EQ(ConfigFields(made(changed(kQwen3, {{"moe_layer_freq", "[1, 0, 1]"}})).text).integers({"mlp_only_layers"}),
            std::vector<i64>{1});
  // Megatron's number N: each N-th layer has experts, the first one too.
  EXPECT_EQ(ConfigFields(made(changed(kQwen3, {{"moe_layer_freq", "2"}})).text).integers({"mlp_only_layers"}),
            std::vector<i64>{1});
  const TrainedConfig behind = made(changed(deepseek(), {{"moe_layer_freq", "[0, 1, 0]"}}), "deepseek_v3");
  EXPECT_NE(behind.why_none.find("first_k_dense_replace"), std::string::npos) << behind.why_none;
  const TrainedConfig short_list = made(changed(kQwen3, {{"moe_layer_freq", "[1, 1]"}}));
  EXPECT_NE(short_list.why_none.find("moe_layer_freq has 2 entries for 3 layers"), std::string::npos);
}

TEST(TrainedConfig, SharedExpertsAreCounted) {
  EXPECT_EQ(ConfigFields(made(deepseek(), "deepseek_v3").text).integer({"n_shared_experts"}), 2);
  const TrainedConfig odd = made(changed(deepseek(), {{"moe_shared_expert_intermediate_size", "100"}}), "deepseek_v3");
  EXPECT_NE(odd.why_none.find("moe_shared_expert_intermediate_size 100 is no multiple of moe_ffn_hidden_size 48"),
            std::string::npos)
      << odd.why_none;
}

TEST(TrainedConfig, OtherNamesAndTextsMakeNone) {
  EXPECT_EQ(made(kQwen3, {}, "language_model.embedding.word_embeddings.weight").text, "");
  EXPECT_NE(made(kQwen3, "nonsense").why_none.find("'nonsense'"), std::string::npos);
  EXPECT_EQ(make_trained_config("[]", {}, {}).text, "");
  EXPECT_EQ(make_trained_config("{", {}, {}).text, "");
  EXPECT_NE(made({}).why_none, "");
}

}  // namespace
}  // namespace glu_ckpt
