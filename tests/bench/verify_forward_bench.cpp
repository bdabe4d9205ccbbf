/// verify_forward() beside plain reads of the same files, by turns: `verify_forward_bench A B [JOBS [ROUNDS]]`.
///
/// The rate of reads is that of JOBS threads which read every tensor in pieces of 1 MiB, each into one buffer. Rates
/// are given by the clock and by the processors' time, which says what an idle machine would do where this one is not.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/parallel.hpp"
#include "glu_ckpt/verify_forward.hpp"

namespace glu_ckpt {
namespace {

struct Seconds {
  double wall = 0;
  double processors = 0;
};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <typename Work>
Seconds time_of(const Work& work) {
  const double before = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count(), processor_seconds() - before};
}

void read_all(const Source& source, int jobs, std::vector<std::vector<std::byte>>& buffers) {
  constexpr i64 kPiece = i64{1} << 20;
  struct Piece {
    std::size_t tensor;
    i64 offset;
    i64 bytes;
  };
  std::vector<Piece> pieces;
  const auto& tensors = source.inventory().tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    for (i64 at = 0; at < tensors[t].bytes; at += kPiece)
      pieces.push_back({t, at, std::min(kPiece, tensors[t].bytes - at)});
  parallel_for(pieces.size(), jobs, [&](std::size_t i, int worker) {
    auto& buffer = buffers[static_cast<std::size_t>(worker)];
    source.read(pieces[i].tensor, pieces[i].offset, {buffer.data(), static_cast<std::size_t>(pieces[i].bytes)});
  });
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Bytes a second, medians.
Seconds rates(const std::vector<Seconds>& rounds, i64 bytes, int jobs) {
  std::vector<double> wall, processors;
  for (const Seconds& round : rounds) {
    wall.push_back(static_cast<double>(bytes) / round.wall);
    processors.push_back(static_cast<double>(bytes) * jobs / round.processors);
  }
  return {median(wall), median(processors)};
}

int run(const char* path_a, const char* path_b, int jobs, int rounds) {
  const auto a = open_source(path_a);
  const auto b = open_source(path_b);
  const Recognition in_a = recognize(a->inventory(), a->hints(), a->record(), {});
  const Recognition in_b = recognize(b->inventory(), b->hints(), b->record(), {});
  const Model left{a.get(), &in_a};
  const Model right{b.get(), &in_b};
  VerifyForwardOptions options;
  options.jobs = jobs;
  const auto runner = make_mlp_runner("cpu");
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(jobs), std::vector<std::byte>(1 << 20));
  std::vector<Seconds> reads, forwards;
  bool ok = true;
  for (int round = 0; round < rounds; ++round) {
    reads.push_back(time_of([&] {
      for (const Source* const source : {a.get(), b.get()}) read_all(*source, jobs, buffers);
    }));
    forwards.push_back(time_of([&] {
      for (const LayerForward& layer : verify_forward(left, right, *runner, options)) ok = ok && layer.ok();
    }));
  }
  i64 tensor_bytes = 0;
  for (const Source* const source : {a.get(), b.get()})
    for (const TensorRef& tensor : source->inventory().tensors) tensor_bytes += tensor.bytes;
  const Seconds read = rates(reads, tensor_bytes, jobs);
  const Seconds forward = rates(forwards, forward_bytes(left, right, options), jobs);
  constexpr double kGiga = 1e9;
  fmt::print("by the clock:       read {:.2f} GB/s, forward {:.2f} GB/s, ratio {:.3f}\n", read.wall / kGiga,
             forward.wall / kGiga, forward.wall / read.wall);
  fmt::print("by processors' time: read {:.2f} GB/s, forward {:.2f} GB/s, ratio {:.3f}\n", read.processors / kGiga,
             forward.processors / kGiga, forward.processors / read.processors);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace glu_ckpt

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: verify_forward_bench A B [JOBS [ROUNDS]]\n", stderr);
    return 2;
  }
  return glu_ckpt::run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 2, argc > 4 ? std::atoi(argv[4]) : 7);
}
