#pragma once
/// The backends behind make_backend().

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exec/range_reader.hpp"
#include "glu_ckpt/execute.hpp"

namespace glu_ckpt {

/// Moves in host memory, on this thread, in tiles that suit its caches. `src` and `dst` are where offset 0 of every
/// move's tensors lies; no byte is written twice.
void copy_in_host(std::span<const Move> moves, const std::byte* src, std::byte* dst);

std::unique_ptr<Backend> make_cpu_backend();

/// Takes GPUs by index, at least one; workers share them in rotation. Throws NoDevice.
std::unique_ptr<Backend> make_cuda_backend(const std::vector<int>& devices, const BackendOptions& options);

/// Returns the GPUs of a backend by index; none of the CPU's.
std::vector<int> devices_of(const Backend& backend);

/// Copies between host memory and a GPU's, and waits for it. Throws NoDevice, DeviceFailed.
void copy_off_gpu(int device, const std::byte* from, std::span<std::byte> to);
void copy_onto_gpu(int device, std::span<const std::byte> from, std::byte* to);

/// The rates that a conversion through the GPU reaches for single elements, with upload, kernel and download one after
/// the other; the copy into pinned memory is not counted.
struct GpuRates {
  /// Device memory before anything was allocated.
  i64 free_bytes = 0;
  /// Seconds until the GPU was ready for its first work.
  double open_seconds = 0;
  double upload_bytes_per_second = 0;
  double download_bytes_per_second = 0;
  /// Upload, transpose and download of one buffer after the other.
  double transpose_bytes_per_second = 0;
};
/// Throws NoDevice, DeviceFailed.
GpuRates measure_gpu(int device);

/// Bytes per second at which one thread transposes single elements of 2 bytes, and copies runs of a page.
struct CpuRates {
  double transpose_bytes_per_second = 0;
  double copy_bytes_per_second = 0;
};
CpuRates measure_cpu();

/// Chooses cuda:0 where it transposes more bytes per second than so many threads at `thread_rate` each, as `measure`
/// says. Chooses the CPU where it does not, where its memory does not hold the buffers, and where measuring throws: a
/// GPU that is full or broken is a reason, not a failure.
DeviceChoice faster_device(double thread_rate, int threads, i64 device_memory_bytes,
                           const std::function<GpuRates()>& measure);

}  // namespace glu_ckpt
