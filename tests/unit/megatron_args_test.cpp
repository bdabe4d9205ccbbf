/// The arguments of a run of Megatron-LM, and what they cannot say.

#include <gtest/gtest.h>

#include "arch/model_args.hpp"
#include "families/architecture.hpp"
#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

void add_dense(Recognition& model, DenseRole role, Dtype dtype, i64 rows) {
  DenseMatrix& dense = model.dense.emplace_back();
  dense.role = role;
  dense.stored_dtype = dtype;
  dense.matrix.rows = rows;
  dense.matrix.cols = 64;
}

/// The norm, which is small, is of another dtype than the weights.
Recognition model_of(const std::string& config, Dtype weights = Dtype::BF16) {
  Recognition model;
  model.architecture = read_architecture(config);
  add_dense(model, DenseRole::FinalNorm, weights == Dtype::F32 ? Dtype::F16 : Dtype::F32, 1);
  add_dense(model, DenseRole::Embedding, weights, 100);
  return model;
}

MegatronArgs args_of(const std::string& config, const WrittenForm& to = {}, bool shared = false) {
  Recognition model = model_of(config);
  if (shared) model.blocks.emplace_back().set = ExpertSet::Shared;
  return megatron_args(config, model, to);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  EXPECT_NE(text.find(what), text.npos) << what;
  return text.replace(text.find(what), what.size(), by);
}

/// Returns the only warning, "" where there is none.
std::string warning_of(const MegatronArgs& args) {
  EXPECT_LE(args.warnings.size(), 1u) << args.warnings.back();
  return args.warnings.empty() ? std::string() : args.warnings.front();
}

bool has_line(const MegatronArgs& args, const std::string& line) {
  return ("\n" + args.text).find("\n" + line + "\n") != std::string::npos;
}

std::string qwen3(const std::string& more) {
  return R"({"model_type": "qwen3_moe", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100, "intermediate_size": 80, "moe_intermediate_size": 48,
    "num_experts": 8, "num_experts_per_tok": 3, "rms_norm_eps": 1e-06, "max_position_embeddings": 128,)" +
         more + R"("rope_theta": 1000000.0})";
}

std::string deepseek(const std::string& scaling) {
  return R"({"model_type": "deepseek_v3", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 100, "intermediate_size": 80, "moe_intermediate_size": 48,
    "n_routed_experts": 8, "n_shared_experts": 2,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "norm_topk_prob": true, "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "kv_lora_rank": 24, "q_lora_rank": 28,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "rms_norm_eps": 1e-06,
    "rope_scaling": )" +
         scaling + "}";
}

TEST(MegatronArgs, SaysSizesRoutingAndVocabulary) {
  const MegatronArgs args = args_of(qwen3(R"("norm_topk_prob": true, "tie_word_embeddings": true,)"));
  for (const std::string line :
       {"--num-layers 3", "--num-query-groups 2", "--kv-channels 32", "--moe-ffn-hidden-size 48",
        "--moe-layer-freq [1]*3", "--rotary-base 1000000", "--vocab-size 100", "--padded-vocab-size 100",
        "--norm-epsilon 1e-06", "--bf16", "--swiglu"})
    EXPECT_TRUE(has_line(args, line)) << line << "\n" << args.text;
  for (const std::string line : {"--moe-router-pre-softmax", "--untie-embeddings-and-output-weights", "--qk-layernorm"})
    EXPECT_FALSE(has_line(args, line)) << line;
  EXPECT_TRUE(args.warnings.empty()) << args.warnings.front();
  EXPECT_EQ(args.text.find('\''), std::string::npos);
}

TEST(MegatronArgs, SaysWhatTheConfigurationChanges) {
  const MegatronArgs pre = args_of(qwen3(R"("norm_topk_prob": false,)"));
  EXPECT_TRUE(has_line(pre, "--moe-router-pre-softmax"));
  EXPECT_TRUE(has_line(pre, "--untie-embeddings-and-output-weights"));
  const MegatronArgs dense = args_of(qwen3(R"("mlp_only_layers": [1],)"));
  EXPECT_TRUE(has_line(dense, "--moe-layer-freq [1]*1+[0]*1+[1]*1")) << dense.text;
  const MegatronArgs gelu = args_of(qwen3(R"("hidden_act": "gelu",)"));
  ASSERT_EQ(gelu.warnings.size(), 1u);
  EXPECT_NE(gelu.warnings[0].find("gelu"), std::string::npos);
}

