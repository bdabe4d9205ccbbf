/// In the place of the grouped linear layer's kernels where nvcc is missing.

#include "core/fail.hpp"
#include "glu_ckpt/grouped_linear.hpp"

namespace glu_ckpt {
namespace {

[[noreturn]] void no_cuda(const char* what) { fail(ErrorCode::NoDevice, {}, "{}: {}", what, why_no_cuda()); }

}  // namespace

std::string why_no_cublas() { return why_no_cuda(); }

struct DeviceGroupedLinear::State {};
DeviceGroupedLinear::DeviceGroupedLinear(const GroupedLinear&, GpuStream) { no_cuda("DeviceGroupedLinear"); }
DeviceGroupedLinear::~DeviceGroupedLinear() = default;
DeviceGroupedLinear::DeviceGroupedLinear(DeviceGroupedLinear&&) noexcept = default;
DeviceGroupedLinear& DeviceGroupedLinear::operator=(DeviceGroupedLinear&&) noexcept = default;
void DeviceGroupedLinear::run(const LinearRows&, const i64*, GpuStream) const { no_cuda("DeviceGroupedLinear"); }
void DeviceGroupedLinear::check_splits(GpuStream) const { no_cuda("DeviceGroupedLinear"); }

struct GroupedLinearHostSplits::State {};
GroupedLinearHostSplits::GroupedLinearHostSplits(const GroupedLinear&, LinearEngine, GpuStream) {
  no_cuda("GroupedLinearHostSplits");
}
GroupedLinearHostSplits::~GroupedLinearHostSplits() = default;
GroupedLinearHostSplits::GroupedLinearHostSplits(GroupedLinearHostSplits&&) noexcept = default;
GroupedLinearHostSplits& GroupedLinearHostSplits::operator=(GroupedLinearHostSplits&&) noexcept = default;
void GroupedLinearHostSplits::run(const LinearRows&, std::span<const i64>, GpuStream) const {
  no_cuda("GroupedLinearHostSplits");
}
bool GroupedLinearHostSplits::uses_cublas() const { return false; }

}  // namespace glu_ckpt
