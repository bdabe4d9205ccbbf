#pragma once
/// The only place tensor bytes move, and where they are hashed as they pass.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/digest.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Takes the bytes of an output (src/io/sink.hpp).
class Sink;

/// The ranges that share blocks with the source's files (src/exec/clone_plan.hpp).
class ClonePlan;

/// Notes what is written (src/exec/done_log.hpp).
class DoneLog;

/// The time that all workers spent on each kind of work, in nanoseconds.
struct StageTimes {
  std::atomic<i64> reading{0};
  std::atomic<i64> hashing{0};
  /// Putting bytes in place in memory, or the way through a GPU.
  std::atomic<i64> moving{0};
  std::atomic<i64> writing{0};
};

/// Reads for one range of the output (src/exec/range_reader.hpp).
class RangeReader;

/// Makes codes of weights, and adds products to weights (src/core/weight_device.hpp).
class WeightDevice;

/// A device that executes moves.
class Backend {
 public:
  /// The means of one thread of a conversion: buffers, and on a GPU a stream.
  class Worker {
   public:
    virtual ~Worker() = default;
    /// Bytes [begin, end) of the tensor that `moves` describe, every byte read through `reader`. At most as many as the
    /// buffers hold; valid until the next call. Their address is `phase` mod 4096, as direct I/O wants it.
    virtual std::span<const std::byte> produce(std::span<const Move> moves, RangeReader& reader, i64 begin, i64 end,
                                               i64 phase) = 0;
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
  /// Bytes that stay in a core's cache from their read to their write, where that is a copy to memory; 0 where they
  /// leave it for a device.
  virtual i64 in_cache_bytes() const { return 0; }
  /// Threads that keep it and a disk busy where the user allows `jobs`.
  virtual int workers(int jobs) const = 0;
  /// Returns how many of those may read, compute and hash at a time; the others wait for the disk to write.
  virtual int computing(int jobs) const { return workers(jobs); }
  /// Bytes of each of a worker's two host buffers, where all together may have `memory_bytes`.
  virtual i64 buffer_bytes(int workers, i64 memory_bytes) const = 0;
  /// `number` counts the workers from 0; called by the thread that will use it. Throws NoMemory, DeviceFailed.
  virtual std::unique_ptr<Worker> make_worker(int number, i64 buffer_bytes) const = 0;
  /// Returns the device that makes codes and merged weights of a source, for a backend with BackendOptions::computes;
  /// null on the CPU, and once the device was given back.
  virtual std::weak_ptr<WeightDevice> weight_device() const { return {}; }
  /// "cpu", "cuda:0" or "cuda:0,1".
  virtual std::string name() const = 0;
};

struct BackendOptions {
  /// Bytes of device memory for the buffers of all workers on one GPU.
  i64 device_memory_bytes = i64{1} << 30;
  /// The source encodes or merges: weight_device() does that, with that memory, and the CPU does the rest.
  bool computes = false;
};

/// "cpu", "cuda", "cuda:N" or "cuda:all". A GPU is opened in the background, which takes a few tenths of a second;
/// ready() says whether it could be. Throws Usage; NoDevice where there is none at all.
std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options = {});

/// The device that `--device auto` takes, and the reason, as a sentence.
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

/// The leaves of one range of the output: those that were read for it, and those that it holds.
struct RangeSums {
  LeafSum source;
  LeafSum output;
  /// Elements of the range that are NaN, where ExecuteOptions asks for them.
  i64 nans = 0;
  RangeSums& operator+=(const RangeSums& other);
  bool operator==(const RangeSums&) const = default;
};

/// Bytes [begin, end) of an output tensor, written.
struct DoneRange {
  std::size_t tensor = 0;
  i64 begin = 0;
  i64 end = 0;
  RangeSums sums;
  /// A hash of all its bytes where some are in no leaf of the output, such as padding and copies; else empty.
  LeafSum whole = {};

  i64 bytes() const { return end - begin; }
};

struct ExecuteOptions {
  /// Worker threads; a backend may want more. Each owns two buffers.
  int jobs = 1;
  /// Some writes wait for a device, so a backend may have threads that only wait. On a filesystem in memory they would
  /// take the processors from those that write.
  bool writes_wait = true;
  /// Bytes of all buffers together.
  i64 memory_bytes = i64{1} << 30;
  /// Called with the bytes finished since the last call, from any worker thread.
  std::function<void(i64)> on_progress;
  /// The leaves of the source and of the output; null where nothing is hashed.
  const ModelLeaves* source_leaves = nullptr;
  const ModelLeaves* output_leaves = nullptr;
  /// The outputs, of BF16 or F32, whose NaN elements are counted; sorted.
  std::vector<std::size_t> count_nans_of;
  /// Notes each range once it is written; null: nobody wants to know.
  DoneLog* log = nullptr;
  /// The times that the workers spend are added here, if it is not null.
  StageTimes* times = nullptr;
  /// Ranges that need not be written again. No two overlap.
  std::vector<DoneRange> done;
  /// Ranges of the same plan that are cloned already and are not written either; null where nothing was cloned.
  const ClonePlan* clones = nullptr;
};

/// Reads through `source` and writes every byte of `plan` that is in neither `options.done` nor `options.clones` once
/// through `sink`, in any order. Returns the leaves of what it wrote.
RangeSums execute(const Plan& plan, const Source& source, Sink& sink, const Backend& backend,
                  const ExecuteOptions& options);

/// Bytes of the host buffers that execute() will have allocated at the most, alignment on a GPU aside.
i64 planned_buffer_bytes(const Plan& plan, const Backend& backend, const ExecuteOptions& options);

}  // namespace glu_ckpt
