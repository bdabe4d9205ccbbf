/// A text in front of all keys changes nothing of what is recognized: every family that has a map, in every naming,
/// also as transformers holds it in memory, behind wrappers of wrappers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>

#include "arch/dense_layout.hpp"
#include "arch/dense_table.hpp"
#include "arch/model_names.hpp"
#include "arch/model_view.hpp"
#include "arch/recognize_model.hpp"
#include "layout/key_pattern.hpp"
#include "layout/layout_table.hpp"

namespace glu_ckpt {
namespace {

std::string config_of(std::string_view model_type) {
  return R"({"model_type": ")" + std::string(model_type) + R"(", "num_hidden_layers": 3, "hidden_size": 48,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 70, "intermediate_size": 26,
    "intermediate_size_mlp": 46, "moe_intermediate_size": 26, "num_experts": 5, "tie_word_embeddings": false,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 14, "kv_lora_rank": 16, "first_k_dense_replace": 1,
    "q_lora_rank": 18, "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 4,
    "linear_value_head_dim": 7, "linear_conv_kernel_dim": 4,
    "index_n_heads": 3, "index_head_dim": 11, "mamba_num_heads": 8, "mamba_head_dim": 5, "n_groups": 2,
    "ssm_state_size": 13, "conv_kernel": 4, "moe_layers": [1, 2], "layer_types": )" +
         (find_family(model_type)->hybrid ? R"(["mamba", "moe", "attention"]})"
                                          : R"(["linear_attention", "linear_attention", "full_attention"]})");
}

/// One way to spell a model.
struct Spelled {
  const DenseNaming* dense;
  std::string root;
  std::string experts;
  Experts form;
  bool fused;
  /// The hub's word and the one in memory.
  std::pair<std::string_view, std::string_view> word = {};
};

class Writer {
 public:
  Writer(const Architecture& architecture, const Spelled& spelled)
      : architecture_(architecture), spelled_(spelled), naming_(*find_naming(spelled.experts)) {}

  Inventory run() {
    inventory_.files = {"model"};
    for_each_row(*spelled_.dense, [&](const DenseRow& row) {
      if (row.copy || row.former || row.place == Place::Mtp) return;
      if (row.place == Place::Model) return add_dense(row, "", 0);
      for (i64 layer = 0; layer < architecture_.layers; ++layer)
        if (applies(row, architecture_.kind_of("decoder", layer), architecture_)) add_dense(row, "decoder", layer);
    });
    for (i64 layer = 0; layer < architecture_.layers; ++layer)
      if (architecture_.kind_of("decoder", layer).mlp == Mlp::Experts) add_experts(layer);
    return std::move(inventory_);
  }

 private:
  void add(std::string name, std::vector<i64> shape) {
    if (const auto& [hub, memory] = spelled_.word; !hub.empty() && name.ends_with(hub))
      name.replace(name.size() - hub.size(), hub.size(), memory);
    i64 bytes = 2;
    for (const i64 extent : shape) bytes *= extent;
    inventory_.tensors.push_back({std::move(name), Dtype::BF16, std::move(shape), bytes, 0, offset_});
    offset_ += bytes;
  }

  void add_dense(const DenseRow& row, std::string_view stack, i64 layer) {
    add(print_key(*spelled_.dense, row, spelled_.root, stack, layer, TensorKind::Weight, architecture_),
        dense_shape(row, TensorKind::Weight, architecture_));
  }

  void add_experts(i64 layer) {
    const i64 experts = architecture_.num_experts, width = architecture_.expert_width;
    const i64 hidden = architecture_.expert_hidden;
    const std::string prefix = print_layer_prefix(*spelled_.dense, spelled_.root, "decoder", layer, architecture_);
    const PartNames& names = part_names(naming_, ExpertSet::Routed, spelled_.form);
    const auto add_part = [&](std::string_view part, i64 rows, i64 cols) {
      const auto [a, b] = naming_.axes == Axes::OutIn ? std::pair(rows, cols) : std::pair(cols, rows);
      if (spelled_.form == Experts::Grouped)
        return add(prefix + print_part(part, TensorKind::Weight, ""), {experts, a, b});
      for (i64 expert = 0; expert < experts; ++expert)
        add(prefix + print_part(part, TensorKind::Weight, fmt::format("{}", expert)), {a, b});
    };
    if (spelled_.fused) {
      add_part(names.gate_up, (architecture_.family->ungated ? 1 : 2) * width, hidden);
    } else if (architecture_.family->ungated) {
      add_part(names.up, width, hidden);
    } else {
      add_part(names.gate, width, hidden);
      add_part(names.up, width, hidden);
    }
    add_part(names.down, hidden, width);
  }

