#pragma once
/// The kernels of encode_cells(). Both take units of 16 weights, as many as one row of the smallest cell has. Cells of
/// one row are for some lanes of a warp, any other cell is for a block, which reads its weights twice: the second time
/// they come from a cache. The formulas are those of the CPU's loops (core/encode_bits.hpp); what stands here is who
/// takes which weight.

#include <cstddef>

#include "core/weight_device.hpp"

namespace glu_ckpt::encoding {

constexpr int kUnit = 16;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// The arguments of the kernels, made from a CellBatch.
struct CellArgs {
  CellRule rule;
  encode_bits::Fp4Steps steps;
  float second = 1;
  u32 rows = 0;
  u32 cols = 0;
  u32 cell_rows = 0;
  u32 cell_cols = 0;
  u32 grid_cols = 0;
  u32 scale_bytes = 0;
  /// Rows and cells are whole units, so that each is aligned.
  bool is_aligned = false;
  const std::byte* weights = nullptr;
  u32* flag = nullptr;
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
};

inline CellArgs cell_args(const CellBatch& batch) {
  CellArgs args;
  args.rule = batch.rule;
  args.steps = encode_bits::fp4_steps(batch.rule);
  args.second = batch.second;
  args.rows = static_cast<u32>(batch.rows);
  args.cols = static_cast<u32>(batch.cols);
  args.cell_rows = static_cast<u32>(batch.cell_rows);
  args.cell_cols = static_cast<u32>(batch.cell_cols);
  args.grid_cols = static_cast<u32>(batch.grid_cols());
  args.scale_bytes = static_cast<u32>(batch.scale_bytes);
  args.is_aligned = batch.cols % kUnit == 0 && batch.cell_cols % kUnit == 0;
  return args;
}

/// Returns whether cells are for some lanes of a warp; else each is for a block.
inline bool has_row_cells(const CellBatch& batch) {
  if (batch.cell_rows != 1 || batch.cell_cols % kUnit != 0 || batch.cols % batch.cell_cols != 0) return false;
  const i64 units = batch.cell_cols / kUnit;
  return units <= 32 && (units & (units - 1)) == 0;
}

inline i64 blocks_of(const CellBatch& batch) {
  if (!has_row_cells(batch)) return batch.grid_rows() * batch.grid_cols();
  return (batch.rows * batch.cols + i64{kUnit} * kThreads - 1) / (i64{kUnit} * kThreads);
}

/// Weights as bits of fp32.
struct Unit {
  u32 bits[kUnit];
};

template <bool kBf16>
__device__ __forceinline__ u32 one_weight(const std::byte* weights, i64 at) {
  constexpr int kBytes = kBf16 ? 2 : 4;
  u32 bits = 0;
  for (int i = 0; i < kBytes; ++i) bits |= static_cast<u32>(weights[at * kBytes + i]) << (8 * (i + 4 - kBytes));
  return bits;
}

template <bool kBf16>
__device__ __forceinline__ Unit load_unit(const std::byte* weights, i64 first) {
  Unit unit;
  const uint4* const words = reinterpret_cast<const uint4*>(weights + first * (kBf16 ? 2 : 4));
#pragma unroll
  for (int i = 0; i < (kBf16 ? 2 : 4); ++i) {
    const uint4 word = words[i];
    const u32 parts[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kBf16) {
        unit.bits[8 * i + 2 * j] = parts[j] << 16;
        unit.bits[8 * i + 2 * j + 1] = parts[j] & 0xffff'0000;
      } else {
        unit.bits[4 * i + j] = parts[j];
      }
    }
  }
  return unit;
}

/// `count` weights, and zeros behind them.
template <bool kBf16>
__device__ __forceinline__ Unit load_part(const CellArgs& args, i64 first, u32 count) {
  if (args.is_aligned) return load_unit<kBf16>(args.weights, first);
  Unit unit;
#pragma unroll
  for (u32 i = 0; i < kUnit; ++i) unit.bits[i] = i < count ? one_weight<kBf16>(args.weights, first + i) : 0;
  return unit;
}

__device__ __forceinline__ u32 greatest_of(const Unit& unit) {
  u32 greatest = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const u32 magnitude = unit.bits[i] & 0x7fff'ffff;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  return greatest;
}

