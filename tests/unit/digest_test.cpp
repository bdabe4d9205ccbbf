#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/hash.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

ModelSpec small_model() {
  ModelSpec model;
  BlockSpec block;
  block.hidden = 3;
  block.widths = widths(2, 4);
  block.dtype = Dtype::BF16;
  block.bias = true;
  block.layer = 1;
  model.blocks.push_back(block);
  return model;
}

const Spelling kSplit{"hf:mixtral", Experts::Indexed, Experts::Indexed, split(), split()};

TEST(Digest, PrintsAndParses) {
  const Digest digest{0x0123456789abcdef, 0xfedcba9876543210, 17, 1234567890123};
  EXPECT_EQ(to_string(digest), "gck2:fedcba98765432100123456789abcdef:17:1234567890123");
  EXPECT_EQ(parse_digest(to_string(digest)), digest);
  for (const std::string text :
       {"", "gck2:", "gck1:fedcba98765432100123456789abcdef:17:12", "gck2:fedcba98765432100123456789abcdef:17",
        "gck2:fedcba9876543210_123456789abcdef:17:12", "gck2:fedcba98765432100123456789abcdef:17:12x",
        "gck2:fedcba98765432100123456789abcdef::12", "gck2:fedcba98765432100123456789abcde:17:12"})
    EXPECT_FALSE(parse_digest(text)) << text;
}

/// The definition in docs/digest.md, written out.
TEST(Digest, IsTheSumOfItsLeaves) {
  ModelSpec model = small_model();
  model.others = {{"a/b", Dtype::F32, {2, 3}, std::vector<std::byte>(24, std::byte{7})},
                  {"none", Dtype::U8, {0, 3}, {}},
                  {"scalar", Dtype::I64, {}, std::vector<std::byte>(8, std::byte{9})}};
  const BlockSpec& block = model.blocks[0];
  Hash128 sum;
  i64 tensors = 0;
  i64 bytes = 0;
  const auto leaf = [&](std::span<const std::byte> data, const std::string& identity) {
    sum += hash128(data, hash64(identity));
    bytes += static_cast<i64>(data.size());
  };
  for (const Role role : {Role::Gate, Role::Up, Role::Down})
    for (const TensorKind kind : {TensorKind::Weight, TensorKind::Bias})
      for (i64 e = 0; e < 2; ++e) {
        ++tensors;
        const i64 rows = role == Role::Down ? 3 : 4;
        const i64 cols = kind == TensorKind::Bias ? 1 : role == Role::Down ? 4 : 3;
        for (i64 r = 0; r < rows; ++r) {
          std::vector<std::uint16_t> row;
          for (i64 c = 0; c < cols; ++c)
            row.push_back(static_cast<std::uint16_t>(element_code(block, e, role, kind, r, c, 2)));
          leaf(std::as_bytes(std::span(row)), fmt::format("model/1/routed/{}/{}/{}/BF16/{}/{}/{}", e, to_string(role),
                                                          to_string(kind), rows, cols, r));
        }
      }
  leaf(model.others[0].bytes, "a/b/F32/2x3/0");
  leaf(model.others[1].bytes, "none/U8/0x3/0");
  leaf(model.others[2].bytes, "scalar/I64//0");
  const Digest expected{sum.low, sum.high, tensors + 3, bytes};
  EXPECT_EQ(to_string(digest_of(make_source(model, kSplit))), to_string(expected));
  const Spelling packed{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(2), split()};
  EXPECT_EQ(to_string(digest_of(make_source(model, packed))), to_string(expected));
}

/// GatedDeltaNet's norm, stored as w in one naming (`op` makes w - 1 of it) and as w - 1 in the other.
struct NormModel {
  NormModel(const std::vector<float>& stored, ComputeOp op) : source(tensors_of(stored)) {
    DenseMatrix& norm = recognition.dense.emplace_back();
    norm.stack = "decoder";
    norm.role = DenseRole::DeltaNorm;
    norm.op = op;
    norm.stored_dtype = norm.matrix.dtype = Dtype::F32;
    norm.matrix.rows = 1;
    norm.matrix.cols = 2;
    norm.matrix.element_bytes = 4;
    norm.matrix.place = {0, 1, 0, 8, 4};
  }

  static std::vector<MemoryTensor> tensors_of(const std::vector<float>& stored) {
    const auto data = std::as_bytes(std::span(stored));
    return {{"norm", Dtype::F32, {2}, {data.begin(), data.end()}}};
  }

  Model model() const { return {&source, &recognition}; }
  /// The same from the files, and from bytes that pass.
  Digest digest() const {
    const ModelLeaves leaves(source.inventory(), recognition);
    LeafSum passed;
    leaves.add(0, 0, source.tensors()[0].bytes, passed);
    const Digest found = compute_digest(model(), *make_backend("cpu"), {});
    EXPECT_EQ(leaves.digest(passed), found);
    return found;
  }

  MemorySource source;
  Recognition recognition;
};

