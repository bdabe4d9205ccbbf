/// Rows between config.json and Megatron-LM's arguments, of all families: there and back.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "arch/model_args.hpp"
#include "arch/trained_config.hpp"

namespace glu_ckpt {
namespace {

using Fields = std::map<std::string, std::string>;

std::string json_text(const Fields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) text += fmt::format("{}\"{}\": {}", text.empty() ? "{" : ", ", name, value);
  return text + "}";
}

bool has_field(const Family& family, std::string_view field) {
  return std::ranges::any_of(family.args, [&](std::span<const ArgRow> rows) {
    return std::ranges::find(rows, field, &ArgRow::field) != rows.end();
  });
}

/// Sizes that all differ, under every spelling that a family may read.
Fields sizes_of(const Family& family) {
  Fields fields = {{"model_type", fmt::format("\"{}\"", family.model_type)},
                   {"num_hidden_layers", "4"},
                   {"hidden_size", "64"},
                   {"num_attention_heads", "4"},
                   {"num_key_value_heads", "2"},
                   {"head_dim", "32"},
                   {"vocab_size", "100"},
                   {"max_position_embeddings", "128"},
                   {"rms_norm_eps", "1e-06"},
                   {"rope_theta", "50000.0"},
                   {"tie_word_embeddings", "false"},
                   {"num_experts_per_tok", "3"},
                   {"moe_k", "3"},
                   {"intermediate_size", "80"},
                   {"intermediate_size_mlp", "88"},
                   {"moe_intermediate_size", "48"},
                   {"num_experts", "12"},
                   {"n_group", "1"},
                   {"topk_group", "1"},
                   {"norm_topk_prob", "true"},
                   {"routed_scaling_factor", "1.5"},
                   {"attention_multiplier", fmt::format("{}", 1.0 / std::sqrt(32.0))},
                   {"sliding_window", "7"},
                   {"swiglu_limit", "5.0"}};
  if (family.attention == Attention::Latent) {
    fields.erase("head_dim");
    for (const auto& [name, value] : Fields{{"q_lora_rank", "28"},
                                            {"kv_lora_rank", "24"},
                                            {"qk_nope_head_dim", "16"},
                                            {"qk_rope_head_dim", "8"},
                                            {"v_head_dim", "20"}})
      fields[name] = value;
  }
  if (family.gated_attention)
    for (const auto& [name, value] :
         Fields{{"linear_conv_kernel_dim", "4"},
                {"linear_key_head_dim", "16"},
                {"linear_value_head_dim", "24"},
                {"linear_num_key_heads", "2"},
                {"linear_num_value_heads", "6"},
                {"layer_types", R"(["linear_attention", "full_attention", "linear_attention", "full_attention"])"}})
      fields[name] = value;
  if (family.quick_geglu)
    fields["layer_types"] = R"(["sliding_attention", "full_attention", "full_attention", "sliding_attention"])";
  if (family.chunked_attention) {
    fields["no_rope_layers"] = "[1, 1, 1, 1]";
    fields["attn_temperature_tuning"] = "false";
    fields["num_experts_per_tok"] = "1";
  }
  if (family.sparse_attention)
    for (const auto& [name, value] : Fields{{"index_n_heads", "3"}, {"index_head_dim", "16"}, {"index_topk", "5"}})
      fields[name] = value;
  if (family.hybrid)
    for (const auto& [name, value] :
         Fields{{"layers_block_type", R"(["linear_attention", "moe", "full_attention", "mlp"])"},
                {"mamba_num_heads", "6"},
                {"mamba_head_dim", "12"},
                {"n_groups", "2"},
                {"ssm_state_size", "20"},
                {"moe_shared_expert_intermediate_size", "56"},
                {"rms_norm_eps", "1e-05"}})
      fields[name] = value;
  // The sections of what is turned have a default for 64 dimensions alone.
  if (has_field(family, "rope_scaling") && !family.inner_class.empty()) fields["head_dim"] = "128";
  // DeepSeek-V2 divides or scales, by DeepSeek's own code.
  if (family.divides_or_scales) fields["norm_topk_prob"] = "false";
  return fields;
}

/// A model of the family as its tensors would be, as far as arguments depend on them.
Recognition model_of(const Family& family, const std::string& config) {
  Recognition model;
  model.architecture = read_architecture(config);
  const auto add = [&](DenseRole role, TensorKind kind = TensorKind::Weight) {
    DenseMatrix& dense = model.dense.emplace_back();
    dense.role = role;
    dense.stored_dtype = Dtype::BF16;
    dense.matrix.kind = kind;
    dense.matrix.rows = 100;
    dense.matrix.cols = 64;
  };
  add(DenseRole::Embedding);
  for (const std::span<const DenseRow> rows : family.naming.rows)
    for (const DenseRow& row : rows)
      // Models of these families have the bias, those of DeepSeek-V2 and ERNIE may.
      if (row.place == Place::Layer && !row.former &&
          (row.roles[0] != DenseRole::CorrectionBias || family.corrected_router))
        for (const DenseRole role : row.all_roles()) add(role);
  if (family.biases_everywhere || (!family.has_experts() && model.architecture->attention_bias == true))
    add(DenseRole::Q, TensorKind::Bias);
  if (const i64 steps = model.architecture->mtp_layers; family.hybrid && steps > 0) {
    add(DenseRole::Router);
    model.dense.back().stack = "mtp";
    model.dense.back().layer = steps * model.architecture->mtp_depth() - 1;
  }
  if (model.architecture->shared_width > 0) {
    ExpertBlock& shared = model.blocks.emplace_back();
    shared.set = ExpertSet::Shared;
    shared.intermediate_size = model.architecture->shared_width;
  }
  return model;
}

/// Fields that no argument says, of models that differ in them: the refusal names the field.
bool asks_for_unsaid(const std::string& why_none) {
  constexpr std::string_view kUnsaid[] = {"mrope_section", "llama_4_scaling_beta"};
  return std::ranges::any_of(kUnsaid, [&](std::string_view field) { return why_none.find(field) != why_none.npos; });
}

/// "[0]*1+[1]*2" as the list that Megatron-LM saves.
std::string list_of(std::string_view pattern) {
  std::string text;
  while (!pattern.empty()) {
    const std::size_t end = std::min(pattern.find('+'), pattern.size());
    const std::string run(pattern.substr(0, end));
    for (int i = std::stoi(run.substr(run.find('*') + 1)); i > 0; --i)
      text += (text.empty() ? "" : ", ") + run.substr(1, 1);
    pattern.remove_prefix(std::min(end + 1, pattern.size()));
  }
  return "[" + text + "]";
}

/// What Megatron-LM saves of a run with these arguments, as far as its parser changes them.
Fields saved_of(const std::string& text) {
  Fields saved = {{"add_bias_linear", "true"},
                  {"rotary_percent", "1.0"},
                  {"untie_embeddings_and_output_weights", "false"},
                  {"moe_router_pre_softmax", "false"},
                  {"q_lora_rank", "null"}};
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin + 2, end - begin - 2);
    begin = end + 1;
    const std::size_t space = std::min(line.find(' '), line.size());
    std::string name = line.substr(0, space), value = space < line.size() ? line.substr(space + 1) : "true";
    std::ranges::replace(name, '-', '_');
    if (name == "disable_bias_linear")
      saved["add_bias_linear"] = "false";
    else if (name == "no_yarn_correction_range_round_to_int")
      saved["yarn_correction_range_round_to_int"] = "false";
    else if (name == "window_size")
      saved[name] = fmt::format("[{}]", value);
    else if (value.starts_with('['))
      saved[name] = list_of(value);
    else if (value == "true" || value.find_first_not_of("0123456789.e-+") == value.npos)
      saved[name] = value;
    else
      saved[name] = fmt::format("\"{}\"", value);
  }
  return saved;
}

