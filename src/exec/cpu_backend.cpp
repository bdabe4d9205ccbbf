/// Moves in host memory.

#include <algorithm>
#include <cstring>

#include "core/grow_buffer.hpp"
#include "exec/backends.hpp"
#include "exec/move_parts.hpp"

namespace glu_ckpt {
namespace {

/// Elements along each side of a transpose tile: 64 x 64 two-byte elements are 8 KiB on either side,
/// which keeps both in the first-level cache.
constexpr i64 kTile = 64;

/// The two inner loops of a move, tiled so that neither side is walked with a long stride throughout.
template <typename Element>
void copy_plane(const MoveDim& outer, const MoveDim& inner, const std::byte* src, std::byte* dst) {
  for (i64 i0 = 0; i0 < outer.count; i0 += kTile)
    for (i64 j0 = 0; j0 < inner.count; j0 += kTile)
      for (i64 i = i0; i < std::min(i0 + kTile, outer.count); ++i)
        for (i64 j = j0; j < std::min(j0 + kTile, inner.count); ++j)
          std::memcpy(dst + i * outer.dst_step + j * inner.dst_step, src + i * outer.src_step + j * inner.src_step,
                      sizeof(Element));
}

void copy_runs(const Move& move, const std::byte* src, std::byte* dst) {
  const auto& d = move.dims;
  for (i64 i = 0; i < d[2].count; ++i)
    for (i64 j = 0; j < d[3].count; ++j)
      std::memcpy(dst + i * d[2].dst_step + j * d[3].dst_step, src + i * d[2].src_step + j * d[3].src_step,
                  static_cast<std::size_t>(move.run_bytes));
}

void copy_inner(const Move& move, const std::byte* src, std::byte* dst) {
  switch (move.run_bytes) {
    case 1: return copy_plane<std::uint8_t>(move.dims[2], move.dims[3], src, dst);
    case 2: return copy_plane<std::uint16_t>(move.dims[2], move.dims[3], src, dst);
    case 4: return copy_plane<std::uint32_t>(move.dims[2], move.dims[3], src, dst);
    case 8: return copy_plane<std::uint64_t>(move.dims[2], move.dims[3], src, dst);
    default: return copy_runs(move, src, dst);
  }
}

/// Gathers into one buffer; the other holds windows of the source.
class CpuWorker final : public Backend::Worker {
 public:
  CpuWorker(const Backend& backend, i64 buffer_bytes) : backend_(backend), buffer_bytes_(buffer_bytes) {}

  std::span<const std::byte> produce(std::span<const Move> moves, const Source& source, i64 begin, i64 end) override {
    grow_buffer(buffer_, end - begin);
    gather(moves, source, backend_, begin, end, buffer_.data(), scratch_, buffer_bytes_);
    return {buffer_.data(), static_cast<std::size_t>(end - begin)};
  }

 private:
  const Backend& backend_;
  i64 buffer_bytes_;
  std::vector<std::byte> buffer_, scratch_;
};

class CpuBackend final : public Backend {
 public:
  void copy(const Move& move, const std::byte* src, std::byte* dst) const override { copy_in_host(move, src, dst); }
  // Long runs gain nothing from larger tasks, and small tasks spread over the workers. Short runs want a task to hold
  // whole matrices, so that a transpose reads its source once.
  i64 task_bytes(bool short_runs) const override { return i64{short_runs ? 128 : 8} << 20; }
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

void copy_in_host(const Move& move, const std::byte* src, std::byte* dst) {
  // Loops in use come first in a move; the inner two are the ones worth tiling.
  Move inner = move;
  const auto idle = [](const MoveDim& dim) { return dim.count == 1; };
  std::stable_partition(inner.dims.begin(), inner.dims.end(), idle);
  const MoveDim& a = inner.dims[0];
  const MoveDim& b = inner.dims[1];
  for (i64 i = 0; i < a.count; ++i)
    for (i64 j = 0; j < b.count; ++j)
      copy_inner(inner, src + move.src_offset + i * a.src_step + j * b.src_step,
                 dst + move.dst_offset + i * a.dst_step + j * b.dst_step);
}

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace glu_ckpt
