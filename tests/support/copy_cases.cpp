#include "support/copy_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/copy/transpose_copy.hpp"

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

void copy_loops(const CopyShape& shape, int dim, const std::byte* src, std::byte* dst) {
  if (dim == shape.num_dims) {
    std::copy_n(src, shape.run_bytes, dst);
    return;
  }
  const MoveDim& loop = shape.dims[static_cast<std::size_t>(dim)];
  for (i64 i = 0; i < loop.count; ++i) copy_loops(shape, dim + 1, src + i * loop.src_step, dst + i * loop.dst_step);
}

i64 axis_offset(const TransposeAxis& axis, i64 index) {
  return index % axis.low_count * axis.low_step + index / axis.low_count * axis.high_step;
}

void turn(const TransposeShape& shape, int dim, const std::byte* src, std::byte* dst) {
  if (dim < shape.outer.num_dims) {
    const MoveDim& loop = shape.outer.dims[static_cast<std::size_t>(dim)];
    for (i64 i = 0; i < loop.count; ++i) turn(shape, dim + 1, src + i * loop.src_step, dst + i * loop.dst_step);
    return;
  }
  for (i64 a = 0; a < shape.across.count(); ++a)
    for (i64 d = 0; d < shape.down.count(); ++d)
      std::copy_n(src + a * shape.element_bytes + axis_offset(shape.down, d), shape.element_bytes,
                  dst + d * shape.element_bytes + axis_offset(shape.across, a));
}

/// One loop of a random case.
struct RandomLoop {
  MoveDim dim;
  /// Gone through by moves, not within them; then perhaps with a tensor for each turn.
  bool apart = false;
  bool src_tensors = false;
  bool dst_tensors = false;
};

class RandomCopy {
 public:
  explicit RandomCopy(unsigned seed) : random_(seed) {}

  CopyCase make() {
    item_.name = "random copy";
    element_ = any({1, 2, 2, 2, 4, 4, 8, 8, 3, 6, 16, 32});
    const std::size_t count = static_cast<std::size_t>(1 + below(7));
    i64 bytes = element_;
    for (std::size_t l = 0; l < count; ++l) {
      i64 turns = any({1, 2, 2, 3, 4, 5, 8, 9, 16, 24, 33, 64});
      if (bytes * turns > kMostBytes) turns = 1;
      bytes *= turns;
      loops_.push_back({{turns, 0, 0}});
    }
    place(&MoveDim::src_step, item_.src_bytes);
    place(&MoveDim::dst_step, item_.dst_bytes);
    if (one_in(6)) loops_[static_cast<std::size_t>(below(std::ssize(loops_)))].dim.src_step = 0;
    Move move;
    move.run_bytes = element_;
    join_run(move);
    take_apart(move);
    add_moves(0, move);
    disturb();
    item_.misaligned = any({0, 0, 0, 0, 1, 2, 4, 8});
    return item_;
  }

 private:
  i64 below(i64 n) { return static_cast<i64>(random_() % static_cast<unsigned>(n)); }
  bool one_in(i64 n) { return below(n) == 0; }
  i64 any(const std::vector<i64>& values) { return values[static_cast<std::size_t>(below(std::ssize(values)))]; }

