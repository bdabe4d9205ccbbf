/// One second scale for gate and up: the shift that is chosen, beside all that there are. What has no exact form, or no
/// value.

#include "quant/recast_source.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/float_rows.hpp"
#include "quant/check_codes.hpp"
#include "quant/decode_row.hpp"
#include "quant/decoded_source.hpp"
#include "quant/decoder_rules.hpp"
#include "quant/find_quantized.hpp"
#include "support/convert.hpp"
#include "support/memory_checkpoint.hpp"

namespace glu_ckpt {
namespace {

using support::MemorySource;
using support::MemoryTensor;

float e4m3(std::byte code) { return scale_value(Dtype::F8_E4M3, &code); }

bool is_e4m3(float value) {
  for (unsigned code = 0; code < 256; ++code)
    if (e4m3(static_cast<std::byte>(code)) == value) return true;
  return false;
}

struct OneSide {
  float second = 1;
  std::vector<std::byte> blocks;
};

/// [blocks, 16] of one block each row.
void add_side(const std::string& name, const OneSide& side, bool divides, std::vector<MemoryTensor>& tensors) {
  const i64 rows = std::ssize(side.blocks);
  tensors.push_back({name + (divides ? ".weight_packed" : ".weight"),
                     Dtype::U8,
                     {rows, 8},
                     std::vector<std::byte>(static_cast<std::size_t>(8 * rows))});
  tensors.push_back({name + ".weight_scale", Dtype::F8_E4M3, {rows, 1}, side.blocks});
  std::vector<std::byte> second(4);
  std::memcpy(second.data(), &side.second, 4);
  tensors.push_back({name + (divides ? ".weight_global_scale" : ".weight_scale_2"), Dtype::F32, {1}, second});
}

std::vector<MemoryTensor> both_sides(const OneSide& gate, const OneSide& up, bool divides) {
  std::vector<MemoryTensor> tensors;
  add_side("gate_proj", gate, divides, tensors);
  add_side("up_proj", up, divides, tensors);
  return tensors;
}

std::vector<std::byte> bytes_of(const Source& source, std::size_t tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(source.inventory().tensors[tensor].bytes));
  source.read(tensor, 0, bytes);
  return bytes;
}

float second_of(const Source& source, std::size_t tensor) {
  return scale_value(Dtype::F32, bytes_of(source, tensor).data());
}

SharedScales share(std::unique_ptr<Source>& source) {
  constexpr SecondScales kPair[] = {{2, 5}};
  return share_second_scales(source, find_quantized(source->inventory(), {}), kPair);
}

/// Block scales with 2^shift times the value are E4M3's.
bool can_shift(const OneSide& side, int shift) {
  for (const std::byte code : side.blocks)
    if (!std::isnan(e4m3(code)) && !is_e4m3(std::ldexp(e4m3(code), shift))) return false;
  return true;
}

TEST(SharedScales, EveryProductStaysOrAllDo) {
  std::mt19937_64 random(29);
  int shared = 0, kept = 0;
  for (int round = 0; round < 400; ++round) {
    const bool divides = round % 2 != 0;
    const int ratio = static_cast<int>(random() % 25) - 12;
    // Codes of a part of the range, so that both answers occur.
    const unsigned lowest = static_cast<unsigned>(random() % 40), width = 1 + static_cast<unsigned>(random() % 120);
    OneSide gate, up;
    gate.second = std::ldexp(1.37F, -7);
    up.second = std::ldexp(gate.second, ratio);
    for (OneSide* side : {&gate, &up})
      for (int i = 0; i < 6; ++i)
        side->blocks.push_back(
            static_cast<std::byte>(std::min<u64>(lowest + random() % width, 0x7e) | (random() % 2) << 7));
    bool possible = false;
    for (int a = -40; a <= 40; ++a) {
      possible = possible || (can_shift(gate, a) && can_shift(up, divides ? a - ratio : a + ratio));
    }
    std::unique_ptr<Source> source = std::make_unique<MemorySource>(both_sides(gate, up, divides));
    const SharedScales result = share(source);
    SCOPED_TRACE(testing::Message() << "round " << round << ", ratio " << ratio);
    if (ratio == 0) {
      EXPECT_EQ(result.pairs, 0);
      EXPECT_EQ(result.why_none, "");
      continue;
    }
    (result.pairs == 1 ? shared : kept) += 1;
    for (const std::size_t first : {0, 3}) {
      const OneSide& side = first == 0 ? gate : up;
      const auto blocks = bytes_of(*source, first + 1);
      const float second = second_of(*source, first + 2);
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const float was = divides ? e4m3(side.blocks[i]) / side.second : e4m3(side.blocks[i]) * side.second;
        EXPECT_EQ(divides ? e4m3(blocks[i]) / second : e4m3(blocks[i]) * second, was);
        EXPECT_EQ(std::signbit(e4m3(blocks[i])), std::signbit(e4m3(side.blocks[i])));
      }
    }
    EXPECT_EQ(second_of(*source, 2) == second_of(*source, 5), result.pairs == 1);
    EXPECT_EQ(result.why_none.empty(), result.pairs == 1);
    EXPECT_EQ(result.pairs == 1, possible);
  }
  EXPECT_GT(shared, 50);
  EXPECT_GT(kept, 50);
}

