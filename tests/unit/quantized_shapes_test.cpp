/// What the shapes of scales say, and what they leave open. Codes are one, so that a decoded weight shows the scale
/// that each place has.

#include <gtest/gtest.h>

#include <cstring>

#include "core/float_rows.hpp"
#include "quant/check_codes.hpp"
#include "quant/decoded_source.hpp"
#include "quant/find_quantized.hpp"
#include "quant/quant_config.hpp"
#include "support/convert.hpp"
#include "support/memory_checkpoint.hpp"

namespace glu_ckpt {
namespace {

using support::expect_error;
using support::MemorySource;
using support::MemoryTensor;

/// Codes of the number one.
MemoryTensor ones(std::string name, Dtype dtype, std::vector<i64> shape) {
  MemoryTensor tensor{std::move(name), dtype, std::move(shape), {}};
  tensor.bytes.assign(static_cast<std::size_t>(support::tensor_bytes(dtype, tensor.shape)),
                      dtype == Dtype::F8_E4M3 ? std::byte{0x38} : std::byte{1});
  return tensor;
}

/// 1, 2, 3, ..
MemoryTensor counted(std::string name, std::vector<i64> shape) {
  MemoryTensor tensor{std::move(name), Dtype::F32, std::move(shape), {}};
  tensor.bytes.resize(static_cast<std::size_t>(support::tensor_bytes(Dtype::F32, tensor.shape)));
  for (std::size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
    const auto value = static_cast<float>(i + 1);
    std::memcpy(&tensor.bytes[4 * i], &value, sizeof value);
  }
  return tensor;
}

QuantConfig config_of(const std::string& fields) {
  return read_quant_config(R"({"quantization_config": {)" + fields + "}}");
}

const std::string kBlocks = R"("quant_method": "fp8", "weight_block_size": [128, 128])";

/// The numbers of the only weight.
std::vector<float> decoded(const std::vector<MemoryTensor>& tensors, const QuantConfig& config, i64 part_rows = 0,
                           const WeightAxes& axes = {}) {
  std::unique_ptr<Source> source = std::make_unique<MemorySource>(tensors);
  Quantization found = find_quantized(source->inventory(), config, axes);
  EXPECT_EQ(found.tensors.size(), 1U);
  found.tensors.at(0).part_rows = part_rows;
  check_decodable(*source, found);
  check_stated_shapes(*source, found);
  source = decode_source(std::move(source), std::move(found), Dtype::F32, DecodePath::Fast);
  std::vector<float> numbers(static_cast<std::size_t>(source->inventory().tensors.at(0).bytes / 4));
  source->read(0, 0, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

/// The weight has no reading that is sure.
void expect_refused(ErrorCode code, const std::vector<MemoryTensor>& tensors, const QuantConfig& config,
                    const std::string& words, const WeightAxes& axes = {}) {
  expect_error(
      code, [&] { find_quantized(support::make_inventory(tensors), config, axes); }, words);
}

/// One row of scales too many once passed for gate's and up's of any weight.
TEST(QuantizedShapes, BlocksBeginAnewInAFusedFc1Alone) {
  const auto of = [](const std::string& name) {
    return std::vector{ones(name + ".weight", Dtype::F8_E4M3, {640, 256}), counted(name + ".weight_scale_inv", {6, 2})};
  };
  for (const char* const name : {"l.0.o_proj", "l.0.kv_a_proj_with_mqa", "l.0.down_proj"})
    expect_refused(ErrorCode::SizeMismatch, of(name), config_of(kBlocks), "[6, 2] scales for '");
  for (const char* const name : {"l.0.gate_up_proj", "l.0.w13", "l.0.linear_fc1"}) {
    const std::vector<float> numbers = decoded(of(name), config_of(kBlocks));
    for (i64 row = 0; row < 640; ++row)
      for (i64 col = 0; col < 256; ++col) {
        const i64 scale_row = row / 320 * 3 + row % 320 / 128;
        const i64 scale = scale_row * 2 + col / 128 + 1;
        ASSERT_EQ(numbers[static_cast<std::size_t>(row * 256 + col)], static_cast<float>(scale))
            << name << " " << row << " " << col;
      }
  }
  // What the naming says goes before what the name looks like.
  expect_refused(ErrorCode::SizeMismatch, of("l.0.linear_fc1"), config_of(kBlocks), "[6, 2]", {{0, Axes::OutIn}});
  WeightPlace fused = Axes::OutIn;
  fused.is_fused = true;
  EXPECT_EQ(decoded(of("l.0.input_linear"), config_of(kBlocks), 0, {{0, fused}}).size(), 640U * 256U);
  fused.axes = Axes::InOut;
  expect_refused(ErrorCode::SizeMismatch, of("l.0.input_linear"), config_of(kBlocks), "[6, 2]", {{0, fused}});
}

/// A group of compressed-tensors once let them pass unseen.
TEST(QuantizedShapes, BlocksThatBeginAnewAreTheGroups) {
  const auto config = [](const std::string& strategy) {
    return config_of(R"("quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["re:.*experts.*"],
        "weights": {"num_bits": 8, "type": "float", "strategy": )" +
                     strategy + R"(}}, "b": {"targets": ["re:.*attn.*"], "weights": {"num_bits": 8, "type": "float",
        "strategy": "tensor"}}})");
  };
  const std::vector<MemoryTensor> fc1 = {ones("l.experts.gate_up_proj.weight", Dtype::F8_E4M3, {640, 256}),
                                         counted("l.experts.gate_up_proj.weight_scale_inv", {6, 2})};
  EXPECT_EQ(decoded(fc1, config(R"("block", "block_structure": [128, 128])")).size(), 640U * 256U);
  for (const char* const other : {R"("channel")", R"("tensor")"})
    expect_refused(ErrorCode::QuantConfigContradicts, fc1, config(other), "[6, 2] scales");
}

/// Eight blocks of a row once passed for the scales of eight rows, as axes of one told nothing.
TEST(QuantizedShapes, AnAxisOfOneTellsBlocksFromRows) {
  const auto of = [](std::vector<i64> shape) {
    return std::vector{ones("l.0.gate.weight", Dtype::F8_E4M3, {8, 1024}),
                       counted("l.0.gate.weight_scale_inv", std::move(shape))};
  };
  for (const char* const fields : {"", R"("quant_method": "fp8")"}) {
    const QuantConfig config = config_of(fields);
    const std::vector<float> blocks = decoded(of({1, 8}), config), rows = decoded(of({8, 1}), config);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t block = i % 1024 / 128 + 1, row = i / 1024 + 1;
      ASSERT_EQ(blocks[i], static_cast<float>(block)) << i;
      ASSERT_EQ(rows[i], static_cast<float>(row)) << i;
    }
    expect_refused(ErrorCode::SizeMismatch, of({8}), config, "one for each row or one for 128 x 128 weights");
  }
  // Eight scales without an axis once passed for those of a row of blocks; moves never took them for that.
  expect_refused(ErrorCode::SizeMismatch, of({8}), config_of(kBlocks), "[8] scales for 'l.0.gate.weight' of [8, 1024]");
  const std::vector<MemoryTensor> modelopt = {ones("l.0.gate.weight", Dtype::F8_E4M3, {8, 1024}),
                                              counted("l.0.gate.weight_scale", {1, 1, 8, 1})};
  EXPECT_EQ(decoded(modelopt, config_of(R"("quant_method": "modelopt")")), decoded(of({1, 8}), {}));
}

