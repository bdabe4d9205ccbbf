#include "quant/quant_config.hpp"

#include <gtest/gtest.h>

#include "quant/find_quantized.hpp"
#include "quant/quantization_files.hpp"
#include "quant/quantization_text.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

TEST(QuantConfig, ReadsWhatEachSoftwareWrites) {
  const QuantConfig fp8 = read_quant_config(
      R"({"model_type": "x", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 64]}})");
  EXPECT_EQ(fp8.method, "fp8");
  EXPECT_EQ(fp8.block_rows, 128);
  EXPECT_EQ(fp8.block_cols, 64);

  const QuantConfig packed = read_quant_config(
      R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
          {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": true}}}}})");
  EXPECT_EQ(packed.format, "pack-quantized");
  EXPECT_EQ(packed.bits, 4);
  EXPECT_EQ(packed.group_size, 32);
  EXPECT_EQ(packed.strategy, "group");
  EXPECT_EQ(packed.symmetric, true);

  const QuantConfig gptq = read_quant_config(
      R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq"}})");
  EXPECT_EQ(gptq.version, "gptq");
  EXPECT_EQ(gptq.group_size, -1);  // one group over all columns
}

TEST(QuantConfig, GroupsThatDifferSayNothing) {
  const QuantConfig config = read_quant_config(
      R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
          "group_0": {"weights": {"num_bits": 4, "group_size": 32}},
          "group_1": {"weights": {"num_bits": 8, "group_size": 32}}}}})");
  EXPECT_EQ(config.bits, std::nullopt);
  EXPECT_EQ(config.group_size, 32);
}

TEST(QuantConfig, BlocksOfCompressedTensors) {
  const auto of = [](const std::string& groups) {
    return read_quant_config(R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {)" +
                             groups + "}}}");
  };
  const std::string blocks = R"("a": {"weights": {"strategy": "block", "block_structure": [128, 64]}})";
  EXPECT_EQ(of(blocks).block_rows, 128);
  EXPECT_EQ(of(blocks).block_cols, 64);
  EXPECT_EQ(of(blocks + R"(, "b": {"weights": {"strategy": "channel"}})").block_rows, std::nullopt);
  for (const char* const other : {"[128]", "[0, 64]", "\"128\"", "[1.5, 64]", "null"})
    EXPECT_EQ(
        of(R"("a": {"weights": {"strategy": "block", "block_structure": )" + std::string(other) + "}}").block_rows,
        std::nullopt)
        << other;
}

/// compressed-tensors parses "128x64"; 128 is never assumed where something else is said.
TEST(QuantConfig, BlocksThatAreNotRead) {
  const auto of = [](const std::string& field, const std::string& block) {
    return read_quant_config(R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": )" +
                             (field.empty() ? block : "null") +
                             R"(, "config_groups": {"a": {"weights": {"strategy": "block", "block_structure": )" +
                             (field.empty() ? "null" : block) + "}}}}}");
  };
  for (const char* const field : {"", "block_structure"}) {
    EXPECT_EQ(of(field, "\"96x64\"").block_rows, 96);
    EXPECT_EQ(of(field, "\"96x64\"").block_cols, 64);
    EXPECT_EQ(of(field, "\"96x64\"").fault, "");
    EXPECT_EQ(of(field, "null").fault, "");
    for (const char* const block :
         {"[0, 128]", "[-1, 128]", "[128.0, 128]", "[\"128\", \"128\"]", "[9223372036854775807, 128]", "[128]",
          "[1, 2, 3]", "\"\"", "\"128\"", "\"128x\"", "\"x128\"", "\"1x2x3\"", "\"0x128\"", "128", "{}"}) {
      EXPECT_NE(of(field, block).fault, "") << block;
      EXPECT_EQ(of(field, block).block_rows, std::nullopt) << block;
    }
  }
  support::expect_error(
      ErrorCode::ConfigJson, [&] { find_quantized({}, of("", "[0, 128]")); },
      "a block size ('weight_block_size' or 'block_structure') that is not two whole numbers");
}

TEST(QuantConfig, NothingIsEmpty) {
  for (const char* text :
       {"", "{}", "[]", "{", R"({"quantization_config": null})", R"({"quantization_config": "fp8"})"})
    EXPECT_EQ(read_quant_config(text).method, "") << text;
}

TEST(QuantConfig, IsFoundInsideAMultimodalOne) {
  EXPECT_EQ(read_quant_config(R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})").method, "fp8");
}

