#pragma once
/// Numbers to codes and scales, with the bits of the programs that the rows of EncoderRow name.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/encode_bits.hpp"
#include "core/simd.hpp"
#include "glu_ckpt/tensor.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

/// An encoder, and the format that it is one of.
struct Encoder {
  const QuantFormat* format = nullptr;
  EncoderRow row;
  Codes codes = Codes::E4m3;
};

/// The words of all encoders, each once, and the programs of them.
std::vector<std::string> known_encodings();
std::vector<std::string> known_encoders();

/// `program` may be empty: the first one of the word. Throws Usage, naming those that there are.
Encoder find_encoder(std::string_view word, std::string_view program);

/// The formulas of the encoder for weights of `dtype`, BF16 or F32.
CellRule cell_rule(const Encoder& encoder, Dtype dtype);

/// Returns whether the program makes a second scale for each matrix.
bool has_second_scale(const EncoderRow& row);

/// Makes the scales of cells whose greatest magnitudes, finite ones, are `greatest`: the bits that are stored, and the
/// factors that weights are multiplied with, or divided by. `dtype` is that of the weights; `second` the second scale.
void cell_scales(const Encoder& encoder, std::span<const float> greatest, Dtype dtype, float second, u32* stored,
                 float* factors);

/// The second scale of a matrix, or of gate and up together, whose greatest magnitude is `greatest`.
float second_scale(const EncoderRow& row, float greatest, Dtype dtype);

/// A cell that is not the last of its row has a multiple of so many weights.
inline constexpr i64 kLeastCell = 16;

/// Raises `greatest`, one for each `cell_cols` of `count` weights, to their greatest magnitude; infinite where one is
/// NaN or infinite. Weights are at any address, of BF16 or F32.
void raise_greatest(const std::byte* weights, i64 count, Dtype dtype, i64 cell_cols, float* greatest,
                    SimdLevel level = simd_levels().front());

/// Writes the codes of a row of weights, of which `cell_cols` have each of the `factors`: a byte each, or two in a
/// byte, the first one in its lower half; `count` is even then. Every level of instructions gives the same bits.
void encode_row(const Encoder& encoder, const std::byte* weights, i64 count, Dtype dtype, const float* factors,
                i64 cell_cols, std::byte* out, SimdLevel level = simd_levels().front());

/// Encodes by another road, for checks: each number is compared with the values of the codes.
void encode_row_by_search(const Encoder& encoder, const std::byte* weights, i64 count, Dtype dtype,
                          const float* factors, i64 cell_cols, std::byte* out);

}  // namespace glu_ckpt