/// Of norms of q and k that span all heads the tensors speak alone.
Inventory tensors_of(const Family& family, const Fields& saved) {
  Inventory tensors;
  tensors.tensors.reserve(4);
  TensorRef& tensor = tensors.tensors.emplace_back();
  tensor.name = kEmbeddingKey;
  tensor.shape = {100, 64};
  TensorRef& norm = tensors.tensors.emplace_back();
  norm.name = "decoder.final_layernorm.weight";
  norm.shape = {64};
  norm.dtype = Dtype::BF16;
  if (!family.wide_qk_norms) return tensors;
  const auto number = [&](const char* name) { return std::stol(saved.at(name)); };
  for (const auto& [word, heads] : {std::pair("q", "num_attention_heads"), std::pair("k", "num_query_groups")}) {
    TensorRef& wide = tensors.tensors.emplace_back();
    wide.name = fmt::format("decoder.layers.0.self_attention.{}_layernorm.weight", word);
    wide.shape = {number(heads) * number("kv_channels")};
  }
  return tensors;
}

/// One field and the values that it may have beside its usual one.
struct Choice {
  std::string_view field;
  std::vector<std::string> values;
};

std::vector<Fields> variants(const Family& family) {
  const Fields usual = sizes_of(family);
  std::vector<Fields> all = {usual};
  const auto with = [&](const Fields& more) {
    Fields fields = usual;
    for (const auto& [name, value] : more) fields[name] = value;
    all.push_back(std::move(fields));
  };
  if (family.hybrid) {
    with({{"layers_block_type", R"(["mlp", "linear_attention"])"}, {"num_hidden_layers", "2"}});
    with({{"moe_latent_size", "36"}});
    with({{"num_nextn_predict_layers", "1"}, {"mtp_layers_block_type", R"(["mlp"])"}});
    with({{"num_nextn_predict_layers", "3"}, {"mtp_layers_block_type", R"(["full_attention", "moe"])"}});
    with({{"num_nextn_predict_layers", "2"}, {"mtp_use_repeated_layer", "true"}});
  }
  for (const Choice& choice : std::vector<Choice>{
           {"num_hidden_layers", {"1", "2", "61"}},
           {"hidden_size", {"128", "256"}},
           {"vocab_size", {"1", "151936"}},
           {"max_position_embeddings", {"1", "4096", "1048576"}},
           {"rms_norm_eps", {"1e-05", "0.001"}},
           {"rope_theta", {"10000.0", "1000000.0", "3.0"}},
           {"tie_word_embeddings", {"true"}},
           {"num_key_value_heads", {"1", "4"}},
           {"head_dim", {"16", "64"}},
           {"intermediate_size", {"64", "128"}},
           {"moe_intermediate_size", {"64", "96"}},
           {"num_experts", {"4", "512"}},
           {"num_experts_per_tok", {"2", "4"}},
           {"partial_rotary_factor", {"0.5", "0.25"}},
           {"q_lora_rank", {"null", "12"}},
           {"index_topk", {"8", "2048"}},
           {"indexer_types", {R"(["full", "full", "shared", "full"])", R"(["full", "shared", "shared", "shared"])"}},
           {"first_k_dense_replace", {"0", "1", "3"}},
           {"moe_layer_start_index", {"0", "1", "3"}},
           {"mlp_only_layers", {"[]", "[0]", "[1, 3]"}},
           {"moe_layers", {"[1, 3]", "[0, 1, 2]"}},
           {"n_group", {"4"}},
           {"routed_scaling_factor", {"1.0", "2.5"}},
           {"sliding_window", {"1", "128"}},
           {"swiglu_limit", {"7.0"}},
           {"norm_topk_prob", {"false"}},
           {"shared_expert_intermediate_size", {"40", "96"}},
           {"shared_intermediate_size", {"40", "96"}},
           {"n_shared_experts", {"2", "3"}},
           {"moe_num_shared_experts", {"0", "2"}},
           {"use_qk_norm", {"false", "true"}},
           {"rope_scaling",
            {R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
                 "mscale_all_dim": 1.0})",
             R"({"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 4096})"}}})
    for (const std::string& value : choice.values)
      // An indexer takes its queries from the latent, and mixers are counted by their pattern.
      if ((choice.field != "num_hidden_layers" || !family.hybrid) &&
          (choice.field != "q_lora_rank" || value != "null" || !family.sparse_attention))
        choice.field == "rope_scaling" ? with({{"rope_scaling", value}, {"partial_rotary_factor", "1.0"}})
        : choice.field == "n_group"    ? with({{"n_group", value}, {"topk_group", "2"}})
                                       : with({{std::string(choice.field), value}});
  return all;
}

