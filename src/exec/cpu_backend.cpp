/// Conversion by the CPU: workers that read to the final place, or gather, in host memory.

#include <algorithm>
#include <memory>

#include "exec/backends.hpp"
#include "exec/host_buffer.hpp"
#include "exec/move_parts.hpp"

namespace glu_ckpt {
namespace {

/// Gathers into one buffer; the other holds windows of the source.
class CpuWorker final : public Backend::Worker {
 public:
  CpuWorker(const Backend& backend, i64 buffer_bytes) : backend_(backend), buffer_bytes_(buffer_bytes) {}

  std::span<const std::byte> produce(std::span<const Move> moves, RangeReader& reader, i64 begin, i64 end,
                                     i64 phase) override {
    std::byte* const out = buffer_.reserve(end - begin, phase);
    gather(moves, reader, backend_, begin, end, out, scratch_, buffer_bytes_);
    return {out, static_cast<std::size_t>(end - begin)};
  }

 private:
  const Backend& backend_;
  i64 buffer_bytes_;
  HostBuffer buffer_;
  HostBuffer scratch_;
};

class CpuBackend final : public Backend {
 public:
  void copy(std::span<const Move> moves, const std::byte* src, std::byte* dst) const override {
    copy_in_host(moves, src, dst);
  }
  // Longer runs gain nothing, and small tasks spread over the workers and stay in the caches until they are written.
  i64 task_bytes(bool) const override { return i64{8} << 20; }
  // Servers have caches of 1 or 2 MiB for each core. From tmpfs to tmpfs with sixteen threads, parts of 512 KiB took
  // 0.82 of the time of 8 MiB, those of 128 KiB 0.94 and of 2 MiB 0.89 (an H200's host).
  i64 in_cache_bytes() const override { return i64{512} << 10; }
  // A direct write keeps no core busy, so there are half as many threads again, at least two, that wait for the disk.
  int workers(int jobs) const override { return computing(jobs) + std::max(2, jobs / 2); }
  int computing(int jobs) const override { return std::max(1, jobs); }
  i64 buffer_bytes(int workers, i64 memory_bytes) const override {
    return std::max<i64>(kDirectRunBytes, memory_bytes / (2 * workers));
  }
  std::unique_ptr<Worker> make_worker(int, i64 buffer_bytes) const override {
    return std::make_unique<CpuWorker>(*this, buffer_bytes);
  }
  std::string name() const override { return "cpu"; }
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace glu_ckpt
