/// AWQ, GPTQ, and INT4 with zeros or groups, on the device. A block decodes a tile of rows and columns; the words of
/// AWQ and GPTQ, which lie across the rows that are written, meet in shared memory. A thread makes eight columns of a
/// row. Products are rounded as on the CPU: to the scales' dtype, then to that of the weight.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/common/cuda_check.hpp"
#include "kernels/common/fast_division.hpp"
#include "kernels/quant/decode_words.hpp"
#include "kernels/quant/decoded_values.cuh"

namespace glu_ckpt {
namespace {

using u16 = std::uint16_t;

constexpr int kWordCodes = 8;
constexpr int kTileRows = 128;
constexpr int kTileCols = 64;
constexpr int kTileThreads = 256;
/// Words across the rows and across the columns of a tile.
constexpr int kRowWords = kTileRows / kWordCodes;
constexpr int kColWords = kTileCols / kWordCodes;
/// Distances in shared memory by which threads that read together meet different banks.
constexpr int kAwqPitch = kRowWords + 1;
constexpr int kGptqPitch = kTileRows + 4;

/// A matrix, its tiles, and what its codes are made numbers with.
struct WordWeight {
  const u32* words;
  const std::byte* scales;
  const u32* zeros;
  const u32* column_groups;
  Dtype scale_dtype;
  int zero_offset;
  u32 rows;
  u32 cols;
  u32 groups;
  FastDivision group_cols;
  FastDivision col_tiles;
  FastDivision row_tiles;
  /// No group begins inside of eight columns.
  bool whole_groups;
};

struct Tile {
  u32 matrix;
  u32 row;
  u32 col;

  __device__ __forceinline__ Tile(const WordWeight& weight, u32 number) {
    const u32 line = weight.col_tiles.quotient(number);
    matrix = weight.row_tiles.quotient(line);
    row = (line - matrix * weight.row_tiles.divisor) * kTileRows;
    col = (number - line * weight.col_tiles.divisor) * kTileCols;
  }
};

/// The nibble of a word of eight rows that is this row's: of AWQ 0 4 1 5 2 6 3 7.
template <Codes kCodes>
__device__ __forceinline__ u32 nibble_of_row(u32 row) {
  const u32 in_word = row % kWordCodes;
  return kCodes == Codes::Awq ? in_word / 2 + in_word % 2 * 4 : in_word;
}

template <Codes kCodes>
struct TileWords {
  static constexpr int kCount = kCodes == Codes::Awq    ? kTileCols * kAwqPitch
                                : kCodes == Codes::Gptq ? kColWords * kGptqPitch
                                                        : 1;

  __device__ __forceinline__ void load(const WordWeight& weight, const Tile& tile) {
    if constexpr (kCodes == Codes::Awq) {
      const u32 row_words = weight.rows / kWordCodes, first = tile.row / kWordCodes;
      const u32* const from = weight.words + static_cast<i64>(tile.matrix) * row_words * weight.cols;
      for (u32 i = threadIdx.x; i < kTileCols * kRowWords; i += kTileThreads) {
        const u32 col = i / kRowWords, word = i % kRowWords;
        if (tile.col + col < weight.cols && first + word < row_words)
          words[col * kAwqPitch + word] = __ldcs(from + static_cast<i64>(tile.col + col) * row_words + first + word);
      }
    }
    if constexpr (kCodes == Codes::Gptq) {
      const u32 col_words = weight.cols / kWordCodes, first = tile.col / kWordCodes;
      const u32* const from = weight.words + static_cast<i64>(tile.matrix) * col_words * weight.rows;
      for (u32 i = threadIdx.x; i < kColWords * kTileRows; i += kTileThreads) {
        const u32 word = i / kTileRows, row = i % kTileRows;
        if (first + word < col_words && tile.row + row < weight.rows)
          words[word * kGptqPitch + row] = __ldcs(from + static_cast<i64>(first + word) * weight.rows + tile.row + row);
      }
    }
  }

  /// Eight codes of a row, the first in the lowest bits. `row` and `word` count from the tile's.
  __device__ __forceinline__ u32 codes(const WordWeight& weight, const Tile& tile, u32 row, u32 word) const {
    if constexpr (kCodes == Codes::Awq) {
      const u32 shift = 4 * nibble_of_row<kCodes>(row);
      u32 codes = 0;
#pragma unroll
      for (u32 k = 0; k < kWordCodes; ++k)
        codes |= (words[(word * kWordCodes + k) * kAwqPitch + row / kWordCodes] >> shift & 15) << (4 * k);
      return codes;
    } else if constexpr (kCodes == Codes::Gptq) {
      return words[word * kGptqPitch + row];
    } else {
      const i64 line = static_cast<i64>(tile.matrix) * weight.rows + tile.row + row;
      return __ldcs(weight.words + line * (weight.cols / kWordCodes) + tile.col / kWordCodes + word);
    }
  }

