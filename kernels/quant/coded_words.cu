/// AWQ, GPTQ, and INT4 with zeros or groups, on the device. A thread makes a square of eight rows, whose zeros are one
/// word, and eight columns of one group; a block's squares are a tile. The words of AWQ and GPTQ lie across the rows
/// that are written. Products are rounded as on the CPU: to the scales' dtype, then to that of the weight.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/common/cuda_check.hpp"
#include "kernels/common/fast_division.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/quant/coded_words.hpp"
#include "kernels/quant/decoded_values.cuh"

namespace glu_ckpt {
namespace {

using u16 = std::uint16_t;

/// The rows and the columns of a square, and the codes of a word.
constexpr int kSquare = 8;
/// The threads of a block that decodes element by element.
constexpr int kElementThreads = 256;

/// The threads of a tile, and its words of eight columns and of eight rows: such that what threads read side by side,
/// and what they write, is long enough for memory. AWQ is read along its rows, the others along their columns.
template <Codes kCodes>
constexpr int kTileThreads = kCodes == Codes::Awq    ? 1024
                             : kCodes == Codes::Gptq ? 32
                                                     : 256;
template <Codes kCodes>
constexpr int kColWords = kCodes == Codes::Int4 ? 32 : 16;
template <Codes kCodes>
constexpr int kRowWords = kTileThreads<kCodes> / kColWords<kCodes>;

/// A weight as kernels take it.
struct WordWeight {
  const u32* words;
  const void* scales;
  const u32* zeros;
  const u32* column_groups;
  Dtype scale_dtype;
  int zero_offset;
  u32 rows;
  u32 cols;
  u32 groups;
  FastDivision group_cols;
};

/// The nibble of a word of eight rows that is this row's: of AWQ 0 4 1 5 2 6 3 7.
template <Codes kCodes>
__device__ __forceinline__ u32 nibble_of_row(u32 row) {
  const u32 in_word = row % kSquare;
  return kCodes == Codes::Awq ? in_word / 2 + in_word % 2 * 4 : in_word;
}

/// The indices of a row and group's scale and of the word with its zero, and the distance from a row's scale to the
/// next.
struct GroupPlace {
  i64 scale;
  i64 zero;
  u32 row_step;