/// A run from the file alone must read rows in the order that they are in.
TEST(MegatronArgs, SaysTheOrderOfGateAndUp) {
  const Glu interleaved{Glu::Kind::Interleaved, 32}, contiguous{Glu::Kind::Contiguous, 0};
  const MegatronArgs both = args_of(deepseek("null"), {interleaved, interleaved}, true);
  EXPECT_TRUE(has_line(both, "--moe-mlp-glu-interleave-size 32"));
  EXPECT_TRUE(has_line(both, "--moe-shared-expert-glu-interleave-size 32"));
  const MegatronArgs none = args_of(deepseek("null"), {contiguous, contiguous}, true);
  EXPECT_EQ(none.text.find("interleave-size"), std::string::npos);
}

TEST(MegatronArgs, LatentAttention) {
  const MegatronArgs plain = args_of(deepseek("null"));
  for (const std::string line :
       {"--multi-latent-attention", "--q-lora-rank 28", "--qk-head-dim 16", "--qk-pos-emb-head-dim 8",
        "--rope-type rope", "--no-rope-fusion", "--moe-layer-freq [0]*1+[1]*2", "--moe-router-num-groups 4",
        "--moe-router-group-topk 2", "--moe-router-score-function sigmoid", "--moe-router-topk-scaling-factor 2.5"})
    EXPECT_TRUE(has_line(plain, line)) << line << "\n" << plain.text;
  EXPECT_FALSE(has_line(plain, "--group-query-attention"));
  EXPECT_TRUE(plain.warnings.empty());
}

/// What Megatron-LM has no argument for is told with both numbers.
TEST(MegatronArgs, WarnsOfWhatNoArgumentSays) {
  const MegatronArgs usual = args_of(deepseek(
      R"({"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
          "original_max_position_embeddings": 4096})"));
  EXPECT_TRUE(has_line(usual, "--rotary-scaling-factor 40.0")) << usual.text;
  EXPECT_TRUE(usual.warnings.empty());
  std::string config = deepseek("null");
  const std::string epsilon = R"("rms_norm_eps": 1e-06)";
  ASSERT_NE(config.find(epsilon), config.npos);
  const MegatronArgs norms = args_of(config.replace(config.find(epsilon), epsilon.size(), R"("rms_norm_eps": 1e-05)"));
  ASSERT_EQ(norms.warnings.size(), 1u);
  EXPECT_NE(norms.warnings[0].find("rms_norm_eps is 1e-05"), std::string::npos) << norms.warnings[0];
  const MegatronArgs kimi = args_of(
      deepseek(R"({"type": "yarn", "factor": 32, "beta_fast": 1.0, "original_max_position_embeddings": 4096})"));
  ASSERT_EQ(kimi.warnings.size(), 1u);
  EXPECT_NE(kimi.warnings[0].find("beta_fast"), std::string::npos) << kimi.warnings[0];
  EXPECT_NE(kimi.warnings[0].find("32.0"), std::string::npos) << kimi.warnings[0];
}

