#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "core/fail.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/copy/in_place_cycles.hpp"

namespace glu_ckpt {
namespace {

/// The scratch of all experts that are permuted at once.
constexpr i64 kMostScratchBytes = i64{256} << 20;

/// The table and the schedule of one permutation on one device. The table is never written again, so any stream may
/// read it.
struct KeptPermutation {
  InPlaceSchedule schedule;
  DeviceBuffer table;
};

/// Experts, rows, row bytes, block rows and direction, on a device.
using PermutationKey = std::array<i64, 6>;

std::unique_ptr<KeptPermutation> make_permutation(const InPlaceGlu& glu) {
  // The table is copied on a stream of its own, for the default one would wait for all others. That is right while a
  // graph is captured, too: the table is kept for good, and is there before the graph is replayed.
  const BesideCaptures beside;
  auto made = std::make_unique<KeptPermutation>();
  made->schedule = in_place_schedule(glu, kMostScratchBytes);
  made->table = DeviceBuffer(made->schedule.table_bytes);
  if (made->schedule.segments.empty()) return made;
  CUDA_CHECK(cudaMemcpyAsync(made->table.data(), made->schedule.segments.data(),
                             made->schedule.segments.size() * sizeof(CycleSegment), cudaMemcpyHostToDevice,
                             beside.stream()));
  CUDA_CHECK(cudaStreamSynchronize(beside.stream()));
  return made;
}

const KeptPermutation& kept_permutation(const InPlaceGlu& glu) {
  // They outlive every other object: the driver may be gone when statics are destroyed.
  static auto& kept = *new std::map<PermutationKey, std::unique_ptr<KeptPermutation>>;
  static auto& mutex = *new std::mutex;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const PermutationKey key{glu.experts, glu.rows, glu.row_bytes, glu.block_rows, glu.interleave ? 1 : 0, device};
  const std::lock_guard lock(mutex);
  auto& found = kept[key];
  if (!found) found = make_permutation(glu);
  return *found;
}

/// The pool of a device that keeps what is given back, so that the next call need not ask the driver.
cudaMemPool_t scratch_pool() {
  static auto& pools = *new std::map<int, cudaMemPool_t>;
  static auto& mutex = *new std::mutex;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  if (const auto found = pools.find(device); found != pools.end()) return found->second;
  const BesideCaptures beside;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &properties));
  u64 kept_bytes = kMostScratchBytes;
  CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept_bytes));
  return pools[device] = pool;
}

}  // namespace

void in_place_glu(const InPlaceGlu& glu, std::byte* data, GpuStream stream) {
  const KeptPermutation& kept = kept_permutation(glu);
  const auto* const table = reinterpret_cast<const CycleSegment*>(kept.table.data());
  const i64 saved_bytes = kept.schedule.scratch_bytes() - kept.schedule.table_bytes;
  if (saved_bytes == 0) return run_in_place(glu, kept.schedule, table, nullptr, data, stream);
  void* saved = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&saved, static_cast<std::size_t>(saved_bytes), scratch_pool(), stream));
  run_in_place(glu, kept.schedule, table, static_cast<std::byte*>(saved), data, stream);
  CUDA_CHECK(cudaFreeAsync(saved, stream));
}

}  // namespace glu_ckpt