/// transformers keeps one scale for gate and one for up, which once passed for those of two blocks of 128 rows.
TEST(QuantizedShapes, TwoScalesOfAFusedFc1WithoutBlocks) {
  const auto of = [](i64 rows, i64 cols, const std::string& name = "e.gate_up_proj") {
    return std::vector{ones(name, Dtype::F8_E4M3, {3, rows, cols}), counted(name + "_scale_inv", {3, 2, 1})};
  };
  for (const char* const fields :
       {"", R"("quant_method": "fp8")", R"("quant_method": "fp8", "weight_block_size": null)"}) {
    const QuantConfig config = config_of(fields);
    for (const auto& [rows, cols] : {std::pair<i64, i64>{640, 192}, {192, 160}, {96, 64}}) {
      const std::vector<float> numbers = decoded(of(rows, cols), config, rows / 2);
      for (i64 i = 0; i < 3 * rows * cols; ++i) {
        const i64 part = 2 * i / (rows * cols) + 1;
        ASSERT_EQ(numbers[static_cast<std::size_t>(i)], static_cast<float>(part)) << i;
      }
    }
    expect_refused(ErrorCode::SizeMismatch, of(192, 96), config,
                   "one for 128 x 128 weights or one for each gate and up");
    // Other weights have no two parts.
    EXPECT_EQ(decoded(of(192, 96, "e.down_proj"), config)[128 * 96], 2.0F);
  }
  EXPECT_EQ(decoded(of(192, 96), config_of(kBlocks))[128 * 96], 2.0F);
}