/// Where config.json has no layer_types, the family's software has a rule of its own.
TEST(MegatronArgs, SaysWhichLayersHaveAWindow) {
  const auto window_of = [](const std::string& more) { return args_of(qwen3(more)); };
  const std::string window = R"("sliding_window": 8,)";
  EXPECT_EQ(window_of(window).text.find("--window"), std::string::npos);
  EXPECT_EQ(window_of(window + R"("use_sliding_window": false,)").text.find("--window"), std::string::npos);
  const MegatronArgs all = window_of(window + R"("use_sliding_window": true,)");
  EXPECT_TRUE(has_line(all, "--window-size 7,0") && has_line(all, "--window-attn-skip-freq [1]*3")) << all.text;
  const MegatronArgs named =
      window_of(window + R"("layer_types": ["full_attention", "sliding_attention", "full_attention"],)");
  EXPECT_TRUE(has_line(named, "--window-attn-skip-freq [0]*1+[1]*1+[0]*1")) << named.text;

  const auto as = [](std::string config, const std::string& type) {
    return args_of(config.replace(config.find("qwen3_moe"), 9, type));
  };
  const MegatronArgs mixtral = as(qwen3(R"("num_local_experts": 8, "sliding_window": 8,)"), "mixtral");
  EXPECT_TRUE(has_line(mixtral, "--window-size 7,0") && has_line(mixtral, "--window-attn-skip-freq [1]*3"));
  EXPECT_EQ(as(qwen3(R"("num_local_experts": 8, "sliding_window": null,)"), "mixtral").text.find("--window"),
            std::string::npos);
  const MegatronArgs gpt_oss = as(qwen3(R"("num_local_experts": 8, "sliding_window": 8,)"), "gpt_oss");
  EXPECT_TRUE(has_line(gpt_oss, "--window-attn-skip-freq [1]*1+[0]*1+[1]*1")) << gpt_oss.text;
  const MegatronArgs dots =
      as(qwen3(R"("n_routed_experts": 8, "sliding_window": 8, "max_window_layers": 2,)"), "dots1");
  EXPECT_TRUE(has_line(dots, "--window-attn-skip-freq [0]*2+[1]*1")) << dots.text;
  EXPECT_EQ(as(qwen3(R"("n_routed_experts": 8, "sliding_window": 8,)"), "dots1").text.find("--window"),
            std::string::npos);
  const MegatronArgs qwen2 = as(qwen3(window + R"("use_sliding_window": true,)"), "qwen2_moe");
  EXPECT_EQ(qwen2.text.find("--window"), std::string::npos);
  ASSERT_FALSE(qwen2.warnings.empty());
  EXPECT_NE(qwen2.warnings.front().find("use_sliding_window"), std::string::npos);
}

TEST(MegatronArgs, ADenseModelHasNoneOfExperts) {
  const auto of_type = [](const std::string& type, const std::string& more) {
    return args_of(R"({"model_type": ")" + type + R"(", "num_hidden_layers": 3, "hidden_size": 64, "vocab_size": 100,
      "num_attention_heads": 4, "intermediate_size": 80, )" +
                   more + R"("rope_theta": 1000000.0})");
  };
  for (const char* const type : {"llama", "mistral", "qwen2", "qwen3"}) {
    const MegatronArgs args = of_type(type, R"("num_key_value_heads": 2,)");
    EXPECT_EQ(args.text.find("moe"), std::string::npos) << args.text;
    EXPECT_EQ(args.text.find("experts"), std::string::npos) << args.text;
    EXPECT_TRUE(has_line(args, "--ffn-hidden-size 80")) << args.text;
  }
  // The first layers of a Qwen3 see all tokens.
  const MegatronArgs window = of_type(
      "qwen3", R"("sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2, "num_key_value_heads": 2,)");
  EXPECT_TRUE(has_line(window, "--window-attn-skip-freq [0]*2+[1]*1")) << window.text;

  const auto llama = [&](const std::string& factor, const std::string& positions) {
    return of_type("llama", R"("rope_scaling": {"rope_type": "llama3", "factor": )" + factor +
                                R"(, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": )" +
                                positions + "},");
  };
  const MegatronArgs newer = llama("8.0", "8192");
  EXPECT_TRUE(newer.warnings.empty() && has_line(newer, "--use-rope-scaling")) << newer.text;
  EXPECT_EQ(newer.text.find("--rope-scaling-factor"), std::string::npos);
  const MegatronArgs small = llama("32.0", "8192");
  EXPECT_TRUE(has_line(small, "--use-rope-scaling") && has_line(small, "--rope-scaling-factor 32.0")) << small.text;
  EXPECT_NE(warning_of(small).find("factor of rope_scaling is 32.0, but 8.0"), std::string::npos) << warning_of(small);
  EXPECT_NE(warning_of(llama("8.0", "4096")).find("original_max_position_embeddings"), std::string::npos);
}

