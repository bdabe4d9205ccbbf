#include "core/fail.hpp"
#include "exec/mlp_runners.hpp"
#include "glu_ckpt/cuda.hpp"

namespace glu_ckpt {
namespace {

class CpuMlpRunner final : public MlpRunner {
 public:
  explicit CpuMlpRunner(int jobs) : jobs_(jobs) {}
  void run(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs,
           void* out) override {
    grouped_mlp_host(mlp, x, rows, splits, probs, out, jobs_);
  }
  // Enough for all threads to read, and small beside the memory of any machine that has the checkpoint.
  i64 batch_bytes() const override { return i64{32} << 20; }
  std::string name() const override { return "cpu"; }

 private:
  int jobs_;
};

}  // namespace

std::unique_ptr<MlpRunner> make_cpu_mlp_runner(int jobs) { return std::make_unique<CpuMlpRunner>(jobs); }

std::unique_ptr<MlpRunner> make_mlp_runner(const std::string& device, int jobs, const BackendOptions& options) {
  if (device == "cpu") return make_cpu_mlp_runner(jobs);
  if (!device.starts_with("cuda"))
    fail(ErrorCode::Usage, {}, "'{}' is not a device that experts run on: use cpu, cuda or cuda:N", device);
  if (device == "cuda:all") fail(ErrorCode::Usage, {}, "cuda:all: experts run on one GPU: use cuda or cuda:N");
  return make_cuda_mlp_runner(cuda_index(device), options);
}

}  // namespace glu_ckpt