  template <Codes kCodes>
  static __device__ __forceinline__ GroupPlace of(const WordWeight& weight, u32 matrix, u32 row, u32 group) {
    const u32 row_words = weight.rows / kSquare, row_word = row / kSquare;
    if constexpr (kCodes == Codes::Int4)
      return {(static_cast<i64>(matrix) * weight.rows + row) * weight.groups + group,
              (static_cast<i64>(matrix) * row_words + row_word) * weight.groups + group, weight.groups};
    const i64 line = static_cast<i64>(matrix) * weight.groups + group;
    return {line * weight.rows + row, line * row_words + row_word, 1};
  }
};

/// The zero of a row out of the word of eight. The offset is added to all eight at once: GPTQ's first version subtracts
/// it from whole words, where a 0 borrows from its neighbour.
template <Codes kCodes>
__device__ __forceinline__ u32 zero_of(u32 word, u32 row, int offset) {
  return word + 0x11111111U * static_cast<u32>(offset) >> (4 * nibble_of_row<kCodes>(row)) & 15;
}

// ---- element by element -------------------------------------------------------------------------

template <Codes kCodes>
__device__ __forceinline__ u32 code_at(const WordWeight& weight, u32 matrix, u32 row, u32 col) {
  const i64 first = static_cast<i64>(matrix) * weight.rows;
  if constexpr (kCodes == Codes::Awq) {
    const u32 row_words = weight.rows / kSquare;
    const u32 word = weight.words[(static_cast<i64>(matrix) * weight.cols + col) * row_words + row / kSquare];
    return word >> (4 * nibble_of_row<kCodes>(row)) & 15;
  }
  const u32 col_words = weight.cols / kSquare;
  const i64 at = kCodes == Codes::Gptq ? first * col_words + static_cast<i64>(col / kSquare) * weight.rows + row
                                       : (first + row) * col_words + col / kSquare;
  return weight.words[at] >> (4 * (col % kSquare)) & 15;
}

__device__ __forceinline__ float scale_at(const WordWeight& weight, i64 at) {
  if (weight.scale_dtype == Dtype::F16) return __half2float(static_cast<const __half*>(weight.scales)[at]);
  if (weight.scale_dtype == Dtype::BF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(weight.scales)[at]);
  return static_cast<const float*>(weight.scales)[at];
}

__device__ __forceinline__ float rounded(float product, Dtype dtype) {
  if (dtype == Dtype::F16) return in_f16(product);
  if (dtype == Dtype::BF16) return __bfloat162float(__float2bfloat16_rn(product));
  return product;
}

/// For groups that begin anywhere, for columns out of order, and for what is not aligned.
template <Codes kCodes, typename Value>
__global__ void __launch_bounds__(kElementThreads) decode_any_word_kernel(WordWeight weight, i64 count, Value* out) {
  const i64 at = static_cast<i64>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (at >= count) return;
  const i64 line = at / weight.cols;
  const auto col = static_cast<u32>(at % weight.cols), row = static_cast<u32>(line % weight.rows);
  const auto matrix = static_cast<u32>(line / weight.rows);
  const u32 group = weight.column_groups == nullptr
                        ? weight.group_cols.quotient(col)
                        : weight.column_groups[static_cast<i64>(matrix) * weight.cols + col];
  float number = __uint_as_float(kF32Nan);
  if (group < weight.groups) {
    const GroupPlace place = GroupPlace::of<kCodes>(weight, matrix, row, group);
    const u32 zero = weight.zeros == nullptr ? 8 : zero_of<kCodes>(weight.zeros[place.zero], row, weight.zero_offset);
    const int step = static_cast<int>(code_at<kCodes>(weight, matrix, row, col)) - static_cast<int>(zero);
    number = rounded(__fmul_rn(static_cast<float>(step), scale_at(weight, place.scale)), weight.scale_dtype);
  }
  if constexpr (sizeof(Value) == 2)
    out[at] = static_cast<u16>(two_bf16({number, 0}));
  else
    out[at] = with_one_nan(number);
}

// ---- squares ------------------------------------------------------------------------------------

/// Two codes as numbers: a 4-bit code in the low mantissa bits of `kBase` (1024.0, or 128.0 for bf16) is kBase + code.
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

/// Nibbles 0 and 4 less zero, which every type holds.
template <typename Scale>
__device__ __forceinline__ typename PairMath<Scale>::Pair two_steps(u32 codes, u32 zero) {
  using Math = PairMath<Scale>;
  const u32 numbers = (codes & 0x000f'000f) | Math::kBase, zeros = zero | zero << 16 | Math::kBase;
  return __hsub2(*reinterpret_cast<const typename Math::Pair*>(&numbers),
                 *reinterpret_cast<const typename Math::Pair*>(&zeros));
}

/// Times a scale, rounded to the scale's type; the product is exact before.
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

/// Eight columns of a row, the first of them in the lowest nibble.
template <typename Scale>
__device__ __forceinline__ void decode_line(u32 codes, u32 zero, Scale scale, u16* out) {
  u32 pairs[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) pairs[k] = two_bf16(two_products(codes >> (4 * k), zero, scale));
  // Each pair holds columns k and k + 4; they are written in the order of columns.
  __stcs(reinterpret_cast<uint4*>(out),
         make_uint4(__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410),
                    __byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[2], pairs[3], 0x7632)));
}

template <typename Scale>
__device__ __forceinline__ void decode_line(u32 codes, u32 zero, Scale scale, float* out) {
  float values[kSquare];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 pair = two_products(codes >> (4 * k), zero, scale);
    values[k] = with_one_nan(pair.x);
    values[k + 4] = with_one_nan(pair.y);
  }
  __stcs(reinterpret_cast<float4*>(out), make_float4(values[0], values[1], values[2], values[3]));
  __stcs(reinterpret_cast<float4*>(out) + 1, make_float4(values[4], values[5], values[6], values[7]));
}

/// Words of eight rows, one a column, to words of eight columns, one a nibble: halves, bytes and nibbles change places.
__device__ __forceinline__ void turn_nibbles(u32 (&words)[kSquare]) {
  u32 halves[kSquare], bytes[kSquare];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    halves[k] = __byte_perm(words[k], words[k + 4], 0x5410);
    halves[k + 4] = __byte_perm(words[k], words[k + 4], 0x7632);
  }
