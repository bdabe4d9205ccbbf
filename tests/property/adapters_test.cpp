/// Adapters of random sizes and forms, laid out anew: every expert gets the product that was made for it. Tensors are
/// written and read here by formulas of their own, not by the placements under test.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "adapters/adapter_layout.hpp"
#include "layout/placement.hpp"
#include "support/memory_checkpoint.hpp"

namespace glu_ckpt {
namespace {

using support::MemorySource;
using support::MemoryTensor;

struct Numbers {
  i64 rows = 0;
  i64 cols = 0;
  std::vector<float> values;
  float at(i64 row, i64 col) const { return values[static_cast<std::size_t>(row * cols + col)]; }
  float& at(i64 row, i64 col) { return values[static_cast<std::size_t>(row * cols + col)]; }
};

Numbers zeros(i64 rows, i64 cols) { return {rows, cols, std::vector<float>(static_cast<std::size_t>(rows * cols))}; }

struct Pair {
  Numbers a;
  Numbers b;
};

enum class Form { Indexed, Packed, Turned, ByExpert };

struct Sizes {
  bool is_oss = false;
  i64 experts = 0, hidden = 0, width = 0, rank = 0;
  double alpha = 0;
};

/// By expert and role: 0 gate, 1 up, 2 down.
using Logical = std::map<std::pair<i64, int>, Pair>;
using Products = std::map<std::pair<i64, int>, std::vector<double>>;

constexpr std::string_view kRole[] = {"gate_proj", "up_proj", "down_proj"};

std::vector<double> product(const Pair& pair, double scale) {
  std::vector<double> out;
  for (i64 o = 0; o < pair.b.rows; ++o)
    for (i64 i = 0; i < pair.a.cols; ++i) {
      double sum = 0;
      for (i64 j = 0; j < pair.a.rows; ++j)
        sum += static_cast<double>(pair.b.at(o, j)) * static_cast<double>(pair.a.at(j, i));
      out.push_back(scale * sum);
    }
  return out;
}

MemoryTensor tensor(const std::string& module, std::string_view part, const Numbers& numbers) {
  MemoryTensor made{"base_model.model." + module + "." + std::string(part) + ".weight",
                    Dtype::F32,
                    {numbers.rows, numbers.cols},
                    std::vector<std::byte>(numbers.values.size() * sizeof(float))};
  std::memcpy(made.bytes.data(), numbers.values.data(), made.bytes.size());
  return made;
}

i64 stored_row(const Sizes& sizes, int role, i64 row) {
  if (role == 2) return row;
  return sizes.is_oss ? 2 * row + role : role * sizes.width + row;
}

/// One pair of packed tensors; A of gate serves up.
std::vector<MemoryTensor> packed(const Sizes& sizes, const Logical& logical, bool is_down, i64 rank, Form form) {
  const i64 inputs = is_down ? sizes.width : sizes.hidden, outputs = is_down ? sizes.hidden : 2 * sizes.width;
  const i64 stacked = sizes.experts * rank;
  Numbers a = zeros(stacked, inputs), b = zeros(outputs, stacked);
  const auto column = [&](i64 e, i64 j) { return form == Form::ByExpert ? e * rank + j : j * sizes.experts + e; };
  for (const auto& [key, pair] : logical) {
    const auto& [e, role] = key;
    if ((role == 2) != is_down) continue;
    for (i64 j = 0; j < rank; ++j) {
      for (i64 i = 0; i < inputs; ++i) a.at(e * rank + j, i) = pair.a.at(j, i);
      for (i64 o = 0; o < pair.b.rows; ++o) b.at(stored_row(sizes, role, o), column(e, j)) = pair.b.at(o, j);
    }
  }
  if (form == Form::Turned) {
    Numbers turned_a = zeros(stacked, outputs), turned_b = zeros(inputs, stacked);
    for (i64 e = 0; e < sizes.experts; ++e)
      for (i64 j = 0; j < rank; ++j) {
        for (i64 i = 0; i < inputs; ++i) turned_b.at(i, j * sizes.experts + e) = a.at(e * rank + j, i);
        for (i64 o = 0; o < outputs; ++o) turned_a.at(e * rank + j, o) = b.at(o, j * sizes.experts + e);
      }
    a = turned_a;
    b = turned_b;
  }
  const std::string module = is_down ? "model.layers.0.mlp.experts" : "model.layers.0.mlp.experts.base_layer";
  return {tensor(module, "lora_A", a), tensor(module, "lora_B", b)};
}

std::string model_config(const Sizes& sizes) {
  const std::string common = fmt::format(
      R"("hidden_size": {}, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4, "num_hidden_layers": 1,
         "num_experts_per_tok": 1, "vocab_size": 8, "num_local_experts": {}, "num_experts": {})",
      sizes.hidden, sizes.experts, sizes.experts);
  if (sizes.is_oss)
    return fmt::format(R"({{"model_type": "gpt_oss", "intermediate_size": {}, "attention_bias": true, {}}})",
                       sizes.width, common);
  return fmt::format(
      R"({{"model_type": "qwen3_moe", "moe_intermediate_size": {}, "intermediate_size": 8, "mlp_only_layers": [],
           "decoder_sparse_step": 1, {}}})",
      sizes.width, common);
}