TEST(SharedScales, FewestBlockScalesChange) {
  // Gate's could go either way; up's 448 can only go down, so up stays and gate takes its scale.
  const OneSide gate{1.0F, {std::byte{0x38}}}, up{2.0F, {std::byte{0x7e}}};
  std::unique_ptr<Source> source = std::make_unique<MemorySource>(both_sides(gate, up, false));
  EXPECT_EQ(share(source).pairs, 1);
  EXPECT_EQ(second_of(*source, 2), 2.0F);
  EXPECT_EQ(bytes_of(*source, 4), up.blocks);
  EXPECT_EQ(e4m3(bytes_of(*source, 1)[0]), 0.5F);
}

TEST(SharedScales, WhatIsNoPowerOfTwoIsNamed) {
  for (const float up : {1.2547F, 0.0F, -1.0F, std::nanf(""), INFINITY}) {
    std::unique_ptr<Source> source =
        std::make_unique<MemorySource>(both_sides({1.0F, {std::byte{0x38}}}, {up, {std::byte{0x38}}}, false));
    const SharedScales result = share(source);
    EXPECT_EQ(result.pairs, 0);
    EXPECT_NE(result.why_none.find("'gate_proj.weight_scale_2' is 1 and 'up_proj.weight_scale_2'"), std::string::npos)
        << result.why_none;
    EXPECT_EQ(std::bit_cast<u32>(second_of(*source, 5)), std::bit_cast<u32>(up));
  }
}

TEST(SharedScales, SubnormalSecondScalesStayExact) {
  const OneSide gate{std::ldexp(3.0F, -149), {std::byte{0x01}, std::byte{0x7e}}};
  const OneSide up{std::ldexp(3.0F, -147), {std::byte{0x08}}};
  std::unique_ptr<Source> source = std::make_unique<MemorySource>(both_sides(gate, up, false));
  EXPECT_EQ(share(source).pairs, 1);
  EXPECT_EQ(second_of(*source, 5), gate.second);
  EXPECT_EQ(e4m3(bytes_of(*source, 4)[0]), 4 * e4m3(up.blocks[0]));
}

// ---- what is refused --------------------------------------------------------------------------------

MemoryTensor stored(std::string name, Dtype dtype, std::vector<i64> shape) {
  const i64 bytes = support::tensor_bytes(dtype, shape);
  return {std::move(name), dtype, std::move(shape), std::vector<std::byte>(static_cast<std::size_t>(bytes))};
}

std::unique_ptr<Source> source_of(std::vector<MemoryTensor> tensors, const std::string& config = {}) {
  ModelHints hints;
  hints.config = config;
  return std::make_unique<MemorySource>(std::move(tensors), hints);
}

Quantization found_in(const Source& source) {
  return find_quantized(source.inventory(), read_quant_config(source.hints().config));
}

