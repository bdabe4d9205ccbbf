#pragma once
/// kernels/grouped_gemm/sm90_ptx.cuh for a CPU, as far as stage_turns.cuh needs it: found in its place. Warps are
/// fibers that go on in a random order, each until it waits.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "fake_warp/random_warps.hpp"

#define __device__

namespace glu_ckpt::sm90 {

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

inline void barrier_init(uint64_t* barrier, std::uint32_t count) {
  const auto both = static_cast<std::uint16_t>(count);
  *barrier = std::bit_cast<uint64_t>(FakeBarrier{both, both, 0, 0});
}
inline void barrier_arrive(uint64_t* barrier) { change_barrier(barrier, 1, 0); }
inline void barrier_expect(uint64_t* barrier, std::uint32_t bytes) {
  change_barrier(barrier, 1, static_cast<int>(bytes));
}
inline void bytes_have_come(uint64_t* barrier, int bytes) { change_barrier(barrier, 0, -bytes); }

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
