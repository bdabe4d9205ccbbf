#pragma once
/// kernels/grouped_gemm/sm90_ptx.cuh for a CPU, as far as stage_turns.cuh needs it: found in its place. Warps are
/// fibers that go on in a random order, each until it waits.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "fake_warp/random_warps.hpp"

#define __device__

struct FakeGrid {
  unsigned x = 0;
};
inline FakeGrid blockIdx, gridDim;

inline int atomicAdd(int* at, int value) {
  const int old = *at;
  *at += value;
  return old;
}

/// A fiber is a whole warp.
inline void __syncwarp() {}

namespace glu_ckpt::sm90 {

template <typename T>
T uniform(T value) {
  return value;
}

/// A barrier as PTX describes it: a phase ends when no arrival is pending and all announced bytes have come.
struct FakeBarrier {
  std::uint16_t count;
  std::uint16_t pending;
  std::int16_t bytes;
  std::uint16_t phase;
};
static_assert(sizeof(FakeBarrier) == sizeof(uint64_t));

inline void change_barrier(uint64_t* barrier, int arrivals, int bytes) {
  auto fake = std::bit_cast<FakeBarrier>(*barrier);
  fake.pending = static_cast<std::uint16_t>(fake.pending - arrivals);
  fake.bytes = static_cast<std::int16_t>(fake.bytes + bytes);
  if (fake.pending == 0 && fake.bytes == 0) {
    fake.pending = fake.count;
    ++fake.phase;
    fake_warp::something_happened();
  }
  *barrier = std::bit_cast<uint64_t>(fake);
}

/// The shared memory of a cluster's blocks, the block that a warp belongs to, and whether a block is gone.
struct FakeCluster {
  std::byte* blocks[2] = {};
  std::size_t warps_of_first = 0;
  int warps_left[2] = {};
  bool reached_a_block_that_was_gone = false;
};
inline FakeCluster fake_cluster;

inline std::uint32_t cluster_rank() { return fake_warp::running_warp() < fake_cluster.warps_of_first ? 0 : 1; }

/// Returns the same place of another block.
template <typename T>
T* in_block(T* mine, std::uint32_t rank) {
  const auto offset = reinterpret_cast<std::byte*>(mine) - fake_cluster.blocks[cluster_rank()];
  return reinterpret_cast<T*>(fake_cluster.blocks[rank] + offset);
}

/// Does it to a block some time later.
template <typename Do>
void later_in_block(std::uint32_t rank, const Do& act) {
  fake_warp::later([=] {
    if (fake_cluster.warps_left[rank] == 0) fake_cluster.reached_a_block_that_was_gone = true;
    act();
  });
}

inline void barrier_init(uint64_t* barrier, std::uint32_t count) {
  const auto both = static_cast<std::uint16_t>(count);
  *barrier = std::bit_cast<uint64_t>(FakeBarrier{both, both, 0, 0});
}
inline void barrier_arrive(uint64_t* barrier) { change_barrier(barrier, 1, 0); }
inline void barrier_expect(uint64_t* barrier, std::uint32_t bytes) {
  change_barrier(barrier, 1, static_cast<int>(bytes));
}
inline void bytes_have_come(uint64_t* barrier, int bytes) { change_barrier(barrier, 0, -bytes); }

inline void barrier_arrive_at(uint64_t* barrier, std::uint32_t rank) {
  uint64_t* const there = in_block(barrier, rank);
  later_in_block(rank, [=] { barrier_arrive(there); });
}
inline void store_to_block(int* to, const int (&words)[4], uint64_t* barrier, std::uint32_t rank) {
  int* const there = in_block(to, rank);
  uint64_t* const its_barrier = in_block(barrier, rank);
  const std::array<int, 4> copy = std::to_array(words);
  later_in_block(rank, [=] { barrier_expect(its_barrier, 16); });
  later_in_block(rank, [=] {
    std::ranges::copy(copy, there);
    bytes_have_come(its_barrier, 16);
  });
}

/// As on a GPU it takes any phase of the other parity for the end of the one that is meant.
inline void barrier_wait(uint64_t* barrier, std::uint32_t parity) {
  do fake_warp::let_others_go_on();
  while (std::bit_cast<FakeBarrier>(*barrier).phase % 2 == parity);
}

inline void mma_commit() {}
template <int kPending>
void mma_wait() {
  fake_warp::let_others_go_on();
}

}  // namespace glu_ckpt::sm90
