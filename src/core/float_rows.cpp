#include "core/float_rows.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/round_float.hpp"

namespace glu_ckpt {
namespace {

using u16 = std::uint16_t;

float from_bf16(u16 bits) { return std::bit_cast<float>(static_cast<u32>(bits) << 16); }

float from_f16(u16 bits) {
  constexpr u32 kInfinity = 0x7c00;
  // The exponent's bias is 112 less than that of fp32. Subnormals are subnormal in fp32 too until they are multiplied.
  constexpr float kBias = 0x1p112F;
  const u32 magnitude = bits & u32{0x7fff};
  const u32 sign = (bits & u32{0x8000}) << 16;
  const u32 finite = std::bit_cast<u32>(std::bit_cast<float>(magnitude << 13) * kBias);
  const u32 special = 0x7f80'0000 | (magnitude << 13 & 0x007f'ffff);
  return std::bit_cast<float>(sign | (magnitude >= kInfinity ? special : finite));
}

template <typename Widen>
void widen_u16(const std::byte* data, std::span<float> out, Widen widen) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    u16 bits = 0;
    std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
    out[i] = widen(bits);
  }
}

/// round_to_bf16(), as fp32 again and without a branch, so that the compiler can take several at a time.
inline u32 rounded_to_bf16(u32 bits) {
  constexpr u32 kInfinity = 0x7f80'0000;
  constexpr u32 kQuiet = 0x0040'0000;
  // Just less than half of a unit, or half where the kept part is odd: the carry is what rounds to nearest even.
  const u32 rounded = bits + 0x7fff + (bits >> 16 & 1);
  return ((bits & 0x7fff'ffff) > kInfinity ? bits | kQuiet : rounded) & 0xffff'0000;
}

u16 narrow(float value, Dtype dtype) {
  const u32 bits = std::bit_cast<u32>(value);
  return dtype == Dtype::BF16 ? round_to_bf16(bits) : round_to_f16(bits);
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
  const u16 bits = narrow(value, dtype);
  return dtype == Dtype::BF16 ? from_bf16(bits) : from_f16(bits);
}

}  // namespace glu_ckpt