/// What reading an adapter of these sizes has to know.
struct Known {
  std::shared_ptr<const Architecture> architecture;
  const Naming* naming = nullptr;
  AdaptedModel model;
};

Known known(const Sizes& sizes) {
  Known found;
  found.architecture = read_architecture(model_config(sizes));
  found.naming = find_naming(found.architecture->family->expert_naming);
  found.model = adapted_model(found.naming, found.architecture.get());
  found.model.sizes = [sizes](const std::string&) { return PackedSizes{sizes.experts, sizes.hidden, sizes.width}; };
  return found;
}

struct Written {
  std::vector<MemoryTensor> tensors;
  std::string config;
};

Written lay_out(const Written& from, const Sizes& sizes, const LayAnswers& answers, PackedFiles files) {
  const Known all = known(sizes);
  const MemorySource source(from.tensors);
  const AdapterConfig config = read_adapter_config(from.config, "adapter_config.json");
  const LaidAdapter laid = lay_out_adapter(source, config, read_factors(source.inventory(), config, all.model, files),
                                           all.naming, all.architecture.get(), answers);
  Written written;
  written.config = laid_config(from.config, config, laid);
  for (const LaidTensor& one : laid.tensors) {
    i64 count = 1;
    for (const i64 extent : one.shape) count *= extent;
    MemoryTensor made{one.name, one.dtype, one.shape, std::vector<std::byte>(static_cast<std::size_t>(count * 4))};
    for (const auto& [part, to] : one.parts)
      for (i64 row = 0; row < part.rows; ++row)
        for (i64 col = 0; col < part.cols; ++col)
          std::memcpy(made.bytes.data() + row_offset(to.place, row) + col * to.place.col_step,
                      from.tensors[part.tensor].bytes.data() + row_offset(part.place, row) + col * part.place.col_step,
                      4);
    written.tensors.push_back(std::move(made));
  }
  return written;
}

Numbers numbers_of(const Written& written, const std::string& name) {
  for (const MemoryTensor& one : written.tensors)
    if (one.name == name) {
      Numbers numbers = zeros(one.shape[0], one.shape[1]);
      std::memcpy(numbers.values.data(), one.bytes.data(), one.bytes.size());
      return numbers;
    }
  return {};
}

/// The products of an adapter with packed or indexed experts, by the formulas of PEFT.
Products products(const Written& written, const Sizes& sizes, bool is_packed) {
  const AdapterConfig config = read_adapter_config(written.config, "adapter_config.json");
  const std::string layer = "model.layers.0.mlp.experts", root = "base_model.model." + layer;
  Products found;
  for (i64 e = 0; e < sizes.experts; ++e)
    for (int role = 0; role < 3; ++role) {
      Pair pair;
      double scale = 0;
      if (is_packed) {
        const std::string module = role == 2 ? root : root + ".base_layer";
        const Numbers a = numbers_of(written, module + ".lora_A.weight"),
                      b = numbers_of(written, module + ".lora_B.weight");
        const i64 rank = a.rows / sizes.experts, outputs = role == 2 ? sizes.hidden : sizes.width;
        pair = {zeros(rank, a.cols), zeros(outputs, rank)};
        for (i64 j = 0; j < rank; ++j) {
          for (i64 i = 0; i < a.cols; ++i) pair.a.at(j, i) = a.at(e * rank + j, i);
          for (i64 o = 0; o < outputs; ++o) pair.b.at(o, j) = b.at(stored_row(sizes, role, o), j * sizes.experts + e);
        }
        const std::string name = layer + (role == 2 ? ".down_proj" : ".gate_up_proj");
        EXPECT_EQ(config.rank_of(name), rank);
        scale = static_cast<double>(config.scale_of(name));
      } else {
        const std::string module = fmt::format("{}.{}.{}", layer, e, kRole[role]);
        pair = {numbers_of(written, "base_model.model." + module + ".lora_A.weight"),
                numbers_of(written, "base_model.model." + module + ".lora_B.weight")};
        if (pair.a.rows == 0) continue;
        EXPECT_EQ(config.rank_of(module), pair.a.rows);
        scale = static_cast<double>(config.scale_of(module));
      }
      found[{e, role}] = product(pair, scale);
    }
  return found;
}