#pragma unroll
  for (int half = 0; half < kSquare; half += 4)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      bytes[half + k] = __byte_perm(halves[half + k], halves[half + k + 2], 0x6240);
      bytes[half + k + 2] = __byte_perm(halves[half + k], halves[half + k + 2], 0x7351);
    }
  constexpr u32 kLow = 0x0f0f'0f0f;
#pragma unroll
  for (int pair = 0; pair < kSquare; pair += 2) {
    words[pair] = (bytes[pair] & kLow) | (bytes[pair + 1] & kLow) << 4;
    words[pair + 1] = (bytes[pair] >> 4 & kLow) | (bytes[pair + 1] & ~kLow);
  }
}

/// The place of a thread's square in a tile. Threads that are neighbours in a warp read whole sectors and write them.
template <Codes kCodes>
struct SquarePlace {
  u32 col_word, row_word;
  __device__ __forceinline__ SquarePlace() {
    if constexpr (kCodes == Codes::Awq) {
      constexpr u32 kWarpCols = 4, kWarpRows = 32 / kWarpCols;
      const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      constexpr u32 kWarpsAcross = kColWords<kCodes> / kWarpCols;
      col_word = warp % kWarpsAcross * kWarpCols + lane % kWarpCols;
      row_word = warp / kWarpsAcross * kWarpRows + lane / kWarpCols;
    } else {
      col_word = threadIdx.x % kColWords<kCodes>;
      row_word = threadIdx.x / kColWords<kCodes>;
    }
  }
};

/// The words of a square: of eight columns a row, or, of AWQ, of eight rows a column.
template <Codes kCodes>
__device__ __forceinline__ void load_codes(const WordWeight& weight, u32 matrix, u32 row, u32 col,
                                           u32 (&codes)[kSquare]) {
  const i64 row_words = weight.rows / kSquare, col_words = weight.cols / kSquare;
  if constexpr (kCodes == Codes::Gptq) {
    const auto* const words =
        reinterpret_cast<const uint4*>(weight.words + (matrix * col_words + col / kSquare) * weight.rows + row);
    const uint4 first = load_once(words), second = load_once(words + 1);
    codes[0] = first.x, codes[1] = first.y, codes[2] = first.z, codes[3] = first.w;
    codes[4] = second.x, codes[5] = second.y, codes[6] = second.z, codes[7] = second.w;
    return;
  }
  const u32* const words =
      kCodes == Codes::Awq ? weight.words + (static_cast<i64>(matrix) * weight.cols + col) * row_words + row / kSquare
                           : weight.words + (static_cast<i64>(matrix) * weight.rows + row) * col_words + col / kSquare;
#pragma unroll
  for (u32 i = 0; i < kSquare; ++i) codes[i] = __ldcs(words + i * (kCodes == Codes::Awq ? row_words : col_words));
}