void refuses_to_encode(std::vector<MemoryTensor> tensors, ErrorCode code, const std::string& words) {
  auto source = source_of(std::move(tensors));
  const Source* const before = source.get();
  support::expect_error(
      code, [&] { encode_mxfp8(source, found_in(*source)); }, words);
  EXPECT_EQ(source.get(), before);
}

TEST(RecastSource, WhatIsNoMxfp8IsNamed) {
  // Powers of two, but for what is turned.
  refuses_to_encode(
      {stored("e.up_proj", Dtype::U8, {2, 32, 96}), stored("e.up_proj_weight_scale", Dtype::U8, {2, 2, 96})},
      ErrorCode::NotSupported, "'e.up_proj': its naming stores experts as [in, out]");
  refuses_to_encode(
      {stored("e.up_proj", Dtype::F8_E4M3, {2, 64, 96}), stored("e.up_proj_scale", Dtype::F32, {2, 1, 96})},
      ErrorCode::NotSupported, "'e.up_proj': its naming stores experts as [in, out]");
  refuses_to_encode({stored("a.weight", Dtype::I8, {96, 64}), stored("a.weight_scale", Dtype::F32, {96, 1})},
                    ErrorCode::NotSupported, "'a.weight': --encode mxfp8 is for FP8 (E4M3) and MXFP4");
  refuses_to_encode({stored("a.weight", Dtype::F8_E5M2, {96, 64}), stored("a.weight_scale", Dtype::F32, {96, 1})},
                    ErrorCode::NotSupported, "--decode bf16 reads others");
  refuses_to_encode({stored("e.w13", Dtype::F8_E4M3, {2, 96, 64}), stored("e.w13_scale", Dtype::F32, {2, 2})},
                    ErrorCode::NotSupported, "'e.w13': gate and up have a scale each in one tensor; split them first");
  refuses_to_encode({stored("a.weight", Dtype::F8_E4M3, {96, 48}), stored("a.weight_scale", Dtype::F32, {96, 1})},
                    ErrorCode::NotExact, "'a.weight': rows of 48 weights are no multiple of 32");
  // A block of MXFP8 would need two scales.
  auto source =
      source_of({stored("a.weight", Dtype::F8_E4M3, {96, 96}), stored("a.weight_scale_inv", Dtype::F8_E8M0, {2, 2})},
                R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [48, 48]}})");
  support::expect_error(
      ErrorCode::NotExact, [&] { encode_mxfp8(source, found_in(*source)); }, "a scale is for 48 columns");
  // Zero is no power of two.
  refuses_to_encode({stored("e.w2", Dtype::F8_E4M3, {2, 96, 64}), stored("e.w2_scale", Dtype::F32, {2, 96, 1})},
                    ErrorCode::NotExact, "'e.w2_scale': scale [0, 0] of matrix 0 is no power of two");
}

/// gpt-oss's blocks keep their names and axes: a byte for each code, and the scales as they are.
TEST(RecastSource, BlocksOfMxfp4BecomeBlocksOfMxfp8) {
  std::vector<MemoryTensor> tensors = {stored("e.down_proj_blocks", Dtype::U8, {2, 64, 3, 16}),
                                       stored("e.down_proj_scales", Dtype::U8, {2, 64, 3})};
  for (std::size_t i = 0; i < tensors[0].bytes.size(); ++i)
    tensors[0].bytes[i] = static_cast<std::byte>(i * 7 + i / 48);
  for (std::size_t i = 0; i < tensors[1].bytes.size(); ++i) tensors[1].bytes[i] = static_cast<std::byte>(100 + i % 40);
  const std::string config = R"({"quantization_config": {"quant_method": "mxfp4"}})";
  const auto decoded = [](std::unique_ptr<Source> of) {
    Quantization found = found_in(*of);
    of = decode_source(std::move(of), std::move(found), Dtype::F32, DecodePath::Plain);
    EXPECT_EQ(of->inventory().tensors.at(0).shape, (std::vector<i64>{2, 96, 64}));
    return bytes_of(*of, 0);
  };
  auto source = source_of(tensors, config);
  encode_mxfp8(source, found_in(*source));
  ASSERT_EQ(source->inventory().tensors.size(), 2U);
  const TensorRef& codes = source->inventory().tensors[0];
  EXPECT_EQ(codes.name, "e.down_proj_blocks");
  EXPECT_EQ(codes.dtype, Dtype::F8_E4M3);
  EXPECT_EQ(codes.shape, (std::vector<i64>{2, 64, 3, 32}));
  EXPECT_EQ(source->inventory().tensors[1].shape, tensors[1].shape);
  EXPECT_EQ(bytes_of(*source, 1), tensors[1].bytes);
  EXPECT_EQ(found_in(*source).formats, std::vector<std::string>{"MXFP8"});
  EXPECT_EQ(decoded(std::move(source)), decoded(source_of(tensors, config)));
}