  u32 words[kCount];
};

__device__ __forceinline__ float scale_at(const WordWeight& weight, i64 at) {
  if (weight.scale_dtype == Dtype::F16) return __half2float(reinterpret_cast<const __half*>(weight.scales)[at]);
  if (weight.scale_dtype == Dtype::BF16)
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(weight.scales)[at]);
  return __ldg(reinterpret_cast<const float*>(weight.scales) + at);
}

/// Where the scale and the zeros of a row and group lie, and how far apart those of the next rows, or words of rows.
struct GroupPlace {
  i64 scale;
  i64 zero;
  i64 row_step;

  template <Codes kCodes>
  static __device__ __forceinline__ GroupPlace of(const WordWeight& weight, u32 matrix, u32 row, u32 group) {
    const u32 row_words = weight.rows / kWordCodes, row_word = row / kWordCodes;
    if constexpr (kCodes == Codes::Int4)
      return {(static_cast<i64>(matrix) * weight.rows + row) * weight.groups + group,
              (static_cast<i64>(matrix) * row_words + row_word) * weight.groups + group, weight.groups};
    const i64 line = static_cast<i64>(matrix) * weight.groups + group;
    return {line * weight.rows + row, line * row_words + row_word, 1};
  }
};

/// What the codes of a row and group become numbers with.
struct Group {
  float zero;
  float scale;

  template <Codes kCodes>
  static __device__ __forceinline__ Group of(const WordWeight& weight, u32 matrix, u32 row, u32 group) {
    if (group >= weight.groups) return {0, __uint_as_float(kF32Nan)};
    const GroupPlace place = GroupPlace::of<kCodes>(weight, matrix, row, group);
    int zero = 8;
    // Stored less 1 in four bits, 0 is 15.
    if (weight.zeros != nullptr)
      zero = (static_cast<int>(__ldg(weight.zeros + place.zero) >> (4 * nibble_of_row<kCodes>(row)) & 15) +
              weight.zero_offset) &
             15;
    return {static_cast<float>(zero), scale_at(weight, place.scale)};
  }

  __device__ __forceinline__ float number(u32 code, Dtype rounded_to) const {
    const float product = __fmul_rn(static_cast<float>(code) - zero, scale);
    if (rounded_to == Dtype::F16) return __half2float(__float2half_rn(product));
    if (rounded_to == Dtype::BF16) return __bfloat162float(__float2bfloat16_rn(product));
    return product;
  }
};

__device__ __forceinline__ void store(const float (&numbers)[kWordCodes], u32 count, bool is_aligned, u16* out) {
  uint4 packed;
  packed.x = two_bf16({numbers[0], numbers[1]});
  packed.y = two_bf16({numbers[2], numbers[3]});
  packed.z = two_bf16({numbers[4], numbers[5]});
  packed.w = two_bf16({numbers[6], numbers[7]});
  if (is_aligned && count == kWordCodes) return __stcs(reinterpret_cast<uint4*>(out), packed);
  const u16* const values = reinterpret_cast<const u16*>(&packed);
#pragma unroll
  for (u32 k = 0; k < kWordCodes; ++k)
    if (k < count) out[k] = values[k];
}

__device__ __forceinline__ void store(const float (&numbers)[kWordCodes], u32 count, bool is_aligned, float* out) {
  float values[kWordCodes];
#pragma unroll
  for (u32 k = 0; k < kWordCodes; ++k) values[k] = with_one_nan(numbers[k]);
  if (is_aligned && count == kWordCodes) {
    __stcs(reinterpret_cast<float4*>(out), make_float4(values[0], values[1], values[2], values[3]));
    return __stcs(reinterpret_cast<float4*>(out) + 1, make_float4(values[4], values[5], values[6], values[7]));
  }
#pragma unroll
  for (u32 k = 0; k < kWordCodes; ++k)
    if (k < count) out[k] = values[k];
}

template <Codes kCodes, typename Value>
__global__ void __launch_bounds__(kTileThreads) decode_words_kernel(WordWeight weight, bool is_aligned, Value* out) {
  __shared__ TileWords<kCodes> words;
  const Tile tile(weight, blockIdx.x);
  words.load(weight, tile);
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < kTileRows * kColWords / kTileThreads; ++i) {
    const u32 unit = threadIdx.x + i * kTileThreads;
    const u32 word = unit % kColWords, row = unit / kColWords;
    const u32 first = tile.col + word * kWordCodes;
    if (tile.row + row >= weight.rows || first >= weight.cols) continue;
    const u32 codes = words.codes(weight, tile, row, word);
    const u32 count = min(static_cast<u32>(kWordCodes), weight.cols - first);
    const u32* const groups = weight.column_groups == nullptr
                                  ? nullptr
                                  : weight.column_groups + static_cast<i64>(tile.matrix) * weight.cols + first;
    Group group = Group::of<kCodes>(weight, tile.matrix, tile.row + row,
                                    groups == nullptr ? weight.group_cols.quotient(first) : __ldg(groups));
    float numbers[kWordCodes];
#pragma unroll
    for (u32 k = 0; k < kWordCodes; ++k) {
      if (!weight.whole_groups && k > 0 && k < count)
        group = Group::of<kCodes>(weight, tile.matrix, tile.row + row,
                                  groups == nullptr ? weight.group_cols.quotient(first + k) : __ldg(groups + k));
      numbers[k] = group.number(codes >> (4 * k) & 15, weight.scale_dtype);
    }
    store(numbers, count, is_aligned,
          out + (static_cast<i64>(tile.matrix) * weight.rows + tile.row + row) * weight.cols + first);
  }
}