bool needs_shared(const Family& family) {
  for (const std::span<const ArgRow> rows : family.args)
    for (const ArgRow& row : rows)
      if (row.argument == "moe_shared_expert_intermediate_size" && row.to_config != nullptr) return true;
  return false;
}

/// Spells the fields as the family reads them and leaves out those that it does not have.
Fields spelled(const Family& family, Fields fields) {
  std::set<std::string_view> known = {"model_type", "norm_topk_prob"};
  for (const std::span<const ArgRow> rows : family.args)
    for (const ArgRow& row : rows) known.insert({row.field, family.own_word(row.field)});
  if (const auto scaling = fields.find("rope_scaling"); known.contains("rope_parameters") && scaling != fields.end())
    fields["rope_parameters"] = scaling->second;
  for (const std::string_view name : {"num_local_experts", "n_routed_experts", "moe_num_experts"})
    if (known.contains(name)) fields[std::string(name)] = fields["num_experts"];
  if (needs_shared(family)) {
    fields.try_emplace("n_shared_experts", "1");
    fields.try_emplace("moe_num_shared_experts", "1");
    fields.try_emplace("shared_expert_intermediate_size", "56");
    fields.try_emplace("shared_intermediate_size", "56");
  }
  for (const std::span<const ArgRow> rows : family.args)
    for (const ArgRow& row : rows)
      if (const auto usual = fields.find(std::string(row.field)); usual != fields.end())
        fields[std::string(family.own_word(row.field))] = usual->second;
  std::erase_if(fields, [&](const auto& field) { return !known.contains(field.first); });
  return fields;
}