/// Code 8 of FP4 is +0 to DeepSeek-V4's own conversion and -0 to others: the codes of MXFP8 decode to the same bits.
TEST(RecastSource, TheZeroOfMxfp4KeepsItsSign) {
  std::vector<MemoryTensor> tensors = {stored("a.weight", Dtype::I8, {32, 32}),
                                       stored("a.scale", Dtype::F8_E8M0, {32, 2})};
  for (std::size_t i = 0; i < tensors[0].bytes.size(); ++i)
    tensors[0].bytes[i] = static_cast<std::byte>(i % 3 == 0 ? 0x88 : i * 7 + i / 32);
  for (std::size_t i = 0; i < tensors[1].bytes.size(); ++i) tensors[1].bytes[i] = static_cast<std::byte>(100 + i);
  for (const char* const decoder : {"deepseek", "compressed-tensors"}) {
    const auto found = [&](const Source& source) {
      Quantization quantization = found_in(source);
      name_decoder(quantization, decoder);
      return quantization;
    };
    const std::string config = R"({"quantization_config": {"quant_method": "fp8"}})";
    auto source = source_of(tensors, config);
    auto direct = source_of(tensors, config);
    direct = decode_source(std::move(direct), found(*source), Dtype::BF16, DecodePath::Plain);
    encode_mxfp8(source, found(*source));
    const std::vector<std::byte> codes = bytes_of(*source, 0);
    EXPECT_EQ(codes[0], decoder[0] == 'd' ? std::byte{0} : std::byte{0x80});
    Quantization encoded = found_in(*source);
    source = decode_source(std::move(source), std::move(encoded), Dtype::BF16, DecodePath::Plain);
    EXPECT_EQ(bytes_of(*source, 0), bytes_of(*direct, 0)) << decoder;
  }
}

TEST(RecastSource, FinerScalesThatNobodyCanBeToldOfAreRefused) {
  auto source =
      source_of({stored("a.weight", Dtype::F8_E4M3, {256, 64}), stored("a.weight_scale", Dtype::F32, {2, 1, 1, 1})});
  const std::string words =
      "'a.weight_scale': each scale is for 128 x 128 weights, which the order of gate and up would cut into blocks of "
      "32 rows. quantization_config of ModelOpt has no field for the rows of a block";
  support::expect_error(
      ErrorCode::NotExact, [&] { refine_scales(source, found_in(*source), 32); }, words);
  source =
      source_of({stored("a.weight", Dtype::F8_E4M3, {256, 64}), stored("a.weight_scale", Dtype::F32, {2, 1, 1, 1})},
                R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}})");
  const Source* const before = source.get();
  support::expect_error(
      ErrorCode::NotExact, [&] { refine_scales(source, found_in(*source), 32); }, words);
  EXPECT_EQ(source.get(), before);
}

