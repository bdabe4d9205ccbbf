#include <numeric>

#include "core/fail.hpp"
#include "exec/backends.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options) {
  if (device == "cpu") return make_cpu_backend();
  if (!device.starts_with("cuda"))
    fail(ErrorCode::Usage, {}, "'{}' is not a device: use auto, cpu, cuda, cuda:N or cuda:all", device);
  if (device != "cuda:all") return make_cuda_backend({cuda_index(device)}, options);
  std::vector<int> devices(static_cast<std::size_t>(cuda_device_count()));
  if (devices.empty()) fail(ErrorCode::NoDevice, {}, "cuda:all: {}; use --device cpu", why_no_cuda());
  std::iota(devices.begin(), devices.end(), 0);
  return make_cuda_backend(devices, options);
}

}  // namespace glu_ckpt
