#include "core/element_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_rows.hpp"

namespace glu_ckpt {
namespace {

template <typename T>
T value_of(std::span<const std::byte> element) {
  T value{};
  std::memcpy(&value, element.data(), std::min(sizeof value, element.size()));
  return value;
}

/// A sign, then exponent and mantissa. OCP's E4M3 has no infinity, and the FNUZ formats have one NaN, which is -0.
float small_float(unsigned code, int mantissa_bits, int bias, bool has_infinity, bool fnuz) {
  const unsigned magnitude = code & 0x7f;
  if (fnuz ? code == 0x80 : !has_infinity && magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const unsigned exponent = magnitude >> mantissa_bits;
  const unsigned mantissa = magnitude & ((1U << mantissa_bits) - 1);
  if (has_infinity && exponent == (0x7fU >> mantissa_bits) && mantissa != 0)
    return std::numeric_limits<float>::quiet_NaN();
  const float sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
  if (has_infinity && exponent == (0x7fU >> mantissa_bits)) return sign * std::numeric_limits<float>::infinity();
  const auto whole = static_cast<float>(exponent == 0 ? mantissa : mantissa + (1U << mantissa_bits));
  return sign * std::ldexp(whole, (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - mantissa_bits);
}

}  // namespace

std::string bits_text(std::span<const std::byte> element) {
  std::string text = "0x";
  for (auto byte = element.rbegin(); byte != element.rend(); ++byte)
    text += fmt::format("{:02x}", std::to_integer<unsigned>(*byte));
  return text;
}

std::string number_text(Dtype dtype, std::span<const std::byte> element) {
  const auto code = std::to_integer<unsigned>(element.front());
  switch (dtype) {
    case Dtype::BOOL: return code != 0 ? "true" : "false";
    case Dtype::U8: return fmt::format("{}", code);
    case Dtype::I8: return fmt::format("{}", value_of<std::int8_t>(element));
    case Dtype::I16: return fmt::format("{}", value_of<std::int16_t>(element));
    case Dtype::U16: return fmt::format("{}", value_of<std::uint16_t>(element));
    case Dtype::I32: return fmt::format("{}", value_of<std::int32_t>(element));
    case Dtype::U32: return fmt::format("{}", value_of<u32>(element));
    case Dtype::I64: return fmt::format("{}", value_of<i64>(element));
    case Dtype::U64: return fmt::format("{}", value_of<u64>(element));
    case Dtype::F16:
    case Dtype::BF16:
    case Dtype::F32: return fmt::format("{}", widen_element(element.data(), dtype));
    case Dtype::F64: return fmt::format("{}", value_of<double>(element));
    case Dtype::F8_E4M3: return fmt::format("{}", small_float(code, 3, 7, false, false));
    case Dtype::F8_E5M2: return fmt::format("{}", small_float(code, 2, 15, true, false));
    case Dtype::F8_E4M3FNUZ: return fmt::format("{}", small_float(code, 3, 8, false, true));
    case Dtype::F8_E5M2FNUZ: return fmt::format("{}", small_float(code, 2, 16, false, true));
    case Dtype::F8_E8M0: return code == 0xff ? "nan" : fmt::format("{}", std::ldexp(1.0, static_cast<int>(code) - 127));
    default: return {};
  }
}

}  // namespace glu_ckpt
