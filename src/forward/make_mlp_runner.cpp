#include <algorithm>

#include "core/fail.hpp"
#include "forward/mlp_runners.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {
namespace {

class CpuMlpRunner final : public MlpRunner {
 public:
  void run(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs, void* out,
           int jobs) override {
    grouped_mlp_host(mlp, x, rows, splits, probs, out, jobs);
  }
  // So much that starting threads costs little, so little that what was read is still in the last cache.
  i64 batch_bytes(int jobs) const override { return std::min(i64{20} * jobs, i64{256}) << 20; }
  std::string name() const override { return "cpu"; }
};

}  // namespace

std::unique_ptr<MlpRunner> make_mlp_runner(const std::string& device, const BackendOptions& options) {
  if (device == "cpu") return std::make_unique<CpuMlpRunner>();
  if (!device.starts_with("cuda"))
    fail(ErrorCode::Usage, {}, "'{}' is not a device that experts run on: use cpu, cuda or cuda:N", device);
  if (device == "cuda:all") fail(ErrorCode::Usage, {}, "cuda:all: experts run on one GPU: use cuda or cuda:N");
  return make_cuda_mlp_runner(cuda_index(device), options);
}

}  // namespace glu_ckpt
