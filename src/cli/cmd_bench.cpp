#include <fmt/format.h>

#include <utility>

#include "bench/bench_report.hpp"
#include "cli/session.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_bench_kernels(const Options& options) {
  KernelBenchOptions bench;
  bench.device = options.run.device == "auto" ? 0 : cuda_index(options.run.device);
  const CudaDevice device = cuda_device(bench.device);
  if (!options.json) {
    print_out(options, report::kernel_bench_heading(device));
    bench.on_figure = [&](const KernelFigure& figure) { print_out(options, report::kernel_figure_text(figure)); };
  }
  const auto figures = bench_kernels(bench);
  if (options.json) print_out(options, report::kernel_bench_json(device, figures) + "\n");
  return ExitStatus::Done;
}

ExitStatus cmd_bench_forward(const Options& options) {
  ForwardBenchOptions bench;
  bench.model = options.bench.model;
  bench.tokens = options.bench.tokens;
  bench.rounds = options.bench.rounds;
  bench.backward = options.bench.backward;
  bench.jobs = options.run.jobs;
  const bool on_cpu = options.run.device == "cpu";
  if (on_cpu && bench.backward)
    fail(ErrorCode::Usage, {}, "--backward: the backward is timed on a GPU; give --device cuda, or leave it out");
  if (on_cpu) bench.memory_bytes = options.run.memory_bytes;
  if (!on_cpu && options.run.device != "auto") bench.device = cuda_index(options.run.device);
  const CudaDevice device = on_cpu ? CudaDevice{} : cuda_device(bench.device);
  // The heading comes with the first figure: what is refused leaves no table.
  std::string heading = on_cpu ? report::host_forward_bench_heading(bench.jobs) : report::forward_bench_heading(device);
  if (!options.json)
    bench.on_figure = [&](const ForwardFigure& figure) {
      print_out(options, std::exchange(heading, {}) + report::forward_figure_text(figure));
      if (figure.backward_microseconds > 0) print_out(options, report::backward_figure_text(figure));
    };
  const ForwardBench result = on_cpu ? bench_forward_host(bench) : bench_forward(bench);
  if (options.json)
    print_out(options, (on_cpu ? report::host_forward_bench_json(bench.jobs, result)
                               : report::forward_bench_json(device, result)) +
                           "\n");
  else if (!on_cpu && !result.no_cublas.empty())
    print_out(options, fmt::format("\ncuBLAS and the dense product were not measured: {}\n", result.no_cublas));
  return ExitStatus::Done;
}

ExitStatus cmd_bench_convert(const Options& options) {
  Options silent = options;
  silent.quiet = true;
  const ConvertBench result = bench_convert(options.bench.dir, options.bench.size_bytes, Session(silent).run());
  print_out(options, options.json ? report::convert_bench_json(result) + "\n" : report::convert_bench_text(result));
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
