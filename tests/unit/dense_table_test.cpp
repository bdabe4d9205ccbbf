/// Properties of the tables of whole models: each tensor is tiled by its matrices, and what one naming has a place for
/// the others have, too.

#include "arch/dense_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "arch/dense_keys.hpp"
#include "arch/dense_layout.hpp"
#include "glu_ckpt/error.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

/// Sizes of which no two are equal, for any family.
std::string config_of(std::string_view model_type, bool q_lora = true) {
  return R"({"model_type": ")" + std::string(model_type) + R"(", "num_hidden_layers": 4, "hidden_size": 48,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 70, "intermediate_size": 44,
    "intermediate_size_mlp": 46, "moe_intermediate_size": 26, "num_experts": 5, "n_shared_experts": 1,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 14, "kv_lora_rank": 16, "first_k_dense_replace": 1,)" +
         (q_lora ? R"("q_lora_rank": 18,)" : R"("q_lora_rank": null,)") + R"(
    "index_n_heads": 3, "index_head_dim": 11, "index_topk_freq": 2, "mamba_num_heads": 8,
    "mamba_head_dim": 5, "n_groups": 2, "ssm_state_size": 13, "conv_kernel": 4, "moe_latent_size": 22,
    "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 4, "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 4, "moe_layers": [1, 2, 3], "layer_types": )" +
         (find_family(model_type)->hybrid
              ? R"(["linear_attention", "moe", "full_attention", "mlp"]})"
              : R"(["linear_attention", "linear_attention", "linear_attention", "full_attention"]})");
}

std::vector<std::shared_ptr<const Architecture>> all_architectures() {
  std::vector<std::shared_ptr<const Architecture>> all;
  for (const Family& family : families()) {
    all.push_back(read_architecture(config_of(family.model_type)));
    // Indexers read the latent of queries.
    if (family.attention == Attention::Latent && !family.sparse_attention)
      all.push_back(read_architecture(config_of(family.model_type, false)));
  }
  return all;
}

std::vector<const DenseNaming*> namings_of(const Architecture& architecture) {
  std::vector<const DenseNaming*> namings{&architecture.family->naming, architecture.family->megatron};
  if (architecture.family->torchtitan != nullptr) namings.push_back(architecture.family->torchtitan);
  return namings;
}

TEST(DenseTable, EveryFamilyHasAnArchitectureAndExperts) {
  for (const auto& architecture : all_architectures()) {
    ASSERT_NE(architecture, nullptr);
    EXPECT_EQ(architecture->kinds.size(), 4u);
    EXPECT_EQ(find_naming(architecture->family->expert_naming) != nullptr, architecture->family->has_experts())
        << architecture->model_type;
    EXPECT_EQ(find_family(architecture->model_type), architecture->family);
  }
}

/// A field that is missing is what the class of the model makes it; null is not missing.
TEST(DenseTable, MissingFieldsHaveTheDefaultsOfTheirClass) {
  EXPECT_TRUE(read_architecture(config_of("ernie4_5_moe"))->tied);
  for (const std::string_view type : {"mixtral", "qwen3_moe", "qwen3_vl_moe_text", "deepseek_v3", "gpt_oss"})
    EXPECT_FALSE(read_architecture(config_of(type))->tied) << type;
  std::string untied = config_of("ernie4_5_moe");
  EXPECT_FALSE(read_architecture(untied.insert(1, R"("tie_word_embeddings": false, )"))->tied);

  std::string config = config_of("gpt_oss");
  const std::string head_dim = R"("head_dim": 10, )";
  config.erase(config.find(head_dim), head_dim.size());
  EXPECT_EQ(read_architecture(config)->extent(Dim::HeadDim), 64);
  EXPECT_EQ(read_architecture(config.insert(1, R"("head_dim": null, )"))->extent(Dim::HeadDim), 8);
}

/// No product of sizes overflows, however large a hostile configuration makes them.
TEST(DenseTable, HugeSizesAreRefusedOrHarmless) {
  for (const Family& family : families())
    for (const std::string huge : {"1073741824", "1073741825", "9223372036854775807"})
      for (const std::string field :
           {"hidden_size", "num_attention_heads", "head_dim", "vocab_size", "num_experts", "moe_intermediate_size",
            "n_shared_experts", "qk_nope_head_dim", "kv_lora_rank", "linear_value_head_dim", "num_hidden_layers"}) {
        std::string config = config_of(family.model_type);
        const std::size_t at = config.find("\"" + field + "\": ") + field.size() + 4;
        config.replace(at, config.find_first_of(",}", at) - at, huge);
        try {
          const auto architecture = read_architecture(config);
          for_each_row(family.naming, [&](const DenseRow& row) {
            EXPECT_FALSE(dense_shape(row, TensorKind::Weight, *architecture).empty());
          });
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::ConfigJson) << error.what();
        }
      }
}

