/// Which tensors are taken for codes and scales, and what is refused instead of guessed.

#include "quant/find_quantized.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/quantized_tensors.hpp"

namespace glu_ckpt {
namespace {

using support::Cell;
using support::cell;
using support::expect_error;
using support::found;
using support::MemoryTensor;
using support::method;
using support::only;
using support::says;
using support::stored;
using support::why_undecodable;

TEST(FindQuantized, PlainModelsHaveNone) {
  EXPECT_TRUE(found({stored("a.weight", Dtype::BF16, {4, 4}), stored("b.mask", Dtype::U8, {4, 4})}).tensors.empty());
}

TEST(FindQuantized, Fp8BlocksWithEdges) {
  const auto weight =
      only({stored("a.weight", Dtype::F8_E4M3, {576, 320}), stored("a.weight_scale_inv", Dtype::F32, {5, 3})});
  EXPECT_EQ(cell(weight), Cell(128, 128));
  EXPECT_EQ(weight.name, "a.weight");
  EXPECT_EQ(weight.shape, (std::vector<i64>{576, 320}));
}

/// Codes and scales of one weight may lie in two shards, and their orders differ.
TEST(FindQuantized, InTheOrderOfTheWeights) {
  const auto fp8 = [](std::string name) { return stored(std::move(name), Dtype::F8_E4M3, {32, 64}); };
  const auto fp4 = [](std::string name) { return stored(std::move(name), Dtype::U8, {2, 32, 4, 16}); };
  const std::vector<MemoryTensor> tensors = {stored("c_scales", Dtype::U8, {2, 32, 4}),
                                             fp4("b_blocks"),
                                             fp8("a.weight"),
                                             fp4("c_blocks"),
                                             stored("a.weight_scale", Dtype::F32, {32, 1}),
                                             stored("b_scales", Dtype::U8, {2, 32, 4})};
  std::vector<std::size_t> weights;
  for (const QuantizedTensor& weight : found(tensors).tensors) weights.push_back(weight.weight);
  EXPECT_EQ(weights, (std::vector<std::size_t>{1, 2, 3}));
}

TEST(FindQuantized, BlocksAreTheConfigurationsAndNotAQuotient) {
  QuantConfig config = method("fp8");
  config.block_rows = config.block_cols = 128;
  const std::vector<MemoryTensor> tensors = {stored("a.weight", Dtype::F8_E4M3, {192, 128}),
                                             stored("a.weight_scale_inv", Dtype::F32, {2, 1})};
  EXPECT_EQ(cell(only(tensors, config)), Cell(128, 128));  // not 96
  config.block_rows = 64;
  expect_error(
      ErrorCode::SizeMismatch, [&] { found(tensors, config); }, "[2, 1]");
}

/// Edge blocks, as ModelOpt has them, and compressed-tensors, whose configuration says that they are blocks.
TEST(FindQuantized, Fp8BlocksUnderTheNameOfOtherScales) {
  const auto modelopt =
      only({stored("a.weight", Dtype::F8_E4M3, {320, 576}), stored("a.weight_scale", Dtype::F32, {3, 1, 5, 1})},
           method("modelopt"));
  EXPECT_EQ(cell(modelopt), Cell(128, 128));
  const std::vector<MemoryTensor> packed = {stored("a.weight", Dtype::F8_E4M3, {320, 576}),
                                            stored("a.weight_scale", Dtype::BF16, {3, 5})};
  QuantConfig config = method("compressed-tensors");
  expect_error(
      ErrorCode::SizeMismatch, [&] { found(packed, config); }, "expected [1, 1] or [320, 1]");
  config.block_rows = config.block_cols = 128;
  EXPECT_EQ(cell(only(packed, config)), Cell(128, 128));
}

TEST(FindQuantized, Fp8PerChannelTensorAndMx) {
  const auto of = [](const std::string& suffix, Dtype dtype, std::vector<i64> shape) {
    return only({stored("a.weight", Dtype::F8_E4M3, {96, 64}), stored("a." + suffix, dtype, std::move(shape))});
  };
  EXPECT_EQ(cell(of("weight_scale", Dtype::BF16, {96, 1})), Cell(1, 64));
  EXPECT_EQ(cell(of("weight_scale", Dtype::F32, {96})), Cell(1, 64));
  EXPECT_EQ(cell(of("weight_scale", Dtype::U8, {96, 2})), Cell(1, 32));
  EXPECT_EQ(cell(of("weight_scale", Dtype::F8_E8M0, {96, 2})), Cell(1, 32));
  // One scale for all is the same as one 128 x 128 block here.
  EXPECT_EQ(of("weight_scale", Dtype::F32, {}).grid_rows(), 1);
}

TEST(FindQuantized, StacksHaveScalesForEachMatrix) {
  const auto weight = only({stored("m.experts.gate_up_proj", Dtype::F8_E4M3, {3, 256, 160}),
                            stored("m.experts.gate_up_proj_scale_inv", Dtype::F32, {3, 2, 2})});
  EXPECT_EQ(weight.matrices, 3);
  EXPECT_EQ(cell(weight), Cell(128, 128));
}

TEST(FindQuantized, GptOssIsTurned) {
  const auto weight = only({stored("e.gate_up_proj_blocks", Dtype::U8, {4, 192, 2, 16}),
                            stored("e.gate_up_proj_scales", Dtype::U8, {4, 192, 2})},
                           method("mxfp4"));
  EXPECT_EQ(weight.name, "e.gate_up_proj");
  EXPECT_EQ(weight.shape, (std::vector<i64>{4, 64, 192}));
  EXPECT_TRUE(weight.transposed);
}

TEST(FindQuantized, Nvfp4OfBothWriters) {
  const auto modelopt =
      only({stored("a.weight", Dtype::U8, {96, 32}), stored("a.weight_scale", Dtype::F8_E4M3, {96, 4}),
            stored("a.weight_scale_2", Dtype::F32, {}), stored("a.input_scale", Dtype::F32, {})},
           method("modelopt"));
  EXPECT_EQ(modelopt.shape, (std::vector<i64>{96, 64}));
  EXPECT_TRUE(modelopt.positive_zero);
  EXPECT_FALSE(modelopt.global_divides);
  const auto packed =
      only({stored("a.weight_packed", Dtype::U8, {96, 32}), stored("a.weight_scale", Dtype::F8_E4M3, {96, 4}),
            stored("a.weight_global_scale", Dtype::F32, {1}), stored("a.input_global_scale", Dtype::F32, {1})},
           method("compressed-tensors"));
  EXPECT_EQ(packed.name, "a.weight");
  EXPECT_FALSE(packed.positive_zero);
  EXPECT_TRUE(packed.global_divides);
}

TEST(FindQuantized, Int4AwqAndGptq) {
  QuantConfig config = method("compressed-tensors");
  config.bits = 4;
  config.group_size = 32;
  EXPECT_EQ(cell(only({stored("a.weight_packed", Dtype::I32, {96, 8}), stored("a.weight_scale", Dtype::BF16, {96, 2}),
                       stored("a.weight_shape", Dtype::I64, {2})},
                      config)),
            Cell(1, 32));
  config.method = "awq";
  const auto awq = only({stored("a.qweight", Dtype::I32, {64, 12}), stored("a.qzeros", Dtype::I32, {2, 12}),
                         stored("a.scales", Dtype::F16, {2, 96})},
                        config);
  EXPECT_EQ(awq.shape, (std::vector<i64>{96, 64}));
  EXPECT_EQ(awq.zero_offset, 0);
  config.method = "gptq";
  const auto gptq = only({stored("a.qweight", Dtype::I32, {8, 96}), stored("a.qzeros", Dtype::I32, {2, 12}),
                          stored("a.scales", Dtype::F16, {2, 96}), stored("a.g_idx", Dtype::I32, {64})},
                         config);
  EXPECT_EQ(gptq.shape, (std::vector<i64>{96, 64}));
  EXPECT_EQ(gptq.zero_offset, 1);
}

TEST(FindQuantized, CodesWithoutScalesAreBroken) {
  expect_error(
      ErrorCode::ScaleMissing,
      [] {
        found({stored("a.weight", Dtype::F8_E4M3, {96, 64})});
      },
      "a.weight");
  expect_error(
      ErrorCode::ScaleMissing,
      [] {
        found({stored("e.down_proj_blocks", Dtype::U8, {4, 64, 3, 16})}, method("mxfp4"));
      },
      "e.down_proj_blocks");
}

TEST(FindQuantized, ScalesWithoutCodesAreBroken) {
  expect_error(
      ErrorCode::ScaleOrphan,
      [] {
        found({stored("a.weight", Dtype::BF16, {96, 64}), stored("a.weight_scale_inv", Dtype::F32, {1, 1})});
      },
      "a.weight_scale_inv");
}

TEST(FindQuantized, AContradictionIsRefused) {
  const std::vector<MemoryTensor> awq = {stored("a.qweight", Dtype::I32, {64, 12}),
                                         stored("a.scales", Dtype::F16, {2, 96})};
  expect_error(
      ErrorCode::QuantConfigContradicts, [&] { found(awq, method("fp8")); }, "'fp8'");
  expect_error(
      ErrorCode::QuantConfigContradicts, [&] { found(awq); }, "nothing");
  expect_error(
      ErrorCode::QuantConfigContradicts,
      [] {
        found({stored("a.weight", Dtype::F8_E4M3, {96, 64}), stored("a.weight_scale", Dtype::F32, {96, 1})},
              method("awq"));
      },
      "'awq'");
}

TEST(FindQuantized, AnAlgorithmOfModelOptThatStoresWeightsOtherwise) {
  const std::vector<MemoryTensor> fp8 = {stored("a.weight", Dtype::F8_E4M3, {4, 32}),
                                         stored("a.weight_scale", Dtype::F32, {})};
  const std::vector<MemoryTensor> nvfp4 = {stored("a.weight", Dtype::U8, {4, 16}),
                                           stored("a.weight_scale", Dtype::F8_E4M3, {4, 2}),
                                           stored("a.weight_scale_2", Dtype::F32, {})};
  const auto config = [](const std::string& algorithm) {
    return read_quant_config(
        fmt::format(R"({{"quantization_config": {{"quant_method": "modelopt", "quant_algo": "{}"}}}})", algorithm));
  };
  for (const char* const algorithm : {"NVFP4", "NVFP4_AWQ"})
    expect_error(
        ErrorCode::QuantConfigContradicts, [&] { found(fp8, config(algorithm)); },
        std::string("quant_algo '") + algorithm);
  for (const char* const algorithm : {"FP8", "FP8_PB_WO"})
    expect_error(
        ErrorCode::QuantConfigContradicts, [&] { found(nvfp4, config(algorithm)); },
        std::string("quant_algo '") + algorithm);
  EXPECT_EQ(found(fp8, config("FP8")).formats, std::vector<std::string>{"FP8 per tensor"});
  EXPECT_EQ(found(nvfp4, config("NVFP4")).formats, std::vector<std::string>{"NVFP4"});
  for (const auto& tensors : {fp8, nvfp4}) EXPECT_EQ(found(tensors, config("MIXED_PRECISION")).tensors.size(), 1U);
}

TEST(FindQuantized, TheOtherFp8) {
  const auto config = [](const std::string& format) {
    return read_quant_config(
        fmt::format(R"({{"quantization_config": {{"quant_method": "fp8", "fmt": "{}"}}}})", format));
  };
  const auto tensors = [](Dtype dtype) {
    return std::vector{stored("a.weight", dtype, {4, 4}), stored("a.weight_scale_inv", Dtype::F32, {1, 1})};
  };
  expect_error(
      ErrorCode::QuantConfigContradicts, [&] { found(tensors(Dtype::F8_E4M3), config("e5m2")); },
      "'a.weight' is F8_E4M3 [4, 4], but quantization_config says fmt 'e5m2'");
  expect_error(
      ErrorCode::QuantConfigContradicts, [&] { found(tensors(Dtype::F8_E5M2), config("e4m3")); },
      "'a.weight' is F8_E5M2 [4, 4], but quantization_config says fmt 'e4m3'");
  EXPECT_EQ(only(tensors(Dtype::F8_E4M3), config("e4m3")).codes, Codes::E4m3);
  EXPECT_EQ(only(tensors(Dtype::F8_E5M2), config("e5m2")).codes, Codes::E5m2);
}

/// Programs load such a module without its scales.
TEST(FindQuantized, AModuleThatIsSaidToBeLeftAsItIs) {
  const std::vector<MemoryTensor> tensors = {stored("l.0.down_proj.weight", Dtype::F8_E4M3, {4, 4}),
                                             stored("l.0.down_proj.weight_scale", Dtype::F32, {4, 1})};
  for (const char* const field : {"ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules"}) {
    const auto config = [&](const std::string& names) {
      return read_quant_config(
          fmt::format(R"({{"quantization_config": {{"quant_method": "fp8", "{}": [{}]}}}})", field, names));
    };
    expect_error(
        ErrorCode::QuantConfigContradicts, [&] { found(tensors, config(R"("x", "l.0.down_proj")")); },
        "lists 'l.0.down_proj'");
    // Programs differ in what other words match.
    for (const char* const other : {R"("down_proj")", R"("l.0")", R"("re:.*down_proj")", R"("l.*")", R"(1, null)", ""})
      EXPECT_EQ(found(tensors, config(other)).tensors.size(), 1U) << other;
  }
}

/// compressed-tensors says what its patterns match.
TEST(FindQuantized, APatternOfModulesThatAreLeftAsTheyAre) {
  const std::vector<MemoryTensor> tensors = {stored("l.0.down_proj.weight", Dtype::F8_E4M3, {4, 4}),
                                             stored("l.0.down_proj.weight_scale", Dtype::F32, {4, 1})};
  const auto config = [](const std::string& pattern) {
    return read_quant_config(fmt::format(
        R"({{"quantization_config": {{"quant_method": "compressed-tensors", "ignore": ["lm_head", "{}"]}}}})",
        pattern));
  };
  expect_error(
      ErrorCode::QuantConfigContradicts, [&] { found(tensors, config("re:.*down_proj")); }, "lists 're:.*down_proj'");
  for (const char* const other : {"re:down_proj", "re:.*up_proj", "re:.*down_proj.+"})
    EXPECT_EQ(found(tensors, config(other)).tensors.size(), 1U) << other;
}

TEST(FindQuantized, TwoTensorsOfScales) {
  const auto weight = stored("a.weight", Dtype::F8_E4M3, {4, 4});
  const auto scale = [](const std::string& name) { return stored(name, Dtype::F32, {1, 1}); };
  for (const auto& [first, second] :
       {std::pair("a.weight_scale_inv", "a.scale"), std::pair("a.weight_scale", "a.scale"),
        std::pair("a.weight_scale_inv", "a.weight_scale")})
    expect_error(
        ErrorCode::ScaleOrphan,
        [&, f = first, s = second] {
          found({weight, scale(f), scale(s)});
        },
        fmt::format("'{}': 'a.weight' has scales in '{}'", second, first));
}

TEST(FindQuantized, GridsThatFitNothing) {
  for (const std::vector<i64>& shape : {std::vector<i64>{2, 2}, {1, 2}, {64}, {96, 2}, {96, 64}})
    expect_error(
        ErrorCode::SizeMismatch,
        [&] {
          found({stored("a.weight", Dtype::F8_E4M3, {96, 64}), stored("a.weight_scale", Dtype::F32, shape)});
        },
        "a.weight_scale");
}

TEST(FindQuantized, WhatNoRuleDecodesIsSaid) {
  QuantConfig config = method("gptq");
  config.bits = 3;
  const std::vector<MemoryTensor> gptq = {stored("a.qweight", Dtype::I32, {6, 96}),
                                          stored("a.scales", Dtype::F16, {2, 96})};
  expect_error(
      ErrorCode::NotSupported, [&] { found(gptq, config); }, "3 bits");
  config = method("awq");
  config.version = "gemv";
  expect_error(
      ErrorCode::NotSupported, [&] { found(gptq, config); }, "gemv");
  expect_error(
      ErrorCode::NotSupported,
      [&] {
        found({stored("a.weight_packed", Dtype::I8, {96, 8})}, method("compressed-tensors"));
      },
      "codes in I8");
}

TEST(FindQuantized, ScalesOfOtherDtypesAreRefused) {
  const auto refused = [](const std::vector<MemoryTensor>& tensors, const std::string& words) {
    expect_error(
        ErrorCode::NotSupported, [&] { found(tensors); }, words);
  };
  refused({stored("a.weight", Dtype::F8_E4M3, {96, 64}), stored("a.weight_scale", Dtype::F64, {96, 1})},
          "'a.weight_scale': F64 scales for 'a.weight' of [96, 64] cannot be decoded; F32, BF16, F16, F8_E8M0, U8 can");
  refused({stored("a.weight", Dtype::I8, {96, 64}), stored("a.weight_scale", Dtype::U8, {96, 1})},
          "F32, BF16, F16 can");
  refused({stored("a.weight", Dtype::U8, {96, 32}), stored("a.weight_scale", Dtype::F32, {96, 2})}, "U8, F8_E8M0 can");
  refused({stored("a.weight_packed", Dtype::I32, {96, 8}), stored("a.weight_scale", Dtype::F8_E4M3, {96, 2})},
          "BF16, F16, F32 can");
}

TEST(FindQuantized, AQuantizedWeightHasTwoAxes) {
  for (const auto& [name, dtype] : {std::pair("a.weight_packed", Dtype::I32), std::pair("a.weight_packed", Dtype::U8)})
    expect_error(
        ErrorCode::SizeMismatch,
        [&, codes = stored(name, dtype, {96})] {
          found({codes, stored("a.weight_scale", Dtype::BF16, {96})});
        },
        "'a.weight_packed': [96]; a quantized weight has two axes or more");
  expect_error(
      ErrorCode::SizeMismatch,
      [] {
        found({stored("a.qweight", Dtype::I32, {96}), stored("a.scales", Dtype::F16, {96})}, method("awq"));
      },
      "'a.qweight': [96]");
}

TEST(FindQuantized, SecondScalesOfAnotherNumberOrDtype) {
  for (const auto& second : {stored("a.weight_scale_2", Dtype::F32, {3}), stored("a.weight_scale_2", Dtype::BF16, {})})
    expect_error(
        ErrorCode::SizeMismatch,
        [&] {
          found({stored("a.weight", Dtype::U8, {96, 32}), stored("a.weight_scale", Dtype::F8_E4M3, {96, 4}), second});
        },
        "expected F32 and one value a matrix");
}

TEST(FindQuantized, ZeroPointsAndReorderedColumns) {
  QuantConfig config = method("compressed-tensors");
  config.symmetric = false;
  const std::vector<MemoryTensor> asymmetric = {
      stored("a.weight_packed", Dtype::I32, {90, 8}), stored("a.weight_scale", Dtype::BF16, {90, 2}),
      stored("a.weight_zero_point", Dtype::I32, {12, 2}), stored("a.weight_g_idx", Dtype::I32, {64})};
  const Quantization whole = found(asymmetric, config);
  ASSERT_EQ(whole.tensors.size(), 1U);
  EXPECT_EQ(whole.tensors[0].zeros, 2U);
  EXPECT_EQ(whole.tensors[0].groups, 3U);
  EXPECT_EQ(whole.companions, (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_EQ(whole.formats, std::vector<std::string>{"INT4 in groups of 32, asymmetric"});
  expect_error(
      ErrorCode::ScaleMissing,
      [&] {
        found({asymmetric[0], asymmetric[1]}, config);
      },
      "'a.weight_zero_point'");
  std::vector<MemoryTensor> wrong = asymmetric;
  wrong[2] = stored("a.weight_zero_point", Dtype::I32, {11, 2});
  expect_error(
      ErrorCode::SizeMismatch, [&] { found(wrong, config); }, "expected I32 [12, 2]");
}

/// DeepSeek-V4's bytes of two codes keep their dtype under the names of other families.
TEST(FindQuantized, BytesOfFp4UnderEitherNameOfTheirScales) {
  const QuantConfig config = method("fp8");
  for (const char* const word : {"a.scale", "a.weight_scale_inv"}) {
    const auto weight = only({stored("a.weight", Dtype::I8, {96, 32}), stored(word, Dtype::F8_E8M0, {96, 2})}, config);
    EXPECT_EQ(weight.codes, Codes::E2m1);
    EXPECT_EQ(weight.shape, (std::vector<i64>{96, 64}));
    EXPECT_EQ(cell(weight), Cell(1, 32));
  }
  const auto grouped =
      only({stored("e.w13", Dtype::I8, {3, 192, 32}), stored("e.w13_scale_inv", Dtype::F8_E8M0, {3, 192, 2})}, config);
  EXPECT_EQ(grouped.codes, Codes::E2m1);
  EXPECT_EQ(grouped.matrices, 3);
}

/// One order of columns for a matrix, or one for gate and one for up behind it.
TEST(FindQuantized, ReorderedColumnsOfAFusedMatrix) {
  const auto of = [](const std::vector<i64>& shape) {
    return std::vector<MemoryTensor>{stored("e.w13_packed", Dtype::I32, {5, 192, 8}),
                                     stored("e.w13_scale", Dtype::BF16, {5, 192, 2}),
                                     stored("e.w13_weight_g_idx", Dtype::I32, shape)};
  };
  for (const std::vector<i64>& shape : {std::vector<i64>{5, 64}, {5, 2, 64}})
    EXPECT_EQ(only(of(shape), method("compressed-tensors")).groups, 2U);
  expect_error(
      ErrorCode::SizeMismatch,
      [&] {
        found(of({5, 64, 2}), method("compressed-tensors"));
      },
      "expected I32 [5, 2, 64]");
}

/// Experts that were grouped are parameters, with their companions' names behind an underscore.
TEST(FindQuantized, GroupedExperts) {
  QuantConfig config = method("compressed-tensors");
  const Quantization int4 =
      found({stored("e.up_proj_packed", Dtype::I32, {5, 96, 8}), stored("e.up_proj_scale", Dtype::BF16, {5, 96, 2}),
             stored("e.up_proj_shape", Dtype::I64, {5, 2})},
            config);
  ASSERT_EQ(int4.tensors.size(), 1U);
  EXPECT_EQ(int4.tensors[0].name, "e.up_proj");
  EXPECT_EQ(int4.tensors[0].shape, (std::vector<i64>{5, 96, 64}));
  EXPECT_EQ(int4.companions, (std::vector<std::size_t>{1, 2}));

  config = method("awq");
  config.group_size = 32;
  const Quantization awq =
      found({stored("e.up_proj_qweight", Dtype::I32, {5, 64, 12}), stored("e.up_proj_scales", Dtype::F16, {5, 2, 96}),
             stored("e.up_proj_qzeros", Dtype::I32, {5, 2, 12})},
            config);
  ASSERT_EQ(awq.tensors.size(), 1U);
  EXPECT_EQ(awq.tensors[0].shape, (std::vector<i64>{5, 96, 64}));
  EXPECT_EQ(awq.tensors[0].matrices, 5);

  const std::vector<MemoryTensor> nvfp4 = {stored("e.up_proj", Dtype::U8, {5, 96, 32}),
                                           stored("e.up_proj_scale", Dtype::F8_E4M3, {5, 96, 4}),
                                           stored("e.up_proj_scale_2", Dtype::F32, {5})};
  EXPECT_EQ(found(nvfp4, method("modelopt")).tensors.size(), 1U);
}

/// Fused, gate and up keep their own values for the whole matrix, which once passed for those of two blocks of rows.
TEST(FindQuantized, TwoValuesForOneMatrix) {
  for (const std::vector<i64>& two : {std::vector<i64>{5, 2}, {5, 2, 1}}) {
    const auto weight = only({stored("e.w13", Dtype::F8_E4M3, {5, 192, 64}), stored("e.w13_scale", Dtype::F32, two)},
                             method("compressed-tensors"));
    EXPECT_TRUE(weight.scales_of_parts);
    EXPECT_EQ(weight.part_rows, 0);
    EXPECT_EQ(cell(weight), Cell(192, 64));
  }
  const auto weight =
      only({stored("e.w13", Dtype::U8, {5, 192, 32}), stored("e.w13_scale", Dtype::F8_E4M3, {5, 192, 4}),
            stored("e.w13_scale_2", Dtype::F32, {5, 2})},
           method("modelopt"));
  EXPECT_TRUE(weight.scales_of_parts);
  // An odd number of rows has no two halves.
  expect_error(
      ErrorCode::SizeMismatch,
      [] {
        found({stored("e.w13", Dtype::F8_E4M3, {5, 191, 64}), stored("e.w13_scale", Dtype::F32, {5, 2})},
              method("compressed-tensors"));
      },
      "e.w13_scale");
  // Blocks, which are named so or configured, may be two.
  QuantConfig config = method("fp8");
  const std::vector<MemoryTensor> named = {stored("a.weight", Dtype::F8_E4M3, {192, 64}),
                                           stored("a.weight_scale_inv", Dtype::F32, {2, 1})};
  EXPECT_EQ(found(named, config).tensors[0].cell_rows, 128);
  config.block_rows = 128;
  config.block_cols = 128;
  const std::vector<MemoryTensor> configured = {stored("a.weight", Dtype::F8_E4M3, {192, 64}),
                                                stored("a.weight_scale", Dtype::F32, {2, 1})};
  EXPECT_EQ(found(configured, config).tensors[0].cell_rows, 128);
}

TEST(FindQuantized, EmptyAndHugeWeightsAreRefused) {
  for (const std::vector<i64>& shape : {std::vector<i64>{0, 64}, {i64{1} << 60, 0}})
    expect_error(
        ErrorCode::SizeMismatch,
        [&] {
          Inventory inventory;
          inventory.tensors = {{"a.weight_packed", Dtype::I32, shape, 0, 0, 0},
                               {"a.weight_scale", Dtype::BF16, {1, 1}, 2, 0, 0}};
          find_quantized(inventory, method("compressed-tensors"));
        },
        "a.weight_packed");
}

TEST(FindQuantized, Int8WithZeroPointsHasNoRule) {
  const std::vector<MemoryTensor> tensors = {stored("a.weight", Dtype::I8, {96, 64}),
                                             stored("a.weight_scale", Dtype::F32, {96, 1}),
                                             stored("a.weight_zero_point", Dtype::I8, {96, 1})};
  EXPECT_TRUE(says(why_undecodable(tensors, R"({"quant_method": "compressed-tensors"})"), "INT8 with zero points"));
}

TEST(FindQuantized, WordsWithoutTheirZerosOrOrder) {
  const std::vector<MemoryTensor> gptq = {stored("a.qweight", Dtype::I32, {8, 96}),
                                          stored("a.scales", Dtype::F16, {2, 96})};
  const std::vector<MemoryTensor> awq = {stored("a.qweight", Dtype::I32, {64, 12}),
                                         stored("a.scales", Dtype::F16, {2, 96})};
  const auto missing = [](const std::vector<MemoryTensor>& tensors, const std::string& fields, const char* name) {
    expect_error(
        ErrorCode::ScaleMissing, [&] { why_undecodable(tensors, R"({"bits": 4, "group_size": 32, )" + fields + "}"); },
        name);
  };
  missing(awq, R"("quant_method": "awq", "zero_point": true)", "'a.qzeros'");
  missing(awq, R"("quant_method": "awq")", "'a.qzeros'");
  missing(gptq, R"("quant_method": "gptq", "sym": false)", "'a.qzeros'");
  missing(gptq, R"("quant_method": "gptq", "sym": true, "desc_act": true)", "'a.g_idx'");
  EXPECT_EQ(why_undecodable(gptq, R"({"quant_method": "gptq", "group_size": 32, "sym": true})"), "");
  EXPECT_EQ(why_undecodable(awq, R"({"quant_method": "awq", "group_size": 32, "zero_point": false})"), "");
}

TEST(FindQuantized, RowsThatShareNoWordOfZeros) {
  const std::vector<MemoryTensor> gptq = {stored("a.qweight", Dtype::I32, {8, 90}),
                                          stored("a.scales", Dtype::F16, {2, 90}),
                                          stored("a.qzeros", Dtype::I32, {2, 12})};
  EXPECT_TRUE(says(why_undecodable(gptq, R"({"quant_method": "gptq", "group_size": 32, "sym": true})"), "90 rows"));
}

TEST(FindQuantized, BytesWithoutScalesUnderAQuantization) {
  const std::vector<MemoryTensor> bytes = {stored("a.weight", Dtype::U8, {96, 32})};
  EXPECT_TRUE(says(why_undecodable(bytes, R"({"quant_method": "bitsandbytes"})"), "'bitsandbytes'"));
  EXPECT_TRUE(says(why_undecodable(bytes, R"({"quant_method": "modelopt"})"), "download"));
  EXPECT_FALSE(found(bytes).undecodable);
}

TEST(FindQuantized, ScalesOfInputsThatWeightsWereDividedBy) {
  EXPECT_TRUE(
      why_undecodable({stored("a.weight", Dtype::U8, {96, 32}), stored("a.weight_scale", Dtype::F8_E4M3, {96, 4}),
                       stored("a.weight_scale_2", Dtype::F32, {}), stored("a.pre_quant_scale", Dtype::BF16, {64})},
                      R"({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"})")
          .starts_with("a.pre_quant_scale: "));
}

/// The decoder that the report names is the one whose rules are followed.
TEST(FindQuantized, TheDecoderIsTheOneThatIsNamed) {
  const std::vector<MemoryTensor> fp4 = {stored("a.weight", Dtype::I8, {96, 32}),
                                         stored("a.scale", Dtype::F8_E8M0, {96, 2})};
  EXPECT_EQ(found(fp4, method("fp8")).decoder, "deepseek");
  EXPECT_TRUE(found(fp4, method("fp8")).tensors[0].positive_zero);
  const std::vector<MemoryTensor> fp8 = {stored("a.weight", Dtype::F8_E4M3, {96, 64}),
                                         stored("a.weight_scale", Dtype::F32, {})};
  EXPECT_TRUE(found(fp8, method("modelopt")).tensors[0].rounds_scale);
}

/// quant_method names the format of the rest of the model; dtypes and shapes say what these blocks are.
TEST(FindQuantized, BlocksAreWhatTheirTensorsSay) {
  const auto blocks = [](Dtype dtype, i64 bytes) {
    return std::vector{stored("e.up_proj_blocks", dtype, {4, 192, 2, bytes}),
                       stored("e.up_proj_scales", Dtype::U8, {4, 192, 2})};
  };
  for (const char* const said : {"mxfp8", "mxfp4"}) {
    EXPECT_EQ(found(blocks(Dtype::F8_E4M3, 32), method(said)).formats, std::vector<std::string>{"MXFP8"}) << said;
    EXPECT_EQ(found(blocks(Dtype::U8, 16), method(said)).formats, std::vector<std::string>{"MXFP4"}) << said;
  }
}

/// gpt-oss whose experts have tensors of their own.
TEST(FindQuantized, BlocksOfOneExpert) {
  const auto weight =
      only({stored("e.0.up_proj_blocks", Dtype::U8, {192, 2, 16}), stored("e.0.up_proj_scales", Dtype::U8, {192, 2})},
           method("mxfp4"));
  EXPECT_EQ(weight.shape, (std::vector<i64>{64, 192}));
  EXPECT_TRUE(weight.transposed);
}

/// They say how the cache of attention is quantized, by ModelOpt's names and compressed-tensors'.
TEST(FindQuantized, ScalesOfACacheBelongToQuantizedWeights) {
  const std::vector<MemoryTensor> weight = {stored("a.weight", Dtype::F8_E4M3, {96, 64}),
                                            stored("a.weight_scale", Dtype::F32, {})};
  for (const char* const name : {"l.self_attn.k_proj.k_scale", "l.self_attn.v_proj.v_scale", "l.self_attn.k_scale",
                                 "l.self_attn.v_scale", "l.self_attn.k_proj.output_scale"}) {
    std::vector<MemoryTensor> tensors = weight;
    tensors.push_back(stored(name, Dtype::F32, {}));
    EXPECT_EQ(found(tensors).companions.size(), 2U) << name;
    EXPECT_TRUE(found({tensors.back()}).companions.empty()) << name;
  }
}

}  // namespace
}  // namespace glu_ckpt
