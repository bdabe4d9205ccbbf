#pragma once
/// Prints what the commands found, as text for people and as JSON for programs.

#include <optional>
#include <string>
#include <vector>

#include "core/readable.hpp"
#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/diff.hpp"
#include "glu_ckpt/error.hpp"
#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt::report {

struct Conversion {
  std::string output;
  const Plan* plan = nullptr;
  LoadsIn loads_in = {};
  std::vector<std::string> warnings = {};
  bool dry_run = false;
  i64 bytes_written = 0;
  double seconds = 0;
  /// Bytes; an estimate for a plan.
  i64 peak_memory = 0;
  std::string device;
  std::optional<Digest> digest;
  /// "digest", "sample", "readback", "forward" or empty.
  std::string verified;
  std::vector<std::string> refusals;
  /// An earlier run had finished it.
  bool up_to_date = false;
  /// The bytes that a plan's DST needs on its filesystem at the most, and those that are free.
  i64 disk_needed = 0;
  i64 disk_free = 0;
  std::string filesystem = {};
  /// The estimate of a sample; absent where none could be taken.
  std::optional<double> estimated_seconds = {};
  /// The arguments of a run of Megatron that a plan's DST needs, one a line.
  std::string megatron_args = {};
  /// Shared with the source's files; bytes_written is without them.
  i64 bytes_cloned = 0;
  /// The sample, where `verified` is "sample".
  ProvedBySample sample = {};
};

/// The resources of the machine, and the choices that follow.
struct Doctor {
  /// Rates are bytes per second.
  struct Gpu {
    CudaDevice device;
    /// The reason why it cannot be used; then nothing but the index is known. Else empty.
    std::string fault;
    double open_seconds = 0;
    double upload_rate = 0;
    double download_rate = 0;
    double turn_rate = 0;
  };
  int cores = 0;
  double cpu_copy_rate = 0;
  double cpu_turn_rate = 0;
  bool cuda_built = false;
  /// The reason why there is no GPU; empty where there is one.
  std::string no_cuda;
  std::vector<Gpu> gpus;
  DeviceChoice long_runs;
  DeviceChoice single_elements;
  std::string path;
  std::string filesystem;
  i64 free_bytes = 0;
  /// It was tried whether the filesystem can write past the page cache, and share blocks between files.
  bool io_known = false;
  bool direct_io = false;
  bool clones = false;
  bool locks = false;
  bool in_memory = false;
  /// Threads that wrote into one file, and into a file each; 0 where that was not tried.
  int writers = 0;
  double one_file_rate = 0;
  double several_files_rate = 0;
  int jobs = 0;
  i64 memory_bytes = 0;
};

std::string inspection_text(const Inspection& inspection);
/// With `tensors`, the object has the field `tensor_list`.
std::string inspection_json(const Inspection& inspection, const std::optional<std::vector<ListedTensor>>& tensors = {});
/// A line a tensor.
std::string tensors_text(const Inspection& inspection, const std::vector<ListedTensor>& tensors);
std::string conversion_text(const Conversion& conversion);
std::string conversion_json(const Conversion& conversion);
/// A line a layer; with `every_tensor` a line a tensor behind them.
std::string diff_text(const Diff& diff, bool every_tensor);
std::string diff_json(const Diff& diff, const std::vector<std::string>& warnings);
std::string verdict_text(const Verdict& verdict, bool every_tensor);
std::string verdict_json(const Verdict& verdict, const std::vector<std::string>& warnings);
std::string layouts_text(const std::vector<NamingSummary>& rows);
std::string layouts_json(const std::vector<NamingSummary>& rows);
std::string doctor_text(const Doctor& doctor);
std::string doctor_json(const Doctor& doctor);

std::string error_json(const Error& error);

using glu_ckpt::printable;
using glu_ckpt::size_text;

/// Totals that both reports print.
struct Totals {
  i64 moe_layers = 0;
  /// Layers of multi-token prediction that have experts; not among moe_layers.
  i64 mtp_layers = 0;
  i64 num_experts = 0;
  i64 hidden_size = 0;
  i64 intermediate_size = 0;
  std::vector<std::string> dtypes;
  bool optimizer = false;
};
Totals totals(const Inspection& inspection);

}  // namespace glu_ckpt::report
