#pragma once
/// kernels/mma_instructions.cuh for a CPU, from PTX's description of the instructions: found in its place.

#include <deque>
#include <span>
#include <vector>

#include "core/float_rows.hpp"
#include "fake_warp/fake_block.hpp"

namespace glu_ckpt::linear {

using u16 = std::uint16_t;

/// Of the block: offsets into `bytes` are its addresses.
struct FakeShared {
  alignas(128) std::array<std::byte, 98304 + 256> bytes{};
  /// When a copy reaches shared memory: as late as may be, behind the wait for its stage, or at once.
  bool late = true;
};
inline FakeShared fake_shared;

/// A thread's copies on their way, stage by stage; the last stage is open.
struct FakeCopies {
  std::deque<std::vector<std::function<void()>>> stages = {{}};
};
inline std::array<FakeCopies, 1024> fake_copies;

inline std::byte* shared_at(u32 address) { return fake_shared.bytes.data() + address; }

inline u32 dynamic_shared() { return 128; }

inline void copy_piece(u32 to, const u16* from, bool there) {
  const auto copy = [=] {
    std::memset(shared_at(to), 0, 16);
    if (there) std::memcpy(shared_at(to), from, 16);
  };
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0 && there) std::abort();
  if (fake_shared.late) {
    fake_copies[threadIdx.x].stages.back().push_back(copy);
  } else {
    copy();
  }
}

inline void store_piece(u32 to, const u32 (&words)[4]) { std::memcpy(shared_at(to), words, 16); }

inline void close_stage() { fake_copies[threadIdx.x].stages.emplace_back(); }

template <int kOpen>
void wait_for_stages() {
  auto& stages = fake_copies[threadIdx.x].stages;
  // Closed ones only are counted; an open one stays open.
  while (stages.size() > kOpen + 1) {
    for (const auto& copy : stages.front()) copy();
    stages.pop_front();
  }
}

inline u16 element_at(u32 row, u32 col) {
  u16 bits = 0;
  std::memcpy(&bits, shared_at(row) + col * 2, sizeof bits);
  return bits;
}

inline u32 pair_of(u16 first, u16 second) { return static_cast<u32>(first) | static_cast<u32>(second) << 16; }

inline void load_matrices(u32 (&registers)[4], u32 row) {
  if (row % 16 != 0) std::abort();
  const auto& rows = fake_warp::exchange(row);
  const u32 lane = fake_warp::lane();
  for (u32 i = 0; i < 4; ++i) {
    const u32 from = rows[i * 8 + lane / 4];
    registers[i] = pair_of(element_at(from, lane % 4 * 2), element_at(from, lane % 4 * 2 + 1));
  }
}

inline void load_transposed(u32 (&registers)[4], u32 row) {
  if (row % 16 != 0) std::abort();
  const auto& rows = fake_warp::exchange(row);
  const u32 lane = fake_warp::lane();
  for (u32 i = 0; i < 4; ++i) {
    const u32 first = i * 8 + lane % 4 * 2;
    registers[i] = pair_of(element_at(rows[first], lane / 4), element_at(rows[first + 1], lane / 4));
  }
}

/// The operands of one mma as a lane holds them.
struct FakeOperands {
  u32 a[4];
  u32 b[2];
};

template <Dtype kDtype>
struct FakeElement {
  static float widen(u16 bits) { return widen_element(reinterpret_cast<const std::byte*>(&bits), kDtype); }
  static u16 narrow(float value) {
    u16 bits = 0;
    narrow_row({&value, 1}, kDtype, reinterpret_cast<std::byte*>(&bits));
    return bits;
  }

  static void mma(float (&sums)[4], const u32 (&a)[4], const u32* b) {
    FakeOperands mine{};
    std::memcpy(mine.a, a, sizeof mine.a);
    std::memcpy(mine.b, b, sizeof mine.b);
    const auto& all = fake_warp::exchange(mine);
    const u32 lane = fake_warp::lane();
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
      for (u32 k = 0; k < 16; ++k) sums[i] += a_at(all, row, k) * b_at(all, k, col);
    }
  }

 private:
  static float half_of(u32 word, u32 half) { return widen(static_cast<u16>(word >> (half * 16))); }
  /// Register (row / 8) + 2 (k / 8) of lane 4 (row % 8) + k % 8 / 2.
  static float a_at(const std::array<FakeOperands, 32>& all, u32 row, u32 k) {
    return half_of(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2);
  }
  /// Register k / 8 of lane 4 col + k % 8 / 2.
  static float b_at(const std::array<FakeOperands, 32>& all, u32 k, u32 col) {
    return half_of(all[col * 4 + k % 8 / 2].b[k / 8], k % 2);
  }
};

using Bf16 = FakeElement<Dtype::BF16>;
using Fp16 = FakeElement<Dtype::F16>;

}  // namespace glu_ckpt::linear