/// `args(config(args)) = args`. Fields that no argument carries are none of the rows'.
TEST(ArgumentRows, WhatTheyWriteTheyReadBack) {
  int cases = 0;
  for (const Family& family : families()) {
    if (family.made_class().empty()) continue;
    std::set<std::string> made_fields;
    for (const Fields& fields : variants(family)) {
      // Indexers read the latent of queries.
      if (family.sparse_attention && fields.at("q_lora_rank") == "null") continue;
      const std::string config = json_text(spelled(family, fields));
      SCOPED_TRACE(config);
      const Recognition model = model_of(family, config);
      const MegatronArgs args = megatron_args(config, model, {});
      const Fields saved = saved_of(args.text);
      const TrainedConfig made =
          make_trained_config(json_text(saved), tensors_of(family, saved), std::string(family.model_type));
      // A model that Megatron-Core does not compute has a warning, and may have no way back. One that all models of the
      // family have says nothing.
      const bool has_warning = args.warnings.size() > (family.needs.empty() ? 0 : 1);
      if (made.text.empty() && (has_warning || asks_for_unsaid(made.why_none))) continue;
      ASSERT_NE(made.text, "") << made.why_none << "\n" << json_text(saved);
      ++cases;
      EXPECT_EQ(megatron_args(made.text, model_of(family, made.text), {}).text, args.text) << made.text;
      for (const std::span<const ArgRow> rows : family.args)
        for (const ArgRow& row : rows)
          if (made.text.find(fmt::format("\"{}\": ", family.own_word(row.field))) != std::string::npos)
            made_fields.emplace(row.field);
    }
    for (const std::span<const ArgRow> rows : family.args)
      for (const ArgRow& row : rows) {
        // Hybrid models turn no heads.
        const bool makes_field =
            row.to_config != nullptr && !row.field.empty() && !(family.hybrid && row.field == "rope_theta");
        EXPECT_TRUE(!makes_field || made_fields.contains(std::string(row.field)))
            << family.model_type << " makes " << row.field << " in no case";
      }
  }
  EXPECT_GT(cases, 500);
}