/// Norms may be in F32 beside BF16 weights, or in F16 beside F32 ones.
TEST(MegatronArgs, RunsInTheDtypeOfTheWeights) {
  const std::string config = qwen3("");
  EXPECT_TRUE(has_line(megatron_args(config, model_of(config, Dtype::BF16), {}), "--bf16"));
  EXPECT_TRUE(has_line(megatron_args(config, model_of(config, Dtype::F16), {}), "--fp16"));
  const MegatronArgs f32 = megatron_args(config, model_of(config, Dtype::F32), {});
  EXPECT_FALSE(has_line(f32, "--bf16") || has_line(f32, "--fp16")) << f32.text;
}

/// What config.json leaves away has the value that the model's class gives it, not one for all models.
TEST(MegatronArgs, FillsInTheDefaultsOfTheClass) {
  const std::string mixtral = R"({"model_type": "mixtral", "num_hidden_layers": 3, "hidden_size": 64,
    "num_attention_heads": 8, "vocab_size": 100, "intermediate_size": 80, "num_local_experts": 8)";
  const MegatronArgs args = args_of(mixtral + "}");
  for (const std::string line : {"--moe-router-topk 2", "--max-position-embeddings 131072", "--norm-epsilon 1e-05",
                                 "--rotary-base 1000000", "--num-query-groups 8"})
    EXPECT_TRUE(has_line(args, line)) << line << "\n" << args.text;
  EXPECT_EQ(args.text.find("--window"), args.text.npos);

  std::string sparse = replaced(deepseek("null"), R"("n_routed_experts": 8)", R"("n_routed_experts": 16)");
  for (const std::string field : {R"("n_group": 4, )", R"("topk_group": 2, )", R"("norm_topk_prob": true, )",
                                  R"("routed_scaling_factor": 2.5, )"})
    sparse = replaced(sparse, field, "");
  const MegatronArgs v3 = args_of(sparse);
  for (const std::string line :
       {"--moe-router-num-groups 8", "--moe-router-group-topk 4", "--moe-router-topk-scaling-factor 2.5"})
    EXPECT_TRUE(has_line(v3, line)) << line << "\n" << v3.text;

  const std::string gpt_oss = replaced(mixtral, "mixtral", "gpt_oss");
  EXPECT_TRUE(has_line(args_of(gpt_oss + "}"), "--no-yarn-correction-range-round-to-int"));
  EXPECT_TRUE(has_line(args_of(gpt_oss + "}"), "--window-size 127,0"));
  const MegatronArgs own =
      args_of(gpt_oss + R"(, "sliding_window": null, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}})");
  EXPECT_TRUE(has_line(own, "--yarn-correction-range-round-to-int")) << own.text;
  EXPECT_TRUE(has_line(own, "--yarn-original-max-position-embeddings 131072")) << own.text;
  EXPECT_EQ(own.text.find("--window"), own.text.npos);
}

TEST(MegatronArgs, RefusesWhatNobodySays) {
  const auto code_of = [](const std::string& config) {
    try {
      args_of(config);
    } catch (const Error& error) {
      return std::string(slug(error.code())) + ": " + error.what();
    }
    return std::string();
  };
  const std::string dots = replaced(qwen3(R"("n_routed_experts": 8,)"), "qwen3_moe", "dots1");
  EXPECT_EQ(code_of(dots), "");
  const std::string missing = code_of(replaced(dots, R"("num_experts_per_tok": 3, )", ""));
  EXPECT_TRUE(missing.starts_with("no-map: config.json: num_experts_per_tok is missing")) << missing;
  const std::string kimi = replaced(deepseek("null"), "deepseek_v3", "kimi_k2");
  EXPECT_NE(code_of(kimi).find("max_position_embeddings is missing"), std::string::npos) << code_of(kimi);
  const std::string many = code_of(replaced(qwen3(""), R"("num_experts_per_tok": 3)", R"("num_experts_per_tok": 9)"));
  EXPECT_EQ(many, "config-json: config.json: num_experts_per_tok is 9, but there are 8 experts to choose from");
}

