#include "fake_cuda/fake_runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>

namespace {

using glu_ckpt::i64;
using glu_ckpt::u64;
using glu_ckpt::fake_cuda::Range;

struct Work {
  std::vector<Range> used;
  std::function<void()> run;
};

/// Memory of a device, or host memory that was allocated or registered while the device was current.
enum class Kind { Device, Pinned, Registered };

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
  Kind kind = Kind::Device;

  bool pinned() const { return kind != Kind::Device; }
};

}  // namespace

struct CUstream_st {
  int device = 0;
  std::deque<Work> queue;
  u64 done = 0;

  u64 queued() const { return done + queue.size(); }
  void run_until(u64 position) {
    for (; done < position; ++done) {
      queue.front().run();
      queue.pop_front();
    }
  }
};

struct CUevent_st {
  int device = 0;
  CUstream_st* stream = nullptr;
  u64 position = 0;
};

namespace glu_ckpt::fake_cuda {
namespace {

/// What memory holds before anything was copied to it, and a target of a download until it is waited for.
constexpr int kPoison = 0xDB;
constexpr std::size_t kAlignment = 256;
constexpr i64 kUnlimited = std::numeric_limits<i64>::max();

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

struct Runtime {
  std::mutex mutex;
  int devices = kMostDevices;
  std::map<const std::byte*, Allocation> allocations;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  Usage device[kMostDevices];
  Usage pinned;
  i64 most_pinned = kUnlimited;
  int resets[kMostDevices] = {};
  std::vector<std::string> offences;
  std::string failing_call;
  int calls_to_failure = 0;
  cudaError_t failure = cudaSuccess;

  cudaError_t offend(const std::string& sentence) {
    offences.push_back(sentence);
    return cudaErrorInvalidValue;
  }

  cudaError_t planned_failure(const std::string& name) {
    if (name != failing_call || calls_to_failure == 0 || --calls_to_failure > 0) return cudaSuccess;
    return failure;
  }

  Usage& usage(const Allocation& memory) {
    return memory.pinned() ? pinned : device[static_cast<std::size_t>(memory.device)];
  }

  bool has_room(const Allocation& memory) {
    return usage(memory).bytes + static_cast<i64>(memory.bytes) <= (memory.pinned() ? most_pinned : kDeviceBytes);
  }

  void add(void* data, const Allocation& memory) {
    allocations[static_cast<const std::byte*>(data)] = memory;
    Usage& use = usage(memory);
    use.bytes += static_cast<i64>(memory.bytes);
    use.peak_bytes = std::max(use.peak_bytes, use.bytes);
  }

  cudaError_t allocate(void** data, std::size_t bytes, Kind kind) {
    const Allocation memory{bytes, current_device, kind};
    if (!has_room(memory)) return cudaErrorMemoryAllocation;
    *data = ::operator new(bytes, std::align_val_t(kAlignment));
    std::memset(*data, kPoison, bytes);
    add(*data, memory);
    return cudaSuccess;
  }

  cudaError_t lock(void* data, std::size_t bytes) {
    const Allocation memory{bytes, current_device, Kind::Registered};
    if (!has_room(memory)) return cudaErrorMemoryAllocation;
    add(data, memory);
    return cudaSuccess;
  }

  cudaError_t release(void* data, Kind kind) {
    if (data == nullptr) return cudaSuccess;
    const auto found = allocations.find(static_cast<const std::byte*>(data));
    if (found == allocations.end() || found->second.kind != kind)
      return offend("memory is freed that was not allocated so");
    const Allocation memory = found->second;
    check_current(memory.device, "memory");
    for (CUstream_st* stream : streams) {
      if (!uses(*stream, found)) continue;
      offend(fmt::format("{} bytes are freed that queued work uses", memory.bytes));
      stream->run_until(stream->queued());
    }
    usage(memory).bytes -= static_cast<i64>(memory.bytes);
    allocations.erase(found);
    if (kind != Kind::Registered) ::operator delete(data, std::align_val_t(kAlignment));
    return cudaSuccess;
  }

  /// The allocation that a range lies in.
  std::map<const std::byte*, Allocation>::const_iterator find(Range range) const {
    auto after = allocations.upper_bound(range.data());
    if (after == allocations.begin()) return allocations.end();
    --after;
    const std::byte* const end = after->first + after->second.bytes;
    return range.data() + range.size() <= end ? after : allocations.end();
  }

