/// Weights that are encoded here have the bits of the programs that are named: of testdata/encode, which those programs
/// encoded, and on each set of instructions.

#include "quant/encoded_source.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "core/crc32.hpp"
#include "glu_ckpt/model.hpp"
#include "quant/cell_tables.hpp"
#include "support/convert.hpp"
#include "support/memory_checkpoint.hpp"
#include "support/whole_models.hpp"

namespace glu_ckpt {
namespace {

using support::expect_error;
using support::MemorySource;
using support::MemoryTensor;

/// What testdata/encode/sums.txt says of one weight.
struct Fixture {
  std::string word;
  std::string program;
  std::string weight;
  std::string share;
  std::string codes;
  std::string scales;
  std::string second;
};

std::vector<Fixture> fixtures() {
  std::ifstream file(support::home_of("").parent_path().parent_path() / "encode/sums.txt");
  std::vector<Fixture> all;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    Fixture one;
    words >> one.word >> one.program >> one.weight >> one.share >> one.codes >> one.scales >> one.second;
    all.push_back(one);
  }
  return all;
}

/// Read in pieces of `piece` bytes, which do not end where rows do.
std::string sum_of(const Source& source, std::size_t tensor, i64 piece) {
  const i64 bytes = source.inventory().tensors[tensor].bytes;
  std::vector<std::byte> read(static_cast<std::size_t>(bytes));
  for (i64 at = 0; at < bytes; at += piece)
    source.read(
        tensor, at,
        std::span(read).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(piece, bytes - at))));
  return fmt::format("{:08x}", crc32_of(read));
}

std::size_t find(const Source& source, std::string_view name) {
  const auto& tensors = source.inventory().tensors;
  return static_cast<std::size_t>(std::ranges::find(tensors, name, &TensorRef::name) - tensors.begin());
}