/// Megatron-Core has no weight of 1 for a single expert.
TEST(MegatronArgs, WarnsOfTheWeightOfOneExpert) {
  const std::string one = replaced(qwen3(R"("norm_topk_prob": true,)"), "per_tok\": 3", "per_tok\": 1");
  EXPECT_NE(warning_of(args_of(one)).find("divided by itself"), std::string::npos);
  EXPECT_TRUE(has_line(args_of(one), "--moe-router-pre-softmax"));
  EXPECT_EQ(warning_of(args_of(replaced(one, "true", "false"))), "");
  const std::string sigmoid =
      replaced(replaced(deepseek("null"), "per_tok\": 4, \"n_group\": 4", "per_tok\": 1, \"n_group\": 1"),
               R"("topk_group": 2)", R"("topk_group": 1)");
  EXPECT_NE(warning_of(args_of(sigmoid)).find("divided by itself"), std::string::npos);
  EXPECT_EQ(warning_of(args_of(replaced(sigmoid, "prob\": true", "prob\": false"))), "");
}

/// DeepSeek's own code and transformers disagree, so one of them is followed and both are named.
TEST(MegatronArgs, NormalisesDeepseekV2AsItsOwnCodeDoes) {
  const std::string v2 = replaced(deepseek("null"), "deepseek_v3", "deepseek_v2");
  const std::string soft = replaced(v2, R"("scoring_func": "sigmoid")", R"("scoring_func": "softmax")");
  const MegatronArgs norm = args_of(soft);
  EXPECT_NE(warning_of(norm).find("as DeepSeek's own code does"), std::string::npos);
  EXPECT_EQ(norm.text.find("--moe-router-pre-softmax"), norm.text.npos);
  EXPECT_EQ(norm.text.find("--moe-router-topk-scaling-factor"), norm.text.npos);
  const MegatronArgs plain = args_of(replaced(soft, R"("norm_topk_prob": true)", R"("norm_topk_prob": false)"));
  EXPECT_EQ(warning_of(plain), "");
  EXPECT_TRUE(has_line(plain, "--moe-router-pre-softmax") && has_line(plain, "--moe-router-topk-scaling-factor 2.5"));
}

/// Megatron-Core scales by a quotient of two scales alone, transformers by a factor that may be given.
TEST(MegatronArgs, ChoosesTheScalesOfYarn) {
  const auto qwen = [](const std::string& more) {
    return args_of(
        qwen3(R"("norm_topk_prob": true, "rope_scaling": {"rope_type": "yarn", "factor": 4.0)" + more + "},"));
  };
  EXPECT_TRUE(has_line(qwen(""), "--mscale 1.0") && has_line(qwen(""), "--mscale-all-dim 0.0"));
  // 1.7 = 0.1 * mscale * ln 4 + 1.
  EXPECT_NE(qwen(R"(, "attention_factor": 1.7)").text.find("--mscale 5.0494326431"), std::string::npos);
  EXPECT_TRUE(has_line(qwen(R"(, "mscale": 0.5)"), "--mscale 1.0"));
  const MegatronArgs both = qwen(R"(, "mscale": 0.5, "mscale_all_dim": 0.25)");
  EXPECT_TRUE(has_line(both, "--mscale 0.5") && has_line(both, "--mscale-all-dim 0.25")) << both.text;
  EXPECT_EQ(warning_of(both), "");
  EXPECT_NE(qwen(R"(, "partial_rotary_factor": 0.5)").warnings.size(), 0u);

  const MegatronArgs latent = args_of(deepseek(R"({"type": "yarn", "factor": 4.0, "mscale": 0.5})"));
  EXPECT_TRUE(has_line(latent, "--mscale 1.0") && has_line(latent, "--mscale-all-dim 0.0")) << latent.text;
  EXPECT_NE(warning_of(latent).find("mscale of YaRN is there without mscale_all_dim"), std::string::npos);
}

