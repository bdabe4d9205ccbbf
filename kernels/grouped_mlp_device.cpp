/// Stands in for the kernels of the grouped MLP.

#include "core/fail.hpp"
#include "glu_ckpt/device_forward.hpp"

namespace glu_ckpt {
namespace {

[[noreturn]] void refuse() { fail(ErrorCode::NotSupported, {}, "experts do not run on a GPU yet; use --device cpu"); }

}  // namespace

struct DeviceGroupedMlp::State {};
DeviceGroupedMlp::DeviceGroupedMlp(const GroupedMlp&, i64, GpuStream) { refuse(); }
DeviceGroupedMlp::~DeviceGroupedMlp() = default;
DeviceGroupedMlp::DeviceGroupedMlp(DeviceGroupedMlp&&) noexcept = default;
DeviceGroupedMlp& DeviceGroupedMlp::operator=(DeviceGroupedMlp&&) noexcept = default;
void DeviceGroupedMlp::run(const void*, i64, const i64*, const float*, void*, GpuStream) const { refuse(); }
void DeviceGroupedMlp::check_splits(GpuStream) const { refuse(); }

}  // namespace glu_ckpt
