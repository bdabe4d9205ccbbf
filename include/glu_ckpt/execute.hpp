#pragma once
/// The only place tensor bytes move.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Where moves are executed.
class Backend {
 public:
  /// What one thread of a conversion uses: buffers, and on a GPU a stream.
  class Worker {
   public:
    virtual ~Worker() = default;
    /// Bytes [begin, end) of the tensor that `moves` describe, every byte read from `source`. At most as many as the
    /// buffers hold; valid until the next call.
    virtual std::span<const std::byte> produce(std::span<const Move> moves, const Source& source, i64 begin,
                                               i64 end) = 0;
  };

  virtual ~Backend() = default;
  /// Copies in host memory as `moves` say; `src` and `dst` are where offset 0 of every move's tensors would be. No byte
  /// may be written twice.
  virtual void copy(std::span<const Move> moves, const std::byte* src, std::byte* dst) const = 0;
  /// Waits until the device is open. Throws NoDevice, DeviceFailed.
  virtual void ready() const {}
  /// Gives the device back in the background, for programs that need it no more: on a GPU everything that this process
  /// holds there is lost. All workers must be gone, and none can be made afterwards.
  virtual void release() {}
  /// Bytes of a tensor that a worker makes at a time, where its runs are long, or short ones have to be gathered.
  virtual i64 task_bytes(bool short_runs) const = 0;
  /// Threads that keep it busy where the user allows `jobs`.
  virtual int workers(int jobs) const = 0;
  /// Bytes of each of a worker's two host buffers, where all together may have `memory_bytes`.
  virtual i64 buffer_bytes(int workers, i64 memory_bytes) const = 0;
  /// `number` counts the workers from 0; called by the thread that will use it. Throws NoMemory, DeviceFailed.
  virtual std::unique_ptr<Worker> make_worker(int number, i64 buffer_bytes) const = 0;
  /// "cpu", "cuda:0" or "cuda:0,1".
  virtual std::string name() const = 0;
};

struct BackendOptions {
  /// Bytes of device memory for the buffers of all workers on one GPU.
  i64 device_memory_bytes = i64{1} << 30;
};

/// "cpu", "cuda", "cuda:N" or "cuda:all". A GPU is opened in the background, which takes a few tenths of a second;
/// ready() says whether it could be. Throws Usage; NoDevice where there is none at all.
std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options = {});

/// What `--device auto` takes, and why, as a sentence.
struct DeviceChoice {
  std::string device;
  std::string reason;
};

/// Bytes of a plan that go in runs shorter than a page, which have to be gathered; longer ones are read in place.
i64 gathered_bytes(const Plan& plan);

/// The faster device for so many gathered bytes, by measurement where there is something to gain: both sides turn a
/// sample of single elements, the GPU through pinned memory and back. A GPU that cannot be used
/// is not chosen.
DeviceChoice choose_device(i64 gathered_bytes, int jobs, const BackendOptions& options = {});

struct ExecuteOptions {
  /// Worker threads; a backend may want more. Each owns two buffers.
  int jobs = 1;
  /// Bytes of all buffers together.
  i64 memory_bytes = i64{1} << 30;
  /// Called with the bytes finished since the last call, from any worker thread.
  std::function<void(i64)> on_progress;
};

/// Reads through `source` and writes every byte of `plan` once through `sink`, in any order.
void execute(const Plan& plan, const Source& source, Sink& sink, const Backend& backend, const ExecuteOptions& options);

/// Bytes of the host buffers that execute() will have allocated at the most, alignment on a GPU aside.
i64 planned_buffer_bytes(const Plan& plan, const Backend& backend, const ExecuteOptions& options);

/// Reads bytes [begin, end) of a tensor that `moves` describe into `out`, taking every byte from
/// `source`. `scratch` bounds the memory used for gathering short runs.
void gather(std::span<const Move> moves, const Source& source, const Backend& backend, i64 begin, i64 end,
            std::byte* out, std::vector<std::byte>& scratch, i64 scratch_bytes);

}  // namespace glu_ckpt
