/// Experts in MXFP8 compute what they compute dequantized: the same bits in every layout.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/float_rows.hpp"
#include "glu_ckpt/forward.hpp"
#include "glu_ckpt/ops/mxfp8.hpp"
#include "glu_ckpt/verify_forward.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

using Tensors = std::vector<MemoryTensor>;
using u16 = std::uint16_t;

constexpr i64 kExperts = 3;
constexpr i64 kWidth = 192;
constexpr i64 kHidden = 64;
constexpr ScaleSpec kRows{1, 32, 1, 1, Dtype::U8, true};
constexpr ScaleSpec kColumns{32, 1, 1, 1, Dtype::F8_E8M0, false};
constexpr ScaleSpec kPaddedRows{1, 32, 128, 4, Dtype::U8, true};

ModelSpec model_of(const ScaleSpec& scales, Dtype element = Dtype::F8_E4M3, i64 width = kWidth) {
  ModelSpec model;
  BlockSpec block;
  block.widths = widths(kExperts, width);
  block.hidden = kHidden;
  block.dtype = element;
  block.scales = true;
  block.scale_spec = scales;
  model.blocks.push_back(block);
  return model;
}

const Spelling kHub{"hf:deepseek_v3", Experts::Indexed, Experts::Indexed, split(), split()};

bool is_scale_name(const std::string& name) { return name.find("_scale") != name.npos; }

/// Codes of finite values, and scales around 2^-6.
Tensors with_values(Tensors tensors) {
  for (MemoryTensor& tensor : tensors)
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) {
      const auto code = std::to_integer<unsigned>(tensor.bytes[i]);
      const auto hash = static_cast<unsigned>((code * 7919 + i * 104729) >> 3);
      const unsigned value = is_scale_name(tensor.name) ? 119 + hash % 5 : (hash & 0x80) | hash % 0x70;
      tensor.bytes[i] = static_cast<std::byte>(value);
    }
  return tensors;
}

/// The hub's spelling with bf16 weights: each value by the definition.
Tensors dequantized(const Tensors& tensors, const ScaleSpec& spec) {
  Tensors result;
  for (const MemoryTensor& weight : tensors) {
    if (is_scale_name(weight.name)) continue;
    const auto scale =
        std::ranges::find(tensors, weight.name + (spec.plain ? "_scale" : "_scale_inv"), &MemoryTensor::name);
    MemoryTensor wide{weight.name, Dtype::BF16, weight.shape, std::vector<std::byte>(weight.bytes.size() * 2)};
    for (i64 r = 0; r < weight.shape[0]; ++r)
      for (i64 c = 0; c < weight.shape[1]; ++c) {
        const auto at = static_cast<std::size_t>(r * weight.shape[1] + c);
        const auto of = static_cast<std::size_t>(r / spec.rows * scale->shape[1] + c / spec.cols);
        const float value = std::ldexp(fp8_value(std::to_integer<std::uint8_t>(weight.bytes[at]), weight.dtype),
                                       std::to_integer<int>(scale->bytes[of]) - 127);
        const auto bits = static_cast<u16>(std::bit_cast<u32>(value) >> 16);
        std::memcpy(&wide.bytes[2 * at], &bits, 2);
      }
    result.push_back(std::move(wide));
  }
  return result;
}

struct TokenSet {
  std::vector<std::byte> x;
  std::vector<i64> index;
  std::vector<float> weights;
  RoutedTokens routed;

  explicit TokenSet(i64 tokens) {
    std::vector<float> values(static_cast<std::size_t>(tokens * kHidden));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 64;
    x.resize(values.size() * 2);
    narrow_row(values, Dtype::BF16, x.data());
    for (i64 t = 0; t < tokens; ++t)
      for (i64 k = 0; k < 2; ++k) {
        index.push_back((t + k) % kExperts);
        weights.push_back(k == 0 ? 0.625F : 0.375F);
      }
    routed = {tokens, 2, Dtype::BF16, x, index, weights};
  }
};

std::vector<std::byte> forward_of(const Source& source, const TokenSet& tokens, bool fp32 = false) {
  const Recognition recognition = recognize_source(source);
  const Model model{&source, &recognition};
  EXPECT_EQ(compute_dtype(model, recognition.blocks[0], fp32), fp32 ? Dtype::F32 : Dtype::BF16);
  LayerOptions options;
  options.fp32 = fp32;
  options.jobs = 2;
  return forward_layer(model, recognition.blocks[0], tokens.routed, options);
}

MemorySource hub_source(const ModelSpec& model) {
  return MemorySource(with_values(build(model, kHub)), {}, record_of(model, kHub));
}

