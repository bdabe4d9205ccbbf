#include "support/copy_cases.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace glu_ckpt::support {
namespace {

std::string describe(const std::string& what, const GluSizes& s) {
  return fmt::format("{} E={} F={} H={} K={} of {} bytes", what, s.experts, s.width, s.hidden, s.block_rows,
                     s.element_bytes);
}

void turn_round(CopyCase& item) {
  for (Move& move : item.moves) {
    std::swap(move.src, move.dst);
    std::swap(move.src_offset, move.dst_offset);
    for (MoveDim& dim : move.dims) std::swap(dim.src_step, dim.dst_step);
  }
  std::swap(item.src_bytes, item.dst_bytes);
}

/// One tensor for all experts, or one for each.
std::vector<i64> tensors(const GluSizes& s, bool indexed, i64 expert_bytes) {
  return indexed ? std::vector<i64>(static_cast<std::size_t>(s.experts), expert_bytes)
                 : std::vector<i64>{s.experts * expert_bytes};
}

}  // namespace

CopyCase interleave_case(const GluSizes& s, bool interleave, bool src_indexed, bool dst_indexed) {
  const i64 row = s.hidden * s.element_bytes, block = s.block_rows * row, half = s.width * row;
  CopyCase item;
  item.name = describe(interleave ? "interleave" : "de-interleave", s) + (src_indexed ? " from indexed" : "") +
              (dst_indexed ? " to indexed" : "");
  if (!interleave) std::swap(src_indexed, dst_indexed);
  item.src_bytes = tensors(s, src_indexed, 2 * half);
  item.dst_bytes = tensors(s, dst_indexed, 2 * half);
  for (i64 e = 0; e < s.experts; ++e)
    for (i64 h = 0; h < 2; ++h) {
      Move move;
      move.src = src_indexed ? static_cast<std::size_t>(e) : 0;
      move.dst = dst_indexed ? static_cast<std::size_t>(e) : 0;
      move.src_offset = (src_indexed ? 0 : e * 2 * half) + h * half;
      move.dst_offset = (dst_indexed ? 0 : e * 2 * half) + h * block;
      move.dims[0] = {s.width / s.block_rows, block, 2 * block};
      move.run_bytes = block;
      item.moves.push_back(move);
    }
  if (!interleave) turn_round(item);
  return item;
}

CopyCase join_case(const GluSizes& s, bool join) {
  const i64 row = s.hidden * s.element_bytes, block = s.block_rows * row, half = s.width * row;
  CopyCase item;
  item.name = describe(join ? "join" : "split", s);
  item.src_bytes = {s.experts * half, s.experts * half};
  item.dst_bytes = {s.experts * 2 * half};
  for (i64 e = 0; e < s.experts; ++e)
    for (i64 h = 0; h < 2; ++h) {
      Move move;
      move.src = static_cast<std::size_t>(h);
      move.src_offset = e * half;
      move.dst_offset = e * 2 * half + h * block;
      move.dims[0] = {s.width / s.block_rows, block, 2 * block};
      move.run_bytes = block;
      item.moves.push_back(move);
    }
  if (!join) turn_round(item);
  return item;
}

CopyCase turn_case(const GluSizes& s, bool from_gpt_oss) {
  const i64 size = s.element_bytes, row = s.hidden * size, expert = 2 * s.width * row;
  CopyCase item;
  item.name = describe(from_gpt_oss ? "from gpt-oss" : "to gpt-oss", s);
  item.src_bytes = item.dst_bytes = {s.experts * expert};
  for (i64 e = 0; e < s.experts; ++e)
    for (i64 h = 0; h < 2; ++h) {
      Move move;
      move.src_offset = e * expert + h * size;
      move.dst_offset = e * expert + h * s.block_rows * row;
      move.dims[0] = {s.width / s.block_rows, s.block_rows * 2 * size, 2 * s.block_rows * row};
      move.dims[1] = {s.block_rows, 2 * size, row};
      move.dims[2] = {s.hidden, 2 * s.width * size, size};
      move.run_bytes = size;
      item.moves.push_back(move);
    }
  if (!from_gpt_oss) turn_round(item);
  return item;
}

std::vector<CopyCase> copy_cases() {
  const std::vector<GluSizes> sizes = {
      {1, 1, 1, 1, 1},     {1, 4, 1, 2, 2},     {3, 6, 5, 3, 2},     {2, 6, 8, 1, 2},    {2, 32, 64, 8, 2},
      {5, 32, 8, 32, 2},   {2, 64, 17, 32, 2},  {2, 96, 40, 32, 4},  {3, 24, 33, 8, 4},  {2, 16, 20, 4, 8},
      {1, 48, 48, 16, 1},  {2, 130, 136, 2, 2}, {2, 144, 264, 8, 2}, {1, 68, 132, 4, 4}, {2, 256, 144, 32, 1},
      {1, 66, 34, 33, 8},  {2, 65, 129, 5, 2},  {2, 65, 129, 13, 1}, {11, 64, 1, 32, 2}, {11, 7, 1, 7, 4},
      {1, 512, 96, 32, 2}, {17, 40, 24, 8, 2},
  };
  std::vector<CopyCase> cases;
  for (const GluSizes& s : sizes) {
    for (const bool interleave : {true, false})
      for (const bool src_indexed : {true, false})
        for (const bool dst_indexed : {true, false})
          cases.push_back(interleave_case(s, interleave, src_indexed, dst_indexed));
    for (const bool there : {true, false}) {
      cases.push_back(join_case(s, there));
      cases.push_back(turn_case(s, there));
    }
  }
  // A start that is no multiple of 16: of an element, or of nothing.
  const std::size_t aligned = cases.size();
  for (std::size_t i = 0; i < aligned; ++i)
    for (const i64 misaligned : {1, 2, 4, 8}) {
      if ((i + static_cast<std::size_t>(misaligned)) % 5 != 0) continue;
      if (cases[i].moves.front().run_bytes % misaligned != 0) continue;
      cases.push_back(cases[i]);
      cases.back().misaligned = misaligned;
      cases.back().name += fmt::format(", {} bytes off", misaligned);
    }
  return cases;
}

std::vector<std::byte> coded_bytes(i64 count, i64 tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count + 7) / 8 * 8);
  for (std::size_t word = 0; word < bytes.size() / 8; ++word) {
    // One-to-one on 64 bits, so no two words are equal (Steele, Lea, Flood, "Fast splittable pseudorandom number
    // generators", 2014: the mixing function).
    u64 z = (static_cast<u64>(tensor) << 40 | word) + 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    z ^= z >> 31;
    std::memcpy(bytes.data() + word * 8, &z, 8);
  }
  bytes.resize(static_cast<std::size_t>(count));
  return bytes;
}

}  // namespace glu_ckpt::support