template <Codes kCodes, typename Value, typename Scale>
__global__ void __launch_bounds__(kTileThreads<kCodes>)
    decode_squares_kernel(WordWeight weight, FastDivision row_tiles, FastDivision col_tiles, Value* out) {
  const u32 line = col_tiles.quotient(blockIdx.x), matrix = row_tiles.quotient(line);
  const u32 tile_row = (line - matrix * row_tiles.divisor) * kRowWords<kCodes> * kSquare;
  const u32 tile_col = (blockIdx.x - line * col_tiles.divisor) * kColWords<kCodes> * kSquare;
  const SquarePlace<kCodes> at;
  const u32 col_word = at.col_word, row_word = at.row_word;
  const u32 row = tile_row + row_word * kSquare, col = tile_col + col_word * kSquare;
  const bool is_inside = row < weight.rows && col < weight.cols;

  u32 codes[kSquare];
  alignas(16) Scale scales[kSquare];
  u32 zeros = 0x8888'8888;
  if (is_inside) {
    const GroupPlace place = GroupPlace::of<kCodes>(weight, matrix, row, weight.group_cols.quotient(col));
    const auto* const from = static_cast<const Scale*>(weight.scales) + place.scale;
    load_codes<kCodes>(weight, matrix, row, col, codes);
    if constexpr (kCodes == Codes::Int4) {
#pragma unroll
      for (u32 i = 0; i < kSquare; ++i) scales[i] = from[static_cast<i64>(i) * place.row_step];
    } else {
#pragma unroll
      for (u32 i = 0; i < kSquare * sizeof(Scale) / 16; ++i)
        reinterpret_cast<uint4*>(scales)[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    }
    if (weight.zeros != nullptr) zeros = __ldg(weight.zeros + place.zero);
  }
  const int zero_offset = weight.zeros != nullptr ? weight.zero_offset : 0;
  if (!is_inside) return;
  if constexpr (kCodes == Codes::Awq) turn_nibbles(codes);
  Value* to = out + (static_cast<i64>(matrix) * weight.rows + row) * weight.cols + col;
#pragma unroll
  for (u32 i = 0; i < kSquare; ++i, to += weight.cols) {
    const u32 line_codes = codes[kCodes == Codes::Awq ? nibble_of_row<kCodes>(i) : i];
    decode_line(line_codes, zero_of<kCodes>(zeros, i, zero_offset), scales[i], to);
  }
}

// ---- launches -----------------------------------------------------------------------------------

/// A launch of no blocks fails as one of too many would.
unsigned blocks_of(i64 blocks) { return static_cast<unsigned>(blocks <= INT32_MAX ? blocks : 0); }

template <Codes kCodes, typename Value>
void launch(const CodedWeight& from, Value* out, GpuStream stream) {
  const i64 cell_cols = std::min(from.cell_cols, from.cols);
  const WordWeight weight{static_cast<const u32*>(from.data),
                          from.scales,
                          from.zeros,
                          from.column_groups,
                          from.scale_dtype,
                          from.zero_offset,
                          static_cast<u32>(from.rows),
                          static_cast<u32>(from.cols),
                          static_cast<u32>((from.cols - 1) / cell_cols + 1),
                          FastDivision(static_cast<u32>(cell_cols))};
  const auto is_aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  if (from.column_groups == nullptr && cell_cols % kSquare == 0 && from.rows % kSquare == 0 &&
      from.cols % kSquare == 0 && is_aligned(out) && is_aligned(from.scales) && is_aligned(from.data)) {
    const auto tiles = [](i64 extent, i64 words) { return (extent + words * kSquare - 1) / (words * kSquare); };
    const i64 row_tiles = tiles(from.rows, kRowWords<kCodes>), col_tiles = tiles(from.cols, kColWords<kCodes>);
    const auto start = [&](auto kernel) {
      kernel<<<blocks_of(from.matrices * row_tiles * col_tiles), kTileThreads<kCodes>, 0, stream>>>(
          weight, FastDivision(static_cast<u32>(row_tiles)), FastDivision(static_cast<u32>(col_tiles)), out);
    };
    if (from.scale_dtype == Dtype::F16)
      start(decode_squares_kernel<kCodes, Value, __half>);
    else if (from.scale_dtype == Dtype::BF16)
      start(decode_squares_kernel<kCodes, Value, __nv_bfloat16>);
    else
      start(decode_squares_kernel<kCodes, Value, float>);
  } else {
    const i64 count = from.matrices * from.rows * from.cols;
    decode_any_word_kernel<kCodes>
        <<<blocks_of((count + kElementThreads - 1) / kElementThreads), kElementThreads, 0, stream>>>(weight, count,
                                                                                                     out);
  }
  check_launch("decode_codes", [&] {
    return "[" + std::to_string(from.matrices) + ", " + std::to_string(from.rows) + ", " + std::to_string(from.cols) +
           "] of words";
  });
}

template <typename Value>
void launch_words(const CodedWeight& weight, Value* out, GpuStream stream) {
  if (weight.codes == Codes::Awq) return launch<Codes::Awq>(weight, out, stream);
  if (weight.codes == Codes::Gptq) return launch<Codes::Gptq>(weight, out, stream);
  launch<Codes::Int4>(weight, out, stream);
}

}  // namespace

void decode_coded_words(const CodedWeight& weight, Dtype to, void* out, GpuStream stream) {
  if (to == Dtype::BF16) return launch_words(weight, static_cast<u16*>(out), stream);
  launch_words(weight, static_cast<float*>(out), stream);
}

}  // namespace glu_ckpt
