/// Page-locked memory that costs little to get. For a large buffer CUDA gets pages from the kernel, one small page at a
/// time, while it keeps every other call of the process waiting, copies included. Here the calling thread maps huge
/// pages and touches them first, so that all that is left for CUDA is to lock a few of them. Small buffers CUDA takes
/// from pages that it holds already.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "core/checked_math.hpp"
#include "kernels/common/device_buffer.hpp"

namespace glu_ckpt {
namespace {

/// The huge pages of x86-64, and of aarch64 with pages of 4 KiB. Where they are larger, or not allowed, memory is
/// mapped in small ones.
constexpr i64 kHugePageBytes = i64{2} << 20;

void unmap(std::byte* data, i64 bytes) {
  if (bytes > 0) ::munmap(data, static_cast<std::size_t>(bytes));
}

i64 page_bytes() { return ::sysconf(_SC_PAGESIZE); }

/// Huge pages that are there already, and small ones for the rest: no more is used than was asked for. Null where the
/// system gives none.
std::byte* map_pages(i64 bytes) {
  const i64 page = page_bytes();
  const i64 wanted = round_up(bytes, page);
  void* const mapped = ::mmap(nullptr, static_cast<std::size_t>(wanted + kHugePageBytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto address = static_cast<i64>(reinterpret_cast<std::uintptr_t>(mapped));
  const i64 skipped = round_up(address, kHugePageBytes) - address;
  std::byte* const data = static_cast<std::byte*>(mapped) + skipped;
  unmap(data - skipped, skipped);
  unmap(data + wanted, kHugePageBytes - skipped);
  (void)::madvise(data, static_cast<std::size_t>(wanted), MADV_HUGEPAGE);
  for (i64 at = 0; at < wanted; at += page) static_cast<volatile std::byte*>(data)[at] = std::byte{0};
  return data;
}

}  // namespace

PinnedBuffer::PinnedBuffer(i64 bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  if (bytes >= kHugePageBytes) data_ = map_pages(bytes);
  if (data_ != nullptr) {
    mapped_ = cudaHostRegister(data_, size, cudaHostRegisterDefault) == cudaSuccess;
    if (mapped_) return;
    unmap(data_, round_up(bytes, page_bytes()));
    data_ = nullptr;
    (void)cudaGetLastError();
  }
  // Not every system locks memory that is not CUDA's own; and this call's error is one that users can look up.
  void* data = nullptr;
  if (const cudaError_t status = cudaMallocHost(&data, size); status != cudaSuccess) pinned_memory_fail(status, bytes);
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::~PinnedBuffer() {
  if (!mapped_) {
    (void)cudaFreeHost(data_);
    return;
  }
  (void)cudaHostUnregister(data_);
  unmap(data_, round_up(bytes_, page_bytes()));
}

}  // namespace glu_ckpt