QuantConfig only_group(const std::string& weights) {
  return config_of(
      R"("quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": {)" + weights +
      "}}}");
}

/// What is said of all weights once was not held against any.
TEST(QuantizedShapes, TheOnlyGroupIsCheckedAsOneOfSeveral) {
  const std::vector<MemoryTensor> fp8 = {ones("a.weight", Dtype::F8_E4M3, {96, 64}),
                                         counted("a.weight_scale", {96, 1})};
  const std::vector<MemoryTensor> int4 = {ones("a.weight_packed", Dtype::I32, {96, 8}),
                                          counted("a.weight_scale", {96, 2})};
  const std::vector<MemoryTensor> mxfp4 = {ones("a.weight_packed", Dtype::U8, {96, 32}),
                                           ones("a.weight_scale", Dtype::U8, {96, 2})};
  const std::string four = R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 32)";
  const std::string fp4 = R"("num_bits": 4, "type": "float", "strategy": "group", "group_size": 32)";
  const std::string eight = R"("num_bits": 8, "type": "float", "strategy": "channel")";
  for (const auto& [tensors, weights] : {std::pair(fp8, eight), std::pair(int4, four), std::pair(mxfp4, fp4)})
    EXPECT_EQ(find_quantized(support::make_inventory(tensors), only_group(weights)).tensors.size(), 1U) << weights;
  const auto contradicts = [](const std::vector<MemoryTensor>& tensors, const std::string& weights,
                              const std::string& words) {
    expect_refused(ErrorCode::QuantConfigContradicts, tensors, only_group(weights), words);
  };
  contradicts(fp8, R"("num_bits": 8, "type": "int", "strategy": "channel")", "has weights of 8 bits, type 'int'");
  contradicts(fp8, fp4, "group 'g' of quantization_config, whose targets mean it (Linear), has weights of 4 bits");
  contradicts(fp8, four, "has weights of 4 bits, type 'int'");
  contradicts(fp8, R"("num_bits": 8, "type": "float", "strategy": "tensor")", "has one scale for each tensor");
  contradicts(int4, fp4, "type 'float'");
  contradicts(mxfp4, four, "type 'int'");
  contradicts(mxfp4, R"("num_bits": 4, "type": "float", "strategy": "group", "group_size": 16)",
              "for each group of 16");
}