/// Two codes as numbers, of eight bits or more: `bits` behind `kBase` are a number of the type, and so much larger.
template <typename Scale>
struct PairMath;
template <>
struct PairMath<__half> {
  using Pair = __half2;
  /// 1024.
  static constexpr u32 kBase = 0x6400'6400;
  static __device__ __forceinline__ Pair both(__half value) { return __half2half2(value); }
  static __device__ __forceinline__ float2 wide(Pair pair) { return __half22float2(pair); }
};
template <>
struct PairMath<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  /// 128.
  static constexpr u32 kBase = 0x4300'4300;
  static __device__ __forceinline__ Pair both(__nv_bfloat16 value) { return __bfloat162bfloat162(value); }
  static __device__ __forceinline__ float2 wide(Pair pair) { return __bfloat1622float2(pair); }
};

/// Codes less zero, which every type holds, of the lowest and of the third nibble from above.
template <typename Scale>
__device__ __forceinline__ typename PairMath<Scale>::Pair two_steps(u32 codes, u32 zero) {
  using Math = PairMath<Scale>;
  const u32 numbers = (codes & 0x000f'000f) | Math::kBase, zeros = zero | zero << 16 | Math::kBase;
  return __hsub2(*reinterpret_cast<const typename Math::Pair*>(&numbers),
                 *reinterpret_cast<const typename Math::Pair*>(&zeros));
}

/// Times a scale, rounded to the scale's type. The product is exact before.
template <typename Scale>
__device__ __forceinline__ float2 two_products(u32 codes, u32 zero, Scale scale) {
  if constexpr (std::is_same_v<Scale, float>) {
    const float2 steps = __half22float2(two_steps<__half>(codes, zero));
    return {__fmul_rn(steps.x, scale), __fmul_rn(steps.y, scale)};
  } else {
    using Math = PairMath<Scale>;
    return Math::wide(__hmul2_rn(two_steps<Scale>(codes, zero), Math::both(scale)));
  }
}

template <typename Scale>
__device__ __forceinline__ void decode_unit(u32 codes, u32 zero, Scale scale, u16* out) {
  u32 pairs[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) pairs[k] = two_bf16(two_products(codes >> (4 * k), zero, scale));
  // Of 0 4, 1 5, 2 6 and 3 7.
  __stcs(reinterpret_cast<uint4*>(out),
         make_uint4(__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410),
                    __byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[2], pairs[3], 0x7632)));
}

template <typename Scale>
__device__ __forceinline__ void decode_unit(u32 codes, u32 zero, Scale scale, float* out) {
  float values[kWordCodes];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 pair = two_products(codes >> (4 * k), zero, scale);
    values[k] = with_one_nan(pair.x);
    values[k + 4] = with_one_nan(pair.y);
  }
  __stcs(reinterpret_cast<float4*>(out), make_float4(values[0], values[1], values[2], values[3]));
  __stcs(reinterpret_cast<float4*>(out) + 1, make_float4(values[4], values[5], values[6], values[7]));
}