TEST(Adapters, EveryExpertKeepsItsProductInEveryLayout) {
  std::mt19937 random(7);
  const auto pick = [&](i64 least, i64 most) { return std::uniform_int_distribution<i64>(least, most)(random); };
  int exchanged = 0;
  for (int round = 0; round < 600; ++round) {
    Sizes sizes;
    sizes.is_oss = pick(0, 2) == 0;
    sizes.experts = pick(1, 5);
    sizes.width = 2 * pick(1, 4);
    do sizes.hidden = pick(3, 9);
    while (sizes.hidden == sizes.width || sizes.hidden == 2 * sizes.width);
    sizes.rank = pick(1, 4);
    sizes.alpha = static_cast<double>(sizes.rank) * (pick(0, 1) == 0 ? 2 : 0.5);
    auto form = static_cast<Form>(pick(0, 3));
    if (sizes.is_oss && form == Form::Turned) form = Form::Packed;
    const bool shares = form != Form::Indexed || pick(0, 1) == 0;
    // Integers, each once, whose sums are exact.
    float next = 1;
    Logical logical;
    for (i64 e = 0; e < sizes.experts; ++e)
      for (int role = 0; role < 3; ++role) {
        Pair pair{zeros(sizes.rank, role == 2 ? sizes.width : sizes.hidden),
                  zeros(role == 2 ? sizes.hidden : sizes.width, sizes.rank)};
        for (float& value : pair.a.values) value = next++;
        for (float& value : pair.b.values) value = next++;
        if (role == 1 && shares) pair.a = logical[{e, 0}].a;
        logical[{e, role}] = pair;
      }
    Written source;
    source.config = fmt::format(
        R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {}, "target_modules": ["gate_proj", "up_proj", "down_proj"],
             "target_parameters": {}, "rank_pattern": {{}}, "alpha_pattern": {{}}}})",
        sizes.rank, sizes.alpha,
        form == Form::Indexed ? "null" : R"(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])");
    if (form == Form::Indexed) {
      for (const auto& [key, pair] : logical) {
        const std::string module = fmt::format("model.layers.0.mlp.experts.{}.{}", key.first, kRole[key.second]);
        source.tensors.push_back(tensor(module, "lora_A", pair.a));
        source.tensors.push_back(tensor(module, "lora_B", pair.b));
      }
    } else {
      source.tensors = packed(sizes, logical, false, sizes.rank, form);
      for (MemoryTensor& one : packed(sizes, logical, true, sizes.rank, form)) source.tensors.push_back(std::move(one));
    }
    Products expected;
    for (const auto& [key, pair] : logical)
      expected[key] = product(pair, sizes.alpha / static_cast<double>(sizes.rank));
    const PackedFiles files = form == Form::ByExpert ? PackedFiles::ByExpert : PackedFiles::Told;
    const std::string what = fmt::format("round {}, form {}, E {} H {} F {} r {}", round, static_cast<int>(form),
                                         sizes.experts, sizes.hidden, sizes.width, sizes.rank);
    const Written apart = lay_out(source, sizes, {.layout = AdapterLayout::Indexed}, files);
    ASSERT_EQ(products(apart, sizes, false), expected) << what;
    const Written live = lay_out(source, sizes, {.layout = AdapterLayout::Indexed, .live_ranks = true}, files);
    ASSERT_EQ(live.tensors.size(), apart.tensors.size()) << what;
    if (!shares) {
      EXPECT_THROW((void)lay_out(source, sizes, {.layout = AdapterLayout::Packed}, files), Error) << what;
    }
    const Written together = lay_out(source, sizes, {.layout = AdapterLayout::Packed, .grow_rank = true}, files);
    ASSERT_EQ(products(together, sizes, true), expected) << what;
    // And back, with the bytes of the first.
    const Written again = lay_out(together, sizes, {.layout = AdapterLayout::Indexed}, PackedFiles::Told);
    ASSERT_EQ(again.tensors.size(), apart.tensors.size()) << what;
    for (const MemoryTensor& one : apart.tensors)
      ASSERT_EQ(numbers_of(again, one.name).values, numbers_of(apart, one.name).values) << what << " " << one.name;
    // In the files of each program, with the bytes of that program.
    if (shares)
      for (const auto& [other, its_form] : {std::pair{PackedFiles::Peft018, Form::Turned},
                                            {PackedFiles::Peft019, Form::Packed},
                                            {PackedFiles::ByExpert, Form::ByExpert}}) {
        const Form as = sizes.is_oss && its_form == Form::Turned ? Form::Packed : its_form;
        const Written theirs = lay_out(source, sizes, {.layout = AdapterLayout::Packed, .files = other}, files);
        ASSERT_EQ(theirs.tensors.size(), 4U) << what;
        for (const bool is_down : {false, true})
          for (const MemoryTensor& one : packed(sizes, logical, is_down, sizes.rank, as)) {
            const auto found = std::ranges::find(theirs.tensors, one.name, &MemoryTensor::name);
            ASSERT_TRUE(found != theirs.tensors.end()) << what << " " << one.name;
            EXPECT_EQ(found->shape, one.shape) << what << " " << one.name;
            EXPECT_EQ(found->bytes, one.bytes) << what << " " << one.name << " as " << static_cast<int>(as);
          }
      }
    // The other order of B's columns is another adapter.
    if (form == Form::Packed && sizes.experts > 1 && sizes.rank > 1) {
      const Written wrong = lay_out(source, sizes, {.layout = AdapterLayout::Indexed}, PackedFiles::ByExpert);
      EXPECT_NE(products(wrong, sizes, false), expected) << what;
      ++exchanged;
    }
  }
  EXPECT_GT(exchanged, 50);
}

}  // namespace
}  // namespace glu_ckpt
