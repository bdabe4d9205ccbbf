/// Faults planted in models of testdata/whole: verify and diff name the layer, the role, the head and the row, and no
/// conversion takes what is not whole.

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "glu_ckpt/check.hpp"
#include "support/whole_models.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using namespace support;

i64 row_bytes(const MemoryTensor& tensor) { return std::ssize(tensor.bytes) / tensor.shape[0]; }

std::byte* row_of(MemoryTensor& tensor, i64 row) { return tensor.bytes.data() + row * row_bytes(tensor); }

void swap_rows(MemoryTensor& tensor, i64 a, i64 b, i64 count) {
  std::swap_ranges(row_of(tensor, a), row_of(tensor, a) + count * row_bytes(tensor), row_of(tensor, b));
}

/// Of a matrix of two-byte elements.
void transpose(MemoryTensor& tensor) {
  const auto size = static_cast<std::size_t>(tensor.shape[0]);
  ASSERT_EQ(tensor.shape, std::vector<i64>(2, tensor.shape[0]));
  std::vector<std::byte> turned(tensor.bytes.size());
  for (std::size_t row = 0; row < size; ++row)
    for (std::size_t col = 0; col < size; ++col)
      std::memcpy(&turned[2 * (row * size + col)], &tensor.bytes[2 * (col * size + row)], 2);
  tensor.bytes = turned;
}

/// A fault in Megatron-Core's tensors, and how verify must name it.
struct PlantedFault {
  std::string name;
  std::string family;
  std::function<void(Tensors&)> plant;
  std::string layer;
  std::string role;
  i64 head;
  i64 row;
  std::string hint;
};

