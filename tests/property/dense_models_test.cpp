/// Rows of dense models that move: gate and up in an FC1, and the halves of a head that torchtitan rotates by pairs.
/// Every dense family, orders and sizes at random, from the hub's keys to a trainer's, from there to another form, and
/// back. Each element says where it is from, so what every row must hold is known without the code under test.

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <random>

#include "arch/dense_layout.hpp"
#include "arch/dense_table.hpp"
#include "arch/recognize_model.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

struct Sizes {
  i64 layers, hidden, width;
  i64 kv_heads = 2, heads_of_each = 2, head_dim = 6;
};

std::string config_of(std::string_view model_type, const Sizes& sizes) {
  return fmt::format(
      R"({{"model_type": "{}", "num_hidden_layers": {}, "hidden_size": {}, "num_attention_heads": {},
          "num_key_value_heads": {}, "head_dim": {}, "vocab_size": 10, "intermediate_size": {},
          "tie_word_embeddings": false}})",
      model_type, sizes.layers, sizes.hidden, sizes.kv_heads * sizes.heads_of_each, sizes.kv_heads, sizes.head_dim,
      sizes.width);
}

Recognition recognized(const MemorySource& source, const SourceAnswers& answers = {}) {
  return recognize_model(source.inventory(), source.hints(), source.record(), answers);
}

Digest digest_of_model(const MemorySource& source, const SourceAnswers& answers = {}) {
  const Recognition model = recognized(source, answers);
  return compute_digest({&source, &model}, *make_backend("cpu"), {});
}

MemorySource source_of(const std::vector<MemoryTensor>& tensors, const std::string& config, const std::string& glu) {
  ModelHints hints;
  hints.config = config;
  Record record;
  if (!glu.empty()) record["glu"] = glu;
  return MemorySource(tensors, hints, record);
}

/// The hub's tensors; each element has a number of its own.
std::vector<MemoryTensor> hub_model(const std::string& config) {
  const auto model = read_architecture(config);
  const Architecture& architecture = *model;
  std::vector<MemoryTensor> tensors, biases;
  u32 next = 1;
  const DenseNaming& naming = architecture.family->naming;
  const auto add = [&](const DenseRow& row, std::string_view stack, i64 layer, TensorKind kind) {
    MemoryTensor tensor{print_key(naming, row, architecture.family->root, stack, layer, kind, architecture),
                        Dtype::F32,
                        dense_shape(row, kind, architecture),
                        {}};
    tensor.bytes.resize(static_cast<std::size_t>(support::tensor_bytes(tensor.dtype, tensor.shape)));
    for (std::size_t at = 0; at < tensor.bytes.size(); at += sizeof next, ++next)
      std::memcpy(tensor.bytes.data() + at, &next, sizeof next);
    (kind == TensorKind::Bias ? biases : tensors).push_back(std::move(tensor));
  };
  for_each_row(naming, [&](const DenseRow& row) {
    if (row.copy || row.former || row.optional || row.place == Place::Mtp) return;
    if (row.place == Place::Model) return add(row, "", 0, TensorKind::Weight);
    for (i64 layer = 0; layer < architecture.layers; ++layer) {
      if (!applies(row, architecture.kind_of("decoder", layer), architecture)) continue;
      add(row, "decoder", layer, TensorKind::Weight);
      if (row.has_kinds()) add(row, "decoder", layer, TensorKind::Bias);
    }
  });
  // The biases that the family cannot do without.
  for (bool whole = false; !whole;) {
    const Recognition found = recognized(source_of(tensors, config, ""));
    const auto missed = [&](const MemoryTensor& bias) {
      return std::ranges::find(found.flaws, bias.name, &ModelFlaw::tensor) != found.flaws.end();
    };
    const auto bias = std::ranges::find_if(biases, missed);
    whole = bias == biases.end();
    if (!whole) tensors.push_back(*bias);
  }
  return tensors;
}

const MemoryTensor& find(const std::vector<MemoryTensor>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &MemoryTensor::name);
  if (found == tensors.end()) throw std::logic_error("no tensor " + name);
  return *found;
}

