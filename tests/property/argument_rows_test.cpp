/// Rows between config.json and Megatron-LM's arguments, of all families: there and back.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "arch/megatron_args.hpp"
#include "arch/trained_config.hpp"

namespace glu_ckpt {
namespace {

using Fields = std::map<std::string, std::string>;

std::string json_text(const Fields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) text += fmt::format("{}\"{}\": {}", text.empty() ? "{" : ", ", name, value);
  return text + "}";
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
  if (family.biases_everywhere) add(DenseRole::Q, TensorKind::Bias);
  if (model.architecture->shared_width > 0) {
    ExpertBlock& shared = model.blocks.emplace_back();
    shared.set = ExpertSet::Shared;
    shared.intermediate_size = model.architecture->shared_width;
  }
  return model;
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
std::string saved_of(const std::string& text) {
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
  return json_text(saved);
}

Inventory some_tensors() {
  Inventory tensors;
  tensors.tensors.reserve(2);
  TensorRef& tensor = tensors.tensors.emplace_back();
  tensor.name = kEmbeddingKey;
  tensor.shape = {100, 64};
  TensorRef& norm = tensors.tensors.emplace_back();
  norm.name = "decoder.final_layernorm.weight";
  norm.shape = {64};
  norm.dtype = Dtype::BF16;
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
  const auto with = [&](Fields more) {
    Fields fields = usual;
    for (auto& [name, value] : more) fields[name] = std::move(value);
    all.push_back(std::move(fields));
  };
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
           {"n_shared_experts", {"2", "3"}},
           {"moe_num_shared_experts", {"0", "2"}},
           {"use_qk_norm", {"false", "true"}},
           {"rope_scaling",
            {R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
                 "mscale_all_dim": 1.0})",
             R"({"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 4096})"}}})
    for (const std::string& value : choice.values)
      choice.field == "rope_scaling" ? with({{"rope_scaling", value}, {"partial_rotary_factor", "1.0"}})
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
    for (const ArgRow& row : rows) known.insert(row.field);
  for (const std::string_view name : {"num_local_experts", "n_routed_experts", "moe_num_experts"})
    if (known.contains(name)) fields[std::string(name)] = fields["num_experts"];
  if (needs_shared(family)) {
    fields.try_emplace("n_shared_experts", "1");
    fields.try_emplace("moe_num_shared_experts", "1");
    fields.try_emplace("shared_expert_intermediate_size", "56");
  }
  std::erase_if(fields, [&](const auto& field) { return !known.contains(field.first); });
  return fields;
}

/// `args(config(args)) = args`. Fields that no argument carries are none of the rows'.
TEST(ArgumentRows, WhatTheyWriteTheyReadBack) {
  int cases = 0;
  for (const Family& family : families()) {
    if (family.model_class.empty()) continue;
    std::set<std::string> made_fields;
    for (const Fields& fields : variants(family)) {
      const std::string config = json_text(spelled(family, fields));
      SCOPED_TRACE(config);
      const Recognition model = model_of(family, config);
      const MegatronArgs args = megatron_args(config, model, {});
      const std::string saved = saved_of(args.text);
      const TrainedConfig made = make_trained_config(saved, some_tensors(), std::string(family.model_type));
      // A model that Megatron-Core does not compute has a warning, and may have no way back.
      if (made.text.empty() && !args.warnings.empty()) continue;
      ASSERT_NE(made.text, "") << made.why_none << "\n" << saved;
      ++cases;
      EXPECT_EQ(megatron_args(made.text, model_of(family, made.text), {}).text, args.text) << made.text;
      for (const std::span<const ArgRow> rows : family.args)
        for (const ArgRow& row : rows)
          if (made.text.find(fmt::format("\"{}\": ", row.field)) != std::string::npos) made_fields.emplace(row.field);
    }
    for (const std::span<const ArgRow> rows : family.args)
      for (const ArgRow& row : rows) {
        const bool makes_field = row.to_config != nullptr && !row.field.empty();
        EXPECT_TRUE(!makes_field || made_fields.contains(std::string(row.field)))
            << family.model_type << " makes " << row.field << " in no case";
      }
  }
  EXPECT_GT(cases, 500);
}

}  // namespace
}  // namespace glu_ckpt
