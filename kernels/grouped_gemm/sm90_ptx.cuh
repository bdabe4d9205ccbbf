#pragma once
/// The PTX instructions of sm_90a by name: barriers in shared memory, TMA, and WGMMA, which reads both operands from
/// shared memory. Names and operands are those of the PTX ISA, chapters "mbarrier", "cp.async.bulk.tensor" and "wgmma".

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace glu_ckpt::sm90 {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Makes a barrier in shared memory: a phase ends when `count` threads have arrived and all announced bytes have come.
__device__ inline void barrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}

/// Makes initialised barriers known to the other block of the cluster and to TMA.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Arrives at the same barrier of block `rank` of the cluster. Orders memory for its own block only, which is enough
/// where WGMMA alone reads what the barrier guards; with the cluster's scope it would be a fence that
/// stops the warp for half of its time.
__device__ inline void barrier_arrive_at(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

/// Arrives and announces bytes that TMA will bring.
__device__ inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// Stores words at the same place of block `rank` of the cluster, a multiple of 16 bytes, and ends the phase of the
/// same barrier there, at which this arrives. Asynchronous; who waits for that barrier sees the words.
__device__ inline void store_to_block(int* to, const int (&words)[4], uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %2;\n"
      "mapa.shared::cluster.u32 remote_barrier, %1, %2;\n"
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [remote_barrier], 16;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [remote], {%3, %4, %5, %6}, "
      "[remote_barrier];\n"
      "}\n" ::"r"(shared_address(to)),
      "r"(shared_address(barrier)), "r"(rank), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

/// Waits for the end of the phase of this parity.
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Returns a value that is the same in all lanes of the warp in a form of which the compiler knows that. What is made
/// from it goes to TMA and WGMMA in uniform registers, without a loop over the values that lanes might have.
template <typename T>
__device__ inline T uniform(T value) {
  return __shfl_sync(0xffffffffU, value, 0);
}

/// The number of this thread's warp in its block.
__device__ inline int warp_in_block() { return uniform(static_cast<int>(threadIdx.x) / 32); }

/// Returns true in one lane of a warp whose lanes are all here, always the same one.
__device__ inline bool is_elected() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// TMA keeps tensor maps in a cache of its own; this drops what it has of one in global memory.
__device__ inline void tensor_map_acquire(const CUtensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/// Brings a map in global memory to L2, where tensor_map_acquire() does not drop it.
__device__ inline void tensor_map_to_l2(const CUtensorMap* map) {
  const auto* const bytes = reinterpret_cast<const char*>(map);
  asm volatile("prefetch.global.L2 [%0];" ::"l"(bytes));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(bytes + sizeof(CUtensorMap) / 2));
}

/// The policies for lines in L2: createpolicy's evict_normal, evict_first and evict_last, for all lines.
constexpr uint64_t kEvictNormal = 0x1000000000000000;
constexpr uint64_t kEvictFirst = 0x12F0000000000000;
constexpr uint64_t kEvictLast = 0x14F0000000000000;

__device__ inline void load_tile_2d(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1,
                                    uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "l"(policy)
      : "memory");
}

__device__ inline void load_tile_3d(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1, int c2,
                                    uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}

/// Loads to the same place in all blocks of the cluster that `mask` names; each block's barrier counts its bytes.
__device__ inline void load_tile_3d_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1,
                                              int c2, uint16_t mask, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "h"(mask), "l"(policy)
      : "memory");
}

__device__ inline void load_tile_2d_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1,
                                              uint16_t mask, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "h"(mask), "l"(policy)
      : "memory");
}

/// Makes this thread's stores to shared memory known to TMA and WGMMA.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Stores the part of a box that lies within the tensor, from shared to global memory, in the thread's current group of
/// stores.
__device__ inline void store_tile_2d(const CUtensorMap* map, const void* from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(c0), "r"(c1)
               : "memory");
}
__device__ inline void store_tile_3d(const CUtensorMap* map, const void* from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until the shared memory of all but this thread's newest `kPending` groups has been read.
template <int kPending>
__device__ inline void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Orders what this thread has seen by ordinary loads before what TMA reads and writes for it in global memory, and
/// what TMA has written for it before its ordinary stores.
__device__ inline void fence_tma() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
/// Adds to a counter, behind all that this thread and those that it has synchronized with have written.
__device__ inline void add_released(uint64_t* counter, uint64_t value) {
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}
/// Reads a counter of add_released(); what was written before the additions that it holds is seen after this.
__device__ inline uint64_t load_acquired(const uint64_t* counter) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}
/// Waits until all of this thread's stores are done.
__device__ inline void store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Synchronizes a warpgroup by the barrier of a number from 1 to 15.
__device__ inline void warpgroup_sync(int number) { asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory"); }

/// Describes a tile of rows of 128 bytes in shared memory, swizzled by 128 bytes as TMA writes it, whose address is a
/// multiple of 1024: groups of 8 rows lie 1024 bytes apart. The descriptor 16 columns (32 bytes) farther on is 2 more.
__device__ inline uint64_t tile_descriptor(const void* tile) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupBytes = 1024;
  const uint64_t address = shared_address(tile);
  return kSwizzle128 | (kGroupBytes >> 4) << 32 | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}

