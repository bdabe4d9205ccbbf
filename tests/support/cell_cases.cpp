#include "support/cell_cases.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/float_rows.hpp"
#include "glu_ckpt/error.hpp"
#include "quant/cell_encoder.hpp"
#include "support/memory_checkpoint.hpp"

namespace glu_ckpt::support {
namespace {

/// The kind of number changes every 48 weights, so that each cell of 16 has one kind and larger ones have several.
float number_at(i64 at, i64 total, std::mt19937& random) {
  const auto bits = static_cast<u32>(random());
  const float sign = (bits & 1) != 0 ? -1.0F : 1.0F;
  switch (at / 48 % 8) {
    // No two weights of a matrix are alike: one that went to another place would show.
    case 0: return sign * (1 + static_cast<float>(at) / static_cast<float>(total));
    case 1: return std::bit_cast<float>((bits & 0x807f'ffff) | (117 + bits / 256 % 12) << 23);
    case 2: return sign * 0.0F;
    case 3:
      return std::bit_cast<float>(bits & 0x807f'ffff);  // subnormal
    // The middles between codes of FP4 and INT4, and between some of FP8, below a greatest one of 6 or 448.
    case 4: return at % 48 == 0 ? 6.0F : sign * static_cast<float>(bits / 256 % 24) / 4;
    case 5: return at % 48 == 0 ? 448.0F : sign * static_cast<float>(bits / 256 % 449) / 2;
    case 6: return std::bit_cast<float>((bits & 0x807f'ffff) | (1 + bits / 256 % 250) << 23);
    // What torchao's and others' powers let overflow.
    default: return at % 48 == 0 ? 7.5F : sign * 7;
  }
}

std::vector<std::byte> weights_of(i64 rows, i64 cols, Dtype dtype) {
  std::mt19937 random(static_cast<u32>(rows * 1000 + cols));
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = number_at(static_cast<i64>(i), std::ssize(values), random);
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(dtype_bits(dtype) / 8));
  narrow_row(values, dtype, bytes.data());
  return bytes;
}

float greatest_of(const CellCase& one) {
  float greatest = 0;
  raise_greatest(one.weights.data(), one.batch.rows * one.batch.cols, one.dtype, one.batch.rows * one.batch.cols,
                 &greatest);
  return greatest;
}

TensorRef tensor_of(const CellCase& one) {
  TensorRef tensor;
  tensor.name = "a.weight";
  tensor.dtype = one.dtype;
  tensor.shape = {one.batch.rows, one.batch.cols};
  tensor.bytes = std::ssize(one.weights);
  return tensor;
}

CellCase case_of(const Encoder& encoder, Dtype dtype, i64 rows, i64 cols) {
  CellCase one{encoder, dtype, {}, weights_of(rows, cols, dtype)};
  one.batch.rows = rows;
  one.batch.cols = cols;
  const TensorRef tensor = tensor_of(one);
  const WeightCells cells(one.encoder, tensor, false);
  one.batch = cells_to_encode(one.encoder, cells, rows, 1);
  if (has_second_scale(encoder.row)) one.batch.second = second_scale(encoder.row, greatest_of(one), dtype);
  return one;
}

void put(CellCase& one, i64 at, float value) {
  const i64 size = dtype_bits(one.dtype) / 8;
  narrow_row(std::span(&value, 1), one.dtype, one.weights.data() + at * size);
  one.is_watched = true;
}

bool is_encodable(const Encoder& encoder, Dtype dtype, i64 rows, i64 cols) {
  TensorRef tensor;
  tensor.dtype = dtype;
  tensor.shape = {rows, cols};
  try {
    check_encodable(encoder, tensor);
    return encodes_shape(encoder, tensor);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string CellCase::describe() const {
  return std::string(encoder.row.word) + " " + std::string(encoder.row.program) + " of " +
         std::string(dtype_name(dtype)) + " [" + std::to_string(batch.rows) + ", " + std::to_string(batch.cols) + "]" +
         (is_watched ? ", watched" : "");
}

std::vector<CellCase> cell_cases() {
  constexpr std::pair<i64, i64> kShapes[] = {{5, 384}, {128, 256}, {130, 272}, {131, 45}, {1, 128}};
  std::vector<CellCase> cases;
  for (const QuantFormat* format : quant_formats())
    for (const EncoderRow& row : format->encoders)
      for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
        for (const auto& [rows, cols] : kShapes) {
          const Encoder encoder = find_encoder(row.word, row.program);
          if (!is_encodable(encoder, dtype, rows, cols)) continue;
          const CellCase plain = case_of(encoder, dtype, rows, cols);
          cases.push_back(plain);
          for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(),
                                    0x1.fep127F, 0x1p126F}) {
            CellCase watched = plain;
            put(watched, rows * cols - 1, value);
            cases.push_back(std::move(watched));
          }
        }
  return cases;
}

HostCells host_cells(const CellCase& one) {
  HostCells host;
  const MemorySource source({{"a.weight", one.dtype, {one.batch.rows, one.batch.cols}, one.weights}});
  const EncodedWeight weight{0, "experts", {}};
  const auto encode = [&](EncodePath path, std::vector<std::byte>& codes) {
    CellEncoder encoder(source, one.encoder, weight, path, simd_levels().front(), one.batch.second);
    encoder.load(0, one.batch.grid_rows());
    host.scales.resize(static_cast<std::size_t>(one.batch.scales_bytes()));
    encoder.put_scales(host.scales.data());
    codes.resize(static_cast<std::size_t>(one.batch.code_bytes()));
    const i64 row_bytes = one.batch.code_bytes() / one.batch.rows;
    for (i64 row = 0; row < one.batch.rows; ++row) encoder.put_codes(row, codes.data() + row * row_bytes);
  };
  try {
    encode(EncodePath::Fast, host.codes);
    encode(EncodePath::Plain, host.searched_codes);
  } catch (const Error& error) {
    host.refused = error.what();
  }
  return host;
}

}  // namespace glu_ckpt::support
