/// How fast one thread turns single elements of 2 bytes in memory, by its own processor time: gate and up of gpt-oss's
/// layout, [E, H, 2F] in turn, on one side, and [E, 2F, H] on the other. GB/s count the bytes written.
/// usage: turn_bench [ROUNDS]

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "exec/backends.hpp"
#include "exec/host_transpose.hpp"

using namespace glu_ckpt;

namespace {

constexpr i64 kLeastBytes = i64{64} << 20;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Median GB/s of `work`, which writes `bytes`, after one run that touches the memory.
template <typename Work>
double rate(int rounds, i64 bytes, const Work& work) {
  work();
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const double start = processor_seconds();
    work();
    seconds.push_back(processor_seconds() - start);
  }
  std::ranges::sort(seconds);
  return static_cast<double>(bytes) / seconds[seconds.size() / 2] / 1e9;
}

void time_shape(i64 width, i64 hidden, int rounds) {
  const i64 expert = 4 * width * hidden, experts = std::max<i64>(1, kLeastBytes / expert);
  std::vector<std::byte> src(static_cast<std::size_t>(experts * expert), std::byte{1}), dst(src.size() + 64);
  void* aligned = dst.data();
  std::size_t room = dst.size();
  auto* const out = static_cast<std::byte*>(std::align(64, src.size(), aligned, room));
  for (const bool to_packed : {true, false}) {
    std::vector<Move> moves;
    for (i64 e = 0; e < experts; ++e)
      for (i64 half = 0; half < 2; ++half) {
        const i64 dense = e * expert + half * 2 * width * hidden, packed = e * expert + half * 2;
        Move move;
        move.run_bytes = 2;
        move.src_offset = to_packed ? dense : packed;
        move.dst_offset = to_packed ? packed : dense;
        move.dims[0] = to_packed ? MoveDim{hidden, 2, 4 * width} : MoveDim{width, 4, 2 * hidden};
        move.dims[1] = to_packed ? MoveDim{width, 2 * hidden, 4} : MoveDim{hidden, 4 * width, 2};
        moves.push_back(move);
      }
    const double together = rate(rounds, experts * expert, [&] { copy_in_host(moves, src.data(), out); });
    const double apart = rate(rounds, experts * expert, [&] {
      for (const Move& move : moves) copy_in_host({&move, 1}, src.data(), out);
    });
    HostTranspose shape{2, {}, {}, 2, 2};
    std::vector<i64>& packed_rows = to_packed ? shape.across : shape.down;
    std::vector<i64>& dense_rows = to_packed ? shape.down : shape.across;
    for (i64 h = 0; h < hidden; ++h) packed_rows.push_back(h * 4 * width);
    for (i64 row = 0; row < 2 * width; ++row) dense_rows.push_back((row % 2 * width + row / 2) * 2 * hidden);
    fmt::print("F {} H {} {} gpt-oss: {:.2f} GB/s; gate and up apart {:.2f}; by path", width, hidden,
               to_packed ? "to" : "from", together, apart);
    for (const SimdLevel path : simd_levels())
      fmt::print(" {}", fmt::format("{}: {:.2f}",
                                    path == SimdLevel::Avx512 ? "AVX-512"
                                    : path == SimdLevel::Avx2 ? "AVX2"
                                                              : "plain",
                                    rate(rounds, experts * expert, [&] {
                                      for (i64 e = 0; e < experts; ++e)
                                        transpose_in_host(shape, src.data() + e * expert, out + e * expert, path);
                                    })));
    fmt::print("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  time_shape(768, 2048, rounds);
  time_shape(2880, 2880, rounds);
}