TEST(MegatronArgs, RotatesAPartOfEachHead) {
  const std::string minimax =
      replaced(qwen3(R"("num_local_experts": 8, "rotary_dim": 16,)"), "qwen3_moe", "minimax_m2");
  EXPECT_TRUE(has_line(args_of(minimax), "--rotary-percent 0.5")) << args_of(minimax).text;
  EXPECT_EQ(args_of(qwen3(R"("norm_topk_prob": true, "rotary_dim": 16,)")).text.find("--rotary-percent"),
            std::string::npos);
}

/// A class that does not read the field rotates whole heads, whatever it says, unless a scaling reads it.
TEST(MegatronArgs, RotatesWholeHeadsWhereTheClassDoes) {
  const std::string part = R"("norm_topk_prob": true, "partial_rotary_factor": 0.5,)";
  const MegatronArgs qwen = args_of(qwen3(part));
  EXPECT_EQ(qwen.text.find("--rotary-percent"), std::string::npos) << qwen.text;
  EXPECT_NE(warning_of(qwen).find("partial_rotary_factor is 0.5 in config.json, but models of type 'qwen3_moe'"),
            std::string::npos);
  EXPECT_EQ(warning_of(args_of(replaced(qwen3(part), "0.5", "1.0"))), "");
  EXPECT_TRUE(has_line(args_of(qwen3(part + R"("rope_scaling": {"rope_type": "linear", "factor": 2.0},)")),
                       "--rotary-percent 0.5"));
  const std::string inside = R"("norm_topk_prob": true, "rope_parameters": {"rope_type": "default",
    "partial_rotary_factor": 0.5, "rope_theta": 1000000.0},)";
  EXPECT_EQ(args_of(qwen3(inside)).text.find("--rotary-percent"), std::string::npos);
  const std::string glm =
      replaced(replaced(qwen3(part), "qwen3_moe", "solar_open"), "num_experts\"", "n_routed_experts\"");
  EXPECT_TRUE(has_line(args_of(glm), "--rotary-percent 0.5")) << args_of(glm).text;
}

TEST(MegatronArgs, TellsWhichLayersOfLlama4HaveNoRotation) {
  const auto llama = [](const std::string& more) {
    return args_of(R"({"model_type": "llama4_text", "num_hidden_layers": 4, "hidden_size": 64, "head_dim": 32,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 80,
      "num_local_experts": 8, "max_position_embeddings": 8192)" +
                   more + "}");
  };
  for (const std::string every_fourth :
       {"", R"(, "no_rope_layers": [])", R"(, "no_rope_layers": null)", R"(, "no_rope_layers": [1, 1, 1, 0])"}) {
    EXPECT_TRUE(has_line(llama(every_fourth), "--no-rope-freq [0]*3+[1]*1")) << every_fourth;
    EXPECT_NE(warning_of(llama(every_fourth)).find("no_rope_layers"), std::string::npos) << every_fourth;
  }
  const std::string plain = R"(, "use_qk_norm": false, "attn_temperature_tuning": false)";
  EXPECT_TRUE(has_line(llama(plain), "--no-rope-freq [0]*3+[1]*1"));
  EXPECT_EQ(warning_of(llama(plain)), "");
  EXPECT_NE(warning_of(llama(plain + R"(, "attention_chunk_size": 8191)")).find("8191"), std::string::npos);
  EXPECT_EQ(warning_of(llama(plain + R"(, "attention_chunk_size": null)")), "");
  EXPECT_EQ(llama(R"(, "no_rope_layers": [1, 1, 1, 1])").text.find("--no-rope-freq"), std::string::npos);
  EXPECT_NE(warning_of(llama(plain + R"(, "num_experts_per_tok": 2)")).find("num_experts_per_tok is 2"),
            std::string::npos);
}

/// The names of the arguments in which what is asked for and what was saved differ.
std::string differing(const std::string& asked, const std::string& saved) {
  Inventory tensors;
  tensors.tensors.emplace_back().name = "mtp.layers.0.eh_proj.weight";
  std::string names;
  for (const ArgumentDifference& found : argument_differences(asked, saved, tensors))
    names += (names.empty() ? "" : " ") + found.name + " " + found.saved;
  return names;
}

