#include "bench/bench_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/json.hpp"
#include "report/report.hpp"

namespace glu_ckpt::report {
namespace {

/// The heading's lines on what a forward pass is timed with, whatever the device.
constexpr const char* kForwardSubject =
    "grouped MLP, bf16, SwiGLU, interleaved:32, even splits; times are medians of rounds in turn; GB/s count the "
    "weights\n";

std::string forward_columns() {
  return fmt::format("{:<13} {:>4} {:>6} {:>6} {:>7} {:>10} {:>8} {:>7} {:>8} {:>8} {:>8} {:>7} {:>8}\n", "model", "E",
                     "H", "F", "tokens", "us", "TFLOP/s", "GB/s", "of read", "of dense", "x cuBLAS", "read", "dense");
}

std::string or_dash(bool there, double number, int digits) {
  return there ? fmt::format("{:.{}f}", number, digits) : "-";
}

void write_device(JsonWriter& json, const CudaDevice& device) {
  json.field("device", device.name).field("index", device.index).field("multiprocessors", device.multiprocessors);
  json.field("cuda_driver", device.driver).field("dtype", "BF16");
}

void write_forward_figure(JsonWriter& json, const ForwardFigure& figure) {
  json.begin_object().field("model", figure.shape.model).field("num_experts", figure.shape.experts);
  json.field("hidden_size", figure.shape.hidden).field("moe_intermediate_size", figure.shape.width);
  json.field("tokens_per_expert", figure.tokens_per_expert).field("weight_bytes", figure.weight_bytes());
  json.field("microseconds", figure.microseconds).field("tflops", figure.tflops());
  json.field("weight_gb_per_s", figure.weight_gb_per_s());
  json.field("read_microseconds", figure.read_microseconds).field("read_gb_per_s", figure.read_gb_per_s());
  json.field("of_read", figure.of_read());
  if (figure.cublas_microseconds > 0) {
    json.field("cublas_microseconds", figure.cublas_microseconds).field("times_cublas", figure.times_cublas());
    json.field("cublas_difference", figure.cublas_difference);
    json.field("dense_microseconds", figure.dense_microseconds).field("dense_tflops", figure.dense_tflops());
    json.field("of_dense", figure.of_dense());
  }
  if (figure.backward_microseconds > 0) {
    json.field("backward_microseconds", figure.backward_microseconds);
    json.field("backward_tflops", figure.backward_tflops());
    json.field("recompute_microseconds", figure.recompute_microseconds);
    json.field("saving_microseconds", figure.saving_microseconds);
    json.field("not_saving_microseconds", figure.not_saving_microseconds);
  }
  json.end_object();
}

void write_forward_bench(JsonWriter& json, const ForwardBench& bench) {
  json.field("glu", "interleaved:32").field("activation", "swiglu");
  json.key("no_cublas");
  bench.no_cublas.empty() ? json.null() : json.value(bench.no_cublas);
  json.key("figures").begin_array();
  for (const ForwardFigure& figure : bench.figures) write_forward_figure(json, figure);
  json.end_array();
}

}  // namespace

std::string kernel_bench_heading(const CudaDevice& device) {
  return fmt::format(
      "{}, cuda:{}, {} multiprocessors, driver for CUDA {}\n"
      "times are medians; GB/s count bytes read and written; `of` is the speed over that of the reference\n\n"
      "{:<17} {:<13} {:<42} {:<18} {:>9} {:>8} {:>7} {}\n",
      device.name, device.index, device.multiprocessors, device.driver, "kernel", "model", "what", "shape", "us",
      "GB/s", "of", "reference");
}

std::string kernel_figure_text(const KernelFigure& figure) {
  return fmt::format("{:<17} {:<13} {:<42} {:<18} {:>9.1f} {:>8} {:>7} {}\n", figure.kernel, figure.model, figure.what,
                     fmt::format("[{}]", fmt::join(figure.shape, ", ")), figure.microseconds,
                     figure.bytes > 0 ? fmt::format("{:.0f}", figure.gb_per_s()) : "-",
                     figure.reference.empty() ? "-" : fmt::format("{:.3f}", figure.ratio()), figure.reference);
}

std::string kernel_bench_json(const CudaDevice& device, const std::vector<KernelFigure>& figures) {
  JsonWriter json;
  json.begin_object();
  write_device(json, device);
  json.key("figures").begin_array();
  for (const KernelFigure& figure : figures) {
    json.begin_object().field("kernel", figure.kernel).field("model", figure.model).field("what", figure.what);
    json.key("shape").begin_array();
    for (const i64 extent : figure.shape) json.value(extent);
    json.end_array().field("bytes", figure.bytes).field("microseconds", figure.microseconds);
    if (figure.bytes > 0) json.field("gb_per_s", figure.gb_per_s());
    if (!figure.reference.empty())
      json.field("reference", figure.reference)
          .field("reference_microseconds", figure.reference_microseconds)
          .field("ratio", figure.ratio());
    json.end_object();
  }
  return json.end_array().end_object().text();
}

std::string forward_bench_heading(const CudaDevice& device) {
  return fmt::format(
      "{}, cuda:{}, {} multiprocessors, driver for CUDA {}\n{}"
      "`of read` is the speed over a plain read of the weights, `of dense` over a dense 8192^3 product, `x cuBLAS` "
      "over\n"
      "FC1, SwiGLU and FC2 through cuBLAS; all but the dense product take turns. `read` and `dense` are ceilings in "
      "GB/s and "
      "TFLOP/s\n\n"
      "{}",
      device.name, device.index, device.multiprocessors, device.driver, kForwardSubject, forward_columns());
}

std::string host_forward_bench_heading(int jobs) {
  return fmt::format(
      "cpu, {} threads\n{}`of read` is the speed over a plain read of the weights, `read` that ceiling in GB/s\n\n{}",
      jobs, kForwardSubject, forward_columns());
}

std::string forward_figure_text(const ForwardFigure& figure) {
  const ForwardShape& shape = figure.shape;
  const bool cublas = figure.cublas_microseconds > 0;
  return fmt::format("{:<13} {:>4} {:>6} {:>6} {:>7} {:>10.1f} {:>8.3g} {:>7.0f} {:>8.3f} {:>8} {:>8} {:>7.0f} {:>8}\n",
                     shape.model, shape.experts, shape.hidden, shape.width, figure.tokens_per_expert,
                     figure.microseconds, figure.tflops(), figure.weight_gb_per_s(), figure.of_read(),
                     or_dash(cublas, figure.of_dense(), 3), or_dash(cublas, figure.times_cublas(), 3),
                     figure.read_gb_per_s(), or_dash(cublas, figure.dense_tflops(), 1));
}

std::string backward_figure_text(const ForwardFigure& figure) {
  return fmt::format(
      "{:<13} backward of {} tokens each: {:.1f} us, {:.1f} TFLOP/s; {:.1f} us where z is recomputed; forward {:.1f} "
      "us, "
      "{:.1f} where it saves z\n",
      figure.shape.model, figure.tokens_per_expert, figure.backward_microseconds, figure.backward_tflops(),
      figure.recompute_microseconds, figure.not_saving_microseconds, figure.saving_microseconds);
}

std::string forward_bench_json(const CudaDevice& device, const ForwardBench& bench) {
  JsonWriter json;
  json.begin_object();
  write_device(json, device);
  write_forward_bench(json, bench);
  return json.end_object().text();
}

std::string host_forward_bench_json(int jobs, const ForwardBench& bench) {
  JsonWriter json;
  json.begin_object().field("device", "cpu").field("jobs", jobs).field("dtype", "BF16");
  write_forward_bench(json, bench);
  return json.end_object().text();
}

std::string convert_bench_text(const ConvertBench& bench) {
  std::string text = fmt::format(
      "{} in {}, {} threads, page cache warm; medians of {} rounds in turn, down to the disk\n"
      "a conversion includes its digests; `of copy` and `of write` are its speed over theirs\n\n{:<53} {:>8} {:>7} "
      "{:>8} {:>8}\n",
      size_text(bench.bytes), printable(bench.dir), bench.jobs, bench.rounds, "what", "seconds", "GB/s", "of copy",
      "of write");
  const auto add = [&](const std::string& what, double seconds) {
    text += fmt::format("{:<53} {:>8.3f} {:>7.2f} {:>8.2f} {:>8.2f}\n", what, seconds,
                        static_cast<double>(bench.bytes) / seconds / 1e9, bench.copy_seconds / seconds,
                        bench.write_seconds / seconds);
  };
  for (const ConvertBench::Figure& figure : bench.conversions) add(figure.what, figure.seconds);
  add("cp --reflink=never, and fsync", bench.copy_seconds);
  add("sequential write, and fsync", bench.write_seconds);
  return text;
}

std::string convert_bench_json(const ConvertBench& bench) {
  JsonWriter json;
  json.begin_object().field("dir", bench.dir).field("bytes", bench.bytes).field("jobs", bench.jobs);
  json.field("rounds", bench.rounds);
  const auto rate = [&](double seconds) { return static_cast<double>(bench.bytes) / seconds / 1e9; };
  json.key("figures").begin_array();
  for (const ConvertBench::Figure& figure : bench.conversions) {
    json.begin_object().field("what", figure.what).field("seconds", figure.seconds);
    json.field("gb_per_s", rate(figure.seconds)).field("of_copy", bench.copy_seconds / figure.seconds);
    json.field("of_write", bench.write_seconds / figure.seconds).end_object();
  }
  json.end_array();
  json.key("copy").begin_object().field("seconds", bench.copy_seconds);
  json.field("gb_per_s", rate(bench.copy_seconds)).end_object();
  json.key("write").begin_object().field("seconds", bench.write_seconds);
  json.field("gb_per_s", rate(bench.write_seconds)).end_object();
  return json.end_object().text();
}

}  // namespace glu_ckpt::report
