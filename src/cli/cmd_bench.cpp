#include <fmt/format.h>

#include "cli/session.hpp"
#include "glu_ckpt/bench.hpp"
#include "glu_ckpt/cuda.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

int cmd_bench_kernels(const Options& options) {
  KernelBenchOptions bench;
  bench.device = options.device == "auto" ? 0 : cuda_index(options.device);
  const CudaDevice device = cuda_device(bench.device);
  if (!options.json) {
    print_out(report::kernel_bench_heading(device));
    bench.on_figure = [](const KernelFigure& figure) { print_out(report::kernel_figure_text(figure)); };
  }
  const auto figures = bench_kernels(bench);
  if (options.json) print_out(report::kernel_bench_json(device, figures) + "\n");
  return 0;
}

}  // namespace glu_ckpt::cli