/// Units of eight columns, all of one group, of rows whose words they fill: a thread's rows are those of one nibble.
template <Codes kCodes, typename Value, typename Scale>
__global__ void __launch_bounds__(kTileThreads) decode_units_kernel(WordWeight weight, Value* out) {
  constexpr u32 kRowStep = kTileThreads / kColWords, kUnits = kTileRows / kRowStep;
  static_assert(kRowStep % kWordCodes == 0);
  __shared__ TileWords<kCodes> words;
  const Tile tile(weight, blockIdx.x);
  const u32 word = threadIdx.x % kColWords, in_tile = threadIdx.x / kColWords;
  const u32 col = tile.col + word * kWordCodes, row = tile.row + in_tile;
  const bool has_cols = col < weight.cols;
  words.load(weight, tile);
  Scale scales[kUnits];
  u32 zeros[kUnits];
  if (has_cols) {
    const GroupPlace place = GroupPlace::of<kCodes>(weight, tile.matrix, row, weight.group_cols.quotient(col));
    const u32 shift = 4 * nibble_of_row<kCodes>(row);
#pragma unroll
    for (u32 i = 0; i < kUnits; ++i) {
      if (row + i * kRowStep >= weight.rows) break;
      scales[i] = reinterpret_cast<const Scale*>(weight.scales)[place.scale + i * kRowStep * place.row_step];
      zeros[i] = weight.zeros == nullptr
                     ? 8
                     : (__ldg(weight.zeros + place.zero + i * (kRowStep / kWordCodes) * place.row_step) >> shift) +
                               weight.zero_offset &
                           15;
    }
  }
  __syncthreads();
  if (!has_cols) return;
  u32 codes[kUnits];
#pragma unroll
  for (u32 i = 0; i < kUnits; ++i) {
    if (row + i * kRowStep >= weight.rows) break;
    codes[i] = words.codes(weight, tile, in_tile + i * kRowStep, word);
  }
  Value* to = out + (static_cast<i64>(tile.matrix) * weight.rows + row) * weight.cols + col;
#pragma unroll
  for (u32 i = 0; i < kUnits; ++i, to += static_cast<i64>(kRowStep) * weight.cols) {
    if (row + i * kRowStep >= weight.rows) break;
    decode_unit(codes[i], zeros[i], scales[i], to);
  }
}

template <Codes kCodes, typename Value>
void launch(const CodedWeight& from, Value* out, GpuStream stream) {
  const auto by = [](i64 divisor) { return FastDivision(static_cast<u32>(divisor)); };
  const i64 row_tiles = (from.rows + kTileRows - 1) / kTileRows, col_tiles = (from.cols + kTileCols - 1) / kTileCols;
  const i64 cell_cols = std::min(from.cell_cols, from.cols);
  const WordWeight weight{static_cast<const u32*>(from.data),
                          static_cast<const std::byte*>(from.scales),
                          from.zeros,
                          from.column_groups,
                          from.scale_dtype,
                          from.zero_offset,
                          static_cast<u32>(from.rows),
                          static_cast<u32>(from.cols),
                          static_cast<u32>((from.cols - 1) / cell_cols + 1),
                          by(cell_cols),
                          by(col_tiles),
                          by(row_tiles),
                          from.column_groups == nullptr && cell_cols % kWordCodes == 0};
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(out) % 16 == 0 && from.cols % kWordCodes == 0;
  const bool in_units = is_aligned && weight.whole_groups;
  // A launch of no blocks fails as one of too many would.
  const i64 tiles = from.matrices * row_tiles * col_tiles;
  const auto blocks = static_cast<unsigned>(tiles <= INT32_MAX ? tiles : 0);
  if (!in_units)
    decode_words_kernel<kCodes><<<blocks, kTileThreads, 0, stream>>>(weight, is_aligned, out);
  else if (from.scale_dtype == Dtype::F16)
    decode_units_kernel<kCodes, Value, __half><<<blocks, kTileThreads, 0, stream>>>(weight, out);
  else if (from.scale_dtype == Dtype::BF16)
    decode_units_kernel<kCodes, Value, __nv_bfloat16><<<blocks, kTileThreads, 0, stream>>>(weight, out);
  else
    decode_units_kernel<kCodes, Value, float><<<blocks, kTileThreads, 0, stream>>>(weight, out);
  check_launch("decode_codes", [&] {
    return "[" + std::to_string(from.matrices) + ", " + std::to_string(from.rows) + ", " + std::to_string(from.cols) +
           "] of words";
  });
}

template <typename Value>
void launch_codes(const CodedWeight& weight, Value* out, GpuStream stream) {
  if (weight.codes == Codes::Awq) return launch<Codes::Awq>(weight, out, stream);
  if (weight.codes == Codes::Gptq) return launch<Codes::Gptq>(weight, out, stream);
  launch<Codes::Int4>(weight, out, stream);
}

}  // namespace

void decode_words(const CodedWeight& weight, Dtype to, void* out, GpuStream stream) {
  if (to == Dtype::BF16) return launch_codes(weight, static_cast<std::uint16_t*>(out), stream);
  launch_codes(weight, static_cast<float*>(out), stream);
}

}  // namespace glu_ckpt