/// None is what an argument is without a value, also where that is another argument's.
TEST(MegatronArgs, NoneIsComparedAsWhatItMeans) {
  const std::string groups = "--num-experts 8\n--moe-router-num-groups 4\n--moe-router-group-topk 2\n";
  EXPECT_EQ(differing(groups, R"({"moe_router_num_groups": 4, "moe_router_group_topk": 2})"), "");
  EXPECT_EQ(differing(groups, R"({"moe_router_num_groups": 4, "moe_router_group_topk": null})"),
            "moe_router_group_topk None");
  EXPECT_EQ(differing("--num-experts 8\n", R"({"moe_router_num_groups": 4, "moe_router_group_topk": null})"), "");

  const std::string latent = "--multi-latent-attention\n--rope-type rope\n--position-embedding-type rope\n";
  EXPECT_EQ(differing(latent, R"({"multi_latent_attention": true, "rope_type": null, "rotary_scaling_factor": 1.0})"),
            "");
  EXPECT_EQ(differing(latent, R"({"multi_latent_attention": true, "rope_type": null, "rotary_scaling_factor": 40.0})"),
            "rope_type yarn (as which Megatron-Core takes None)");
  EXPECT_EQ(differing(latent, R"({"multi_latent_attention": true, "rotary_percent": 0.5})"), "rotary_percent 0.5");

  const std::string sparse =
      "--experimental-attention-variant dsa\n--dsa-indexer-k-norm-epsilon 1e-6\n--norm-epsilon 1e-6\n";
  const std::string variant = R"({"experimental_attention_variant": "dsa", "dsa_indexer_k_norm_epsilon": null, )";
  EXPECT_EQ(differing(sparse, variant + R"("layernorm_epsilon": 1e-6, "mtp_num_layers": 1})"), "");
  EXPECT_EQ(differing(sparse, variant + R"("layernorm_epsilon": 1e-6, "mtp_num_layers": 7})"), "mtp_num_layers 7");
  EXPECT_NE(differing(sparse, variant + R"("layernorm_epsilon": 1e-5})").find("dsa_indexer_k_norm_epsilon None"),
            std::string::npos);
}

/// The argument that differs is named, and not another one that it makes differ.
TEST(MegatronArgs, TheArgumentThatDiffersIsNamed) {
  const std::string windows = "--num-layers 3\n--window-size 7,0\n--window-attn-skip-freq [1]*1+[0]*1+[1]*1\n";
  EXPECT_EQ(differing(windows, R"({"num_layers": 3, "window_size": [7, 0], "window_attn_skip_freq": [1, 0, 1]})"), "");
  EXPECT_EQ(differing(windows, R"({"num_layers": 4, "window_size": [7, 0], "window_attn_skip_freq": [1, 0, 1]})"),
            "num_layers 4");
  EXPECT_EQ(differing("--num-layers 3\n", R"({"num_layers": 3, "window_size": 128})"), "window_size 128");

  const std::string yarn =
      "--position-embedding-type yarn\n--rotary-scaling-factor 4.0\n--mscale 1.0\n--mscale-all-dim 1.0\n"
      "--yarn-original-max-position-embeddings 32\n";
  const std::string saved = R"({"position_embedding_type": "yarn", "rotary_scaling_factor": 4.0, )";
  EXPECT_EQ(differing(yarn, saved + R"("mscale": 1.0, "mscale_all_dim": 1.0})"), "");
  EXPECT_EQ(differing(yarn, saved + R"("mscale": 1.0, "mscale_all_dim": 0.5})"), "mscale_all_dim 0.5");
  EXPECT_EQ(differing(yarn, saved + R"("mscale": 0.5, "mscale_all_dim": 1.0})"), "mscale 0.5");
  EXPECT_EQ(differing(yarn, saved + R"("mscale": 0.5, "mscale_all_dim": 0.5})"), "");
  EXPECT_EQ(differing(yarn, saved + R"("mscale": 1.0, "mscale_all_dim": 1.0,
    "yarn_original_max_position_embeddings": null})"),
            "yarn_original_max_position_embeddings None");
}

}  // namespace
}  // namespace glu_ckpt