TEST(EncodedSource, HasTheBitsOfTheProgramsOnEachSetOfInstructions) {
  const std::vector<Fixture> all = fixtures();
  ASSERT_GE(all.size(), 59U);
  std::vector<std::pair<EncodePath, SimdLevel>> ways = {{EncodePath::Plain, SimdLevel::Plain}};
  for (const SimdLevel level : simd_levels()) ways.emplace_back(EncodePath::Fast, level);
  for (const Fixture& fixture : all)
    for (const auto& [path, level] : ways) {
      SCOPED_TRACE(fmt::format("{} {} {} {}, path {}, level {}", fixture.word, fixture.program, fixture.weight,
                               fixture.share, static_cast<int>(path), static_cast<int>(level)));
      std::unique_ptr<Source> source =
          open_source(support::home_of("").parent_path().parent_path() / "encode/input.safetensors");
      const std::size_t weight = find(*source, fixture.weight);
      const std::size_t other = find(*source, fixture.weight == "gate" ? "up" : "gate");
      EncodedWeight encoded{weight, "experts", {}};
      if (fixture.share == "shared") encoded.shares_with = {other};
      encode_source(source, find_encoder(fixture.word, fixture.program), {encoded}, path, level);
      const std::size_t first = weight;
      // Before the codes or after them: their scales are kept.
      if (path == EncodePath::Plain || level != simd_levels().front()) {
        EXPECT_EQ(sum_of(*source, first + 1, 97), fixture.scales);
      }
      EXPECT_EQ(sum_of(*source, first, 1 << 30), fixture.codes);
      EXPECT_EQ(sum_of(*source, first + 1, 1 << 30), fixture.scales);
      EXPECT_EQ(fixture.second == "-" ? "-" : sum_of(*source, first + 2, 1 << 30), fixture.second);
      if (path == EncodePath::Plain) continue;
      EXPECT_EQ(sum_of(*source, first, 7777), fixture.codes);
      EXPECT_EQ(sum_of(*source, first + 1, 97), fixture.scales);
    }
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Numbers of all binades, and those in the middle between two codes.
std::vector<float> hard_numbers() {
  std::vector<float> values = {0.0F, -0.0F};
  std::mt19937 random(7);
  for (int exponent = 60; exponent < 140; ++exponent)
    for (int i = 0; i < 64; ++i)
      values.push_back(
          std::bit_cast<float>(static_cast<u32>(exponent) << 23 | (static_cast<u32>(random()) & 0x807f'ffff)));
  for (u32 code = 0; code < 0x7e00'0000; code += 0x0004'0000)
    for (const u32 around : {0U, 1U, ~0U}) values.push_back(std::bit_cast<float>(0x3000'0000 + (code >> 4) + around));
  if (values.size() % 2 == 1) values.push_back(1);
  return values;
}

TEST(EncodeRow, IsTheSameOnEachSetOfInstructionsAsBySearch) {
  const std::vector<float> values = hard_numbers();
  const std::vector<std::byte> weights = bytes_of(values);
  const i64 count = std::ssize(values);
  for (const QuantFormat* format : quant_formats())
    for (const EncoderRow& row : format->encoders)
      for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
        for (const float factor : {1.0F, 0.37F, 512.0F}) {
          SCOPED_TRACE(std::string(row.word) + " " + std::string(row.program));
          const Encoder encoder = find_encoder(row.word, row.program);
          const i64 elements = dtype == Dtype::F32 ? count : 2 * count;
          std::vector<std::byte> sane = weights;
          constexpr i64 kCell = 3 * kLeastCell;
          std::vector<float> factors;
          for (i64 first = 0; first < elements; first += kCell)
            factors.push_back(factor * static_cast<float>(1 + std::ssize(factors) % 3));
          // Halves of floats may be infinite as bf16.
          if (dtype == Dtype::BF16)
            for (std::size_t i = 1; i < sane.size(); i += 2)
              if ((sane[i] & std::byte{0x7f}) == std::byte{0x7f}) sane[i] = std::byte{0x3f};
          std::vector<std::byte> expected(static_cast<std::size_t>(elements));
          encode_row_by_search(encoder, sane.data(), elements, dtype, factors.data(), kCell, expected.data());
          for (const SimdLevel level : simd_levels()) {
            std::vector<std::byte> made(expected.size());
            encode_row(encoder, sane.data(), elements, dtype, factors.data(), kCell, made.data(), level);
            EXPECT_EQ(made, expected) << static_cast<int>(level);
          }
        }
}

bool has_byte_tables() {
#if defined(__x86_64__)
  return simd_levels().front() == SimdLevel::Avx512 && __builtin_cpu_supports("avx512vbmi");
#else
  return false;
#endif
}

TEST(CellTables, EncodeAllFiniteWeightsAsEncodeRowDoes) {
  std::vector<std::uint16_t> bits;
  for (u32 sign : {0U, 0x8000U})
    for (u32 magnitude = 0; magnitude < 0x7f80; ++magnitude)
      bits.push_back(static_cast<std::uint16_t>(sign | magnitude));
  const std::byte* const weights = std::as_bytes(std::span(bits)).data();
  const i64 count = std::ssize(bits);
  // A cell whose end is no multiple of what an instruction takes.
  constexpr i64 kCell = 720;
  const SimdLevel level = simd_levels().front();
  for (const QuantFormat* format : quant_formats())
    for (const EncoderRow& row : format->encoders) {
      const Encoder encoder = find_encoder(row.word, row.program);
      // All factors alike, each twice the one before, or all different.
      for (const float step : {1.0F, 2.0F, 1.1F})
        for (const float first : {1.0F, 0x1.fffffep-1F, 0.0123F, 0x1.000002p-9F, 417.3F, 0x1p-111F, 0x1.8p111F}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", row.word, row.program, first, step));
          std::vector<float> factors;
          for (i64 cell = 0; cell * kCell < count; ++cell)
            factors.push_back(cell % 3 == 0 || first > 1e30F ? first : factors.back() * step);
          const CellTables tables(encoder, factors, Dtype::BF16, kCell, level);
          if (encoder.codes != Codes::E4m3 || !has_byte_tables()) {
            EXPECT_TRUE(tables.empty());
            continue;
          }
          ASSERT_FALSE(tables.empty());
          std::vector<std::byte> expected(bits.size()), made(bits.size());
          encode_row(encoder, weights, count, Dtype::BF16, factors.data(), kCell, expected.data(), SimdLevel::Plain);
          tables.encode_row(encoder, weights, count, 0, kCell, made.data());
          EXPECT_EQ(made, expected);
          tables.encode_row(encoder, weights + 2 * 2 * kCell, kCell, 2, kCell, made.data());
          EXPECT_TRUE(std::equal(made.begin(), made.begin() + kCell, expected.begin() + 2 * kCell));
        }
      const auto is_empty = [&](float factor, Dtype dtype, i64 weights_of_cell) {
        return CellTables(encoder, {&factor, 1}, dtype, weights_of_cell, level).empty();
      };
      for (const float factor : {0.0F, 0x1p-112F, 0x1p112F}) EXPECT_TRUE(is_empty(factor, Dtype::BF16, 128 * 128));
      EXPECT_TRUE(is_empty(1, Dtype::F32, 128 * 128));
      EXPECT_TRUE(is_empty(1, Dtype::BF16, 32));
    }
}

TEST(RaiseGreatest, IsTheSameOnEachSetOfInstructionsForCellsOfEachSize) {
  std::vector<float> values = hard_numbers();
  values.resize(5000);
  values[1234] = -std::numeric_limits<float>::infinity();
  values[4321] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::byte> weights = bytes_of(values);
  for (const i64 cell_cols : {i64{16}, i64{32}, i64{48}, i64{128}, i64{1000}, i64{5000}}) {
    std::vector<float> expected(static_cast<std::size_t>((5000 + cell_cols - 1) / cell_cols), 1e-30F);
    for (i64 i = 0; i < 5000; ++i) {
      float& greatest = expected[static_cast<std::size_t>(i / cell_cols)];
      const float value = std::fabs(values[static_cast<std::size_t>(i)]);
      greatest = std::isfinite(value) ? std::max(greatest, value) : std::numeric_limits<float>::infinity();
    }
    for (const SimdLevel level : simd_levels()) {
      std::vector<float> greatest(expected.size(), 1e-30F);
      raise_greatest(weights.data(), 5000, Dtype::F32, cell_cols, greatest.data(), level);
      EXPECT_EQ(greatest, expected) << cell_cols << " " << static_cast<int>(level);
    }
  }
}

MemoryTensor weight_of(i64 rows, i64 cols, float value) {
  const std::vector<float> values(static_cast<std::size_t>(rows * cols), value);
  return {"a.weight", Dtype::F32, {rows, cols}, bytes_of(values)};
}

void encode(const MemoryTensor& weight, std::string_view word, std::string_view program = {}) {
  std::unique_ptr<Source> source = std::make_unique<MemorySource>(std::vector{weight});
  const Encoder encoder = find_encoder(word, program);
  check_encodable(encoder, source->inventory().tensors.at(0));
  encode_source(source, encoder, {{0, "experts", {}}}, EncodePath::Fast);
}

TEST(EncodedSource, RefusesWhatHasNoCodes) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    MemoryTensor weight = weight_of(130, 160, 1);
    std::memcpy(&weight.bytes[4 * (129 * 160 + 150)], &value, sizeof value);
    expect_error(
        ErrorCode::NotExact, [&] { encode(weight, "fp8:128x128"); }, "'a.weight': element [129, 150] is ");
  }
  expect_error(
      ErrorCode::NotExact, [&] { encode(weight_of(128, 128, 0), "fp8:128x128", "modelopt"); },
      "whose greatest weight is 0");
  expect_error(
      ErrorCode::NotExact, [&] { encode(weight_of(4, 48, 1), "mxfp8"); },
      "rows of 48 weights are not a multiple of 32");
  expect_error(
      ErrorCode::NotSupported, [&] { encode(weight_of(4, 64, 1), "mxfp8", "compressed-tensors"); },
      "are known for BF16 alone");
  expect_error(
      ErrorCode::Usage, [&] { find_encoder("nvfp4", "slime"); }, "there are modelopt, compressed-tensors");
}

}  // namespace
}  // namespace glu_ckpt
