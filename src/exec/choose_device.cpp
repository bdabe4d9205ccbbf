/// `--device auto`. A GPU has something to give only where runs are short: longer runs are put into place by the reads
/// themselves, and a GPU would only add the way there and back.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/usable_cores.hpp"
#include "exec/backends.hpp"
#include "exec/move_parts.hpp"
#include "glu_ckpt/error.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {
namespace {

/// Below this a GPU, which takes a few tenths of a second to open, cannot win: not even opened.
constexpr double kLeastSeconds = 1.0;
/// Below this any one thread is done within kLeastSeconds: not even measured, nor asked for a driver.
constexpr i64 kLeastBytes = i64{256} << 20;

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
  Move transpose;
  transpose.dims[0] = {kSampleSide, 2, kSampleSide * 2};
  transpose.dims[1] = {kSampleSide, kSampleSide * 2, 2};
  transpose.run_bytes = 2;
  Move copy;
  copy.dims[0] = {kBytes / kDirectRunBytes, kDirectRunBytes, kDirectRunBytes};
  copy.run_bytes = kDirectRunBytes;
  CpuRates rates;
  // The first run of each pays for touching the memory.
  copy_in_host(std::span(&copy, 1), src.data(), dst.data());
  rates.copy_bytes_per_second = kBytes / seconds([&] { copy_in_host(std::span(&copy, 1), src.data(), dst.data()); });
  rates.transpose_bytes_per_second =
      kBytes / seconds([&] { copy_in_host(std::span(&transpose, 1), src.data(), dst.data()); });
  return rates;
}

DeviceChoice faster_device(double thread_rate, int threads, i64 device_memory_bytes,
                           const std::function<GpuRates()>& measure) {
  GpuRates gpu;
  try {
    gpu = measure();
  } catch (const Error& error) {
    return {"cpu", fmt::format("cuda:0 cannot be used: {}", error.what())};
  }
  if (gpu.free_bytes < device_memory_bytes)
    return {"cpu",
            fmt::format("cuda:0 has {} bytes free, and --device-memory is {}", gpu.free_bytes, device_memory_bytes)};
  const double gpu_rate = gpu.transpose_bytes_per_second;
  return {gpu_rate > thread_rate * threads ? "cuda:0" : "cpu",
          fmt::format("measured on single elements: cuda:0 {:.1f} GB/s there and back, a CPU thread {:.1f} GB/s, of "
                      "which {} run",
                      gpu_rate / 1e9, thread_rate / 1e9, threads)};
}

DeviceChoice choose_device(i64 gathered_bytes, int jobs, const BackendOptions& options) {
  if (gathered_bytes == 0) return {"cpu", "all copies are contiguous runs of a page or more, so a GPU would not help"};
  if (gathered_bytes < kLeastBytes)
    return {"cpu", fmt::format("only {} bytes are copied in short runs, so a GPU would not help", gathered_bytes)};
  if (cuda_device_count() == 0) return {"cpu", why_no_cuda()};
  // More threads than cores gather no faster.
  const int threads = std::min(jobs, usable_cores());
  const double thread_rate = measure_cpu().transpose_bytes_per_second;
  const double cpu_seconds = static_cast<double>(gathered_bytes) / (thread_rate * threads);
  if (cpu_seconds < kLeastSeconds)
    return {"cpu",
            fmt::format("{} threads gather {:.2f} GB of single elements in about {:.1f} s; opening a GPU takes as "
                        "long",
                        threads, static_cast<double>(gathered_bytes) / 1e9, cpu_seconds)};
  return faster_device(thread_rate, threads, options.device_memory_bytes, [] { return measure_gpu(0); });
}

}  // namespace glu_ckpt