/// An argument of Megatron-Core 0.19.2's parser that changes what a model computes, and values that do. The others that
/// change something have a say together with one of these alone: YaRN's, muP's, those of Mamba and of groups of
/// experts.
struct Changing {
  std::string_view name;
  std::vector<std::string> values;
  /// Megatron-Core does not look at it in models with multi-latent attention.
  bool usual_only = false;
};

const std::vector<Changing> kChanging = {
    {"normalization", {"\"LayerNorm\""}},
    {"apply_residual_connection_post_layernorm", {"true"}},
    {"add_bias_linear", {"true", "false"}},
    {"add_qkv_bias", {"true"}},
    {"untie_embeddings_and_output_weights", {"true", "false"}},
    {"is_hybrid_model", {"true"}},
    {"hybrid_override_pattern", {"\"M-M*\""}},
    {"hybrid_layer_pattern", {"\"M*\"", "\"MEME\""}},
    {"heterogeneous_layers_config_path", {"\"layers.json\""}},
    {"heterogeneous_layers_config_encoded_json", {"\"{\\\"block_configs\\\": []}\""}},
    {"spec", {R"(["my.module", "my_spec"])"}},
    {"use_mup", {"true"}},
    {"moe_latent_size", {"16", "48"}},
    {"swiglu", {"false"}},
    {"quick_geglu", {"true", "false"}},
    {"squared_relu", {"true"}},
    {"openai_gelu", {"true"}},
    {"glu_linear_offset", {"0.5", "1.0", "0.0"}},
    {"activation_func_clamp_value", {"3.0", "10.0", "10"}},
    {"num_attention_heads", {"2", "8"}},
    {"kv_channels", {"8", "128"}, true},
    {"multi_latent_attention", {"true", "false"}},
    {"qk_layernorm", {"true", "false"}, true},
    {"qk_l2_norm", {"true", "false"}},
    {"attention_output_gate", {"true", "false"}},
    {"softmax_type", {"\"off-by-one\"", "\"learnable\"", "\"vanilla\""}},
    {"softmax_scale", {"0.5", "2.0"}},
    {"experimental_attention_variant", {"\"gated_delta_net\"", "\"dsa\""}},
    {"dsa_indexer_k_norm_epsilon", {"1e-05"}},
    {"rotary_base", {"3", "77777"}},
    {"rotary_percent", {"0.125", "0.75"}, true},
    {"rotary_interleaved", {"true", "false"}, true},
    {"rotary_seq_len_interpolation_factor", {"2", "4", "8"}},
    {"use_rope_scaling", {"true"}},
    {"position_embedding_type", {"\"learned_absolute\"", "\"relative\"", "\"none\"", "\"mrope\""}},
    {"mrope_section", {"[2, 2, 4]", "[16, 24, 24]"}},
    {"no_rope_freq", {"[0, 0, 0, 1]", "[1, 1, 0, 0]"}, true},
    {"window_size", {"[63, 0]", "[1023, 0]"}, true},
    {"moe_layer_freq", {"[0, 0, 1, 0]", "[1, 0, 1, 0]"}},
    {"moe_router_topk", {"5", "7"}},
    {"moe_router_score_function", {"\"sigmoid\"", "\"softmax\"", "\"sqrtsoftplus\""}},
    {"moe_router_enable_expert_bias", {"true", "false"}},
    {"moe_router_topk_scaling_factor", {"0.5", "3.5"}},
    {"moe_router_force_load_balancing", {"true"}},
    {"moe_router_load_balancing_type", {"\"sinkhorn\"", R"(["aux_loss", "sinkhorn"])"}},
    {"moe_apply_probs_on_input", {"true", "false"}},
    {"moe_expert_capacity_factor", {"1.0", "1.25"}},
    {"moe_shared_expert_intermediate_size", {"32", "144"}},
    {"moe_ffn_hidden_size", {"16", "160"}},
    {"mtp_num_layers", {"1", "2"}},
    {"num_layers", {"4"}},
};

