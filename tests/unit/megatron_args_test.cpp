/// The arguments of a run of Megatron-LM, and what they cannot say.

#include "arch/megatron_args.hpp"

#include <gtest/gtest.h>

#include "arch/architecture.hpp"

namespace glu_ckpt {
namespace {

MegatronArgs args_of(const std::string& config, const GluOrders& to = {}, bool shared = false) {
  Recognition model;
  model.architecture = read_architecture(config);
  DenseMatrix norm;
  norm.role = DenseRole::FinalNorm;
  norm.stored_dtype = Dtype::BF16;
  model.dense.push_back(norm);
  if (shared) model.blocks.emplace_back().set = ExpertSet::Shared;
  return megatron_args(config, model, to);
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
    "vocab_size": 100, "intermediate_size": 80, "moe_intermediate_size": 48, "n_routed_experts": 8, "n_shared_experts": 2,
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

}  // namespace
}  // namespace glu_ckpt
