/// Temporary: what this branch links against until its implementation is merged.

#include "core/fail.hpp"
#include "glu_ckpt/grouped_linear.hpp"

namespace glu_ckpt {

std::string why_no_cublas() { return "not in this branch"; }
struct GroupedLinearHostSplits::State {};
GroupedLinearHostSplits::GroupedLinearHostSplits(const GroupedLinear&, LinearEngine, GpuStream) {
  fail(ErrorCode::NoDevice, {}, "GroupedLinearHostSplits: not in this branch");
}
GroupedLinearHostSplits::~GroupedLinearHostSplits() = default;
GroupedLinearHostSplits::GroupedLinearHostSplits(GroupedLinearHostSplits&&) noexcept = default;
GroupedLinearHostSplits& GroupedLinearHostSplits::operator=(GroupedLinearHostSplits&&) noexcept = default;
void GroupedLinearHostSplits::run(const LinearRows&, std::span<const i64>, GpuStream) const {}
bool GroupedLinearHostSplits::uses_cublas() const { return false; }

}  // namespace glu_ckpt