/// The greatest of so many neighbouring lanes, a power of two, in all of them.
__device__ __forceinline__ u32 greatest_of_lanes(u32 greatest, u32 lanes) {
  for (u32 step = lanes / 2; step > 0; step /= 2) {
    const u32 other = __shfl_xor_sync(0xffff'ffff, greatest, step);
    greatest = other > greatest ? other : greatest;
  }
  return greatest;
}

/// The number that the cell's weights are multiplied with, or divided by. One thread of the cell `stores` its scale.
__device__ __forceinline__ float scale_cell(const CellArgs& args, u32 greatest_bits, i64 cell, bool stores) {
  constexpr u32 kInfinity = 0x7f80'0000;
  const float greatest = std::bit_cast<float>(greatest_bits < kInfinity ? greatest_bits : u32{kInfinity});
  const CellScale scale = encode_bits::cell_scale(args.rule, greatest, args.second);
  if (!stores) return scale.factor;
  const u32 factor = std::bit_cast<u32>(scale.factor) & 0x7fff'ffff;
  if (greatest >= kLeastWatched || factor >= kInfinity || (args.rule.divides && factor == 0)) *args.flag = 1;
  for (u32 i = 0; i < args.scale_bytes; ++i)
    args.scales[cell * args.scale_bytes + i] = static_cast<std::byte>(scale.stored >> (8 * i));
  return scale.factor;
}

template <Codes kCodes>
__device__ __forceinline__ u32 code_of_weight(const CellArgs& args, u32 weight_bits, float factor) {
  const float weight = std::bit_cast<float>(weight_bits);
  u32 bits = std::bit_cast<u32>(args.rule.divides ? __fdiv_rn(weight, factor) : __fmul_rn(weight, factor));
  if (args.rule.rounds) bits = encode_bits::through_bf16(bits);
  return encode_bits::code_of<kCodes>(bits, args.steps);
}

template <Codes kCodes>
__device__ __forceinline__ void store_unit(const CellArgs& args, const Unit& unit, float factor, i64 first) {
  constexpr int kBits = kCodes == Codes::E4m3 ? 8 : 4, kInWord = 32 / kBits;
  u32 words[kUnit / kInWord] = {};
#pragma unroll
  for (int i = 0; i < kUnit; ++i)
    words[i / kInWord] |= code_of_weight<kCodes>(args, unit.bits[i], factor) << (i % kInWord * kBits);
  if constexpr (kCodes == Codes::E4m3)
    *reinterpret_cast<uint4*>(args.codes + first) = uint4{words[0], words[1], words[2], words[3]};
  else
    *reinterpret_cast<uint2*>(args.codes + first / 2) = uint2{words[0], words[1]};
}

template <Codes kCodes>
__device__ __forceinline__ void store_part(const CellArgs& args, const Unit& unit, float factor, i64 first, u32 count) {
  if (args.is_aligned) return store_unit<kCodes>(args, unit, factor, first);
  if constexpr (kCodes == Codes::E4m3)
    for (u32 i = 0; i < kUnit; ++i)
      if (i < count) args.codes[first + i] = static_cast<std::byte>(code_of_weight<kCodes>(args, unit.bits[i], factor));
}

/// Cells of one row, of 1, 2, 4 ... 32 units: a lane for each unit.
template <Codes kCodes, bool kBf16>
__device__ __forceinline__ void encode_row_cells(const CellArgs& args) {
  const i64 index = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  const u32 lanes = args.cell_cols / kUnit;
  // A cell is there for all of its lanes, or for none.
  const bool is_there = index * kUnit < static_cast<i64>(args.rows) * args.cols;
  Unit unit{};
  if (is_there) unit = load_unit<kBf16>(args.weights, index * kUnit);
  const u32 greatest = greatest_of_lanes(greatest_of(unit), lanes);
  if (!is_there) return;
  const float factor = scale_cell(args, greatest, index / lanes, index % lanes == 0);
  store_unit<kCodes>(args, unit, factor, index * kUnit);
}

/// Cells of any size: a block for each.
template <Codes kCodes, bool kBf16>
__device__ __forceinline__ void encode_block_cells(const CellArgs& args) {
  __shared__ u32 greatest_of_warps[kWarps];
  const u32 grid_row = blockIdx.x / args.grid_cols, grid_col = blockIdx.x % args.grid_cols;
  const u32 first_row = grid_row * args.cell_rows, first_col = grid_col * args.cell_cols;
  const u32 rows = args.rows - first_row < args.cell_rows ? args.rows - first_row : args.cell_rows;
  const u32 cols = args.cols - first_col < args.cell_cols ? args.cols - first_col : args.cell_cols;
  const u32 row_units = (cols + kUnit - 1) / kUnit;
  const auto first_of = [&](u32 index) {
    return static_cast<i64>(first_row + index / row_units) * args.cols + first_col + index % row_units * kUnit;
  };
  const auto count_of = [&](u32 index) {
    const u32 left = cols - index % row_units * kUnit;
    return left < kUnit ? left : kUnit;
  };
  u32 greatest = 0;
  for (u32 index = threadIdx.x; index < rows * row_units; index += kThreads) {
    const u32 of_unit = greatest_of(load_part<kBf16>(args, first_of(index), count_of(index)));
    greatest = of_unit > greatest ? of_unit : greatest;
  }
  greatest = greatest_of_lanes(greatest, 32);
  if (threadIdx.x % 32 == 0) greatest_of_warps[threadIdx.x / 32] = greatest;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp)
    greatest = greatest_of_warps[warp] > greatest ? greatest_of_warps[warp] : greatest;
  const float factor = scale_cell(args, greatest, blockIdx.x, threadIdx.x == 0);
  for (u32 index = threadIdx.x; index < rows * row_units; index += kThreads) {
    const Unit unit = load_part<kBf16>(args, first_of(index), count_of(index));
    store_part<kCodes>(args, unit, factor, first_of(index), count_of(index));
  }
}

}  // namespace glu_ckpt::encoding