/// linear_qkv of qwen3_moe has, for each of two key heads, two query heads, one of k and one of v, of 20 rows each;
/// that of qwen3_next the gates of the queries between them, and heads of 16 rows.
const std::vector<PlantedFault> kFaults{
    {"QueryHeadsOfOneGroupSwapped", "qwen3_moe",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.1.self_attention.linear_qkv.weight"), 0, 20, 20); }, "1",
     "attention/q", 0, 0, "A's head 0 is B's head 1: the heads look reordered"},
    {"QueryHeadsOfTwoGroupsSwapped", "qwen3_moe",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.0.self_attention.linear_qkv.weight"), 20, 80, 20); }, "0",
     "attention/q", 1, 20, "A's head 1 is B's head 2: the heads look reordered"},
    {"KeyHeadsSwapped", "gpt_oss",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.2.self_attention.linear_qkv.weight"), 40, 120, 20); }, "2",
     "attention/k", 0, 0, "A's head 0 is B's head 1: the heads look reordered"},
    {"KeyRowInPlaceOfValueRow", "qwen3_moe",
     [](Tensors& t) {
       MemoryTensor& qkv = find(t, "decoder.layers.1.self_attention.linear_qkv.weight");
       std::copy_n(row_of(qkv, 80 + 40 + 7), row_bytes(qkv), row_of(qkv, 80 + 60 + 7));
     },
     "1", "attention/v", 1, 27, ""},
    {"KeyRowAndValueRowSwapped", "qwen3_moe",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.0.self_attention.linear_qkv.weight"), 43, 63, 1); }, "0",
     "attention/k", 0, 3, ""},
    {"KeysAndValuesSwapped", "qwen3_moe",
     [](Tensors& t) {
       MemoryTensor& qkv = find(t, "decoder.layers.0.self_attention.linear_qkv.weight");
       swap_rows(qkv, 40, 60, 20);
       swap_rows(qkv, 120, 140, 20);
     },
     "0", "attention/k", 0, 0, "B holds A's attention/k as attention/v"},
    {"QueriesAndTheirGatesSwapped", "qwen3_next",
     [](Tensors& t) {
       MemoryTensor& qkv = find(t, "decoder.layers.3.self_attention.linear_qkv.weight");
       swap_rows(qkv, 0, 32, 32);
       swap_rows(qkv, 96, 128, 32);
     },
     "3", "attention/q", 0, 0, "B holds A's attention/q as attention/gate"},
    {"BiasRowOfAKeyChanged", "gpt_oss",
     [](Tensors& t) { *row_of(find(t, "decoder.layers.1.self_attention.linear_qkv.bias"), 120 + 4) ^= std::byte{1}; },
     "1", "attention/k", 1, 24, ""},
    {"SinkChanged", "gpt_oss",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.1.self_attention.core_attention.softmax_offset"), 2, 3, 1); },
     "1", "attention/sinks", -1, 0, ""},
    {"DeltaQueryAndKeySwapped", "qwen3_next",
     [](Tensors& t) {
       std::swap(find(t, "decoder.layers.1.self_attention.in_proj.weight.query").bytes,
                 find(t, "decoder.layers.1.self_attention.in_proj.weight.key").bytes);
     },
     "1", "delta/q", -1, 0, "B holds A's delta/q as delta/k"},
    {"DeltaConvolutionSwapped", "qwen3_next",
     [](Tensors& t) {
       std::swap(find(t, "decoder.layers.0.self_attention.conv1d.weight.query").bytes,
                 find(t, "decoder.layers.0.self_attention.conv1d.weight.key").bytes);
     },
     "0", "delta/conv_q", -1, 0, "B holds A's delta/conv_q as delta/conv_k"},
    {"SquareMatrixTransposed", "qwen3_next",
     [](Tensors& t) { transpose(find(t, "decoder.layers.2.self_attention.in_proj.weight.key")); }, "2", "delta/k", -1,
     0, "B's matrix is the transpose of A's"},
    {"DeltaNormChangedByItsLastBit", "qwen3_next",
     [](Tensors& t) { find(t, "decoder.layers.2.self_attention.out_norm.weight").bytes[4 * 5] ^= std::byte{0x40}; },
     "2", "norm/delta_out", -1, 0, ""},
    {"LatentHeadsSwapped", "deepseek_v3",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.2.self_attention.linear_kv_up_proj.weight"), 28, 84, 28); },
     "2", "attention/kv_up", 1, 28, "A's head 1 is B's head 3: the heads look reordered"},
    {"DenseGateAndUpSwapped", "deepseek_v3",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.0.mlp.linear_fc1.weight"), 0, 60, 60); }, "0", "mlp/gate", -1,
     0, "B holds A's mlp/gate as mlp/up"},
    {"RouterRowsSwapped", "deepseek_v3",
     [](Tensors& t) { swap_rows(find(t, "decoder.layers.1.mlp.router.weight"), 2, 5, 1); }, "1", "router", -1, 2, ""},
    {"MtpProjectionChanged", "deepseek_v3",
     [](Tensors& t) { swap_rows(find(t, "mtp.layers.0.eh_proj.weight"), 3, 4, 1); }, "mtp.0", "mtp/projection", -1, 3,
     ""},
    {"NormsSwapped", "deepseek_v3",
     [](Tensors& t) {
       std::swap(find(t, "mtp.layers.0.enorm.weight").bytes, find(t, "mtp.layers.0.hnorm.weight").bytes);
     },
     "mtp.0", "norm/mtp_embedding", -1, 0, "B holds A's norm/mtp_embedding as norm/mtp_hidden"},
    {"WordsSwapped", "qwen3_moe", [](Tensors& t) { swap_rows(find(t, "embedding.word_embeddings.weight"), 98, 99, 1); },
     "", "embedding", -1, 98, ""},
};

class PlantedFaults : public WholeModel, public ::testing::WithParamInterface<PlantedFault> {};

TEST_P(PlantedFaults, AreNamed) {
  const PlantedFault& fault = GetParam();
  const fs::path source = home_of(fault.family) / "hf";
  Tensors tensors = read_tensors(home_of(fault.family) / "truth.safetensors");
  fault.plant(tensors);
  write_checkpoint(temp_ / "faulty", tensors, read_text(source / "config.json"));
  VerifyOptions options;
  options.b.glu = options.b.shared_glu = contiguous();
  const Verdict verdict = verify(source, temp_ / "faulty", options);
  EXPECT_FALSE(verdict.equal);
  EXPECT_NE(to_string(verdict.a), to_string(verdict.b));
  EXPECT_TRUE(verdict.missing.empty() && verdict.extra.empty());
  ASSERT_TRUE(verdict.first_difference);
  const Difference& found = *verdict.first_difference;
  EXPECT_EQ(found.layer, fault.layer);
  EXPECT_EQ(found.role, fault.role);
  EXPECT_EQ(found.head, fault.head);
  EXPECT_EQ(found.row, fault.row);
  EXPECT_EQ(found.hint, fault.hint);
}

