/// This file takes the place of the kernels where nvcc is missing.

#include "core/fail.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/decode_codes.hpp"
#include "glu_ckpt/ops/device_copy.hpp"
#include "glu_ckpt/ops/device_forward.hpp"
#include "glu_ckpt/ops/grouped_linear.hpp"
#include "glu_ckpt/ops/grouped_mlp_backward.hpp"
#include "glu_ckpt/ops/mxfp8.hpp"
#include "glu_ckpt/ops/offsets.hpp"
#include "glu_ckpt/ops/tensor_diff.hpp"
#include "kernels/copy/compare_parts.hpp"

namespace glu_ckpt {
namespace {

[[noreturn]] void no_cuda(const char* what) { fail(ErrorCode::NoDevice, {}, "{}: {}", what, why_no_cuda()); }

}  // namespace

bool built_with_cuda() { return false; }
int cuda_device_count() { return 0; }
std::string why_no_cuda() { return "this build has no CUDA: there was no nvcc when it was configured"; }
CudaDevice cuda_device(int index) { fail(ErrorCode::NoDevice, {}, "cuda:{}: {}", index, why_no_cuda()); }

OnCudaDevice::OnCudaDevice(int index) : index_(index) { no_cuda("OnCudaDevice"); }
OnCudaDevice::~OnCudaDevice() = default;

u64 capture_number(GpuStream) { no_cuda("capture_number"); }
BesideCaptures::BesideCaptures() { no_cuda("BesideCaptures"); }
BesideCaptures::~BesideCaptures() = default;

void device_copy(std::span<const Move>, std::span<const std::byte* const>, std::span<std::byte* const>, GpuStream) {
  no_cuda("device_copy");
}

struct InPlacePermutation::State {};
InPlacePermutation::InPlacePermutation(const InPlaceGlu&, std::byte*, i64, GpuStream) { no_cuda("InPlacePermutation"); }
InPlacePermutation::~InPlacePermutation() = default;
InPlacePermutation::InPlacePermutation(InPlacePermutation&&) noexcept = default;
InPlacePermutation& InPlacePermutation::operator=(InPlacePermutation&&) noexcept = default;
void InPlacePermutation::run(std::byte*, GpuStream) const { no_cuda("InPlacePermutation"); }
void in_place_glu(const InPlaceGlu&, std::byte*, GpuStream) { no_cuda("in_place_glu"); }

struct DeviceGroupedMlp::State {};
DeviceGroupedMlp::DeviceGroupedMlp(const GroupedMlp&, i64, GpuStream) { no_cuda("DeviceGroupedMlp"); }
DeviceGroupedMlp::~DeviceGroupedMlp() = default;
DeviceGroupedMlp::DeviceGroupedMlp(DeviceGroupedMlp&&) noexcept = default;
DeviceGroupedMlp& DeviceGroupedMlp::operator=(DeviceGroupedMlp&&) noexcept = default;
void DeviceGroupedMlp::run(const void*, i64, const i64*, const float*, void*, GpuStream, void*, void*) const {
  no_cuda("DeviceGroupedMlp");
}
i64 DeviceGroupedMlp::workspace_bytes(i64) const { no_cuda("DeviceGroupedMlp"); }
void DeviceGroupedMlp::check_splits(GpuStream) const { no_cuda("DeviceGroupedMlp"); }

struct DeviceGroupedMlpBackward::State {};
DeviceGroupedMlpBackward::DeviceGroupedMlpBackward(const MlpBackward&, GpuStream) {
  no_cuda("DeviceGroupedMlpBackward");
}
DeviceGroupedMlpBackward::~DeviceGroupedMlpBackward() = default;
DeviceGroupedMlpBackward::DeviceGroupedMlpBackward(DeviceGroupedMlpBackward&&) noexcept = default;
DeviceGroupedMlpBackward& DeviceGroupedMlpBackward::operator=(DeviceGroupedMlpBackward&&) noexcept = default;
i64 DeviceGroupedMlpBackward::workspace_bytes(i64, bool) const { no_cuda("DeviceGroupedMlpBackward"); }
void DeviceGroupedMlpBackward::run(const MlpBackwardStep&, const i64*, void*, GpuStream) const {
  no_cuda("DeviceGroupedMlpBackward");
}
void DeviceGroupedMlpBackward::check_splits(GpuStream) const { no_cuda("DeviceGroupedMlpBackward"); }

DiffStats diff_stats(const void*, const void*, i64, Dtype, GpuStream) { no_cuda("diff_stats"); }

void splits_to_offsets_multi(const SplitSizes&, std::span<const OffsetOutput>, u32*, GpuStream) {
  no_cuda("splits_to_offsets_multi");
}
void check_offset_flags(std::span<const OffsetOutput>, const u32*, GpuStream) { no_cuda("check_offset_flags"); }

void mx_quantize(const MxFormat&, const void*, Dtype, std::uint8_t*, std::uint8_t*, i64, GpuStream) {
  no_cuda("mx_quantize");
}
void mx_dequantize(const MxFormat&, const std::uint8_t*, const std::uint8_t*, i64, void*, Dtype, GpuStream) {
  no_cuda("mx_dequantize");
}
void decode_codes(const CodedWeight&, Dtype, void*, GpuStream) { no_cuda("decode_codes"); }
void mx_swizzle(const MxFormat&, const std::uint8_t*, std::uint8_t*, GpuStream) { no_cuda("mx_swizzle"); }
void mx_unswizzle(const MxFormat&, const std::uint8_t*, std::uint8_t*, GpuStream) { no_cuda("mx_unswizzle"); }
OffsetArrays::OffsetArrays(i64, std::span<const OffsetSpec>) { no_cuda("OffsetArrays"); }

struct PartComparer::State {};
PartComparer::PartComparer(int) { no_cuda("PartComparer"); }
PartComparer::~PartComparer() = default;
std::span<const PartDiff> PartComparer::compare(Dtype, const std::byte*, Dtype, const std::byte*, i64, i64) {
  no_cuda("PartComparer");
}

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

}  // namespace glu_ckpt