/// The hub's tensors in all layouts that its scales allow.
std::vector<Spelling> layouts(const ScaleSpec& scales) {
  std::vector<Spelling> all{kHub};
  const bool cut = scales.row_multiple == 1;
  for (const Experts experts : {Experts::Indexed, Experts::Grouped})
    for (const Glu& glu : {split(), contiguous(), interleaved(32), interleaved(scales.rows == 1 ? 8 : 64)})
      if (cut || glu.kind == Glu::Kind::Split) all.push_back({"hf:deepseek_v3", experts, experts, glu, split()});
  return all;
}

TEST(ForwardMxfp8, GivesTheBitsOfTheDequantizedModel) {
  const TokenSet tokens(7);
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (const ScaleSpec& scales : {kRows, kColumns, kPaddedRows}) {
      const ModelSpec model = model_of(scales, element);
      const MemorySource hub = hub_source(model);
      ModelSpec plain = model;
      plain.blocks[0].scales = false;
      plain.blocks[0].dtype = Dtype::BF16;
      const MemorySource wide(dequantized(hub.tensors(), scales), {}, record_of(plain, kHub));
      const auto expected = forward_of(wide, tokens);
      const auto expected_fp32 = forward_of(wide, tokens, true);
      EXPECT_TRUE(std::ranges::any_of(expected, [](std::byte byte) { return byte != std::byte{0}; }));
      for (const Spelling& layout : layouts(scales)) {
        SCOPED_TRACE(layout.describe());
        const Tensors stored = convert(hub, recognize_source(hub), options_for(model, layout)).tensors;
        const MemorySource source(stored, {}, record_of(model, layout));
        EXPECT_EQ(forward_of(source, tokens), expected);
        EXPECT_EQ(forward_of(source, tokens, true), expected_fp32);
      }
    }
}

TEST(ForwardMxfp8, VerifyForwardSeesTheSameModelAndAnotherOne) {
  const ModelSpec model = model_of(kRows);
  const MemorySource hub = hub_source(model);
  const Spelling to{"hf:deepseek_v3", Experts::Grouped, Experts::Grouped, interleaved(32), split()};
  Tensors stored = convert(hub, recognize_source(hub), options_for(model, to)).tensors;
  const auto verify_against = [&](const Tensors& tensors) {
    const MemorySource other(tensors, {}, record_of(model, to));
    const Recognition a = recognize_source(hub);
    const Recognition b = recognize_source(other);
    const auto runner = make_mlp_runner("cpu");
    return verify_forward({&hub, &a}, {&other, &b}, *runner, {});
  };
  const auto same = verify_against(stored);
  ASSERT_EQ(same.size(), 1u);
  EXPECT_TRUE(same[0].ok());
  EXPECT_EQ(same[0].differing_bits, 0);
  EXPECT_TRUE(same[0].control_caught);
  // Scales of gate row 0 and up row 0 of expert 1, exchanged.
  const auto scales = std::ranges::find(stored, "model.layers.0.mlp.experts.gate_up_proj_scale", &MemoryTensor::name);
  ASSERT_NE(scales, stored.end());
  const i64 row = kHidden / 32;
  const auto first = scales->bytes.begin() + 2 * kWidth * row;
  std::swap_ranges(first, first + row, first + 32 * row);
  const auto changed = verify_against(stored);
  EXPECT_FALSE(changed[0].ok());
  EXPECT_EQ(changed[0].first_expert, 1);
}

TEST(ForwardMxfp8, RefusesValuesBeyondBf16) {
  const TokenSet tokens(3);
  for (const int e : {0, 2, 247, 254}) {
    const ModelSpec model = model_of(kRows);
    Tensors tensors = with_values(build(model, kHub));
    for (MemoryTensor& tensor : tensors)
      if (tensor.name.ends_with("experts.1.up_proj.weight_scale")) tensor.bytes[3] = static_cast<std::byte>(e);
    for (MemoryTensor& tensor : tensors)
      if (tensor.name.ends_with("experts.1.up_proj.weight"))
        tensor.bytes[static_cast<std::size_t>(kHidden + 40)] = static_cast<std::byte>(e < 100 ? 0x01 : 0x7e);
    const MemorySource source(tensors, {}, record_of(model, kHub));
    expect_error(
        ErrorCode::NotExact, [&] { forward_of(source, tokens); }, "up_proj.weight");
  }
}

TEST(ForwardMxfp8, BlockScalesInFp32AreNotComputedWith) {
  ModelSpec model = model_of({}, Dtype::F8_E4M3, 256);
  const MemorySource source = make_source(model, kHub);
  const Recognition recognition = recognize_source(source);
  expect_error(
      ErrorCode::NotSupported,
      [&] {
        compute_dtype({&source, &recognition}, recognition.blocks[0], false);
      },
      "MXFP8");
}

}  // namespace
}  // namespace glu_ckpt