/// One scale for each row is what is left of groups, or of a weight that has none.
TEST(QuantizedShapes, Int4HasTheScalesThatItsGroupHas) {
  const auto of = [](std::vector<i64> scales) {
    return std::vector{ones("a.weight_packed", Dtype::I32, {96, 8}), counted("a.weight_scale", std::move(scales))};
  };
  const QuantConfig groups = only_group(R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 32)");
  const QuantConfig channel = only_group(R"("num_bits": 4, "type": "int", "strategy": "channel")");
  expect_refused(ErrorCode::SizeMismatch, of({96, 1}), groups, "expected [96, 2]");
  expect_refused(ErrorCode::SizeMismatch, of({96, 2}), channel, "expected [96, 1]");
  expect_refused(ErrorCode::QuantConfigContradicts, of({96, 1}),
                 only_group(R"("num_bits": 4, "type": "int", "strategy": "tensor")"), "has one scale for each tensor");
  EXPECT_EQ(decoded(of({96, 2}), groups).size(), 96U * 64U);
  EXPECT_EQ(decoded(of({96, 1}), channel).size(), 96U * 64U);
}

/// Fused, INT8 per tensor has a scale for gate and one for up, as FP8 has.
TEST(QuantizedShapes, Int8PerTensorOfAFusedFc1) {
  const QuantConfig config = config_of(R"("quant_method": "compressed-tensors")");
  const auto of = [](const std::string& name, std::vector<i64> scales) {
    return std::vector{ones(name, Dtype::I8, {3, 96, 64}), counted(name + "_scale", std::move(scales))};
  };
  for (const std::vector<i64>& two : {std::vector<i64>{3, 2}, {3, 2, 1}})
    for (const i64 part_rows : {i64{48}, i64{16}}) {
      const std::vector<float> numbers = decoded(of("e.gate_up_proj", two), config, part_rows);
      for (i64 i = 0; i < 3 * 96 * 64; ++i) {
        const i64 part = i / (96 * 64) * 2 + i / 64 % 96 / part_rows % 2 + 1;
        ASSERT_EQ(numbers[static_cast<std::size_t>(i)], static_cast<float>(part)) << i;
      }
    }
  expect_refused(ErrorCode::SizeMismatch, of("e.down_proj", {3, 2}), config, "[3, 2] scales");
  expect_error(
      ErrorCode::NotSupported,
      [&] {
        decoded(of("e.gate_up_proj", {3, 2}), config);
      },
      "an order that nothing says");
}

/// They once stood in the decoded model as they were.
TEST(QuantizedShapes, WhatIsLeftOverIsNoPartOfADecodedModel) {
  const auto left = [](const std::string& name, Dtype dtype, std::vector<i64> shape) {
    const Quantization found = find_quantized(
        support::make_inventory({ones("l.1.up_proj.weight", Dtype::F8_E4M3, {96, 64}),
                                 counted("l.1.up_proj.weight_scale", {96, 1}), ones(name, dtype, std::move(shape))}),
        {});
    return found.undecodable ? found.undecodable->tensor : "";
  };
  for (const auto& [name, dtype, shape] : std::vector<std::tuple<std::string, Dtype, std::vector<i64>>>{
           {"l.0.gate_proj.scale", Dtype::F8_E8M0, {1, 1}},
           {"l.0.gate_proj.scale", Dtype::F32, {1, 1}},
           {"l.0.w1.scale", Dtype::F32, {1, 1}},
           {"l.0.wq_a.scale", Dtype::F8_E8M0, {1, 1}},
           {"l.0.q_proj.bias", Dtype::F8_E4M3, {64}},
           {"l.0.q_proj.bias", Dtype::F8_E5M2, {64}},
           {"l.0.q_proj.weight_zero_point", Dtype::I32, {8, 1}},
           {"l.1.up_proj.weight_zero_point", Dtype::I8, {96, 1}},
           {"l.0.q_proj.g_idx", Dtype::I32, {64}},
           {"l.0.q_proj.weight_g_idx", Dtype::I32, {64}},
           {"l.0.q_proj.weight_shape", Dtype::I64, {2}}})
    EXPECT_EQ(left(name, dtype, shape), name);
  EXPECT_EQ(left("l.0.norm.scale", Dtype::BF16, {64}), "");
  EXPECT_EQ(left("l.0.grid_shape", Dtype::I64, {2}), "");
}

}  // namespace
}  // namespace glu_ckpt
