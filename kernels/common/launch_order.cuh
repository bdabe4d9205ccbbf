#pragma once
/// The kernel's side of launches that begin while the one before them in the stream ends (launch_overlapping.cuh).

namespace glu_ckpt {

/// Waits until the launch before this one in the stream has ended and its writes are seen. They have to be read by
/// ordinary loads: the compiler may move one of __ldg() before this.
__device__ inline void wait_for_launch_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next launch in the stream begin where this one leaves room, once all blocks have called it.
__device__ inline void let_next_launch_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace glu_ckpt