  /// Steps of one side: the loops in a random order, mostly dense.
  void place(i64 MoveDim::*side, std::vector<i64>& tensor_bytes) {
    std::vector<std::size_t> order(loops_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    i64 step = element_;
    for (const std::size_t l : order) {
      if (one_in(6)) step += element_ * below(3);
      loops_[l].dim.*side = step;
      step *= loops_[l].dim.count;
    }
    tensor_bytes = {step};
  }

  /// A loop that is dense on both sides may be the run.
  void join_run(Move& move) {
    if (one_in(3)) return;
    for (RandomLoop& loop : loops_)
      if (loop.dim.src_step == element_ && loop.dim.dst_step == element_) {
        move.run_bytes *= loop.dim.count;
        loop.dim.count = 1;
      }
  }

  /// Decides what is in the moves, and turns some loops round.
  void take_apart(Move& move) {
    std::size_t inside = 0;
    i64 moves = 1;
    for (RandomLoop& loop : loops_) {
      if (one_in(6)) turn_round(loop.dim, &MoveDim::src_step, move.src_offset);
      if (one_in(6)) turn_round(loop.dim, &MoveDim::dst_step, move.dst_offset);
      loop.apart = inside == move.dims.size() || (one_in(3) && moves * loop.dim.count <= kMostMoves);
      if (!loop.apart) {
        move.dims[inside++] = loop.dim;
        continue;
      }
      moves *= loop.dim.count;
      // Turned round, the loop's tensors would have to be numbered backwards.
      loop.src_tensors = loop.dim.src_step > 0 && item_.src_bytes.size() == 1 && one_in(4);
      loop.dst_tensors = loop.dim.dst_step > 0 && item_.dst_bytes.size() == 1 && one_in(4);
      const auto tensors = static_cast<std::size_t>(loop.dim.count);
      if (loop.src_tensors) item_.src_bytes.resize(tensors, item_.src_bytes.front());
      if (loop.dst_tensors) item_.dst_bytes.resize(tensors, item_.dst_bytes.front());
    }
  }

  static void turn_round(MoveDim& dim, i64 MoveDim::*side, i64& offset) {
    offset += (dim.count - 1) * dim.*side;
    dim.*side = -(dim.*side);
  }

  void add_moves(std::size_t loop_index, const Move& move) {
    if (loop_index == loops_.size()) {
      item_.moves.push_back(move);
      return;
    }
    const RandomLoop& loop = loops_[loop_index];
    for (i64 i = 0; i < (loop.apart ? loop.dim.count : 1); ++i) {
      Move part = move;
      (loop.src_tensors ? part.src = static_cast<std::size_t>(i) : part.src_offset += i * loop.dim.src_step);
      (loop.dst_tensors ? part.dst = static_cast<std::size_t>(i) : part.dst_offset += i * loop.dim.dst_step);
      add_moves(loop_index + 1, part);
    }
  }

  /// Another order, holes in it, moves of nothing.
  void disturb() {
    if (one_in(4)) std::shuffle(item_.moves.begin(), item_.moves.end(), random_);
    if (one_in(4)) std::erase_if(item_.moves, [&](const Move&) { return one_in(5); });
    Move nothing;
    nothing.dims[1] = {below(2), 7, 7};
    nothing.run_bytes = nothing.dims[1].count == 0 ? element_ : 0;
    if (one_in(8)) item_.moves.insert(item_.moves.begin() + below(std::ssize(item_.moves) + 1), nothing);
  }

  static constexpr i64 kMostBytes = 64 << 10;
  static constexpr i64 kMostMoves = 300;

  std::mt19937 random_;
  CopyCase item_;
  i64 element_ = 1;
  std::vector<RandomLoop> loops_;
};

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

CopyCase random_copy_case(unsigned seed) { return RandomCopy(seed).make(); }

HostTensors::HostTensors(const CopyCase& item) {
  for (std::size_t t = 0; t < item.src_bytes.size(); ++t)
    src.push_back(coded_bytes(item.src_bytes[t], static_cast<i64>(t)));
  for (const i64 bytes : item.dst_bytes) dst.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xa5});
  for (const auto& tensor : src) srcs.push_back(tensor.data());
  for (auto& tensor : dst) dsts.push_back(tensor.data());
}

void copy_folded(const CopyCase& item, HostTensors& tensors, bool transposes) {
  for (const CopyBatch& batch : fold_moves(item.moves, tensors.srcs, tensors.dsts)) {
    const auto transpose = transposes ? find_transpose(batch.shape) : std::nullopt;
    for (const CopyPair& pair : batch.pairs)
      if (transpose)
        turn(*transpose, 0, pair.src, pair.dst);
      else
        copy_loops(batch.shape, 0, pair.src, pair.dst);
  }
}

}  // namespace glu_ckpt::support
