/// `--device auto`. A GPU has something to give only where runs are short: longer runs are put into place by the reads
/// themselves, and a GPU would only add the way there and back.

#include <fmt/format.h>

#include <chrono>

#include "exec/backends.hpp"
#include "exec/move_parts.hpp"
#include "glu_ckpt/cuda.hpp"

namespace glu_ckpt {
namespace {

/// Below this a GPU, which takes a few tenths of a second to open, cannot win: not even asked.
constexpr double kLeastSeconds = 1.0;

/// A [side, side] matrix of 2-byte elements, turned: 32 MiB, more than a core's caches hold.
constexpr i64 kSampleSide = 4096;

template <typename Work>
double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

i64 gathered_bytes(const Plan& plan) {
  i64 bytes = 0;
  for (const Move& move : plan.moves)
    if (move.run_bytes < kDirectRunBytes && move.runs() > 1) bytes += move.bytes();
  return bytes;
}

CpuRates measure_cpu() {
  constexpr i64 kBytes = kSampleSide * kSampleSide * 2;
  std::vector<std::byte> src(static_cast<std::size_t>(kBytes), std::byte{1}), dst(src.size());
  Move turn;
  turn.dims[0] = {kSampleSide, 2, kSampleSide * 2};
  turn.dims[1] = {kSampleSide, kSampleSide * 2, 2};
  turn.run_bytes = 2;
  Move copy;
  copy.dims[0] = {kBytes / kDirectRunBytes, kDirectRunBytes, kDirectRunBytes};
  copy.run_bytes = kDirectRunBytes;
  CpuRates rates;
  // The first run of each pays for touching the memory.
  copy_in_host(copy, src.data(), dst.data());
  rates.copy_bytes_per_second = kBytes / seconds([&] { copy_in_host(copy, src.data(), dst.data()); });
  rates.turn_bytes_per_second = kBytes / seconds([&] { copy_in_host(turn, src.data(), dst.data()); });
  return rates;
}

DeviceChoice choose_device(i64 gathered_bytes, int jobs) {
  if (cuda_device_count() == 0) return {"cpu", why_no_cuda()};
  if (gathered_bytes == 0)
    return {"cpu", "every run is a page or longer, so the reads put it in place; a GPU would only add a detour"};
  const double cpu_rate = measure_cpu().turn_bytes_per_second * jobs;
  const double cpu_seconds = static_cast<double>(gathered_bytes) / cpu_rate;
  if (cpu_seconds < kLeastSeconds)
    return {"cpu",
            fmt::format("{} threads gather {:.2f} GB of single elements in about {:.1f} s; opening a GPU takes as "
                        "long",
                        jobs, static_cast<double>(gathered_bytes) / 1e9, cpu_seconds)};
  const double gpu_rate = measure_gpu(0).turn_bytes_per_second;
  const std::string measured = fmt::format("measured on single elements: cuda:0 {:.1f} GB/s, {} threads {:.1f} GB/s",
                                           gpu_rate / 1e9, jobs, cpu_rate / 1e9);
  return {gpu_rate > cpu_rate ? "cuda:0" : "cpu", measured};
}

}  // namespace glu_ckpt