  const Architecture& architecture_;
  const Spelled& spelled_;
  const Naming& naming_;
  Inventory inventory_;
  i64 offset_ = 0;
};

std::vector<Spelled> spellings_of(const Architecture& architecture) {
  const Family& family = *architecture.family;
  const std::string hub = family.has_experts() ? std::string(family.expert_naming) : "hf:" + architecture.model_type;
  std::vector<Spelled> all;
  const Experts form = family.packed_experts ? Experts::Grouped : Experts::Indexed;
  std::vector<std::string_view> roots = {"model.", "model.language_model.", "language_model.model."};
  if (family.root != roots[0]) roots = {family.root};
  all.reserve(roots.size() + 6);
  for (const std::string_view root : roots)
    all.push_back({&family.naming, std::string(root), hub, form, family.packed_experts});
  all.push_back({family.megatron, "", "megatron-dist", Experts::Grouped, true});
  all.push_back({family.megatron, "", "megatron", Experts::Indexed, true});
  if (family.torchtitan != nullptr) all.push_back({family.torchtitan, "", "torchtitan", Experts::Grouped, false});
  const std::pair<std::string_view, std::string_view> router{".block_sparse_moe.gate.weight", ".mlp.gate.weight"};
  if (hub == "hf:mixtral") all.push_back({&family.naming, "model.", "hf:mixtral-v5", Experts::Grouped, true, router});
  if (hub == "hf:granitemoe")
    all.push_back({&family.naming,
                   "model.",
                   "hf:granitemoe-v5",
                   Experts::Grouped,
                   true,
                   {".block_sparse_moe.router.layer.weight", ".block_sparse_moe.router.weight"}});
  if (architecture.model_type == "ernie4_5_moe")
    all.push_back({&family.naming,
                   "model.",
                   hub,
                   Experts::Grouped,
                   true,
                   {".mlp.moe_statics.e_score_correction_bias", ".mlp.gate.moe_statics.e_score_correction_bias"}});
  return all;
}

std::vector<std::string> texts_in_front() {
  const std::vector<std::string> words = {"_orig_mod.", "module.",  "base_model.model.", "model.",
                                          "any.thing.", "net_a/b.", "mp_rank_00/"};
  std::vector<std::string> texts = words;
  texts.reserve(words.size() * (words.size() + 1));
  for (const std::string& outer : words)
    for (const std::string& inner : words)
      if (inner != "mp_rank_00/") texts.push_back(outer + inner);
  return texts;
}

/// All that a recognition says of the model but the wrapper's text.
std::string summary(const Inventory& inventory, const Recognition& model) {
  std::string text = fmt::format("{} {} {}\n", model.layout.naming, model.dense_naming->name, model.dense_root);
  const auto add = [&](const std::string& label, const Matrix& matrix) {
    text += fmt::format("{} {} {} {} {} at {} {} {}\n", label, matrix.tensor, matrix.rows, matrix.cols,
                        to_string(matrix.kind), matrix.place.offset, matrix.place.row_step, matrix.place.col_step);
  };
  for (const ExpertBlock& block : model.blocks)
    for (const Matrix& matrix : block.matrices)
      add(fmt::format("{} {} {} {}", layer_label(block), to_string(block.set), matrix.expert, to_string(matrix.role)),
          matrix);
  for (const DenseMatrix& dense : model.dense)
    add(layer_label(dense) + std::string(to_string(dense.role)), dense.matrix);
  for (const std::size_t other : model.others) text += model_name(inventory, model, other) + "\n";
  return text;
}

TEST(Wrappers, ChangeNothingOfWhatIsRecognized) {
  int cases = 0;
  for (const Family& family : families()) {
    const std::string_view type = family.model_type;
    ModelHints hints;
    hints.model_type = type;
    hints.config = config_of(type);
    const auto architecture = read_architecture(hints.config);
    for (const Spelled& spelled : spellings_of(*architecture)) {
      const Inventory plain = Writer(*architecture, spelled).run();
      const Recognition model = recognize_model(plain, hints, {}, {});
      SCOPED_TRACE(fmt::format("{} {} {}", type, spelled.experts, spelled.root));
      ASSERT_NE(model.dense_naming, nullptr);
      EXPECT_EQ(model.wrapper, "");
      EXPECT_EQ(model.in_memory, !spelled.word.first.empty());
      EXPECT_EQ(dense_tensors(model), model.others);
      const std::string wanted = summary(plain, model);
      for (const std::string& text : texts_in_front()) {
        Inventory wrapped = plain;
        for (TensorRef& tensor : wrapped.tensors) tensor.name.insert(0, text);
        const Recognition found = recognize_model(wrapped, hints, {}, {});
        ASSERT_EQ(found.wrapper, text);
        ASSERT_EQ(summary(wrapped, found), wanted) << text;
        for (const ExpertBlock& block : found.blocks) ASSERT_TRUE(block.key_prefix.starts_with(text)) << text;
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 2000);
}

/// A key with words of wrappers in front of some of its components, as `random` says; numbers have none.
std::string wrapped(const std::string& key, std::mt19937& random) {
  constexpr auto kWords = std::to_array<std::string_view>(
      {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module."});
  std::string text;
  for (std::size_t at = 0; at < key.size();) {
    const std::size_t end = std::min(key.find('.', at), key.size() - 1) + 1;
    if (std::isdigit(static_cast<unsigned char>(key[at])) == 0)
      while (random() % 4 == 0) text += kWords[random() % kWords.size()];
    text += key.substr(at, end - at);
    at = end;
  }
  return text;
}

TEST(Wrappers, BetweenComponentsAreTakenOff) {
  std::mt19937 random(48);
  int cases = 0, changed = 0;
  for (const Family& family : families()) {
    ModelHints hints;
    hints.model_type = family.model_type;
    hints.config = config_of(family.model_type);
    const auto architecture = read_architecture(hints.config);
    for (const Spelled& spelled : spellings_of(*architecture)) {
      Inventory plain = Writer(*architecture, spelled).run();
      // An optimizer's state of some of the weights, in both orders of its words.
      for (std::size_t i = 0, weights = plain.tensors.size(); i < weights; i += 7) {
        TensorRef state = plain.tensors[i];
        state.name =
            i % 2 == 0 ? "optimizer.state.exp_avg." + state.name : "optimizer.state." + state.name + ".exp_avg";
        plain.tensors.push_back(std::move(state));
      }
      for (int round = 0; round < 12; ++round) {
        Inventory inventory = plain;
        for (TensorRef& tensor : inventory.tensors) {
          const std::size_t begin =
              tensor.name.find("exp_avg.") == std::string::npos ? (tensor.name.starts_with("optimizer.") ? 16 : 0) : 24;
          // The first key has no word, so that no text of a wrapper is in front of all.
          if (&tensor != inventory.tensors.data())
            tensor.name = tensor.name.substr(0, begin) + wrapped(tensor.name.substr(begin), random);
        }
        const bool has_words =
            !std::ranges::equal(inventory.tensors, plain.tensors, {}, &TensorRef::name, &TensorRef::name);
        EXPECT_EQ(!take_off_wrapper_words(inventory, hints).empty(), has_words);
        for (std::size_t i = 0; i < plain.tensors.size(); ++i)
          ASSERT_EQ(inventory.tensors[i].name, plain.tensors[i].name) << family.model_type << " " << spelled.root;
        changed += has_words ? 1 : 0;
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 1000);
  EXPECT_GT(changed, cases / 2);
}

}  // namespace
}  // namespace glu_ckpt