  bool uses(const CUstream_st& stream, std::map<const std::byte*, Allocation>::const_iterator memory) const {
    for (const Work& work : stream.queue)
      for (const Range& range : work.used)
        if (!range.empty() && find(range) == memory) return true;
    return false;
  }

  bool holds(Range range, int on_device, bool is_pinned) const {
    const auto found = find(range);
    return found != allocations.end() && found->second.pinned() == is_pinned &&
           (is_pinned || found->second.device == on_device);
  }

  /// CUDA lets this pass, but opens the device that is current, which costs a few hundred MB where nothing else does.
  void check_current(int owner, const char* what) {
    if (owner != current_device)
      offend(fmt::format("{} of cuda:{} while cuda:{} is current", what, owner, current_device));
  }
};

Runtime& runtime() {
  static Runtime runtime;
  return runtime;
}

/// The runtime, for one thread at a time.
class Locked {
 public:
  Runtime* operator->() { return &runtime_; }
  Runtime& operator*() { return runtime_; }

 private:
  Runtime& runtime_ = runtime();
  std::lock_guard<std::mutex> lock_{runtime_.mutex};
};

/// One call of the API, which fails where a test wants it to.
template <typename Action>
cudaError_t call(const std::string& name, const Action& action) {
  Locked cuda;
  cudaError_t status = cuda->planned_failure(name);
  if (status == cudaSuccess) status = action(*cuda);
  if (status != cudaSuccess) last_error = status;
  return status;
}

}  // namespace

void start(int devices) {
  Locked cuda;
  cuda->devices = devices;
  for (Usage& use : cuda->device) use.peak_bytes = use.bytes;
  cuda->pinned.peak_bytes = cuda->pinned.bytes;
  std::ranges::fill(cuda->resets, 0);
  cuda->most_pinned = kUnlimited;
  cuda->failing_call.clear();
  current_device = 0;
  last_error = cudaSuccess;
}

void fail_call(const std::string& name, int nth, cudaError_t status) {
  Locked cuda;
  cuda->failing_call = name;
  cuda->calls_to_failure = nth;
  cuda->failure = status;
}

void limit_pinned(i64 bytes) { Locked()->most_pinned = bytes; }

bool call_failed() {
  Locked cuda;
  return !cuda->failing_call.empty() && cuda->calls_to_failure == 0;
}

Usage device_usage(int device) { return Locked()->device[static_cast<std::size_t>(device)]; }
Usage pinned_usage() { return Locked()->pinned; }
int device_resets(int device) { return Locked()->resets[static_cast<std::size_t>(device)]; }

int live_objects() {
  Locked cuda;
  return static_cast<int>(cuda->allocations.size() + cuda->streams.size() + cuda->events.size());
}

std::vector<std::string> take_offences() { return std::exchange(Locked()->offences, {}); }

cudaError_t launch(const std::string& name, cudaStream_t stream, std::vector<Range> used, std::function<void()> work) {
  return call(name, [&](Runtime& cuda) {
    if (!cuda.streams.contains(stream) || stream->device != current_device) return cudaErrorInvalidResourceHandle;
    for (const Range& range : used)
      if (!cuda.holds(range, stream->device, false))
        return cuda.offend(
            fmt::format("{}: {} bytes are not in one allocation of cuda:{}", name, range.size(), stream->device));
    stream->queue.push_back({std::move(used), std::move(work)});
    return cudaSuccess;
  });
}

}  // namespace glu_ckpt::fake_cuda

