/// config.json from the arguments that Megatron-LM saved.

#include "arch/trained_config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "families/architecture.hpp"
#include "families/config_fields.hpp"
#include "families/saved_args.hpp"
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

TensorRef named(const std::string& name, std::vector<i64> shape) {
  TensorRef tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  return tensor;
}

TrainedConfig made(const SavedFields& fields, const std::string& type = {},
                   const std::string& embedding = "embedding.word_embeddings.weight",
                   const std::vector<TensorRef>& others = {}) {
  Inventory tensors;
  tensors.tensors.push_back(named(embedding, {128, 64}));
  tensors.tensors.insert(tensors.tensors.end(), others.begin(), others.end());
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
      {{"moe_router_group_topk", "2"}, {"moe_router_num_groups", "4"}},
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

/// A value that no run has must not pass for an argument that was not saved.
TEST(TrainedConfig, AValueOfAnotherTypeIsNamed) {
  const std::pair<std::string, std::string> wrong[] = {
      {"vocab_size", "true"},           {"vocab_size", "99.5"},
      {"rotary_percent", "[1.0]"},      {"group_query_attention", "1"},
      {"moe_router_topk", "true"},      {"untie_embeddings_and_output_weights", "\"True\""},
      {"position_embedding_type", "1"}, {"moe_layer_freq", "[1, \"1\", 1]"},
      {"moe_layer_freq", "[1, 2, 1]"},  {"moe_layer_freq", "[1, null, 1]"},
      {"moe_layer_freq", "0"},          {"moe_layer_freq", "\"x\""},
      {"mtp_num_layers", "true"},       {"rotary_scaling_factor", "false"},
  };
  for (const auto& [name, value] : wrong) {
    const TrainedConfig found = made(changed(kQwen3, {{name, value}}), "qwen3_moe");
    EXPECT_EQ(found.text, "") << name << value;
    EXPECT_NE(found.why_none.find(name), std::string::npos) << found.why_none;
  }
  const SavedFields yarn = {{"rope_type", "\"yarn\""}, {"rotary_scaling_factor", "4.0"}};
  EXPECT_NE(made(changed(deepseek(), yarn), "deepseek_v3").text, "");
  for (const auto& [name, value] : {std::pair("mscale", "true"), std::pair("mscale_all_dim", "[1]"),
                                    std::pair("original_max_position_embeddings", "4096.5"),
                                    std::pair("yarn_beta_fast", "false"), std::pair("q_lora_rank", "12.5")}) {
    const TrainedConfig found = made(changed(changed(deepseek(), yarn), {{name, value}}), "deepseek_v3");
    EXPECT_EQ(found.text, "") << name << value;
    EXPECT_NE(found.why_none.find(name), std::string::npos) << found.why_none;
  }
  EXPECT_NE(made(changed(kQwen3, {{"moe_layer_freq", "[true, true, true]"}})).text, "");
}

/// Megatron-Core chooses among all groups where it is not said how many of them.
TEST(TrainedConfig, GroupsOfExpertsCountWhereSomeAreChosen) {
  const auto groups_of = [](const std::string& groups, const std::string& chosen) {
    const TrainedConfig found = made(
        changed(deepseek(), {{"moe_router_num_groups", groups}, {"moe_router_group_topk", chosen}}), "deepseek_v3");
    const ConfigFields fields(found.text);
    return found.text.empty() ? found.why_none
                              : std::to_string(fields.integer({"topk_group"}).value()) + " of " +
                                    std::to_string(fields.integer({"n_group"}).value());
  };
  EXPECT_EQ(groups_of("4", "2"), "2 of 4");
  EXPECT_EQ(groups_of("4", "null"), "1 of 1");
  EXPECT_EQ(groups_of("4", "0"), "1 of 1");
  EXPECT_EQ(groups_of("null", "null"), "1 of 1");
  EXPECT_NE(groups_of("null", "2").find("moe_router_group_topk is 2 without moe_router_num_groups"), std::string::npos);
  EXPECT_NE(made(changed(kQwen3, {{"moe_router_num_groups", "4"}})).text, "");
}

TEST(TrainedConfig, LatentAttentionHasYarnUnlessAnotherKindIsSaved) {
  const auto kind_of = [](const SavedFields& fields) {
    return ConfigFields(made(changed(deepseek(), fields), "deepseek_v3").text).text({"rope_scaling.rope_type"});
  };
  EXPECT_EQ(kind_of({{"rope_type", "null"}, {"rotary_scaling_factor", "40.0"}}), "yarn");
  EXPECT_EQ(kind_of({{"rope_type", "null"}, {"rotary_scaling_factor", "1.0"}}), "");
  EXPECT_EQ(kind_of({{"rope_type", "\"rope\""}, {"rotary_scaling_factor", "40.0"}}), "");
  // Other attention has it where position_embedding_type says so, which is asked for beside a factor.
  SavedFields fields = changed(kQwen3, {{"rotary_scaling_factor", "4.0"}});
  EXPECT_NE(made(fields).text, "");
  fields.erase("position_embedding_type");
  EXPECT_NE(made(fields).why_none.find("position_embedding_type"), std::string::npos);
}

TEST(TrainedConfig, LatentAttentionTurnsWholeHeads) {
  for (const auto& [name, value] : {std::pair("rotary_percent", "0.5"), std::pair("rotary_interleaved", "true")}) {
    const TrainedConfig found = made(changed(deepseek(), {{name, value}}), "deepseek_v3");
    EXPECT_NE(found.why_none.find(name), std::string::npos) << found.why_none;
  }
  // YaRN does not read the part.
  EXPECT_NE(made(changed(deepseek(),
                         {{"rope_type", "\"yarn\""}, {"rotary_scaling_factor", "4.0"}, {"rotary_percent", "0.5"}}),
                 "deepseek_v3")
                .text,
            "");
}

/// transformers has 1e-6 for it, whatever the other norms have.
TEST(TrainedConfig, TheNormOfIndexersHasTheEpsilonOfOthersUnlessSaid) {
  const auto fields = [](const std::string& own, const std::string& others) {
    return changed(deepseek(), {{"experimental_attention_variant", "\"dsa\""},
                                {"dsa_indexer_n_heads", "4"},
                                {"dsa_indexer_head_dim", "16"},
                                {"dsa_indexer_topk", "8"},
                                {"dsa_indexer_k_norm_epsilon", own},
                                {"norm_epsilon", others},
                                {"q_lora_rank", "24"}});
  };
  EXPECT_NE(made(fields("1e-06", "1e-05"), "deepseek_v32").text, "");
  EXPECT_NE(made(fields("null", "1e-06"), "deepseek_v32").text, "");
  for (const TrainedConfig& found :
       {made(fields("null", "1e-05"), "deepseek_v32"), made(fields("1e-05", "1e-06"), "deepseek_v32")})
    EXPECT_NE(found.why_none.find("dsa_indexer_k_norm_epsilon 1e-05"), std::string::npos) << found.why_none;
}

/// What contradicts the tensors is named, and not something that follows from it.
TEST(TrainedConfig, ArgumentsThatTensorsContradictAreNamed) {
  const std::string embedding(kEmbeddingKey);
  const TensorRef norm = named("decoder.layers.0.self_attention.q_layernorm.weight", {32});
  EXPECT_NE(made(kQwen3, "qwen3_moe", embedding, {norm}).text, "");
  const TrainedConfig wide = made(changed(kQwen3, {{"kv_channels", "48"}}), "qwen3_moe", embedding, {norm});
  EXPECT_NE(wide.why_none.find("kv_channels 48 instead of 32"), std::string::npos) << wide.why_none;
  const TrainedConfig all = made(changed(kQwen3, {{"kv_channels", "8"}}), "qwen3_moe", embedding, {norm});
  EXPECT_NE(all.why_none.find("over all heads"), std::string::npos) << all.why_none;
  const TrainedConfig latent = made(deepseek(), "deepseek_v3", embedding,
                                    {named("decoder.layers.0.self_attention.linear_q_down_proj.weight", {12, 64})});
  EXPECT_NE(latent.why_none.find("q_lora_rank is None"), std::string::npos) << latent.why_none;
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

const std::vector<TensorRef> kWideNorms = {named("decoder.layers.0.self_attention.q_layernorm.weight", {128}),
                                           named("decoder.layers.0.self_attention.k_layernorm.weight", {64})};

/// Changes of a run's arguments, and what the refusal must say of each; "" where there is a config.json.
using Changes = std::vector<std::pair<SavedFields, std::string>>;

void expect_each(const SavedFields& sound, const std::string& type, const std::vector<TensorRef>& tensors,
                 const Changes& changes) {
  const std::string embedding(kEmbeddingKey);
  const TrainedConfig whole = made(sound, type, embedding, tensors);
  EXPECT_NE(whole.text, "") << whole.why_none;
  for (const auto& [fields, says] : changes) {
    const TrainedConfig found = made(changed(sound, fields), type, embedding, tensors);
    EXPECT_EQ(found.text.empty(), !says.empty()) << fields.begin()->first << found.text;
    EXPECT_NE(found.why_none.find(says), std::string::npos) << found.why_none;
    if (!says.empty()) {
      EXPECT_EQ(found.options, std::vector<std::string>{"--from-config"});
    }
  }
}

TEST(TrainedConfig, NormsOverAllHeadsAreSaidByTheTensors) {
  const std::string embedding(kEmbeddingKey);
  EXPECT_EQ(read_architecture(made(kQwen3, {}, embedding, kWideNorms).text)->model_type, "olmoe");
  const SavedFields minimax = changed(kQwen3, {{"moe_router_score_function", "\"sigmoid\""},
                                               {"moe_router_enable_expert_bias", "true"},
                                               {"rotary_percent", "0.5"}});
  const TrainedConfig found = made(minimax, {}, embedding, kWideNorms);
  const ConfigFields fields(found.text);
  EXPECT_EQ(fields.text({"model_type"}), "minimax_m2") << found.why_none;
  EXPECT_EQ(fields.integer({"rotary_dim"}), 16);
  EXPECT_EQ(fields.flag({"use_routing_bias"}), true);
  EXPECT_NE(made(kQwen3, "olmoe").why_none.find("no 'self_attention.q_layernorm.weight' instead of one over all"),
            std::string::npos);
  EXPECT_NE(made(kQwen3, "olmoe", embedding, {kWideNorms[0], named(kWideNorms[1].name, {32})})
                .why_none.find("num_query_groups 2 of kv_channels 32 instead of 32 in all, which 'decoder."),
            std::string::npos);
  expect_each(kQwen3, "olmoe", kWideNorms,
              {{{{"qk_layernorm", "false"}}, "qk_layernorm False instead of True"},
               {{{"qk_layernorm", "null"}}, "no qk_layernorm instead of True"},
               {{{"kv_channels", "16"}}, "kv_channels 16 instead of 128 in all"},
               {{{"kv_channels", "null"}}, "kv_channels"},
               {{{"kv_channels", "9223372036854775807"}}, "kv_channels 9223372036854775807 instead of 128"},
               {{{"num_query_groups", "4"}}, "num_query_groups 4 of kv_channels 32 instead of 64"},
               {{{"group_query_attention", "false"}}, "num_attention_heads 4 of kv_channels 32 instead of 64"},
               {{{"moe_router_pre_softmax", "null"}}, "do not say moe_router_pre_softmax"},
               {{{"moe_router_pre_softmax", "1"}}, "moe_router_pre_softmax is 1, where True or False belongs"},
               {{{"moe_router_score_function", "\"sigmoid\""}}, "moe_router_score_function sigmoid"},
               {{{"rotary_percent", "0.5"}}, "rotary_percent 0.5"},
               {{{"add_qkv_bias", "true"}}, "add_qkv_bias True"},
               {{{"moe_shared_expert_intermediate_size", "48"}}, "moe_shared_expert_intermediate_size 48"},
               {{{"position_embedding_type", "\"yarn\""}, {"rotary_scaling_factor", "4.0"}}, ""},
               {{{"moe_router_pre_softmax", "true"}}, ""}});
  expect_each(minimax, "minimax_m2", kWideNorms,
              {{{{"rotary_percent", "0.3"}}, "rotary_percent is 0.3 of 32 dimensions of a head (kv_channels)"},
               {{{"rotary_percent", "1e300"}}, "rotary_percent is 1e+300"},
               {{{"rotary_percent", "-0.5"}}, "rotary_percent is -0.5"},
               {{{"rotary_percent", "null"}}, "do not say rotary_percent"},
               {{{"rotary_percent", "\"0.5\""}}, "rotary_percent is the text '0.5'"},
               {{{"moe_router_score_function", "\"softmax\""}}, "moe_router_score_function softmax"},
               {{{"moe_router_topk_scaling_factor", "2.5"}}, "moe_router_topk_scaling_factor 2.5"},
               {{{"moe_router_num_groups", "4"}, {"moe_router_group_topk", "2"}}, "moe_router_num_groups 4"},
               {{{"mtp_num_layers", "1"}}, "mtp_num_layers 1"},
               {{{"position_embedding_type", "\"yarn\""}, {"rotary_scaling_factor", "4.0"}}, "rotary_percent is 0.5"},
               {{{"moe_router_enable_expert_bias", "false"}}, ""},
               {{{"rotary_percent", "0.25"}}, ""}});
}

/// What no argument says is asked for where models of the type differ in it, and nothing else is.
TEST(TrainedConfig, FieldsThatNoArgumentSaysAreNamed) {
  const SavedFields glm = changed(kQwen3, {{"moe_router_score_function", "\"sigmoid\""},
                                           {"moe_router_enable_expert_bias", "true"},
                                           {"moe_shared_expert_intermediate_size", "96"},
                                           {"qk_layernorm", "false"},
                                           {"add_qkv_bias", "true"},
                                           {"kv_channels", "128"},
                                           {"rotary_percent", "0.5"}});
  const ConfigFields sections(made(glm, "glm4v_moe_text").text);
  EXPECT_EQ(sections.integers({"rope_scaling.mrope_section"}), (std::vector<i64>{8, 12, 12}));
  EXPECT_EQ(sections.flag({"attention_bias"}), true);
  EXPECT_NE(made(glm).why_none.find("--to hf:glm4_moe, --to hf:glm4v_moe_text"), std::string::npos);
  // One that needs a file is named beside the others.
  EXPECT_NE(made(changed(glm, {{"kv_channels", "32"}})).why_none.find("--to hf:glm4v_moe_text"), std::string::npos);
  expect_each(glm, "glm4v_moe_text", {},
              {{{{"kv_channels", "32"}}, "no argument says mrope_section (its default [8, 12, 12] is of 64 dimensions"},
               {{{"rotary_percent", "1.0"}}, "rotary_percent 1 of kv_channels 128 turns 128"},
               {{{"rotary_percent", "null"}}, "do not say rotary_percent"},
               {{{"mrope_section", "[8, 12, 12]"}}, "mrope_section [8, 12, 12] instead of None"},
               {{{"position_embedding_type", "\"mrope\""}}, "position_embedding_type mrope"},
               {{{"qk_layernorm", "true"}}, "qk_layernorm True"},
               {{{"add_qkv_bias", "1"}}, "add_qkv_bias is 1"},
               {{{"kv_channels", "64"}, {"rotary_percent", "1.0"}}, ""},
               {{{"add_qkv_bias", "false"}}, ""}});

  const SavedFields mistral = changed(deepseek(), {{"moe_router_score_function", "\"softmax\""},
                                                   {"moe_router_enable_expert_bias", "false"},
                                                   {"q_lora_rank", "28"},
                                                   {"rope_type", "\"yarn\""},
                                                   {"rotary_scaling_factor", "4.0"},
                                                   {"mscale", "1.0"},
                                                   {"mscale_all_dim", "1.0"}});
  const TrainedConfig small = made(mistral);
  const ConfigFields rope(small.text);
  EXPECT_EQ(rope.text({"model_type"}), "mistral4") << small.why_none;
  EXPECT_EQ(rope.number({"rope_parameters.llama_4_scaling_beta"}), 0.0);
  EXPECT_EQ(rope.integer({"rope_parameters.original_max_position_embeddings"}), 4096);
  EXPECT_EQ(rope.flag({"norm_topk_prob"}), true);
  expect_each(mistral, "mistral4", {},
              {{{{"max_position_embeddings", "4097"}}, "no argument says llama_4_scaling_beta, by which transformers"},
               {{{"max_position_embeddings", "8192"}, {"original_max_position_embeddings", "8192"}}, ""},
               {{{"max_position_embeddings", "4096"}}, ""},
               {{{"max_position_embeddings", "null"}}, "do not say max_position_embeddings"},
               {{{"rope_type", "\"rope\""}}, "rope_type rope instead of yarn"},
               {{{"rotary_scaling_factor", "null"}}, "do not say rotary_scaling_factor"},
               {{{"moe_router_num_groups", "4"}, {"moe_router_group_topk", "2"}}, "moe_router_num_groups 4 instead of"},
               {{{"moe_router_pre_softmax", "true"}}, "moe_router_pre_softmax True instead of False"},
               {{{"moe_router_pre_softmax", "true"}, {"moe_router_topk", "1"}}, ""},
               {{{"moe_router_score_function", "\"sigmoid\""}}, "moe_router_score_function sigmoid"},
               {{{"moe_shared_expert_intermediate_size", "null"}}, "no moe_shared_expert_intermediate_size"},
               {{{"mscale", "\"1\""}}, "mscale is the text '1'"},
               {{{"mtp_num_layers", "1"}}, "mtp_num_layers 1"},
               {{{"moe_router_topk_scaling_factor", "2.5"}}, ""}});
}

/// Transformer Engine's causal attention sees nothing to the right, Megatron-Core's own what the second number says.
TEST(TrainedConfig, WindowsAreThoseThatACausalLayerComputesWith) {
  const auto width_of = [](const std::string& window, const std::string& attention = "\"transformer_engine\"") {
    SavedFields fields = changed(kQwen3, {{"window_size", window}, {"transformer_impl", attention}});
    for (const char* name : {"num_experts", "moe_ffn_hidden_size", "moe_layer_freq", "moe_router_topk"})
      fields.erase(name);
    const TrainedConfig found = made(changed(fields, {{"qk_layernorm", "false"}}), "mistral");
    const auto width = ConfigFields(found.text).integer({"sliding_window"});
    return found.text.empty() ? found.why_none : width ? std::to_string(*width) : "all";
  };
  EXPECT_EQ(width_of("[7, 0]"), "8");
  EXPECT_EQ(width_of("[7, 7]"), "8");
  EXPECT_EQ(width_of("[7, -1]"), "8");
  EXPECT_EQ(width_of("[0, 0]"), "1");
  EXPECT_EQ(width_of("[-1, 0]"), "all");
  EXPECT_EQ(width_of("[-1, -1]"), "all");
  EXPECT_EQ(width_of("null"), "all");
  EXPECT_EQ(width_of("[7, 0]", "\"local\""), "8");
  const auto is_named = [&](const std::string& text, std::string_view needed) {
    return text.find(fmt::format("window_size {}", needed)) != text.npos;
  };
  EXPECT_PRED2(is_named, width_of("[7, 7]", "\"local\""), "[7, 7] instead of a number and 0 (beside");
  EXPECT_PRED2(is_named, width_of("[-1, 0]", "\"local\""), "[-1, 0] instead of a number and 0 (beside");
  EXPECT_PRED2(is_named, width_of("[-1, 7]"), "[-1, 7] instead of 0 or more tokens to the left");
  EXPECT_PRED2(is_named, width_of("[-2, 0]"), "[-2, 0] instead of 0 or more tokens to the left");
  EXPECT_PRED2(is_named, width_of("[7]"), "[7] instead of None or two numbers");
  EXPECT_PRED2(is_named, width_of("[7, 0.5]"), "[7, 0.5] instead of None or two numbers");
  EXPECT_PRED2(is_named, width_of("7"), "7 instead of None or two numbers");
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
