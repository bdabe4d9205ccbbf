#include "support/written_families.hpp"

#include <fmt/format.h>

#include <array>

namespace glu_ckpt::support {
namespace {

// No two sizes are equal, so that nothing fits where it does not belong.
constexpr i64 kSharedWidth = 18;
constexpr i64 kHidden = 24, kHeads = 4, kKvHeads = 2, kHead = kWrittenHead, kWords = 50, kDenseWidth = 22, kWidth = 14;
constexpr i64 kNumExperts = kWrittenExperts, kQ = kHeads * kHead, kKv = kKvHeads * kHead;
constexpr i64 kNope = 12, kRope = 8, kValue = 16, kKvRank = 17, kQRank = 18;
constexpr i64 kDeltaKeys = 2, kDeltaValues = 4, kDeltaKey = 6, kDeltaValue = 7, kKernel = 5;
constexpr i64 kDeltaWide = kDeltaValues * kDeltaValue, kDeltaQkv = 2 * kDeltaKeys * kDeltaKey + kDeltaWide;

Lines operator+(Lines lines, const Lines& more) {
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

const Lines kNorms = {{"input_layernorm.weight", {kHidden}}, {"post_attention_layernorm.weight", {kHidden}}};
const Lines kProjections = {{"self_attn.q_proj.weight", {kQ, kHidden}},
                            {"self_attn.k_proj.weight", {kKv, kHidden}},
                            {"self_attn.v_proj.weight", {kKv, kHidden}},
                            {"self_attn.o_proj.weight", {kHidden, kQ}}};
const Lines kBiases = {
    {"self_attn.q_proj.bias", {kQ}}, {"self_attn.k_proj.bias", {kKv}}, {"self_attn.v_proj.bias", {kKv}}};
const Lines kHeadNorms = {{"self_attn.q_norm.weight", {kHead}}, {"self_attn.k_norm.weight", {kHead}}};
const Lines kWideNorms = {{"self_attn.q_norm.weight", {kQ}}, {"self_attn.k_norm.weight", {kKv}}};
const Lines kLatents = {{"self_attn.kv_a_proj_with_mqa.weight", {kKvRank + kRope, kHidden}},
                        {"self_attn.kv_a_layernorm.weight", {kKvRank}},
                        {"self_attn.kv_b_proj.weight", {kHeads * (kNope + kValue), kKvRank}},
                        {"self_attn.o_proj.weight", {kHidden, kHeads* kValue}}};
const Lines kWholeQueries = {{"self_attn.q_proj.weight", {kHeads * (kNope + kRope), kHidden}}};
const Lines kLatentQueries = {{"self_attn.q_a_proj.weight", {kQRank, kHidden}},
                              {"self_attn.q_a_layernorm.weight", {kQRank}},
                              {"self_attn.q_b_proj.weight", {kHeads * (kNope + kRope), kQRank}}};
const Lines kIndexer = {{"self_attn.indexer.wq_b.weight", {3 * 11, kQRank}},
                        {"self_attn.indexer.wk.weight", {11, kHidden}},
                        {"self_attn.indexer.k_norm.weight", {11}},
                        {"self_attn.indexer.k_norm.bias", {11}},
                        {"self_attn.indexer.weights_proj.weight", {3, kHidden}}};
const Lines kRouter = {{"mlp.gate.weight", {kNumExperts, kHidden}, In::Experts}};
const Lines kCorrection = {{"mlp.gate.e_score_correction_bias", {kNumExperts}, In::Experts}};

Lines mlp(const std::string& root, i64 width, In in) {
  return {{root + "gate_proj.weight", {width, kHidden}, in},
          {root + "up_proj.weight", {width, kHidden}, in},
          {root + "down_proj.weight", {kHidden, width}, in}};
}

const Lines kEach = mlp("mlp.experts.{E}.", kWidth, In::Experts);
const Lines kMixtralEach = {{"block_sparse_moe.gate.weight", {kNumExperts, kHidden}, In::Experts},
                            {"block_sparse_moe.experts.{E}.w1.weight", {kWidth, kHidden}, In::Experts},
                            {"block_sparse_moe.experts.{E}.w3.weight", {kWidth, kHidden}, In::Experts},
                            {"block_sparse_moe.experts.{E}.w2.weight", {kHidden, kWidth}, In::Experts}};
const Lines kDenseMlp = mlp("mlp.", kDenseWidth, In::Dense);
const Lines kTwoShared = mlp("mlp.shared_experts.", 2 * kWidth, In::Experts);
const Lines kOneShared = mlp("mlp.shared_expert.", kWidth, In::Experts) +
                         Lines{{"mlp.shared_expert_gate.weight", {1, kHidden}, In::Experts}};

const Lines kFullAttention = {{"self_attn.q_proj.weight", {2 * kQ, kHidden}, In::Full},
                              {"self_attn.k_proj.weight", {kKv, kHidden}, In::Full},
                              {"self_attn.v_proj.weight", {kKv, kHidden}, In::Full},
                              {"self_attn.o_proj.weight", {kHidden, kQ}, In::Full},
                              {"self_attn.q_norm.weight", {kHead}, In::Full},
                              {"self_attn.k_norm.weight", {kHead}, In::Full},
                              {"linear_attn.conv1d.weight", {kDeltaQkv, 1, kKernel}, In::Delta},
                              {"linear_attn.A_log", {kDeltaValues}, In::Delta},
                              {"linear_attn.dt_bias", {kDeltaValues}, In::Delta},
                              {"linear_attn.norm.weight", {kDeltaValue}, In::Delta},
                              {"linear_attn.out_proj.weight", {kHidden, kDeltaWide}, In::Delta}};

constexpr i64 kMamba = 7 * 5, kMambaStates = 2 * 13, kMambaConv = kMamba + 2 * kMambaStates, kLatentWidth = 19;
const Lines kMixers = {{"norm.weight", {kHidden}},
                       {"mixer.in_proj.weight", {kMamba + kMambaConv + 7, kHidden}, In::Mamba},
                       {"mixer.conv1d.weight", {kMambaConv, 1, 4}, In::Mamba},
                       {"mixer.conv1d.bias", {kMambaConv}, In::Mamba},
                       {"mixer.A_log", {7}, In::Mamba},
                       {"mixer.D", {7}, In::Mamba},
                       {"mixer.dt_bias", {7}, In::Mamba},
                       {"mixer.norm.weight", {kMamba}, In::Mamba},
                       {"mixer.out_proj.weight", {kHidden, kMamba}, In::Mamba},
                       {"mixer.gate.weight", {kNumExperts, kHidden}, In::Experts},
                       {"mixer.gate.e_score_correction_bias", {kNumExperts}, In::Experts},
                       {"mixer.fc1_latent_proj.weight", {kLatentWidth, kHidden}, In::Experts},
                       {"mixer.fc2_latent_proj.weight", {kHidden, kLatentWidth}, In::Experts},
                       {"mixer.experts.{E}.up_proj.weight", {kWidth, kLatentWidth}, In::Experts},
                       {"mixer.experts.{E}.down_proj.weight", {kLatentWidth, kWidth}, In::Experts},
                       {"mixer.shared_experts.up_proj.weight", {kWidth, kHidden}, In::Experts},
                       {"mixer.shared_experts.down_proj.weight", {kHidden, kWidth}, In::Experts},
                       {"mixer.q_proj.weight", {kQ, kHidden}, In::Full},
                       {"mixer.k_proj.weight", {kKv, kHidden}, In::Full},
                       {"mixer.v_proj.weight", {kKv, kHidden}, In::Full},
                       {"mixer.o_proj.weight", {kHidden, kQ}, In::Full},
                       {"mixer.up_proj.weight", {kDenseWidth, kHidden}, In::Dense},
                       {"mixer.down_proj.weight", {kHidden, kDenseWidth}, In::Dense}};

const std::string kDeltaFields =
    R"("num_experts": 3, "moe_intermediate_size": 14, "shared_expert_intermediate_size": 14,
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 7,
  "linear_conv_kernel_dim": 5,
  "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"])";
const std::string kLatentFields = R"("num_key_value_heads": 4, "intermediate_size": 22, "moe_intermediate_size": 14,
  "n_routed_experts": 3, "n_shared_experts": 2, "first_k_dense_replace": 1, "kv_lora_rank": 17, "qk_nope_head_dim": 12,
  "qk_rope_head_dim": 8, "v_head_dim": 16, "n_group": 1, "topk_group": 1)";