/// The bytes of all layers' FC1, one layer behind the other, made of the hub's tensors by the rule alone: row i is of
/// block i / K, whose even ones hold gate.
std::vector<std::byte> expected_fc1(const std::vector<MemoryTensor>& hub, const Sizes& sizes, i64 block_rows) {
  std::vector<std::byte> bytes;
  const i64 row_bytes = sizes.hidden * 4;
  for (i64 layer = 0; layer < sizes.layers; ++layer)
    for (i64 row = 0; row < 2 * sizes.width; ++row) {
      const i64 block = row / block_rows;
      const std::string_view word = block % 2 == 0 ? "gate" : "up";
      const MemoryTensor& from = find(hub, fmt::format("model.layers.{}.mlp.{}_proj.weight", layer, word));
      const auto begin = from.bytes.begin() + (block / 2 * block_rows + row % block_rows) * row_bytes;
      bytes.insert(bytes.end(), begin, begin + row_bytes);
    }
  return bytes;
}

std::vector<std::byte> fc1_of(const std::vector<MemoryTensor>& megatron) {
  std::map<std::string, const MemoryTensor*> parts;
  for (const MemoryTensor& tensor : megatron)
    if (tensor.name.ends_with("mlp.linear_fc1.weight")) parts[tensor.name] = &tensor;
  std::vector<std::byte> bytes;
  for (const auto& [name, tensor] : parts) bytes.insert(bytes.end(), tensor->bytes.begin(), tensor->bytes.end());
  return bytes;
}

PlanOptions options_to(std::string naming, const Glu& glu) {
  PlanOptions options;
  options.to.naming = std::move(naming);
  options.to.glu = glu;
  options.force = true;
  return options;
}

i64 rows_of(const Glu& glu, const Sizes& sizes) {
  return glu.kind == Glu::Kind::Interleaved ? glu.block_rows : sizes.width;
}

void expect_way(std::string_view model_type, const Sizes& sizes, const Glu& first, const Glu& second) {
  const std::string config = config_of(model_type, sizes);
  const std::vector<MemoryTensor> hub = hub_model(config);
  const MemorySource source = source_of(hub, config, "");
  const Digest digest = digest_of_model(source);

  const auto there = convert(source, recognized(source), options_to("megatron-dist", first));
  EXPECT_TRUE(fc1_of(there.tensors) == expected_fc1(hub, sizes, rows_of(first, sizes)));
  const MemorySource megatron = source_of(there.tensors, config, to_string(first));
  EXPECT_EQ(digest_of_model(megatron), digest);

  PlanOptions reorder;
  reorder.to.glu = second;
  reorder.force = true;
  const auto other = convert(megatron, recognized(megatron), reorder);
  EXPECT_TRUE(fc1_of(other.tensors) == expected_fc1(hub, sizes, rows_of(second, sizes)));
  const MemorySource reordered = source_of(other.tensors, config, to_string(second));
  EXPECT_EQ(digest_of_model(reordered), digest);

  const auto back = convert(reordered, recognized(reordered), options_to("hf:" + std::string(model_type), split()));
  EXPECT_TRUE(same_tensors(back.tensors, hub));

  // Nobody says the order; then the user does.
  const MemorySource silent = source_of(other.tensors, config, "");
  const Recognition unknown = recognized(silent);
  EXPECT_EQ(unknown.layout.glu.kind, Glu::Kind::Unknown);
  for (const PlanOptions& options : {reorder, options_to("hf:" + std::string(model_type), split())})
    expect_error(
        ErrorCode::UnknownGlu, [&] { make_plan(silent.inventory(), unknown, options); }, "--from-glu");
  SourceAnswers said;
  said.glu = second;
  EXPECT_EQ(digest_of_model(silent, said), digest);
  said.glu = interleaved(sizes.width + 1);
  expect_error(ErrorCode::NotDivisible, [&] { recognized(silent, said); });
}