/// The rows of a tensor's matrices are its rows, each once.
TEST(DenseTable, MatricesTileTheirTensor) {
  constexpr i64 kElementBytes = 2;
  for (const auto& architecture : all_architectures())
    for (const DenseNaming* naming : namings_of(*architecture))
      for_each_row(*naming, [&](const DenseRow& row) {
        std::vector<TensorKind> kinds{TensorKind::Weight};
        if (row.has_kinds()) kinds.push_back(TensorKind::Bias);
        for (const TensorKind kind : kinds) {
          std::map<i64, DenseRole> rows;
          i64 elements = 1;
          for (const i64 extent : dense_shape(row, kind, *architecture)) elements *= extent;
          if (elements == 0) continue;
          i64 row_bytes = 0;
          for (std::size_t i = 0; i < row.num_roles; ++i) {
            const auto [count, cols] = extents_of(row.roles[i], kind, *architecture);
            const Placement place = dense_placement(row, i, kind, kElementBytes, *architecture);
            row_bytes = cols * kElementBytes;
            for (i64 r = 0; r < count; ++r)
              EXPECT_TRUE(rows.emplace(row_offset(place, r), row.roles[i]).second) << row.key << " row " << r;
          }
          ASSERT_FALSE(rows.empty()) << row.key;
          EXPECT_EQ(rows.begin()->first, 0) << row.key;
          EXPECT_EQ(rows.rbegin()->first + row_bytes, elements * kElementBytes) << row.key;
          EXPECT_EQ(std::ssize(rows) * row_bytes, elements * kElementBytes) << row.key;
        }
      });
}

/// The roles of a layer in one naming, each with the number of its tensors.
std::map<DenseRole, int> roles_in(const DenseNaming& naming, Place place, LayerKind kind,
                                  const Architecture& architecture) {
  std::map<DenseRole, int> roles;
  for_each_row(naming, [&](const DenseRow& row) {
    if (row.copy || row.former || row.place != place || (place == Place::Layer && !applies(row, kind, architecture)))
      return;
    for (const DenseRole role : row.all_roles()) ++roles[role];
  });
  return roles;
}

/// A whole model can go anywhere and come back: what a family stores has one place in every other naming.
TEST(DenseTable, NamingsHavePlacesForTheSameMatrices) {
  for (const auto& architecture : all_architectures()) {
    const DenseNaming& own = architecture->family->naming;
    for (const DenseNaming* other : namings_of(*architecture))
      for (const Place place : {Place::Model, Place::Layer, Place::Mtp})
        for (const LayerKind kind : architecture->kinds) {
          const auto mine = roles_in(own, place, kind, *architecture);
          const auto theirs = roles_in(*other, place, kind, *architecture);
          for (const auto& [role, count] : mine) {
            EXPECT_EQ(count, 1) << architecture->model_type << " " << to_string(role);
            // torchtitan knows no MTP of Qwen's.
            if (place == Place::Mtp && other->mtp_layers.empty() && other != &own) continue;
            ASSERT_TRUE(theirs.contains(role))
                << architecture->model_type << ": " << other->name << " has no " << to_string(role);
            EXPECT_EQ(theirs.at(role), 1) << other->name << " " << to_string(role);
          }
        }
  }
}

/// What is printed is parsed as what it was.
TEST(DenseTable, KeysAreReadAsTheyArePrinted) {
  for (const auto& architecture : all_architectures())
    for (const DenseNaming* naming : namings_of(*architecture)) {
      const std::string root = naming == &architecture->family->naming ? "model." : "";
      const DenseKeys keys(*naming, root, *architecture);
      const bool has_mtp = !naming->mtp_layers.empty() || naming == &architecture->family->naming;
      for_each_row(*naming, [&](const DenseRow& row) {
        for (const std::string_view stack : {"decoder", "mtp"})
          for (const i64 layer : {i64{0}, i64{1}, i64{3}}) {
            const bool own_mtp = row.place == Place::Mtp;
            if (row.place == Place::Model ? layer > 0 || stack == "mtp" : own_mtp != (stack == "mtp") && own_mtp)
              continue;
            if (stack == "mtp" && (layer >= architecture->mtp_depth() || !has_mtp)) continue;
            if (row.place != Place::Model && !applies(row, architecture->kind_of(stack, layer), *architecture))
              continue;
            const std::string name = print_key(*naming, row, root, stack, layer, TensorKind::Weight, *architecture);
            const auto key = keys.parse(name);
            // A family without rows for MTP does not read layers behind its last one.
            if (!key && stack == "mtp") continue;
            ASSERT_TRUE(key.has_value()) << architecture->model_type << " " << name;
            EXPECT_EQ(key->row->roles[0], row.roles[0]) << name;
            EXPECT_EQ(key->row->place, row.place) << name;
            if (row.place != Place::Model) {
              EXPECT_EQ(key->stack, stack) << name;
              EXPECT_EQ(key->layer, layer) << name;
            }
          }
      });
    }
}

TEST(DenseTable, RolesHaveNamesThatDigestsTellApart) {
  std::map<std::string_view, std::set<DenseRole>> by_name;
  for (int role = 0; role <= static_cast<int>(DenseRole::MtpFinalNorm); ++role)
    by_name[to_string(static_cast<DenseRole>(role))].insert(static_cast<DenseRole>(role));
  // No model has two of these: they are other forms of one thing.
  const std::set<std::string_view> shared{"attention/q", "norm/q", "norm/k"};
  for (const auto& [name, roles] : by_name) EXPECT_EQ(roles.size(), shared.contains(name) ? 2u : 1u) << name;
}

}  // namespace
}  // namespace glu_ckpt