/// Values that Megatron-Core saves of every run, beside those that a model asks for.
const Fields kDefaults = {{"apply_residual_connection_post_layernorm", "false"},
                          {"add_qkv_bias", "false"},
                          {"is_hybrid_model", "false"},
                          {"hybrid_override_pattern", "null"},
                          {"hybrid_layer_pattern", "null"},
                          {"heterogeneous_layers_config_path", "null"},
                          {"heterogeneous_layers_config_encoded_json", "null"},
                          {"spec", "null"},
                          {"use_mup", "false"},
                          {"mup_width_mult", "1.0"},
                          {"mup_base_hidden_size", "null"},
                          {"mup_embedding_mult", "1.0"},
                          {"mup_output_mult", "1.0"},
                          {"mup_attn_scale_power", "1.0"},
                          {"moe_latent_size", "null"},
                          {"quick_geglu", "false"},
                          {"squared_relu", "false"},
                          {"openai_gelu", "false"},
                          {"onnx_safe", "null"},
                          {"glu_linear_offset", "0.0"},
                          {"activation_func_clamp_value", "null"},
                          {"multi_latent_attention", "false"},
                          {"qk_layernorm", "false"},
                          {"qk_l2_norm", "false"},
                          {"qk_clip", "false"},
                          {"qk_clip_alpha", "0.5"},
                          {"qk_clip_threshold", "100"},
                          {"attention_output_gate", "false"},
                          {"softmax_type", "\"vanilla\""},
                          {"experimental_attention_variant", "null"},
                          {"dsa_indexer_n_heads", "null"},
                          {"dsa_indexer_head_dim", "null"},
                          {"dsa_indexer_topk", "null"},
                          {"dsa_indexer_topk_freq", "1"},
                          {"dsa_indexer_skip_topk_offset", "0"},
                          {"dsa_indexer_loss_coeff", "null"},
                          {"dsa_indexer_use_sparse_loss", "false"},
                          {"dsa_kernel_backend", "\"none\""},
                          {"dsa_indexer_rope_interleaved", "false"},
                          {"dsa_indexer_rotate_activation", "true"},
                          {"dsa_indexer_scoring_relu", "true"},
                          {"dsa_indexer_k_norm_epsilon", "null"},
                          {"dsa_indexer_k_norm_fp32", "false"},
                          {"linear_conv_kernel_dim", "4"},
                          {"linear_key_head_dim", "128"},
                          {"linear_value_head_dim", "128"},
                          {"linear_num_key_heads", "16"},
                          {"linear_num_value_heads", "32"},
                          {"linear_attention_freq", "null"},
                          {"rotary_percent", "1.0"},
                          {"rotary_interleaved", "false"},
                          {"rotary_seq_len_interpolation_factor", "null"},
                          {"rotary_scaling_factor", "1.0"},
                          {"use_rope_scaling", "false"},
                          {"rope_scaling_factor", "8.0"},
                          {"rope_type", "null"},
                          {"mscale", "1.0"},
                          {"mscale_all_dim", "0.0"},
                          {"mrope_section", "null"},
                          {"no_rope_freq", "null"},
                          {"window_size", "null"},
                          {"window_attn_skip_freq", "null"},
                          {"yarn_original_max_position_embeddings", "null"},
                          {"yarn_beta_fast", "null"},
                          {"yarn_beta_slow", "null"},
                          {"yarn_correction_range_round_to_int", "true"},
                          {"moe_router_num_groups", "null"},
                          {"moe_router_group_topk", "null"},
                          {"moe_router_pre_softmax", "false"},
                          {"moe_router_score_function", "\"softmax\""},
                          {"moe_router_enable_expert_bias", "false"},
                          {"moe_router_bias_update_rate", "0.001"},
                          {"moe_router_quantile_balancing_ema", "0.0"},
                          {"moe_router_topk_scaling_factor", "null"},
                          {"moe_router_force_load_balancing", "false"},
                          {"moe_router_force_biased", "null"},
                          {"moe_router_fusion", "false"},
                          {"moe_router_padding_for_fp8", "false"},
                          {"moe_router_padding_for_quantization", "false"},
                          {"moe_apply_probs_on_input", "false"},
                          {"moe_expert_capacity_factor", "null"},
                          {"moe_token_drop_policy", "\"probs\""},
                          {"moe_shared_expert_intermediate_size", "null"},
                          {"moe_shared_expert_gate", "false"},
                          {"mtp_num_layers", "null"},
                          {"mtp_use_repeated_layer", "false"},
                          {"mamba_state_dim", "128"},
                          {"mamba_head_dim", "64"},
                          {"mamba_num_groups", "8"},
                          {"mamba_num_heads", "null"},
                          {"logits_save_dtype", "\"fp16\""},
                          {"logits_save_top_p_min_k", "1"},
                          {"logits_load_decode_threads", "4"},
                          {"logits_load_prefetch_factor", "3"},
                          {"relative_attention_num_buckets", "32"},
                          {"relative_attention_max_distance", "128"}};