TEST(DenseModels, EveryOrderOfEveryDenseFamily) {
  std::mt19937 random(20);
  const auto below = [&](i64 end) { return static_cast<i64>(random() % static_cast<u64>(end)); };
  int ways = 0;
  for (const Family& family : families()) {
    if (family.has_experts()) continue;
    for (int i = 0; i < 50; ++i, ++ways) {
      const i64 unit = 1 + below(4), blocks = 1 + below(5);
      const Sizes sizes{1 + below(4), 4 * (1 + below(4)), unit * blocks};
      const auto order = [&] {
        const i64 kind = below(3);
        return kind == 0 ? contiguous() : interleaved(kind == 1 ? unit : 1);
      };
      const Glu first = order(), second = order();
      SCOPED_TRACE(fmt::format("{}: {} layers, H {}, F {}, {} to {}", family.model_type, sizes.layers, sizes.hidden,
                               sizes.width, to_string(first), to_string(second)));
      expect_way(family.model_type, sizes, first, second);
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(ways, 200);
}

TEST(DenseModels, AnOrderThatDoesNotFitIsRefused) {
  const Sizes sizes{2, 8, 12};
  for (const Family& family : families()) {
    if (family.has_experts()) continue;
    const std::string config = config_of(family.model_type, sizes);
    const std::vector<MemoryTensor> hub = hub_model(config);
    const MemorySource source = source_of(hub, config, "");
    const Recognition model = recognized(source);
    const auto plan = [&](const PlanOptions& options) {
      return [&, options] { make_plan(source.inventory(), model, options); };
    };
    expect_error(ErrorCode::NotDivisible, plan(options_to("megatron-dist", interleaved(8))), "24 rows");
    expect_error(ErrorCode::NoSpelling, plan(options_to("megatron-dist", split())), "--glu split");
    PlanOptions fuse;
    fuse.to.glu = contiguous();
    expect_error(ErrorCode::NoSpelling, plan(fuse), "--glu contiguous");
    SourceAnswers answers;
    answers.glu = interleaved(4);
    expect_error(ErrorCode::GluConflict, [&] { recognized(source, answers); });
    expect_error(ErrorCode::RecordContradicts, [&] { recognized(source_of(hub, config, "interleaved:4")); });
  }
}

/// Megatron-Core interleaves dense FC1s in its fused MLP alone, whose arguments a run saves.
TEST(DenseModels, ATrainersArgumentsSayTheOrder) {
  const Sizes sizes{2, 8, 64};
  const std::string config = config_of("llama", sizes);
  const std::vector<MemoryTensor> hub = hub_model(config);
  const MemorySource source = source_of(hub, config, "");
  const auto made = convert(source, recognized(source), options_to("megatron-dist", contiguous()));
  const auto order = [&](const std::string& args, const std::string& routed) {
    ModelHints hints;
    hints.config = config;
    hints.trained.args = args;
    hints.trained.glu = routed;
    const LayoutAnswers layout = recognized(MemorySource(made.tensors, hints)).layout;
    EXPECT_EQ(layout.glu_source, layout.glu.kind == Glu::Kind::Unknown ? "none" : "arguments");
    return to_string(layout.glu);
  };
  const std::string fused = R"("use_grouped_gemm_for_dense_mlp": true, "use_transformer_engine_op_fuser": true)";
  EXPECT_EQ(order("{" + fused + "}", ""), "interleaved:32");
  EXPECT_EQ(order("{" + fused + R"(, "tensor_model_parallel_size": 1})", "contiguous"), "interleaved:32");
  EXPECT_EQ(order("{" + fused + R"(, "tensor_model_parallel_size": 2})", ""), "contiguous");
  EXPECT_EQ(order(R"({"use_grouped_gemm_for_dense_mlp": true})", ""), "contiguous");
  EXPECT_EQ(order(R"({"use_grouped_gemm_for_dense_mlp": false})", "interleaved:32"), "contiguous");
  EXPECT_EQ(order(R"({"num_layers": 2})", "contiguous"), "contiguous");
  EXPECT_EQ(order(R"({"num_layers": 2})", "interleaved:32"), "unknown");
  EXPECT_EQ(order(R"({"num_layers": 2})", ""), "unknown");
  ModelHints beside;
  beside.config = config;
  beside.listed.args = "{" + fused + "}";
  const LayoutAnswers layout = recognized(MemorySource(made.tensors, beside)).layout;
  EXPECT_EQ(to_string(layout.glu), "interleaved:32");
  EXPECT_EQ(layout.glu_source, "megatron_args.txt");
}

// ---- pairs of rows ----------------------------------------------------------------------------

/// Rows of heads as torchtitan's rotary embedding of complex numbers wants them, by the rule alone: row 2i + s of a
/// head is row i of its half s.
std::vector<std::byte> in_pairs(const MemoryTensor& rows, i64 head_dim) {
  std::vector<std::byte> bytes;
  const i64 row_bytes = rows.shape[1] * 4, half = head_dim / 2;
  for (i64 row = 0; row < rows.shape[0]; ++row) {
    const i64 in_head = row % head_dim;
    const auto begin = rows.bytes.begin() + (row - in_head + in_head % 2 * half + in_head / 2) * row_bytes;
    bytes.insert(bytes.end(), begin, begin + row_bytes);
  }
  return bytes;
}

bool rotates_pairs(const Family& family) {
  bool pairs = false;
  if (family.torchtitan != nullptr) for_each_row(*family.torchtitan, [&](const DenseRow& row) { pairs |= row.paired; });
  return pairs;
}

void expect_pairs(std::string_view model_type, const Sizes& sizes) {
  const std::string config = config_of(model_type, sizes);
  const std::vector<MemoryTensor> hub = hub_model(config);
  const MemorySource source = source_of(hub, config, "");
  const Digest digest = digest_of_model(source);
  const auto titan = convert(source, recognized(source), options_to("torchtitan", split()));
  for (i64 layer = 0; layer < sizes.layers; ++layer) {
    const auto key = [&](std::string_view form, std::string_view part) {
      return fmt::format(fmt::runtime(form), layer, part);
    };
    const std::string_view theirs = "layers.{}.attention.qkv_linear.w{}.weight";
    const std::string_view ours = "model.layers.{}.self_attn.{}_proj.weight";
    for (const std::string_view part : {"q", "k"})
      EXPECT_TRUE(find(titan.tensors, key(theirs, part)).bytes == in_pairs(find(hub, key(ours, part)), sizes.head_dim));
    EXPECT_TRUE(find(titan.tensors, key(theirs, "v")).bytes == find(hub, key(ours, "v")).bytes);
  }
  const MemorySource paired = source_of(titan.tensors, config, "");
  EXPECT_EQ(digest_of_model(paired), digest);
  const auto back = convert(paired, recognized(paired), options_to("hf:" + std::string(model_type), split()));
  EXPECT_TRUE(same_tensors(back.tensors, hub));
  const auto megatron = convert(source, recognized(source), options_to("megatron-dist", contiguous()));
  const auto across = convert(paired, recognized(paired), options_to("megatron-dist", contiguous()));
  EXPECT_TRUE(same_tensors(across.tensors, megatron.tensors));
  const MemorySource fused = source_of(megatron.tensors, config, "contiguous");
  const auto there = convert(fused, recognized(fused), options_to("torchtitan", split()));
  EXPECT_TRUE(same_tensors(there.tensors, titan.tensors));
}

TEST(DenseModels, HalvesOfHeadsBecomePairsAndComeBack) {
  std::mt19937 random(21);
  const auto below = [&](i64 end) { return static_cast<i64>(random() % static_cast<u64>(end)); };
  int families_seen = 0;
  for (const Family& family : families()) {
    if (!rotates_pairs(family)) continue;
    ++families_seen;
    for (int i = 0; i < 150; ++i) {
      const Sizes sizes{1 + below(3), 4 * (1 + below(4)), 1 + below(6), 1 + below(4), 1 + below(4), 2 * (1 + below(6))};
      SCOPED_TRACE(fmt::format("{}: H {}, {} groups of {} heads of {}", family.model_type, sizes.hidden, sizes.kv_heads,
                               sizes.heads_of_each, sizes.head_dim));
      expect_pairs(family.model_type, sizes);
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(families_seen, 1);
}

TEST(DenseModels, AHeadWithoutHalvesIsRefused) {
  const std::string config = config_of("llama", {.layers = 1, .hidden = 8, .width = 4, .head_dim = 5});
  const MemorySource source = source_of(hub_model(config), config, "");
  const Recognition model = recognized(source);
  expect_error(ErrorCode::NotExact, [&] { make_plan(source.inventory(), model, options_to("torchtitan", split())); });
}

}  // namespace
}  // namespace glu_ckpt