INSTANTIATE_TEST_SUITE_P(Each, PlantedFaults, ::testing::ValuesIn(kFaults),
                         [](const auto& param) { return param.param.name; });

TEST_F(WholeModel, LostBiasIsNamed) {
  const fs::path source = home_of("gpt_oss") / "hf";
  Tensors tensors = read_tensors(home_of("gpt_oss") / "truth.safetensors");
  std::erase_if(tensors, [](const MemoryTensor& tensor) {
    return tensor.name == "decoder.layers.1.self_attention.linear_qkv.bias";
  });
  write_checkpoint(temp_ / "faulty", tensors, read_text(source / "config.json"));
  VerifyOptions options;
  options.b.glu = contiguous();
  const Verdict verdict = verify(source, temp_ / "faulty", options);
  EXPECT_FALSE(verdict.equal);
  const std::vector<std::string> lost{"layer 1 attention/q bias BF16 [80, 1]", "layer 1 attention/k bias BF16 [40, 1]",
                                      "layer 1 attention/v bias BF16 [40, 1]"};
  EXPECT_EQ(verdict.missing, lost);
  ConvertOptions back = to_target("hf");
  back.from = contiguous_answers();
  expect_error(
      ErrorCode::ModelIncomplete, [&] { glu_ckpt::convert(temp_ / "faulty", temp_ / "back", back); },
      "'decoder.layers.1.self_attention.linear_qkv.bias' is missing");
  EXPECT_FALSE(fs::exists(temp_ / "back"));
}

/// It is a tensor of its own where the naming stays, and has no place in another one.
TEST_F(WholeModel, UnequalMtpCopyIsNoCopy) {
  const fs::path source = home_of("deepseek_v3") / "hf";
  for (const std::string name : {"model.layers.3.embed_tokens.weight", "model.layers.3.shared_head.head.weight"}) {
    SCOPED_TRACE(name);
    const fs::path faulty = temp_ / name;
    Tensors tensors = read_tensors(source);
    find(tensors, name).bytes.back() ^= std::byte{1};
    write_checkpoint(faulty, tensors, read_text(source / "config.json"));
    EXPECT_NE(digest(source).digest, digest(faulty).digest);
    const Verdict verdict = verify(source, faulty);
    EXPECT_FALSE(verdict.equal);
    ASSERT_EQ(verdict.extra.size(), 1);
    EXPECT_EQ(verdict.extra[0].substr(0, name.size()), name);
    const Diff found = diff(source, faulty);
    ASSERT_EQ(found.tensors.size(), 1);
    EXPECT_EQ(found.tensors[0].name, name);
    EXPECT_EQ(found.tensors[0].elements->differing, 1);
    EXPECT_EQ(diff(faulty, source).tensors.size(), 1);
    for (const std::string target : {"megatron", "torchtitan"}) {
      expect_error(
          ErrorCode::CopyDiffers, [&] { glu_ckpt::convert(faulty, temp_ / target, to_target(target)); }, name);
      EXPECT_FALSE(fs::exists(temp_ / target));
      EXPECT_FALSE(fs::exists(temp_ / (target + ".partial")));
    }
    ConvertOptions grouped;
    grouped.to.experts = Experts::Grouped;
    grouped.to.glu = contiguous();
    const fs::path regrouped = temp_ / "regrouped";
    glu_ckpt::convert(faulty, regrouped, grouped);
    Tensors written = read_tensors(regrouped);
    EXPECT_EQ(find(written, name).bytes, find(tensors, name).bytes);
    EXPECT_TRUE(verify(faulty, regrouped).equal);
    EXPECT_TRUE(diff(faulty, regrouped).equal);
    EXPECT_EQ(digest(regrouped).recorded, to_string(digest(faulty).digest));
    EXPECT_TRUE(check(regrouped).is_ok());
    grouped.resume = true;
    EXPECT_TRUE(glu_ckpt::convert(faulty, regrouped, grouped).was_complete);
    fs::remove_all(regrouped);
  }
}

}  // namespace
}  // namespace glu_ckpt