/// Describes an operand that lies transposed: rows of 128 bytes are 64 elements along M or N, and follow one another
/// along K. Its next 64 elements along M or N lie `chunk_bytes` on. The descriptor 16 rows farther along K is
/// kTransposedStep more.
__device__ inline uint64_t transposed_descriptor(const void* tile, int chunk_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupBytes = 1024;
  const uint64_t address = shared_address(tile);
  return kSwizzle128 | (kGroupBytes >> 4) << 32 | static_cast<uint64_t>(chunk_bytes >> 4) << 16 |
         (address & 0x3FFFF) >> 4;
}
constexpr uint64_t kTransposedStep = 16 * 128 / 16;

/// Comes before the first WGMMA that touches registers which other instructions wrote.
__device__ inline void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `kPending` groups are under way.
template <int kPending>
__device__ inline void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The operands of one instruction are up to 128 registers, which PTX wants one by one.
#define GLU_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GLU_F16(i) GLU_F4(i), GLU_F4(i + 4), GLU_F4(i + 8), GLU_F4(i + 12)
#define GLU_F64(i) GLU_F16(i), GLU_F16(i + 16), GLU_F16(i + 32), GLU_F16(i + 48)
#define GLU_P10(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define GLU_P30 GLU_P10() ", " GLU_P10(1) ", " GLU_P10(2)
#define GLU_P60 GLU_P30 ", " GLU_P10(3) ", " GLU_P10(4) ", " GLU_P10(5)
#define GLU_P90 GLU_P60 ", " GLU_P10(6) ", " GLU_P10(7) ", " GLU_P10(8)
#define GLU_P120 GLU_P90 ", " GLU_P10(9) ", " GLU_P10(10) ", " GLU_P10(11)
#define GLU_MMA_OF(type, n, registers, a, b, add, ta, tb, ...)                                                         \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type \
               "." type " {" registers "}, " a ", " b ", add, 1, 1, " ta ", " tb ";\n}\n"                              \
               : __VA_ARGS__                                                                                           \
               : "l"(first), "l"(second), "r"(keep), "n"(kTurnFirst), "n"(kTurnSecond))
#define GLU_MMA(n, registers, a, b, add, ta, tb, ...)                 \
  if constexpr (std::is_same_v<Element, __nv_bfloat16>)               \
    GLU_MMA_OF("bf16", n, registers, a, b, add, ta, tb, __VA_ARGS__); \
  else                                                                \
    GLU_MMA_OF("f16", n, registers, a, b, add, ta, tb, __VA_ARGS__)

/// d[64, kCols] = first[64, 16] second[kCols, 16]^T, plus d if `keep`. For a warpgroup's thread t, lane l of warp w,
/// d[4 j + i] is row 16 w + l / 4 + (i / 2) 8, column 8 j + (l % 4) 2 + i % 2. Asynchronous. An operand that lies
/// transposed, as transposed_descriptor() describes it, has its kTurn 1. More sums are left alone.
template <typename Element, int kCols, int kTurnFirst = 0, int kTurnSecond = 0, int kSums>
__device__ inline void multiply_add(float (&d)[kSums], uint64_t first, uint64_t second, int keep) {
  static_assert(kCols / 2 <= kSums);
  if constexpr (kCols == 8) {
    GLU_MMA("8", "%0, %1, %2, %3", "%4", "%5", "%6", "%7", "%8", GLU_F4(0));
  } else if constexpr (kCols == 16) {
    GLU_MMA("16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", "%11", "%12", GLU_F4(0), GLU_F4(4));
  } else if constexpr (kCols == 32) {
    GLU_MMA("32", GLU_P10() ", %10, %11, %12, %13, %14, %15", "%16", "%17", "%18", "%19", "%20", GLU_F16(0));
  } else if constexpr (kCols == 64) {
    GLU_MMA("64", GLU_P30 ", %30, %31", "%32", "%33", "%34", "%35", "%36", GLU_F16(0), GLU_F16(16));
  } else if constexpr (kCols == 128) {
    GLU_MMA("128", GLU_P60 ", %60, %61, %62, %63", "%64", "%65", "%66", "%67", "%68", GLU_F64(0));
  } else if constexpr (kCols == 192) {
    GLU_MMA("192", GLU_P90 ", %90, %91, %92, %93, %94, %95", "%96", "%97", "%98", "%99", "%100", GLU_F64(0),
            GLU_F16(64), GLU_F16(80));
  } else {
    static_assert(kCols == 256);
    GLU_MMA("256", GLU_P120 ", %120, %121, %122, %123, %124, %125, %126, %127", "%128", "%129", "%130", "%131", "%132",
            GLU_F64(0), GLU_F64(64));
  }
}

#undef GLU_F4
#undef GLU_F16
#undef GLU_F64
#undef GLU_P10
#undef GLU_P30
#undef GLU_P60
#undef GLU_P90
#undef GLU_P120
#undef GLU_MMA_OF
#undef GLU_MMA

/// Stores four 8 x 8 matrices of 16-bit values, as multiply_add() leaves them in the lanes, to shared memory: lane l
/// gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

/// Loads four such matrices back, from the same addresses to the same lanes.
__device__ inline void load_matrices(uint32_t address, uint32_t (&registers)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

/// Stores two such matrices transposed: lanes give the addresses of columns.
__device__ inline void store_columns(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}

}  // namespace glu_ckpt::sm90