/// compressed-tensors says it for each group of modules, and the rest of the text stays.
TEST(RecastSource, FinerScalesOfCompressedTensorsAreSaidInEachGroup) {
  const std::string before = R"({ "quantization_config" : {"config_groups": {"a": {"targets": ["Linear"], "weights":
      {"strategy": "block", "block_structure": [128, 128] , "num_bits": 8}},
      "b": {"weights": {"block_structure":[128,128], "strategy": "block", "num_bits": 8}}, "c": null},
      "quant_method": "compressed-tensors"}, "x": 1})";
  const std::string after = R"({ "quantization_config" : {"config_groups": {"a": {"targets": ["Linear"], "weights":
      {"strategy": "block", "block_structure": [32, 128] , "num_bits": 8}},
      "b": {"weights": {"block_structure": [32, 128], "strategy": "block", "num_bits": 8}}, "c": null},
      "quant_method": "compressed-tensors"}, "x": 1})";
  std::vector<MemoryTensor> tensors = {stored("a.weight", Dtype::F8_E4M3, {320, 200}),
                                       stored("a.weight_scale", Dtype::BF16, {3, 2})};
  for (std::size_t i = 0; i < tensors[1].bytes.size(); ++i) tensors[1].bytes[i] = static_cast<std::byte>(i + 1);
  auto source = source_of(tensors, before);
  refine_scales(source, found_in(*source), 32);
  EXPECT_EQ(source->hints().config, after);
  EXPECT_EQ(source->record().at("scale_rows"), "32");
  EXPECT_EQ(source->inventory().tensors[1].shape, (std::vector<i64>{10, 2}));
  const std::vector<std::byte> finer = bytes_of(*source, 1);
  for (std::size_t row = 0; row < 10; ++row)
    EXPECT_TRUE(std::equal(&tensors[1].bytes[4 * (row / 4)], &tensors[1].bytes[4 * (row / 4)] + 4, &finer[4 * row]));
  EXPECT_EQ(found_in(*source).tensors.at(0).cell_rows, 32);
}

/// The scales of a fused FC1 of 2 x 320 rows: of one matrix, where a block is for gate and for up, or of both behind
/// each other.
TEST(RecastSource, BlocksThatGateAndUpShareAreCutInTwo) {
  for (const i64 stored_rows : {5, 6}) {
    std::vector<MemoryTensor> tensors = {stored("e.gate_up_proj", Dtype::F8_E4M3, {2, 640, 200}),
                                         stored("e.gate_up_proj_scale_inv", Dtype::F32, {2, stored_rows, 2})};
    for (std::size_t i = 0; i < tensors[0].bytes.size(); ++i)
      tensors[0].bytes[i] = static_cast<std::byte>((i * 7 + i / 200) % 0x78);
    const i64 count = 4 * stored_rows;
    std::vector<float> scales(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.5F + 0.01F * static_cast<float>(i);
    std::memcpy(tensors[1].bytes.data(), scales.data(), tensors[1].bytes.size());
    auto source =
        source_of(tensors, R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
    const auto decoded = [&](std::unique_ptr<Source> of, DecodePath path) {
      Quantization found = found_in(*of);
      of = decode_source(std::move(of), std::move(found), Dtype::F32, path);
      return bytes_of(*of, 0);
    };
    const std::vector<std::byte> before = decoded(source_of(tensors, source->hints().config), DecodePath::Fast);
    EXPECT_EQ(before, decoded(source_of(tensors, source->hints().config), DecodePath::Plain));
    for (std::size_t row = 0; row < 1280; row += 31) {
      const std::size_t in_matrix = row % 640, matrix = row / 640;
      const std::size_t cell = stored_rows == 5 ? in_matrix / 128 : in_matrix / 320 * 3 + in_matrix % 320 / 128;
      const float scale = scales[(matrix * static_cast<std::size_t>(stored_rows) + cell) * 2 + 1];
      EXPECT_EQ(scale_value(Dtype::F32, &before[4 * (row * 200 + 150)]),
                e4m3(tensors[0].bytes[row * 200 + 150]) * scale);
    }
    refine_scales(source, found_in(*source), 64);
    EXPECT_EQ(source->inventory().tensors[1].shape, (std::vector<i64>{2, 10, 2}));
    EXPECT_EQ(decoded(std::move(source), DecodePath::Plain), before);
  }
  // Blocks that begin anew behind 320 rows are no whole number of blocks of 128 / 2 x 3.
  auto source = source_of(
      {stored("a.w13.weight", Dtype::F8_E4M3, {208, 64}), stored("a.w13.weight_scale_inv", Dtype::F32, {4, 1})},
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [96, 128]}})");
  support::expect_error(
      ErrorCode::NotExact, [&] { refine_scales(source, found_in(*source), 48); }, "begin anew behind 104 rows");
}

