#pragma once
/// Rounding fp32 to the dtypes of weights, on bits: to nearest, ties to even, as frameworks cast their master weights.

#include <cstddef>
#include <cstdint>
#include <span>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// NaN becomes a quiet NaN of its sign with the upper bits of its payload; too large a value becomes infinite.
std::uint16_t round_to_bf16(std::uint32_t fp32);
std::uint16_t round_to_f16(std::uint32_t fp32);

/// Whether values of `from` determine those of `to`: fp32 those of bf16 and fp16, and each float dtype its own.
bool can_round(Dtype from, Dtype to);

/// Whether each element of `wide`, rounded, has the bits of its element of `narrow`. All NaNs are taken for equal, for
/// casts differ in their payloads. Requires can_round(from, to), and equally many elements.
bool rounds_to(std::span<const std::byte> wide, Dtype from, std::span<const std::byte> narrow, Dtype to);

}  // namespace glu_ckpt
