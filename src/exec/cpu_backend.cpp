/// Conversion by the CPU: workers that read to the final place, or gather, in host memory.

#include <algorithm>
#include <memory>

#include "core/grow_buffer.hpp"
#include "exec/backends.hpp"
#include "exec/move_parts.hpp"

namespace glu_ckpt {
namespace {

/// Lines of the cache, and the longest registers: a range begins at the start of one, so that a transpose writes whole
/// lines where the rows of its target do.
constexpr i64 kLineBytes = 64;

std::byte* next_line(std::byte* at) {
  void* line = at;
  std::size_t room = kLineBytes;
  return static_cast<std::byte*>(std::align(kLineBytes, 1, line, room));
}

/// Gathers into one buffer; the other holds windows of the source.
class CpuWorker final : public Backend::Worker {
 public:
  CpuWorker(const Backend& backend, i64 buffer_bytes) : backend_(backend), buffer_bytes_(buffer_bytes) {}

  std::span<const std::byte> produce(std::span<const Move> moves, const Source& source, i64 begin, i64 end) override {
    grow_buffer(buffer_, end - begin + kLineBytes);
    std::byte* const out = next_line(buffer_.data());
    gather(moves, source, backend_, begin, end, out, scratch_, buffer_bytes_);
    return {out, static_cast<std::size_t>(end - begin)};
  }

 private:
  const Backend& backend_;
  i64 buffer_bytes_;
  std::vector<std::byte> buffer_, scratch_;
};

class CpuBackend final : public Backend {
 public:
  void copy(std::span<const Move> moves, const std::byte* src, std::byte* dst) const override {
    copy_in_host(moves, src, dst);
  }
  // Longer runs gain nothing, and small tasks spread over the workers and stay in the caches until they are written.
  i64 task_bytes(bool) const override { return i64{8} << 20; }
  int workers(int jobs) const override { return std::max(1, jobs); }
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