/// Reading the decoded weight throws.
void refuses_to_decode(std::vector<MemoryTensor> tensors, const std::string& method, ErrorCode code,
                       const std::string& words) {
  auto source = source_of(std::move(tensors), R"({"quantization_config": {"quant_method": ")" + method +
                                                  R"(", "bits": 4, "group_size": 32}})");
  Quantization found = found_in(*source);
  source = decode_source(std::move(source), std::move(found), Dtype::BF16, DecodePath::Fast);
  support::expect_error(
      code, [&] { bytes_of(*source, 0); }, words);
}

TEST(DecodedSource, WhatHasNoValueIsNamed) {
  std::vector<MemoryTensor> nvfp4 = {stored("a.weight", Dtype::U8, {96, 32}),
                                     stored("a.weight_scale", Dtype::F8_E4M3, {96, 4}),
                                     stored("a.weight_scale_2", Dtype::F32, {})};
  const float nan = std::nanf("");
  std::memcpy(nvfp4[2].bytes.data(), &nan, sizeof nan);
  refuses_to_decode(nvfp4, "modelopt", ErrorCode::NotExact, "'a.weight_scale_2': a scale of 'a.weight' is NaN");
  nvfp4[2].bytes.assign(4, std::byte{0x3f});
  nvfp4[1].bytes[77] = std::byte{0x7f};
  refuses_to_decode(nvfp4, "modelopt", ErrorCode::NotExact, "'a.weight_scale': a scale of 'a.weight' is NaN");

  std::vector<MemoryTensor> gptq = {stored("a.qweight", Dtype::I32, {8, 96}), stored("a.scales", Dtype::F16, {2, 96}),
                                    stored("a.g_idx", Dtype::I32, {64}), stored("a.qzeros", Dtype::I32, {2, 12})};
  gptq[2].bytes[4 * 50] = std::byte{2};
  refuses_to_decode(gptq, "gptq", ErrorCode::SizeMismatch, "'a.g_idx': column 50 is of group 2; there are 2");
  gptq[2].bytes[4 * 50] = std::byte{0};
  gptq[1].bytes[2 * 130 + 1] = std::byte{0x7e};
  refuses_to_decode(gptq, "gptq", ErrorCode::NotExact, "'a.scales': a scale of 'a.weight' is NaN");
  std::vector<MemoryTensor> fused = {
      stored("e.w13_qweight", Dtype::I32, {3, 8, 96}), stored("e.w13_scales", Dtype::F16, {3, 2, 96}),
      stored("e.w13_g_idx", Dtype::I32, {3, 64, 2}), stored("e.w13_qzeros", Dtype::I32, {3, 2, 12})};
  fused[2].bytes[4 * (2 * 64 * 2 + 2 * 13 + 1)] = std::byte{1};
  refuses_to_decode(fused, "gptq", ErrorCode::NotSupported, "column 13 is of group 0 for gate and of group 1 for up");
  fused = {stored("e.w13_packed", Dtype::I32, {3, 96, 8}), stored("e.w13_scale", Dtype::F16, {3, 96, 2}),
           stored("e.w13_weight_g_idx", Dtype::I32, {3, 2, 64})};
  fused[2].bytes[4 * (2 * 64 * 2 + 64 + 13)] = std::byte{1};
  refuses_to_decode(fused, "compressed-tensors", ErrorCode::NotSupported,
                    "column 13 is of group 0 for gate and of group 1 for up");
}

