#pragma once
/// A CUDA runtime in host memory, for tests of the code around the kernels. What is queued on a stream is done as late
/// as CUDA may do it: when the host waits for it. So a wait that is missing shows as wrong bytes, on every run.

#include <cuda_runtime_api.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/tensor.hpp"

#ifndef GLU_CKPT_FAKE_CUDA
#error "CUDA's own header was found before the one beside this file"
#endif

namespace glu_ckpt::fake_cuda {

/// Memory of each device.
constexpr i64 kDeviceBytes = i64{1} << 28;
constexpr int kMostDevices = 2;

/// Starts over: so many devices, no limit of pinned memory, no planned failure, peaks and resets forgotten, the first
/// device current on this thread.
void start(int devices = kMostDevices);

/// The nth call of `name` from now on, over all threads, gives `status` and does nothing. One at a time.
void fail_call(const std::string& name, int nth, cudaError_t status);
/// Whether it came to that.
bool call_failed();

/// No more memory than this is page-locked at a time.
void limit_pinned(i64 bytes);

struct Usage {
  i64 bytes = 0;
  i64 peak_bytes = 0;
};
Usage device_usage(int device);
Usage pinned_usage();
/// Allocations, streams and events that were not given back.
int live_objects();
/// Calls of cudaDeviceReset.
int device_resets(int device);

/// What was done that has no place in a program, as sentences: memory freed or streams destroyed that queued work
/// uses, copies beyond what was allocated, objects of one device given back while another is current.
std::vector<std::string> take_offences();

/// Bytes that queued work reads or writes, in device memory.
using Range = std::span<const std::byte>;
/// Queues what takes a kernel's place.
cudaError_t launch(const std::string& name, cudaStream_t stream, std::vector<Range> used, std::function<void()> work);

}  // namespace glu_ckpt::fake_cuda