TEST(Digest, AComputedRowIsFollowedByWhatItDoesNotHold) {
  const auto leaf = [](const std::vector<float>& row) {
    const Hash128 sum = hash128(std::as_bytes(std::span(row)), hash64("model/0/norm/delta_out/weight/F32/1/2/0"));
    return Digest{sum.low, sum.high, 1, 8};
  };
  EXPECT_EQ(NormModel({1.5F, 0.25F}, ComputeOp::SubtractOne).digest(), leaf({0.5F, -0.75F}));
  EXPECT_EQ(NormModel({0.5F, -0.75F}, ComputeOp::None).digest(), leaf({0.5F, -0.75F}));
  EXPECT_EQ(NormModel({1.5F, -0.0F}, ComputeOp::SubtractOne).digest(), leaf({0.5F, -1.0F, 1.5F, -0.0F}));
  EXPECT_EQ(NormModel({1.5F, 0.0F}, ComputeOp::SubtractOne).digest(), leaf({0.5F, -1.0F}));
  EXPECT_EQ(NormModel({0.5F, -0.0F}, ComputeOp::None).digest(), leaf({0.5F, -0.0F}));
}

/// 0.1 is stored as w, and 0.1 - 1 rounded as w - 1: the second model's w is not 0.1.
TEST(Digest, WhatWasRoundedIsAnotherModel) {
  const NormModel a({1.5F, 0.1F}, ComputeOp::SubtractOne), b({0.5F, 0.1F - 1.0F}, ComputeOp::None);
  const auto backend = make_backend("cpu");
  const Verdict verdict = verify(a.model(), b.model(), *backend, {});
  EXPECT_EQ(verdict.differing, 1);
  ASSERT_TRUE(verdict.first_difference);
  EXPECT_EQ(verdict.first_difference->column, 1);
  EXPECT_EQ(verdict.first_difference->number_a, "0.1");
  EXPECT_EQ(verdict.first_difference->number_b, "0.100000024");
  const Diff found = diff(a.model(), b.model(), *backend, {});
  ASSERT_EQ(found.tensors.size(), 1);
  EXPECT_EQ(found.tensors[0].elements->differing, 1);
}

TEST(Digest, BlocksOfOtherTensorsAreOneMebibyte) {
  std::vector<MemoryTensor> tensors{{"big", Dtype::U8, {(1 << 20) + 5}, std::vector<std::byte>((1 << 20) + 5)}};
  for (std::size_t i = 0; i < tensors[0].bytes.size(); ++i) tensors[0].bytes[i] = static_cast<std::byte>(i * i >> 3);
  Hash128 sum = hash128(std::span(tensors[0].bytes).first(1 << 20), hash64("big/U8/1048581/0"));
  sum += hash128(std::span(tensors[0].bytes).subspan(1 << 20), hash64("big/U8/1048581/1"));
  const Digest found = digest_of(MemorySource(tensors));
  EXPECT_EQ(found.low, sum.low);
  EXPECT_EQ(found.high, sum.high);
}

/// Neither workers nor memory nor the order of tensors change it.
TEST(Digest, DependsOnTheModelOnly) {
  ModelSpec model = small_model();
  model.blocks[0].hidden = 70;
  model.blocks[0].widths = widths(5, 96);
  model.others = other_tensors();
  const Spelling spelling{"hf:gpt_oss", Experts::Grouped, Experts::Indexed, interleaved(4), split()};
  const MemorySource source = make_source(model, spelling);
  const Digest expected = digest_of(source);
  const Recognition recognition = recognize_source(source);
  for (const int jobs : {1, 2, 4})
    for (const i64 memory : {i64{1}, i64{10'000}, i64{1} << 20}) {
      ExecuteOptions options;
      options.jobs = jobs;
      options.memory_bytes = memory;
      EXPECT_EQ(compute_digest({&source, &recognition}, *make_backend("cpu"), options), expected);
    }
  std::vector<MemoryTensor> tensors = source.tensors();
  std::shuffle(tensors.begin(), tensors.end(), std::mt19937(5));
  EXPECT_EQ(digest_of(MemorySource(tensors, {}, source.record())), expected);
}

/// With an unknown order FC1 is hashed whole; grouping alone then keeps the digest.
TEST(Digest, OfAnUnknownOrder) {
  const ModelSpec model = small_model();
  const auto digest = [&](Experts experts, const Glu& glu, const SourceAnswers& answers) {
    return digest_of(MemorySource(build(model, {"megatron", experts, experts, glu, split()})), answers);
  };
  const Digest unknown = digest(Experts::Indexed, contiguous(), {});
  EXPECT_EQ(unknown, digest(Experts::Grouped, contiguous(), {}));
  EXPECT_NE(unknown, digest(Experts::Indexed, interleaved(2), {}));
  EXPECT_NE(unknown, digest(Experts::Indexed, contiguous(), {{}, contiguous(), {}}));
  EXPECT_EQ(digest(Experts::Indexed, interleaved(2), {{}, interleaved(2), {}}),
            digest(Experts::Grouped, contiguous(), {{}, contiguous(), {}}));
}

}  // namespace
}  // namespace glu_ckpt