/// What a run of the family saves: what its model asks for, over Megatron-Core's own values.
Fields saved_fields(const Family& family) {
  const std::string config = json_text(spelled(family, sizes_of(family)));
  Fields saved = saved_of(megatron_args(config, model_of(family, config), {}).text);
  saved.insert(kDefaults.begin(), kDefaults.end());
  return saved;
}

TEST(ArgumentRows, WhatChangesTheModelIsReadOrRefusedByName) {
  int cases = 0, families_tried = 0;
  for (const Family& family : families()) {
    if (family.made_class().empty()) continue;
    const Fields saved = saved_fields(family);
    const auto make = [&](const Fields& fields) {
      return make_trained_config(json_text(fields), tensors_of(family, saved), std::string(family.model_type));
    };
    const TrainedConfig sound = make(saved);
    if (sound.text.empty()) {
      ADD_FAILURE() << family.model_type << ": " << sound.why_none;
      continue;
    }
    ++families_tried;
    for (const Changing& changing : kChanging) {
      if (changing.usual_only && family.attention == Attention::Latent) continue;
      for (const std::string& value : changing.values) {
        Fields other = saved;
        std::string& now = other[std::string(changing.name)];
        if (now == value || (now.empty() && value == "false")) continue;
        if (changing.name.starts_with("dsa_") && saved.at("experimental_attention_variant") != "\"dsa\"") continue;
        // A model without experts reads no argument of theirs.
        if (!family.has_experts() && changing.name.starts_with("moe_")) continue;
        // A hybrid model's pattern says which layers have experts, and none of them turns heads.
        const bool is_of_pattern =
            changing.name == "is_hybrid_model" || changing.name == "rotary_base" || changing.name == "moe_layer_freq";
        if (family.hybrid && is_of_pattern) continue;
        // Linear layers with biases have those of q, k and v, too.
        if (changing.name == "add_qkv_bias" && saved.at("add_bias_linear") == "true") continue;
        now = value;
        const TrainedConfig made = make(other);
        ++cases;
        const bool is_read = !made.text.empty() && made.text != sound.text;
        EXPECT_TRUE(is_read || made.why_none.find(changing.name) != std::string::npos)
            << family.model_type << ": " << changing.name << " "
            << (saved.contains(std::string(changing.name)) ? saved.at(std::string(changing.name)) : "nothing") << " -> "
            << value << ": " << made.why_none;
      }
    }
  }
  EXPECT_GT(families_tried, 10);
  EXPECT_GT(cases, 1000);
}

}  // namespace
}  // namespace glu_ckpt
