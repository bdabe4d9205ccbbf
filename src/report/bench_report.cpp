#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/json.hpp"
#include "report/report.hpp"

namespace glu_ckpt::report {

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
  json.field("device", device.name).field("index", device.index).field("multiprocessors", device.multiprocessors);
  json.field("cuda_driver", device.driver).field("dtype", "BF16");
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

}  // namespace glu_ckpt::report