const std::string kIndexerFields = R"(, "q_lora_rank": 18, "index_n_heads": 3, "index_head_dim": 11, "index_topk": 5)";
const std::string kGlmFields = R"("intermediate_size": 22, "moe_intermediate_size": 14, "n_routed_experts": 3,
  "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1)";

const std::string kMtpNorm = "shared_head.norm.weight";

}  // namespace

std::vector<Written> all_families() {
  const std::string width = R"("num_experts": 3, "moe_intermediate_size": 14, "intermediate_size": 22)";
  const std::string plain_width = R"("intermediate_size": 14, "num_local_experts": 3)";
  const Lines usual = kNorms + kProjections, latent = kNorms + kLatents + kLatentQueries;
  const Lines sigmoid = kRouter + kCorrection + kEach + kTwoShared + kDenseMlp;
  const Lines dense = mlp("mlp.", kDenseWidth, In::Every);
  const std::string dense_width = R"("intermediate_size": 22)";
  return {
      {"llama", dense_width, usual + dense, 3, 3},
      {"mistral", dense_width, usual + dense, 3, 3},
      {"qwen2", dense_width, usual + kBiases + dense, 3, 3},
      {"qwen3", dense_width, usual + kHeadNorms + dense, 3, 3},
      {"mixtral", plain_width, usual + kMixtralEach},
      {"olmoe", R"("num_experts": 3, "intermediate_size": 14)", usual + kWideNorms + kRouter + kEach},
      {"minimax_m2", plain_width + R"(, "rotary_dim": 8)",
       usual + kWideNorms + kMixtralEach +
           Lines{{"block_sparse_moe.e_score_correction_bias", {kNumExperts}, In::Experts}}},
      {"qwen2_moe", width + R"(, "shared_expert_intermediate_size": 14)",
       usual + kBiases + kRouter + kEach + kOneShared},
      {"qwen3_moe", width + R"(, "mlp_only_layers": [0])", usual + kHeadNorms + kRouter + kEach + kDenseMlp, 3, 1},
      {"qwen3_vl_moe_text", width,
       usual + kHeadNorms + kRouter +
           Lines{{"mlp.experts.gate_up_proj", {kNumExperts, kHidden, 2 * kWidth}, In::Experts},
                 {"mlp.experts.down_proj", {kNumExperts, kWidth, kHidden}, In::Experts}}},
      {"deepseek_v2", kLatentFields + R"(, "q_lora_rank": null)",
       kNorms + kLatents + kWholeQueries + kRouter + kEach + kTwoShared + kDenseMlp, 3, 1},
      {"deepseek_v3", kLatentFields + R"(, "q_lora_rank": 18, "num_nextn_predict_layers": 1)", latent + sigmoid, 3, 1,
       false, kMtpNorm},
      {"deepseek_v32", kLatentFields + kIndexerFields, latent + kIndexer + sigmoid, 3, 1},
      {"glm_moe_dsa", kLatentFields + kIndexerFields + R"(, "num_nextn_predict_layers": 1)",
       latent + kIndexer + sigmoid, 3, 1, false, kMtpNorm},
      {"kimi_k2", kLatentFields + R"(, "q_lora_rank": 18)", latent + sigmoid, 3, 1},
      {"mistral4", kLatentFields + R"(, "q_lora_rank": 18)",
       latent + kRouter + kTwoShared + kDenseMlp +
           Lines{{"mlp.experts.gate_up_proj", {kNumExperts, 2 * kWidth, kHidden}, In::Experts},
                 {"mlp.experts.down_proj", {kNumExperts, kHidden, kWidth}, In::Experts}},
       3, 1},
      {"sarvam_mla", kLatentFields + R"(, "q_lora_rank": 18)", latent + sigmoid, 3, 1},
      {"glm4_moe_lite", kLatentFields + R"(, "q_lora_rank": 18)", latent + sigmoid, 3, 1},
      {"glm4_moe", kGlmFields + R"(, "attention_bias": true, "use_qk_norm": true, "num_nextn_predict_layers": 1)",
       usual + kBiases + kHeadNorms + sigmoid, 3, 1, false, kMtpNorm},
      {"nemotron_h",
       R"("intermediate_size": 22, "moe_intermediate_size": 14, "n_routed_experts": 3, "n_groups": 2,
          "moe_shared_expert_intermediate_size": 14, "moe_latent_size": 19, "mamba_num_heads": 7, "mamba_head_dim": 5,
          "ssm_state_size": 13, "conv_kernel": 4, "hybrid_override_pattern": "ME*-")",
       kMixers, 4, 0, false, "", "embeddings.weight", "norm_f.weight", "backbone.", true},
      {"dots1", kGlmFields, usual + kHeadNorms + sigmoid, 3, 1},
      {"solar_open", R"("moe_intermediate_size": 14, "n_routed_experts": 3, "n_shared_experts": 2)",
       usual + kRouter + kCorrection + kEach + kTwoShared},
      {"hy_v3",
       R"("intermediate_size": 22, "moe_intermediate_size": 14, "num_experts": 3, "num_shared_experts": 2,
          "num_nextn_predict_layers": 1)",
       usual + kHeadNorms + kEach + kDenseMlp + mlp("mlp.shared_mlp.", 2 * kWidth, In::Experts) +
           Lines{{"mlp.router.gate.weight", {kNumExperts, kHidden}, In::Experts},
                 {"mlp.expert_bias", {kNumExperts}, In::Experts}},
       3, 1, false, "final_layernorm.weight"},
      {"glm4v_moe_text", kGlmFields + R"(, "attention_bias": true)", usual + kBiases + sigmoid, 3, 1},
      {"exaone_moe",
       R"("intermediate_size": 22, "moe_intermediate_size": 14, "num_experts": 3, "num_shared_experts": 2)",
       usual + kHeadNorms + kRouter + kEach + kTwoShared + kDenseMlp +
           Lines{{"mlp.e_score_correction_bias", {kNumExperts}, In::Experts}},
       3, 1},
      {"bailing_moe_v2",
       R"("intermediate_size": 22, "moe_intermediate_size": 14, "num_experts": 3, "num_shared_experts": 2,
          "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "use_qk_norm": true)",
       kNorms + kRouter + kEach + kTwoShared + kDenseMlp +
           Lines{{"attention.query_key_value.weight", {kQ + 2 * kKv, kHidden}},
                 {"attention.dense.weight", {kHidden, kQ}},
                 {"attention.query_layernorm.weight", {kHead}},
                 {"attention.key_layernorm.weight", {kHead}},
                 {"mlp.gate.expert_bias", {kNumExperts}, In::Experts}},
       3, 1, false, "final_layernorm.weight", "word_embeddings.weight"},
      {"ernie4_5_moe",
       R"("intermediate_size": 22, "moe_intermediate_size": 14, "moe_num_experts": 3, "moe_k": 2,
          "moe_num_shared_experts": 2, "moe_layer_start_index": 1)",
       usual + kRouter + kEach + kTwoShared + kDenseMlp +
           Lines{{"mlp.moe_statics.e_score_correction_bias", {1, kNumExperts}, In::Experts}},
       3, 1},
      {"gpt_oss", plain_width + R"(, "attention_bias": true)",
       usual + kBiases +
           Lines{{"self_attn.o_proj.bias", {kHidden}},
                 {"self_attn.sinks", {kHeads}},
                 {"mlp.router.weight", {kNumExperts, kHidden}, In::Experts},
                 {"mlp.router.bias", {kNumExperts}, In::Experts},
                 {"mlp.experts.gate_up_proj", {kNumExperts, kHidden, 2 * kWidth}, In::Experts},
                 {"mlp.experts.gate_up_proj_bias", {kNumExperts, 2 * kWidth}, In::Experts},
                 {"mlp.experts.down_proj", {kNumExperts, kWidth, kHidden}, In::Experts},
                 {"mlp.experts.down_proj_bias", {kNumExperts, kHidden}, In::Experts}}},
      {"llama4_text", plain_width + R"(, "intermediate_size_mlp": 22, "moe_layers": [1, 2])",
       usual +
           Lines{{"feed_forward.router.weight", {kNumExperts, kHidden}, In::Experts},
                 {"feed_forward.experts.gate_up_proj", {kNumExperts, kHidden, 2 * kWidth}, In::Experts},
                 {"feed_forward.experts.down_proj", {kNumExperts, kWidth, kHidden}, In::Experts}} +
           mlp("feed_forward.shared_expert.", kWidth, In::Experts) + mlp("feed_forward.", kDenseWidth, In::Dense),
       3, 1},
      {"granitemoe", plain_width,
       usual + Lines{{"block_sparse_moe.router.layer.weight", {kNumExperts, kHidden}, In::Experts},
                     {"block_sparse_moe.input_linear.weight", {kNumExperts, 2 * kWidth, kHidden}, In::Experts},
                     {"block_sparse_moe.output_linear.weight", {kNumExperts, kHidden, kWidth}, In::Experts}}},
      {"granitemoeshared", plain_width + R"(, "shared_intermediate_size": 18)",
       usual + Lines{{"block_sparse_moe.router.layer.weight", {kNumExperts, kHidden}, In::Experts},
                     {"block_sparse_moe.input_linear.weight", {kNumExperts, 2 * kWidth, kHidden}, In::Experts},
                     {"block_sparse_moe.output_linear.weight", {kNumExperts, kHidden, kWidth}, In::Experts},
                     {"shared_mlp.input_linear.weight", {2 * kSharedWidth, kHidden}, In::Experts},
                     {"shared_mlp.output_linear.weight", {kHidden, kSharedWidth}, In::Experts}}},
      {"qwen3_next", kDeltaFields,
       kNorms + kFullAttention + kRouter + kEach + kOneShared +
           Lines{{"linear_attn.in_proj_qkvz.weight", {kDeltaQkv + kDeltaWide, kHidden}, In::Delta},
                 {"linear_attn.in_proj_ba.weight", {2 * kDeltaValues, kHidden}, In::Delta}},
       4, 0, true},
      {"qwen3_5_moe_text", kDeltaFields,
       kNorms + kFullAttention + kRouter + kOneShared +
           Lines{{"linear_attn.in_proj_qkv.weight", {kDeltaQkv, kHidden}, In::Delta},
                 {"linear_attn.in_proj_z.weight", {kDeltaWide, kHidden}, In::Delta},
                 {"linear_attn.in_proj_b.weight", {kDeltaValues, kHidden}, In::Delta},
                 {"linear_attn.in_proj_a.weight", {kDeltaValues, kHidden}, In::Delta},
                 {"mlp.experts.gate_up_proj", {kNumExperts, 2 * kWidth, kHidden}, In::Experts},
                 {"mlp.experts.down_proj", {kNumExperts, kHidden, kWidth}, In::Experts}},
       4, 0, true},
  };
}