/// compressed-tensors states what padding hides: the shape of a weight whose rows fill no whole words.
TEST(DecodedSource, AStatedShapeIsThatOfTheCodes) {
  const auto check = [](std::vector<i64> shape, const std::vector<i64>& numbers) {
    std::vector<MemoryTensor> tensors = {stored("e.w13_packed", Dtype::I32, {3, 96, 8}),
                                         stored("e.w13_scale", Dtype::BF16, {3, 96, 2}),
                                         stored("e.w13_shape", Dtype::I64, std::move(shape))};
    std::memcpy(tensors[2].bytes.data(), numbers.data(), tensors[2].bytes.size());
    const auto source = source_of(std::move(tensors));
    check_stated_shapes(*source, found_in(*source));
  };
  check({3, 2}, {96, 64, 96, 64, 96, 64});
  // Gate's and up's, one behind the other.
  check({3, 4}, {48, 64, 48, 64, 48, 64, 48, 64, 48, 64, 48, 64});
  const auto refused = [&](const std::vector<i64>& shape, const std::vector<i64>& numbers, const std::string& words) {
    support::expect_error(
        ErrorCode::SizeMismatch, [&] { check(shape, numbers); }, words);
  };
  refused({3, 2}, {96, 64, 96, 60, 96, 64}, "states [96, 60] for 'e.w13', whose codes are of [3, 96, 64]");
  refused({3, 2}, {96, 64, 48, 64, 96, 64}, "states [48, 64]");
  refused({2}, {96, 64}, "expected two numbers for each matrix");
  // compressed-tensors states the whole shape of a tensor of several matrices.
  check({3}, {3, 96, 64});
  refused({3}, {3, 64, 96}, "states [3, 64, 96] for 'e.w13'");
  refused({1, 3}, {3, 96, 64}, "expected two numbers for each matrix");
}

/// compressed-tensors 0.20 multiplies in the dtype of the scales, so fp16 rounds before bf16 does.
TEST(DecodedSource, Fp16ScalesOfCompressedTensorsRoundTheirProducts) {
  std::vector<MemoryTensor> int8 = {stored("a.weight", Dtype::I8, {32, 64}),
                                    stored("a.weight_scale", Dtype::F16, {32, 1})};
  for (std::size_t i = 0; i < int8[0].bytes.size(); ++i) int8[0].bytes[i] = static_cast<std::byte>(i * 7 + i / 64);
  for (std::size_t row = 0; row < 32; ++row) {
    const auto bits = static_cast<std::uint16_t>(0x2001 + 77 * row);
    std::memcpy(&int8[1].bytes[2 * row], &bits, sizeof bits);
  }
  std::size_t differ = 0;
  for (const DecodePath path : {DecodePath::Fast, DecodePath::Plain}) {
    auto source = source_of(int8, R"({"quantization_config": {"quant_method": "compressed-tensors"}})");
    Quantization found = found_in(*source);
    source = decode_source(std::move(source), std::move(found), Dtype::BF16, path);
    const std::vector<std::byte> decoded = bytes_of(*source, 0);
    for (std::size_t i = 0; i < int8[0].bytes.size(); ++i) {
      const float product = static_cast<float>(static_cast<std::int8_t>(int8[0].bytes[i])) *
                            scale_value(Dtype::F16, &int8[1].bytes[2 * (i / 64)]);
      std::byte expected[2], at_once[2];
      put_decoded(round_to(product, Dtype::F16), Dtype::BF16, expected);
      put_decoded(product, Dtype::BF16, at_once);
      ASSERT_TRUE(std::equal(expected, expected + 2, &decoded[2 * i])) << i;
      differ += std::equal(expected, expected + 2, at_once) ? 0 : 1;
    }
  }
  EXPECT_GT(differ, 0U);
}

