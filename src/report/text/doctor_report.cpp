#include <fmt/format.h>

#include "core/json.hpp"
#include "report/report.hpp"

namespace glu_ckpt::report {
namespace {

std::string rate_text(double bytes_per_second) { return fmt::format("{:.1f} GB/s", bytes_per_second / 1e9); }

std::string line(std::string_view name, const std::string& text) { return fmt::format("{:<11} {}\n", name, text); }

std::string gpu_text(const Doctor::Gpu& gpu) {
  if (!gpu.fault.empty()) return "cannot be used: " + gpu.fault;
  return fmt::format(
      "{}, compute capability {}.{}, {} multiprocessors, {} of {} free, driver for CUDA {}; opened in {:.2f} s; up {}, "
      "down {}, single elements there and back {}",
      gpu.device.name, gpu.device.compute_capability / 10, gpu.device.compute_capability % 10,
      gpu.device.multiprocessors, size_text(gpu.device.free_bytes), size_text(gpu.device.memory_bytes),
      gpu.device.driver, gpu.open_seconds, rate_text(gpu.upload_rate), rate_text(gpu.download_rate),
      rate_text(gpu.turn_rate));
}

void write_gpu(JsonWriter& json, const Doctor::Gpu& gpu) {
  json.begin_object().field("index", gpu.device.index).field("fault", gpu.fault);
  if (gpu.fault.empty()) {
    json.field("name", gpu.device.name).field("compute_capability", gpu.device.compute_capability);
    json.field("memory_bytes", gpu.device.memory_bytes).field("free_bytes", gpu.device.free_bytes);
    json.field("cuda_driver", gpu.device.driver).field("open_seconds", gpu.open_seconds);
    json.field("upload_bytes_per_second", gpu.upload_rate).field("download_bytes_per_second", gpu.download_rate);
    json.field("turn_bytes_per_second", gpu.turn_rate);
  }
  json.end_object();
}

}  // namespace

std::string doctor_text(const Doctor& doctor) {
  std::string text =
      line("glu-ckpt", fmt::format("{}, {} CUDA kernels", GLU_CKPT_VERSION, doctor.cuda_built ? "with" : "without"));
  text += line("cpu", fmt::format("{} cores; one copies pages at {}, turns single 2-byte elements at {}", doctor.cores,
                                  rate_text(doctor.cpu_copy_rate), rate_text(doctor.cpu_turn_rate)));
  if (doctor.gpus.empty()) text += line("cuda", "none: " + doctor.no_cuda);
  for (const Doctor::Gpu& gpu : doctor.gpus) text += line(fmt::format("cuda:{}", gpu.device.index), gpu_text(gpu));
  text += line("auto", fmt::format("runs of a page or more: {}: {}", doctor.long_runs.device, doctor.long_runs.reason));
  text += line("", fmt::format("1.1 TB of single elements: {}: {}", doctor.single_elements.device,
                               doctor.single_elements.reason));
  text += line("filesystem",
               fmt::format("{}: {}, {} free", printable(doctor.path), doctor.filesystem, size_text(doctor.free_bytes)));
  if (!doctor.io_known)
    text += line("", "what else it can do is not known: no file can be made there");
  else
    text += line("", fmt::format("writes go {}; blocks {}",
                                 doctor.direct_io ? "past the page cache (O_DIRECT)"
                                                  : "through the page cache: it has no O_DIRECT",
                                 doctor.clones ? "can be shared with the source (--reflink)" : "cannot be shared"));
  if (doctor.writers > 0)
    text +=
        line("", fmt::format("{} threads write one file at {}, a file each at {}: files take turns, one for each "
                             "thread, as many file systems lock a file that is written",
                             doctor.writers, rate_text(doctor.one_file_rate), rate_text(doctor.several_files_rate)));
  if (doctor.io_known)
    text += line("", fmt::format("space is {}; locks {}",
                                 doctor.in_memory ? "not reserved first, as that takes as long as writing here"
                                                  : "reserved before anything is written",
                                 doctor.locks ? "are kept on this host" : "are not kept"));
  text += line("i/o", fmt::format("preadv and pwrite by threads, of which {} compute, buffers of {} together (--jobs, "
                                  "--max-memory)",
                                  doctor.jobs, size_text(doctor.memory_bytes)));
  return text;
}

std::string doctor_json(const Doctor& doctor) {
  JsonWriter json;
  json.begin_object().field("version", GLU_CKPT_VERSION).field("cuda_built", doctor.cuda_built);
  json.key("cpu").begin_object().field("cores", doctor.cores);
  json.field("copy_bytes_per_second", doctor.cpu_copy_rate).field("turn_bytes_per_second", doctor.cpu_turn_rate);
  json.end_object().key("gpus").begin_array();
  for (const Doctor::Gpu& gpu : doctor.gpus) write_gpu(json, gpu);
  json.end_array().field("no_cuda", doctor.no_cuda).key("auto").begin_object();
  json.key("long_runs").begin_object().field("device", doctor.long_runs.device);
  json.field("reason", doctor.long_runs.reason).end_object();
  json.key("single_elements").begin_object().field("device", doctor.single_elements.device);
  json.field("reason", doctor.single_elements.reason).end_object().end_object();
  json.key("filesystem").begin_object().field("path", doctor.path).field("type", doctor.filesystem);
  json.field("free_bytes", doctor.free_bytes).field("io_known", doctor.io_known);
  json.field("direct_io", doctor.direct_io).field("clones", doctor.clones).field("locks", doctor.locks);
  json.field("reserves_space", !doctor.in_memory).field("writers", doctor.writers);
  json.field("one_file_bytes_per_second", doctor.one_file_rate);
  json.field("several_files_bytes_per_second", doctor.several_files_rate).end_object();
  json.key("io")
      .begin_object()
      .field("paths", doctor.direct_io ? "preadv/pwrite, O_DIRECT" : "preadv/pwrite")
      .field("jobs", doctor.jobs);
  return json.field("memory_bytes", doctor.memory_bytes).end_object().end_object().text();
}

}  // namespace glu_ckpt::report
