#include "cli/session.hpp"
#include "core/usable_cores.hpp"
#include "exec/backends.hpp"
#include "glu_ckpt/error.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "io/directory.hpp"
#include "io/filesystem.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

/// A GPU that is full, broken or another's is a finding.
report::Doctor::Gpu examine(int index) {
  try {
    const GpuRates rates = measure_gpu(index);
    return {cuda_device(index),
            {},
            rates.open_seconds,
            rates.upload_bytes_per_second,
            rates.download_bytes_per_second,
            rates.transpose_bytes_per_second};
  } catch (const Error& error) {
    report::Doctor::Gpu gpu;
    gpu.device.index = index;
    gpu.fault = error.what();
    return gpu;
  }
}

}  // namespace

ExitStatus cmd_doctor(const Options& options) {
  report::Doctor doctor;
  const std::string path = options.input.empty() ? "." : options.input;
  const FilesystemInfo filesystem = filesystem_of(path);
  doctor.path = path;
  doctor.filesystem = filesystem.type;
  doctor.free_bytes = filesystem.free_bytes;
  const std::filesystem::path directory = is_directory_at(path) ? std::filesystem::path(path) : directory_of(path);
  const IoAbilities io = io_abilities(directory);
  doctor.io_known = io.known;
  doctor.direct_io = io.direct;
  doctor.clones = io.clones;
  doctor.locks = io.locks;
  doctor.in_memory = filesystem.is_in_memory();
  if (const auto rates = io.known ? measure_writes(directory, options.run.jobs) : std::nullopt) {
    doctor.writers = rates->threads;
    doctor.one_file_rate = rates->one_file;
    doctor.several_files_rate = rates->several_files;
  }
  doctor.cores = usable_cores();
  doctor.jobs = options.run.jobs;
  doctor.memory_bytes = options.run.memory_bytes;
  const CpuRates cpu = measure_cpu();
  doctor.cpu_copy_rate = cpu.copy_bytes_per_second;
  doctor.cpu_turn_rate = cpu.transpose_bytes_per_second;
  doctor.cuda_built = built_with_cuda();
  doctor.no_cuda = why_no_cuda();
  for (int index = 0; index < cuda_device_count(); ++index) doctor.gpus.push_back(examine(index));
  doctor.long_runs = choose_device(0, options.run.jobs);
  doctor.single_elements = choose_device(i64{1} << 40, options.run.jobs);
  print_out(options, options.json ? report::doctor_json(doctor) + "\n" : report::doctor_text(doctor));
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
