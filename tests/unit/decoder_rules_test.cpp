/// Which decoder may be named for which format, and what it changes.

#include "quant/decoder_rules.hpp"

#include <gtest/gtest.h>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using support::expect_error;

Quantization one(Codes codes, bool has_global) {
  Quantization found;
  found.tensors.resize(1);
  found.tensors[0].name = "a.weight";
  found.tensors[0].codes = codes;
  if (has_global) found.tensors[0].global = 2;
  found.decoder = "its own";
  return found;
}

TEST(DecoderRules, TheZeroAndTheScaleAreTheNamedPrograms) {
  Quantization nvfp4 = one(Codes::E2m1, true);
  name_decoder(nvfp4, "modelopt");
  EXPECT_TRUE(nvfp4.tensors[0].positive_zero);
  EXPECT_EQ(nvfp4.decoder, "modelopt");
  name_decoder(nvfp4, "compressed-tensors");
  EXPECT_FALSE(nvfp4.tensors[0].positive_zero);

  Quantization mxfp4 = one(Codes::E2m1, false);
  name_decoder(mxfp4, "deepseek");
  EXPECT_TRUE(mxfp4.tensors[0].positive_zero);
  name_decoder(mxfp4, "gpt-oss");
  EXPECT_FALSE(mxfp4.tensors[0].positive_zero);

  Quantization fp8 = one(Codes::E4m3, false);
  name_decoder(fp8, "modelopt");
  EXPECT_TRUE(fp8.tensors[0].rounds_scale);
  name_decoder(fp8, "transformers");
  EXPECT_FALSE(fp8.tensors[0].rounds_scale);
}

TEST(DecoderRules, WhatAProgramDoesNotDecodeIsRefused) {
  Quantization awq = one(Codes::Awq, false);
  expect_error(
      ErrorCode::NotSupported, [&] { name_decoder(awq, "modelopt"); }, "takes awq for it");
  EXPECT_EQ(awq.decoder, "its own");
  Quantization fp8 = one(Codes::E5m2, false);
  expect_error(
      ErrorCode::NotSupported, [&] { name_decoder(fp8, "gpt-oss"); },
      "takes deepseek, transformers, modelopt, compressed-tensors for it");
  expect_error(
      ErrorCode::Usage, [&] { name_decoder(fp8, "vllm"); }, "no decoder is called 'vllm'");
  for (const std::string& name : known_decoders()) EXPECT_FALSE(name.empty());
}

}  // namespace
}  // namespace glu_ckpt