using namespace glu_ckpt::fake_cuda;

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t status) { return status == cudaSuccess ? "no error" : "a fake's error"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&](const Runtime& cuda) {
    *count = cuda.devices;
    return cuda.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"fake", 9, 0, 132};
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](const Runtime& cuda) {
    if (device < 0 || device >= cuda.devices) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceReset() {
  return call("cudaDeviceReset", [](Runtime& cuda) {
    const auto here = [](const auto* object) { return object->device == current_device; };
    ++cuda.resets[static_cast<std::size_t>(current_device)];
    if (std::ranges::any_of(cuda.streams, here) || std::ranges::any_of(cuda.events, here) ||
        std::ranges::any_of(cuda.allocations, [&](const auto& memory) { return here(&memory.second); }))
      return cuda.offend(fmt::format("cuda:{} is reset while something of it is in use", current_device));
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call("cudaMemGetInfo", [&](const Runtime& cuda) {
    const i64 used = cuda.device[static_cast<std::size_t>(current_device)].bytes;
    *free_bytes = static_cast<std::size_t>(kDeviceBytes - used);
    *total_bytes = static_cast<std::size_t>(kDeviceBytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return call("cudaMalloc", [&](Runtime& cuda) { return cuda.allocate(data, bytes, Kind::Device); });
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  return call("cudaMallocHost", [&](Runtime& cuda) { return cuda.allocate(data, bytes, Kind::Pinned); });
}
cudaError_t cudaFree(void* data) {
  return call("cudaFree", [&](Runtime& cuda) { return cuda.release(data, Kind::Device); });
}
cudaError_t cudaFreeHost(void* data) {
  return call("cudaFreeHost", [&](Runtime& cuda) { return cuda.release(data, Kind::Pinned); });
}

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned) {
  return call("cudaHostRegister", [&](Runtime& cuda) { return cuda.lock(data, bytes); });
}
cudaError_t cudaHostUnregister(void* data) {
  return call("cudaHostUnregister", [&](Runtime& cuda) { return cuda.release(data, Kind::Registered); });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&](const Runtime& cuda) {
    for (const cudaStream_t stream : cuda.streams)
      if (stream->device == current_device) stream->run_until(stream->queued());
    return cudaSuccess;
  });
}

/// Memory of the host need not be pinned: CUDA copies through memory of its own then.
cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind) {
  return call("cudaMemcpy", [&](const Runtime&) {
    std::memcpy(dst, src, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Runtime& cuda) {
    if (!cuda.streams.contains(stream)) return cudaErrorInvalidResourceHandle;
    const bool down = kind == cudaMemcpyDeviceToHost;
    const Range from(static_cast<const std::byte*>(src), bytes), to(static_cast<const std::byte*>(dst), bytes);
    if (!cuda.holds(from, stream->device, !down) || !cuda.holds(to, stream->device, down))
      return cuda.offend(
          fmt::format("a copy of {} bytes is not between pinned memory and cuda:{}", bytes, stream->device));
    // What is queued before it on its stream, such as an upload from the same buffer, comes first.
    if (down && !cuda.uses(*stream, cuda.find(to))) std::memset(dst, kPoison, bytes);
    stream->queue.push_back({{from, to}, [=] { std::memcpy(dst, src, bytes); }});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return call("cudaStreamCreateWithFlags", [&](Runtime& cuda) {
    *stream = new CUstream_st{current_device, {}, 0};
    cuda.streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", [&](Runtime& cuda) {
    if (cuda.streams.erase(stream) == 0) return cudaErrorInvalidResourceHandle;
    cuda.check_current(stream->device, "a stream");
    // CUDA lets this pass too, but then nobody can tell when the memory in use may be freed.
    if (!stream->queue.empty()) cuda.offend("a stream with queued work is destroyed");
    stream->run_until(stream->queued());
    delete stream;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&](const Runtime& cuda) {
    if (!cuda.streams.contains(stream)) return cudaErrorInvalidResourceHandle;
    stream->run_until(stream->queued());
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call("cudaEventCreateWithFlags", [&](Runtime& cuda) {
    *event = new CUevent_st{current_device, nullptr, 0};
    cuda.events.insert(*event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", [&](Runtime& cuda) {
    if (cuda.events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
    cuda.check_current(event->device, "an event");
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&](const Runtime& cuda) {
    if (!cuda.events.contains(event) || !cuda.streams.contains(stream) || event->device != stream->device)
      return cudaErrorInvalidResourceHandle;
    event->stream = stream;
    event->position = stream->queued();
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", [&](const Runtime& cuda) {
    if (!cuda.events.contains(event)) return cudaErrorInvalidResourceHandle;
    // CUDA too takes an event that was never recorded for one that is over.
    if (cuda.streams.contains(event->stream)) event->stream->run_until(event->position);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&](const Runtime& cuda) {
    for (const CUevent_st* event : {begin, end})
      if (!cuda.streams.contains(event->stream) || event->stream->done < event->position) return cudaErrorNotReady;
    *milliseconds = 1;
    return cudaSuccess;
  });
}
