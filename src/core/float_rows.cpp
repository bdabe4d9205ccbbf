#include "core/float_rows.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace glu_ckpt {
namespace {

using float_bits::from_bf16, float_bits::from_f16, float_bits::rounded_to_bf16;
using float_bits::kBf16Infinity, float_bits::kF16Infinity, float_bits::kF32Infinity;
using u16 = std::uint16_t;

static_assert(std::endian::native == std::endian::little);

/// One element's bits, little-endian.
template <typename Bits>
Bits element(std::span<const std::byte> bytes, std::size_t index) {
  Bits bits = 0;
  std::memcpy(&bits, bytes.data() + index * sizeof(Bits), sizeof(Bits));
  return bits;
}

/// Equal bits, or both NaN: above `infinity`, the sign aside.
template <typename Bits>
bool same_value(Bits a, Bits b, Bits infinity) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() / 2;
  return a == b || ((a & kMagnitude) > infinity && (b & kMagnitude) > infinity);
}

template <typename Wide, typename Narrow, typename Round>
bool all_round(std::span<const std::byte> wide, std::span<const std::byte> narrow, Narrow infinity, Round round) {
  if (wide.size() / sizeof(Wide) != narrow.size() / sizeof(Narrow)) return false;
  for (std::size_t i = 0; i < wide.size() / sizeof(Wide); ++i)
    if (!same_value<Narrow>(round(element<Wide>(wide, i)), element<Narrow>(narrow, i), infinity)) return false;
  return true;
}

template <typename Widen>
void widen_u16(const std::byte* data, std::span<float> out, Widen widen) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    u16 bits = 0;
    std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
    out[i] = widen(bits);
  }
}

/// Counts the elements above infinity, the sign aside. The count of a tile fits into an element, so that as many are
/// added at a time as are compared.
template <typename Bits>
i64 count_from(std::span<const std::byte> bytes, Bits infinity) {
  constexpr std::size_t kTile = 1U << 15U;
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() / 2;
  const std::size_t count = bytes.size() / sizeof(Bits);
  i64 total = 0;
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t end = std::min(first + kTile, count);
    Bits found = 0;
    for (std::size_t i = first; i < end; ++i)
      found = static_cast<Bits>(found + ((element<Bits>(bytes, i) & kMagnitude) >= infinity ? 1 : 0));
    total += found;
  }
  return total;
}

}  // namespace

float widen_element(const std::byte* data, Dtype dtype) {
  float value = 0;
  widen_row(data, dtype, {&value, 1});
  return value;
}

void widen_row(const std::byte* data, Dtype dtype, std::span<float> out) {
  // Rows of no tokens may have no address, which memcpy must not be given.
  if (out.empty()) return;
  if (dtype == Dtype::BF16)
    widen_u16(data, out, from_bf16);
  else if (dtype == Dtype::F16)
    widen_u16(data, out, from_f16);
  else
    std::memcpy(out.data(), data, out.size_bytes());
}

void narrow_row(std::span<const float> values, Dtype dtype, std::byte* out) {
  if (values.empty()) return;
  if (dtype == Dtype::F32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return;
  }
  const auto put = [&](std::size_t i, u16 bits) { std::memcpy(out + i * sizeof bits, &bits, sizeof bits); };
  if (dtype == Dtype::BF16)
    for (std::size_t i = 0; i < values.size(); ++i)
      put(i, static_cast<u16>(rounded_to_bf16(std::bit_cast<u32>(values[i])) >> 16));
  else
    for (std::size_t i = 0; i < values.size(); ++i) put(i, round_to_f16(std::bit_cast<u32>(values[i])));
}

void round_row(std::span<float> values, Dtype dtype) {
  if (dtype == Dtype::BF16)
    for (float& value : values) value = std::bit_cast<float>(rounded_to_bf16(std::bit_cast<u32>(value)));
  else if (dtype == Dtype::F16)
    for (float& value : values) value = from_f16(round_to_f16(std::bit_cast<u32>(value)));
}

float round_to(float value, Dtype dtype) {
  if (dtype == Dtype::F32) return value;
  const u32 bits = std::bit_cast<u32>(value);
  return dtype == Dtype::BF16 ? std::bit_cast<float>(rounded_to_bf16(bits)) : from_f16(round_to_f16(bits));
}

i64 count_not_finite(std::span<const std::byte> bytes, Dtype dtype) {
  if (dtype == Dtype::F32) return count_from<u32>(bytes, kF32Infinity);
  return count_from<u16>(bytes, dtype == Dtype::BF16 ? kBf16Infinity : kF16Infinity);
}

bool can_round(Dtype from, Dtype to) {
  const bool narrow = to == Dtype::BF16 || to == Dtype::F16;
  return (from == Dtype::F32 && narrow) || (from == to && (narrow || to == Dtype::F32 || to == Dtype::F64));
}

bool rounds_to(std::span<const std::byte> wide, Dtype from, std::span<const std::byte> narrow, Dtype to) {
  constexpr u64 kF64Infinity = u64{0x7ff} << 52;
  const auto as_is = [](auto bits) { return bits; };
  if (to == Dtype::F64) return all_round<u64, u64>(wide, narrow, kF64Infinity, as_is);
  if (to == Dtype::F32) return all_round<u32, u32>(wide, narrow, kF32Infinity, as_is);
  if (from == to) return all_round<u16, u16>(wide, narrow, to == Dtype::BF16 ? kBf16Infinity : kF16Infinity, as_is);
  if (to == Dtype::BF16) return all_round<u32, u16>(wide, narrow, kBf16Infinity, round_to_bf16);
  return all_round<u32, u16>(wide, narrow, kF16Infinity, round_to_f16);
}

}  // namespace glu_ckpt
