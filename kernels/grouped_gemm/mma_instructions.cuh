#pragma once
/// The instructions of tensor cores and of copies into shared memory, by name. Tests have the same functions for a CPU
/// (tests/fake_warp), so nothing but these may be written in assembly.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt::linear {

using u16 = std::uint16_t;

/// Address of the block's dynamic shared memory, a multiple of 128.
__device__ inline u32 dynamic_shared() {
  extern __shared__ __align__(128) unsigned char shared_tiles[];
  return static_cast<u32>(__cvta_generic_to_shared(shared_tiles));
}

/// Copies 16 bytes from device memory, or as many zeros where nothing is there to be read. They are in shared memory
/// once this thread has waited for their stage.
__device__ inline void copy_piece(u32 to, const u16* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

/// Stores 16 bytes from registers.
__device__ inline void store_piece(u32 to, const u32 (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

/// Makes one stage of this thread's copies since the last call.
__device__ inline void close_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all but the newest `kOpen` stages of this thread have come.
template <int kOpen>
__device__ void wait_for_stages() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// Loads four matrices of 8 by 8: lane l names row l % 8, 16 bytes, of matrix l / 8. Register i of lane l gets elements
/// 2 (l % 4) and the next of row l / 4 of matrix i.
__device__ inline void load_matrices(u32 (&registers)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(row)
               : "memory");
}

/// Loads the matrices' transposes likewise.
__device__ inline void load_transposed(u32 (&registers)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(row)
               : "memory");
}

/// sums [16, 8] += a [16, 16] b [16, 8], each spread over the warp.
struct Bf16 {
  static __device__ void mma(float (&sums)[4], const u32 (&a)[4], const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  static __device__ u16 narrow(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
  static __device__ float widen(u16 bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); }
};

struct Fp16 {
  static __device__ void mma(float (&sums)[4], const u32 (&a)[4], const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  static __device__ u16 narrow(float value) { return __half_as_ushort(__float2half_rn(value)); }
  static __device__ float widen(u16 bits) { return __half2float(__ushort_as_half(bits)); }
};

}  // namespace glu_ckpt::linear