/// Zero points of 8 and columns in their own order say what is so without them.
TEST(DecodedSource, WhatChangesNoNumberChangesNoBit) {
  std::vector<MemoryTensor> plain = {stored("a.weight_packed", Dtype::I32, {32, 8}),
                                     stored("a.weight_scale", Dtype::BF16, {32, 2})};
  for (std::size_t i = 0; i < plain[0].bytes.size(); ++i) plain[0].bytes[i] = static_cast<std::byte>(i * 7 + i / 64);
  for (std::size_t i = 0; i < 64; ++i) {
    const auto bits = static_cast<std::uint16_t>(0x3c01 + 37 * i);
    std::memcpy(&plain[1].bytes[2 * i], &bits, sizeof bits);
  }
  auto with_zeros = plain, with_order = plain;
  with_zeros.push_back(stored("a.weight_zero_point", Dtype::I32, {4, 2}));
  std::ranges::fill(with_zeros.back().bytes, std::byte{0x88});
  with_order.push_back(stored("a.weight_g_idx", Dtype::I32, {64}));
  for (std::size_t col = 32; col < 64; ++col) with_order.back().bytes[4 * col] = std::byte{1};
  for (const Dtype to : {Dtype::BF16, Dtype::F32})
    for (const DecodePath path : {DecodePath::Fast, DecodePath::Plain}) {
      const auto decoded = [&](const std::vector<MemoryTensor>& tensors) {
        auto source = source_of(tensors, R"({"quantization_config": {"quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}}})");
        Quantization found = found_in(*source);
        source = decode_source(std::move(source), std::move(found), to, path);
        EXPECT_EQ(source->inventory().tensors.size(), 1U);
        return bytes_of(*source, 0);
      };
      const std::vector<std::byte> expected = decoded(plain);
      EXPECT_EQ(decoded(with_zeros), expected);
      EXPECT_EQ(decoded(with_order), expected);
      // compressed-tensors 0.20 multiplies in the dtype of the scales, bf16, whatever is asked for.
      const i64 size = dtype_bits(to) / 8;
      for (i64 i = 0; i < 32 * 64; ++i) {
        const float value = widen_element(expected.data() + i * size, to);
        ASSERT_EQ(round_to(value, Dtype::BF16), value) << i;
      }
    }
}

/// The operator decodes arrays to the bits that --decode gives, in either dtype; without the rounding to other ones.
TEST(DecodedSource, TheOperatorRoundsProductsToFp16AsTheConversionDoes) {
  struct Case {
    Codes codes;
    Dtype dtype;
    std::string suffix;
  };
  for (const Case& format : {Case{Codes::Int8, Dtype::I8, ""}, Case{Codes::E4m3, Dtype::F8_E4M3, ""},
                             Case{Codes::Int4, Dtype::I32, "_packed"}}) {
    const i64 stored_cols = format.codes == Codes::Int4 ? 8 : 64;
    std::vector<MemoryTensor> tensors = {stored("a.weight" + format.suffix, format.dtype, {32, stored_cols}),
                                         stored("a.weight_scale", Dtype::F16, {32, 1})};
    for (std::size_t i = 0; i < tensors[0].bytes.size(); ++i)
      tensors[0].bytes[i] = static_cast<std::byte>((i * 7 + i / 64) & 0x7e);
    for (std::size_t row = 0; row < 32; ++row) {
      // The last one makes products that fp16 has no number for.
      const auto bits = static_cast<std::uint16_t>(row == 31 ? 0x7bff : 0x2001 + 77 * row);
      std::memcpy(&tensors[1].bytes[2 * row], &bits, sizeof bits);
    }
    for (const Dtype to : {Dtype::BF16, Dtype::F32}) {
      auto source = source_of(tensors, R"({"quantization_config": {"quant_method": "compressed-tensors"}})");
      Quantization found = found_in(*source);
      source = decode_source(std::move(source), std::move(found), to, DecodePath::Fast);
      const std::vector<std::byte> expected = bytes_of(*source, 0);
      CodedWeight weight{.codes = format.codes, .matrices = 1, .rows = 32, .cols = 64, .data = tensors[0].bytes.data()};
      weight.cell_cols = 64;
      weight.scales = tensors[1].bytes.data();
      weight.scale_dtype = Dtype::F16;
      std::vector<std::byte> decoded(expected.size());
      decode_codes_host(weight, to, decoded.data());
      EXPECT_NE(decoded, expected) << static_cast<int>(format.codes);
      weight.rounds_to_f16 = true;
      decode_codes_host(weight, to, decoded.data());
      EXPECT_EQ(decoded, expected) << static_cast<int>(format.codes);
    }
  }
}

}  // namespace
}  // namespace glu_ckpt
