#pragma once
/// Prints what the benchmarks measured, as text for people and as JSON for programs.

#include <string>
#include <vector>

#include "bench/bench.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt::report {

std::string kernel_bench_heading(const CudaDevice& device);
std::string kernel_figure_text(const KernelFigure& figure);
std::string kernel_bench_json(const CudaDevice& device, const std::vector<KernelFigure>& figures);
std::string forward_bench_heading(const CudaDevice& device);
std::string host_forward_bench_heading(int jobs);
std::string forward_figure_text(const ForwardFigure& figure);
/// A line of its own below the figure's.
std::string backward_figure_text(const ForwardFigure& figure);
std::string forward_bench_json(const CudaDevice& device, const ForwardBench& bench);
std::string host_forward_bench_json(int jobs, const ForwardBench& bench);
std::string convert_bench_text(const ConvertBench& bench);
std::string convert_bench_json(const ConvertBench& bench);

}  // namespace glu_ckpt::report
