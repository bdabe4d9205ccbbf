#include "quant/nudged_codes.hpp"

#include <array>

namespace glu_ckpt {
namespace {

using CodeTable = std::array<std::byte, 256>;

/// The neighbour of a code that has a sign and a magnitude, the last finite one of which is `most`. Zero has two codes,
/// which are one number.
unsigned neighbour_of_signed(unsigned code, unsigned sign_bit, unsigned most, bool up) {
  const unsigned magnitude = code & (sign_bit - 1);
  const bool grows = magnitude == 0 || ((code & sign_bit) == 0) == up;
  if (magnitude > most || (grows && magnitude == most)) return code;
  const unsigned sign = magnitude == 0 ? (up ? 0 : sign_bit) : code & sign_bit;
  return sign | (grows ? magnitude + 1 : magnitude - 1);
}

unsigned neighbour_of_unsigned(unsigned code, unsigned most, bool up) {
  if (code == (up ? most : 0)) return code;
  return up ? code + 1 : code - 1;
}

unsigned neighbour(Codes codes, unsigned code, bool up) {
  switch (codes) {
    case Codes::E4m3: return neighbour_of_signed(code, 0x80, 0x7E, up);
    case Codes::E5m2: return neighbour_of_signed(code, 0x80, 0x7B, up);
    case Codes::E2m1: return neighbour_of_signed(code, 8, 7, up);
    case Codes::Int8: return neighbour_of_unsigned(code ^ 0x80, 0xFF, up) ^ 0x80;
    case Codes::Int4:
    case Codes::Awq:
    case Codes::Gptq: return neighbour_of_unsigned(code, 15, up);
  }
  return code;
}

CodeTable table_of(Codes codes, bool up) {
  const bool is_byte = codes == Codes::E4m3 || codes == Codes::E5m2 || codes == Codes::Int8;
  CodeTable table;
  for (unsigned byte = 0; byte < table.size(); ++byte)
    table[byte] = static_cast<std::byte>(
        is_byte ? neighbour(codes, byte, up) : neighbour(codes, byte & 15, up) | neighbour(codes, byte >> 4, up) << 4);
  return table;
}

}  // namespace

void nudge_codes(Codes codes, Nudge nudge, std::span<std::byte> bytes) {
  if (nudge == Nudge::None) return;
  const CodeTable table = table_of(codes, nudge == Nudge::Up);
  for (std::byte& byte : bytes) byte = table[std::to_integer<std::size_t>(byte)];
}

void NudgedSource::read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const {
  source_.read_scattered(tensor, offset, pieces);
  if (tensor != tensor_) return;
  for (const auto& piece : pieces) nudge_codes(codes_, nudge_, piece);
}

}  // namespace glu_ckpt