/// Older exports of ModelOpt have no quantization_config in config.json; its rounding is not DeepSeek's.
TEST(QuantConfig, OfModelOptsOwnFile) {
  constexpr const char* kFile = "hf_quant_config.json";
  const std::string fp8 =
      R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})";
  const QuantConfig config = with_quantization_file({}, kFile, fp8);
  EXPECT_EQ(config.method, "modelopt");
  EXPECT_EQ(config.format, "FP8");
  EXPECT_EQ(config.skipped, std::vector<std::string>{"lm_head"});
  const std::string nvfp4 = R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})";
  EXPECT_EQ(with_quantization_file({}, kFile, nvfp4).group_size, 16);
  EXPECT_EQ(with_quantization_file({}, kFile, R"({"quantization": {"quant_algo": null}})").method, "");
  EXPECT_EQ(with_quantization_file(config, kFile, fp8).format, "FP8");
  const auto refuses = [](const QuantConfig& of, const std::string& file, const std::string& text) {
    support::expect_error(
        ErrorCode::QuantConfigContradicts, [&] { with_quantization_file(of, kFile, file); }, text);
  };
  refuses(config, nvfp4, "says quant_algo 'FP8', but hf_quant_config.json beside it says 'NVFP4'");
  QuantConfig other;
  other.method = "fp8";
  refuses(other, fp8, "says 'fp8', but hf_quant_config.json");
  // It is about other weights of the model.
  EXPECT_EQ(with_quantization_file(other, kFile, nvfp4).method, "fp8");
  other = with_quantization_file({}, kFile, nvfp4);
  other.group_size = 32;
  refuses(other, nvfp4, "says group_size 32, but hf_quant_config.json beside it says 16");
  support::expect_error(
      ErrorCode::ConfigJson, [] { with_quantization_file({}, kFile, "{"); }, "is not JSON");
}

TEST(WithoutQuantization, CutsTheMemberAndNothingElse) {
  EXPECT_EQ(without_quantization(R"({"a": 1, "quantization_config": {"x": "}]\""}, "b": [2]})"),
            R"({"a": 1, "b": [2]})");
  EXPECT_EQ(without_quantization("{\n  \"quantization_config\": {\"x\": [1, {}]},\n  \"b\": 2\n}\n"),
            "{\n  \"b\": 2\n}\n");
  EXPECT_EQ(without_quantization("{\n  \"a\": 1,\n  \"quantization_config\": {}\n}"), "{\n  \"a\": 1\n}");
  EXPECT_EQ(without_quantization(R"({"quantization_config": 5})"), "{}");
  EXPECT_EQ(without_quantization(R"({"compression_config": {}, "a": 1})"), R"({"a": 1})");
}

TEST(WithoutQuantization, AlsoInside) {
  EXPECT_EQ(without_quantization(R"({"text_config": {"a": 1, "quantization_config": {"b": 2}}, "c": 3})"),
            R"({"text_config": {"a": 1}, "c": 3})");
}

/// Python writes Infinity, which is no JSON; the member goes all the same.
TEST(WithoutQuantization, OfPythonsJson) {
  EXPECT_EQ(without_quantization(R"({"limit": Infinity, "quantization_config": {"x": NaN}, "b": 2})"),
            R"({"limit": Infinity, "b": 2})");
}

TEST(WithoutQuantization, LeavesOtherTexts) {
  for (const char* text : {"{\"a\": \"quantization_config\"}", "no json", "", "{\"quantization_config\": "})
    EXPECT_EQ(without_quantization(text), text);
}

/// transformers writes null for a model that is not quantized. There is nothing in it to edit.
TEST(QuantConfig, NullIsLeftAsItIs) {
  for (const std::string text : {R"({"quantization_config": null, "a": 1})", R"({"quantization_config": "fp8"})",
                                 R"({"text_config": {"quantization_config": null}, "b": {}})"}) {
    EXPECT_EQ(with_block_rows(text, 32), text);
    EXPECT_EQ(with_mxfp8(text), text);
  }
  EXPECT_EQ(
      with_block_rows(R"({"quantization_config": null, "text_config": {"quantization_config": {}}})", 32),
      R"({"quantization_config": null, "text_config": {"quantization_config": {"weight_block_size": [32, 128]}}})");
  EXPECT_EQ(without_quantization(R"({"quantization_config": null, "a": 1})"), R"({"a": 1})");
}

}  // namespace
}  // namespace glu_ckpt
