/// Each field of config.json that a rule reads takes what a configuration can mean and nothing else, at the root and in
/// text_config, and what a trainer saved is judged alike. The types below are those of transformers' classes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "arch/config_ranges.hpp"
#include "arch/trained_config.hpp"
#include "glu_ckpt/error.hpp"
#include "support/saved_fields.hpp"

namespace glu_ckpt {
namespace {

using Texts = std::vector<std::string>;

struct Kind {
  Texts fields;
  Texts sound;
  Texts wrong;
};

const Texts kNoNumber = {"\"8\"", "\"\"", "\"many\"", "[]", "[8]", "{}", R"({"a": 8})", "true", "false", "-8", "1e300"};

Texts operator+(Texts texts, const Texts& more) {
  texts.insert(texts.end(), more.begin(), more.end());
  return texts;
}

const std::vector<Kind> kKinds = {
    {{"num_hidden_layers",
      "hidden_size",
      "vocab_size",
      "max_position_embeddings",
      "num_attention_heads",
      "num_key_value_heads",
      "head_dim",
      "kv_lora_rank",
      "v_head_dim",
      "linear_conv_kernel_dim",
      "linear_key_head_dim",
      "linear_value_head_dim",
      "linear_num_key_heads",
      "linear_num_value_heads",
      "full_attention_interval",
      "attention_chunk_size",
      "no_rope_layer_interval",
      "n_group",
      "topk_group",
      "decoder_sparse_step",
      "moe_layer_interval"},
     {"1", "8", "64", "null"},
     kNoNumber + Texts{"0", "-1", "1.5"}},
    {{"intermediate_size", "intermediate_size_mlp", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
      "sliding_window", "max_window_layers", "moe_intermediate_size", "n_shared_experts", "moe_num_shared_experts",
      "shared_expert_intermediate_size", "first_k_dense_replace", "interleave_moe_layer_step", "moe_layer_start_index",
      "num_nextn_predict_layers", "mtp_num_hidden_layers"},
     {"0", "1", "64", "null"},
     kNoNumber + Texts{"-1", "1.5"}},
    {{"rms_norm_eps", "layer_norm_eps", "norm_eps", "partial_rotary_factor"},
     {"1e-6", "0.5", "1", "null"},
     kNoNumber + Texts{"0", "-1", "2"}},
    {{"rope_theta", "attention_multiplier", "swiglu_limit", "embedding_multiplier", "residual_multiplier",
      "logits_scaling", "routed_scaling_factor"},
     {"1", "0.5", "1e6", "10000", "null"},
     kNoNumber + Texts{"0", "-1"}},
    {{"tie_word_embeddings", "use_sliding_window", "attention_bias", "qkv_bias", "use_qk_norm", "norm_topk_prob"},
     {"true", "false", "null"},
     {"0", "1", "\"true\"", "\"\"", "[]", "{}", "0.5"}},
    {{"rope_interleave"}, {"true", "false"}, {"null", "0", "1", "\"true\"", "\"\"", "[]", "{}", "0.5"}},
    {{"hidden_act", "scoring_func", "topk_method"},
     {"\"silu\"", "null"},
     {"0", "1.5", "true", "[]", "{}", "[\"silu\"]"}},
    {{"rope_scaling", "rope_parameters", "quantization_config"},
     {"{}", "null"},
     {"0", "\"yarn\"", "true", "[]", "[{}]"}},
    {{"layer_types", "mlp_layer_types"}, {"[\"a\", \"b\"]", "null"}, {"[]", "[1]", "\"a\"", "2", "{}", "true"}},
    {{"mlp_only_layers", "moe_layers", "no_rope_layers"},
     {"[]", "[0]", "[1, 0]", "null"},
     {"[-1]", "[\"0\"]", "[0.5]", "0", "\"0\"", "{}", "true", "[true]", "[[0]]"}},
};

bool is_refused(const std::string& config, const std::string& field) {
  try {
    check_config_ranges(config);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::ConfigJson);
    EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    return true;
  }
}

TEST(ConfigValues, EachFieldTakesWhatItCanMean) {
  int cases = 0;
  const auto expect = [&](const std::string& field, const std::string& value, bool refused) {
    const std::string own = fmt::format(R"("model_type": "qwen3_moe", "{}": {})", field, value);
    for (const std::string& config : {"{" + own + "}", R"({"model_type": "any", "text_config": {)" + own + "}}"}) {
      ++cases;
      EXPECT_EQ(is_refused(config, field), refused) << config;
    }
    // A family that no rule knows may mean another thing by the name.
    EXPECT_FALSE(is_refused(fmt::format(R"({{"model_type": "any", "{}": {}}})", field, value), field));
  };
  for (const Kind& kind : kKinds)
    for (const std::string& field : kind.fields) {
      for (const std::string& value : kind.sound) expect(field, value, false);
      for (const std::string& value : kind.wrong) expect(field, value, true);
    }
  EXPECT_GT(cases, 1500);
}

TEST(ConfigValues, AsManyExpertsAreChosenAsThereAre) {
  for (const std::string experts : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"})
    for (const std::string chosen : {"num_experts_per_tok", "moe_topk", "moe_k"})
      for (int number = 0; number < 6; ++number)
        for (int choice = 0; choice < 8; ++choice)
          EXPECT_EQ(is_refused(fmt::format(R"({{"model_type": "qwen3_moe", "{}": {}, "{}": {}}})", experts, number,
                                           chosen, choice),
                               chosen),
                    number > 0 && (choice < 1 || choice > number))
              << experts << ' ' << number << ' ' << chosen << ' ' << choice;
}

/// What Megatron-LM saved, with one value changed, is a configuration that passes or none.
TEST(ConfigValues, SavedArgumentsAreJudgedAlike) {
  Inventory tensors;
  tensors.tensors.push_back({"embedding.word_embeddings.weight", Dtype::BF16, {128, 64}, 2 * 128 * 64, 0, 0});
  const auto is_taken = [&](const SavedFields& saved) {
    const TrainedConfig made = make_trained_config(json_text(saved), tensors, "qwen3_moe");
    return !made.text.empty() && !is_refused(made.text, "");
  };
  ASSERT_TRUE(is_taken(kQwen3));
  for (const char* name : {"hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
                           "moe_ffn_hidden_size", "num_experts", "moe_router_topk", "vocab_size",
                           "max_position_embeddings", "norm_epsilon", "rotary_base"})
    for (const char* value : {"\"8\"", "\"\"", "-1", "-8"}) {
      SavedFields saved = kQwen3;
      saved[name] = value;
      EXPECT_FALSE(is_taken(saved)) << name << " = " << value;
    }
  for (const char* name : {"hidden_size", "num_attention_heads", "moe_router_topk", "norm_epsilon", "rotary_base"}) {
    SavedFields saved = kQwen3;
    saved[name] = "0";
    EXPECT_FALSE(is_taken(saved)) << name << " = 0";
  }
}

}  // namespace
}  // namespace glu_ckpt
