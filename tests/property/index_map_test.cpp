/// Every element of FC1 lands where I[p] = C[h * F + b * k + o] says, whatever the sizes.

#include <fmt/format.h>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

ModelSpec one_layer(i64 experts, i64 width, i64 hidden, Dtype dtype) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = hidden;
  block.widths = widths(experts, width);
  block.bias = true;
  block.dtype = dtype;
  model.blocks.push_back(block);
  return model;
}

Spelling megatron(Experts experts, const Glu& glu) { return {"megatron", experts, experts, glu, glu}; }

class IndexMap : public ::testing::TestWithParam<i64> {};

TEST_P(IndexMap, EveryBlockSizeAndGrouping) {
  const i64 experts = GetParam();
  // 192 is a multiple of 64, and large enough that no two sizes of block coincide.
  constexpr i64 kWidth = 192;
  const ModelSpec model = one_layer(experts, kWidth, 2, Dtype::U64);
  for (const i64 k : {i64{1}, i64{2}, i64{8}, i64{16}, i64{32}, i64{64}, kWidth}) {
    expect_converts(model, megatron(Experts::Indexed, contiguous()), megatron(Experts::Indexed, interleaved(k)));
    expect_converts(model, megatron(Experts::Indexed, split()), megatron(Experts::Grouped, interleaved(k)));
    expect_converts(model, megatron(Experts::Grouped, contiguous()), megatron(Experts::Grouped, interleaved(k)));
    expect_converts(model, megatron(Experts::Grouped, interleaved(k)), megatron(Experts::Indexed, contiguous()));
  }
}

INSTANTIATE_TEST_SUITE_P(Experts, IndexMap, ::testing::Values(1, 2, 10, 64, 128));

/// With E a multiple of 2K, code that interleaves axis 0 of a grouped tensor permutes experts and meets
/// no bad shape on its way.
TEST(IndexMap, InterleavesRowsAndNeverExperts) {
  for (const auto& [experts, k] : {std::pair<i64, i64>{2, 1}, {4, 2}, {64, 32}, {128, 32}, {32, 8}}) {
    const ModelSpec model = one_layer(experts, 2 * k, 3, Dtype::U32);
    expect_converts(model, megatron(Experts::Grouped, contiguous()), megatron(Experts::Grouped, interleaved(k)));
    expect_converts(model, megatron(Experts::Grouped, interleaved(k)), megatron(Experts::Grouped, contiguous()));
  }
}

/// The worked example of docs/architecture.md.
TEST(IndexMap, WorkedExample) {
  std::vector<MemoryTensor> tensors{{"decoder.layers.0.mlp.experts.linear_fc1.weight0", Dtype::U8, {8, 1}, {}},
                                    {"decoder.layers.0.mlp.experts.linear_fc2.weight0", Dtype::U8, {1, 4}, {}}};
  for (const int row : {0, 1, 2, 3, 4, 5, 6, 7}) tensors[0].bytes.push_back(static_cast<std::byte>(row));
  tensors[1].bytes.resize(4);
  const MemorySource source(tensors);
  const Recognition recognition = recognize_source(source, {{}, contiguous(), {}});
  PlanOptions options;
  options.to.glu = interleaved(2);
  std::string rows;
  for (const MemoryTensor& tensor : convert(source, recognition, options).tensors)
    if (tensor.bytes.size() == 8)
      for (const std::byte row : tensor.bytes) rows += fmt::format("{} ", std::to_integer<int>(row));
  EXPECT_EQ(rows, "0 1 4 5 2 3 6 7 ");
}

TEST(IndexMap, EveryElementSize) {
  for (const Dtype dtype : {Dtype::BOOL, Dtype::F8_E4M3, Dtype::F8_E8M0, Dtype::I16, Dtype::F16, Dtype::BF16,
                            Dtype::F32, Dtype::I32, Dtype::C64, Dtype::F64, Dtype::I64}) {
    SCOPED_TRACE(dtype_name(dtype));
    const ModelSpec model = one_layer(3, 6, 5, dtype);
    expect_converts(model, megatron(Experts::Indexed, split()), megatron(Experts::Grouped, interleaved(3)));
    expect_converts(model, megatron(Experts::Grouped, interleaved(2)),
                    {"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()});
  }
}

/// Packed 4 and 6 bit values move as rows of whole bytes.
TEST(IndexMap, SubByteElements) {
  for (const Dtype dtype : {Dtype::F4, Dtype::F6_E2M3, Dtype::F6_E3M2}) {
    SCOPED_TRACE(dtype_name(dtype));
    ModelSpec model = one_layer(3, 8, 4, dtype);
    model.blocks.front().bias = false;
    expect_converts(model, megatron(Experts::Indexed, split()), megatron(Experts::Grouped, interleaved(2)));
    expect_converts(model, megatron(Experts::Grouped, interleaved(4)), megatron(Experts::Indexed, contiguous()));
  }
}

/// Elements that share a byte cannot change places with elements of other rows.
TEST(IndexMap, TransposingSubByteElementsIsRefused) {
  for (const Dtype dtype : {Dtype::F4, Dtype::F6_E2M3}) {
    ModelSpec model = one_layer(2, 4, 4, dtype);
    model.blocks.front().bias = false;
    const MemorySource source = make_source(model, megatron(Experts::Grouped, contiguous()));
    const Recognition recognition = recognize_source(source);
    const Spelling turned{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};
    expect_error(ErrorCode::NotExact, [&] { make_plan(source.inventory(), recognition, options_for(model, turned)); });
  }
}

TEST(IndexMap, SubByteRowsThatEndWithinAByteAreRefused) {
  const std::vector<MemoryTensor> odd{{"decoder.layers.0.mlp.experts.linear_fc1.weight0", Dtype::F4, {4, 3}, {}},
                                      {"decoder.layers.0.mlp.experts.linear_fc2.weight0", Dtype::F4, {3, 2}, {}}};
  expect_error(ErrorCode::NotExact, [&] { recognize(make_inventory(odd), {}, {}, {}); });
}

}  // namespace
}  // namespace glu_ckpt