std::string config_of(const Written& model) {
  return fmt::format(R"({{"model_type": "{}", {}"hidden_size": 24, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 50, "tie_word_embeddings": false,
    "num_experts_per_tok": 2, {}}})",
                     model.type,
                     // The list of mixers alone says how many layers a hybrid model has.
                     model.is_hybrid ? std::string() : fmt::format("\"num_hidden_layers\": {}, ", model.layers),
                     model.fields);
}

bool is_in(const Written& model, i64 layer, In in) {
  if (model.is_hybrid && in != In::Every)
    return in == std::array{In::Mamba, In::Experts, In::Full, In::Dense}[static_cast<std::size_t>(layer)];
  switch (in) {
    case In::Mamba: return false;
    case In::Every: return true;
    case In::Dense: return layer < model.dense_layers;
    case In::Experts: return layer >= model.dense_layers;
    case In::Delta: return model.has_delta && layer % 4 != 3;
    case In::Full: return !model.has_delta || layer % 4 == 3;
  }
  return true;
}

std::string layer_prefix(const Written& model, i64 layer) { return fmt::format("{}layers.{}.", model.root, layer); }

std::vector<MemoryTensor> tensors_of(const Written& model) {
  std::vector<MemoryTensor> tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.push_back({name, Dtype::BF16, shape, {}});
  };
  add(model.root + model.embedding, {kWords, kHidden});
  for (i64 layer = 0; layer < model.layers + (model.mtp_norm.empty() ? 0 : 1); ++layer)
    for (const Line& line : model.lines) {
      if (!is_in(model, layer, line.in)) continue;
      const std::size_t mark = line.name.find("{E}");
      if (mark == line.name.npos) add(layer_prefix(model, layer) + line.name, line.shape);
      for (i64 expert = 0; mark != line.name.npos && expert < kNumExperts; ++expert)
        add(layer_prefix(model, layer) + std::string(line.name).replace(mark, 3, fmt::format("{}", expert)),
            line.shape);
    }
  if (!model.mtp_norm.empty()) {
    const std::string prefix = layer_prefix(model, model.layers);
    for (const std::string& norm : {std::string("enorm.weight"), std::string("hnorm.weight"), model.mtp_norm})
      add(prefix + norm, {kHidden});
    add(prefix + "eh_proj.weight", {kHidden, 2 * kHidden});
  }
  add(model.root + model.final_norm, {kHidden});
  add("lm_head.weight", {kWords, kHidden});
  return tensors;
}

}  // namespace glu_ckpt::support
