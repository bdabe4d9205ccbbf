/// A block transposes one tile. In the fast path every thread reads a small square of elements in rows of 16 bytes,
/// transposes it in its registers, and passes the columns on through shared memory, so that both the reads and the
/// writes of a warp are rows of 256 bytes and no access is narrower than 16.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/common/cuda_check.hpp"
#include "kernels/common/fast_division.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/copy/strided_copy.hpp"
#include "kernels/copy/transpose_copy.hpp"

namespace glu_ckpt {
namespace {

struct KernelAxis {
  FastDivision low_count;
  i64 low_step = 0;
  i64 high_step = 0;
  u32 count = 0;

  __device__ __forceinline__ i64 offset(u32 index) const {
    const u32 high = low_count.quotient(index);
    return (index - high * low_count.divisor) * low_step + high * high_step;
  }
};

struct OuterDim {
  FastDivision count;
  i64 src_step = 0;
  i64 dst_step = 0;
};

struct TileGrid {
  KernelAxis across;
  KernelAxis down;
  FastDivision tiles_across;
  FastDivision tiles_down;
  OuterDim outer[kMaxCopyDims];
};

template <int kPairs>
struct TransposePairs {
  CopyPair pair[kPairs];
};

/// The place of this block's tile.
struct Tile {
  u32 across;
  u32 down;
  const std::byte* src;
  std::byte* dst;
};

/// Tiles are numbered along `down` first, so that neighbours write the same rows: 0.96 of a device copy from gpt-oss's
/// [128, 2880, 5760] and 0.97 back on an H200, tiles of 128 x 128; along `across` 0.94 and 0.95.
__device__ __forceinline__ Tile find_tile(const TileGrid& grid, CopyPair pair) {
  u32 rest = grid.tiles_down.quotient(blockIdx.x);
  Tile tile;
  tile.down = blockIdx.x - rest * grid.tiles_down.divisor;
  u32 outer = grid.tiles_across.quotient(rest);
  tile.across = rest - outer * grid.tiles_across.divisor;
#pragma unroll
  for (int d = 0; d < kMaxCopyDims; ++d) {
    if (outer == 0) break;
    const u32 next = grid.outer[d].count.quotient(outer);
    const u32 i = outer - next * grid.outer[d].count.divisor;
    pair.src += i * grid.outer[d].src_step;
    pair.dst += i * grid.outer[d].dst_step;
    outer = next;
  }
  tile.src = pair.src;
  tile.dst = pair.dst;
  return tile;
}

/// A square of elements as the rows of 16 bytes that it is read and written in.
template <typename Element>
union Square {
  static constexpr int kSide = 16 / sizeof(Element);
  uint4 row[kSide];
  Element element[kSide][kSide];
};

/// kAcross x kDown squares a tile, one a thread.
template <typename Element, int kAcross, int kDown, int kPairs>
__global__ void __launch_bounds__(kAcross* kDown)
    transpose_vectors_kernel(const __grid_constant__ TileGrid grid,
                             const __grid_constant__ TransposePairs<kPairs> pairs) {
  constexpr int kSide = Square<Element>::kSide;
  // Row a of the tile holds kDown vectors. The low three bits of their places are turned by a / kSide, so that the
  // eight threads that are served at once meet eight different groups of banks, in writing and in reading.
  __shared__ uint4 shared[kAcross * kSide * kDown];
  const Tile tile = find_tile(grid, pairs.pair[kPairs == 1 ? 0 : blockIdx.y]);

  const u32 read_across = threadIdx.x % kAcross, read_down = threadIdx.x / kAcross;
  const u32 first_a = (tile.across * kAcross + read_across) * kSide;
  const u32 first_d = (tile.down * kDown + read_down) * kSide;
  Square<Element> in, out;
  if (first_a < grid.across.count && first_d < grid.down.count) {
    const std::byte* const column = tile.src + first_a * static_cast<i64>(sizeof(Element));
#pragma unroll
    for (int i = 0; i < kSide; ++i)
      in.row[i] = load_once(reinterpret_cast<const uint4*>(column + grid.down.offset(first_d + i)));
#pragma unroll
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j) out.element[j][i] = in.element[i][j];
#pragma unroll
    for (int j = 0; j < kSide; ++j)
      shared[(read_across * kSide + j) * kDown + (read_down ^ (read_across & 7))] = out.row[j];
  }
  __syncthreads();

  const u32 write_down = threadIdx.x % kDown, write_row = threadIdx.x / kDown;
  const u32 d = (tile.down * kDown + write_down) * kSide;
  if (d >= grid.down.count) return;
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    const u32 row = write_row + j * kAcross;
    const u32 a = tile.across * kAcross * kSide + row;
    if (a < grid.across.count)
      __stcs(reinterpret_cast<uint4*>(tile.dst + grid.across.offset(a) + d * static_cast<i64>(sizeof(Element))),
             shared[row * kDown + (write_down ^ (row / kSide & 7))]);
  }
}

/// Sides of a tile of single elements, and how many of its rows the threads take at once.
constexpr int kTile = kLeastTransposeTile;
constexpr int kTileRows = 8;

/// The slower path: any count, any step, any address.
template <typename Element, int kPairs>
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_elements_kernel(const __grid_constant__ TileGrid grid,
                              const __grid_constant__ TransposePairs<kPairs> pairs) {
  // One column more, so that the threads that read a column meet different banks.
  __shared__ Element shared[kTile][kTile + 1];
  const Tile tile = find_tile(grid, pairs.pair[kPairs == 1 ? 0 : blockIdx.y]);
  const u32 lane = threadIdx.x % kTile, first_row = threadIdx.x / kTile;
  const u32 a = tile.across * kTile, d = tile.down * kTile;
#pragma unroll
  for (u32 row = first_row; row < kTile; row += kTileRows)
    if (a + lane < grid.across.count && d + row < grid.down.count)
      shared[row][lane] = *reinterpret_cast<const Element*>(tile.src + grid.down.offset(d + row) +
                                                            (a + lane) * static_cast<i64>(sizeof(Element)));
  __syncthreads();
#pragma unroll
  for (u32 row = first_row; row < kTile; row += kTileRows)
    if (a + row < grid.across.count && d + lane < grid.down.count)
      *reinterpret_cast<Element*>(tile.dst + grid.across.offset(a + row) +
                                  (d + lane) * static_cast<i64>(sizeof(Element))) = shared[lane][row];
}

std::string describe(const TransposeShape& shape, std::size_t pairs) {
  return std::to_string(pairs) + " x " + std::to_string(shape.outer.runs()) + " x [" +
         std::to_string(shape.down.count()) + ", " + std::to_string(shape.across.count()) + "] elements of " +
         std::to_string(shape.element_bytes) + " bytes";
}

KernelAxis kernel_axis(const TransposeAxis& axis) {
  KernelAxis result;
  result.low_count = FastDivision(static_cast<u32>(axis.low_count));
  result.low_step = axis.low_step;
  result.high_step = axis.high_step;
  result.count = static_cast<u32>(axis.count());
  return result;
}

TileGrid tile_grid(const TransposeShape& shape, i64 tile_across, i64 tile_down) {
  TileGrid grid;
  grid.across = kernel_axis(shape.across);
  grid.down = kernel_axis(shape.down);
  grid.tiles_across = FastDivision(static_cast<u32>((shape.across.count() + tile_across - 1) / tile_across));
  grid.tiles_down = FastDivision(static_cast<u32>((shape.down.count() + tile_down - 1) / tile_down));
  for (int d = 0; d < shape.outer.num_dims; ++d) {
    const MoveDim& dim = shape.outer.dims[static_cast<std::size_t>(shape.outer.num_dims - 1 - d)];
    grid.outer[d] = {FastDivision(static_cast<u32>(dim.count)), dim.src_step, dim.dst_step};
  }
  return grid;
}

template <typename Element, int kPairs>
void launch(const TransposeShape& shape, std::span<const CopyPair> pairs, cudaStream_t stream) {
  // Squares a side of a tile: rows of 256 bytes, or of 128 where a square is 16 elements wide.
  constexpr int kSquares = sizeof(Element) == 1 ? 8 : 16;
  constexpr i64 kSide = Square<Element>::kSide;
  const bool vectors = transposes_in_vectors(shape, pairs);
  const i64 tile = vectors ? kSquares * kSide : kTile;
  const TileGrid grid = tile_grid(shape, tile, tile);
  TransposePairs<kPairs> arguments;
  std::copy(pairs.begin(), pairs.end(), arguments.pair);
  const i64 tiles = i64{1} * grid.tiles_across.divisor * grid.tiles_down.divisor * shape.outer.runs();
  const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(pairs.size()));
  if (vectors)
    transpose_vectors_kernel<Element, kSquares, kSquares, kPairs>
        <<<blocks, kSquares * kSquares, 0, stream>>>(grid, arguments);
  else
    transpose_elements_kernel<Element, kPairs><<<blocks, kTile * kTileRows, 0, stream>>>(grid, arguments);
  check_launch("transpose_copy", [&] { return describe(shape, pairs.size()); });
}

template <typename Element>
void launch_pairs(const TransposeShape& shape, std::span<const CopyPair> pairs, cudaStream_t stream) {
  if (pairs.size() == 1) return launch<Element, 1>(shape, pairs, stream);
  for (std::size_t first = 0; first < pairs.size(); first += kMaxPairsPerLaunch)
    launch<Element, kMaxPairsPerLaunch>(
        shape, pairs.subspan(first, std::min<std::size_t>(kMaxPairsPerLaunch, pairs.size() - first)), stream);
}

}  // namespace

void transpose_copy(const TransposeShape& shape, std::span<const CopyPair> pairs, GpuStream stream) {
  if (pairs.empty() || shape.across.count() == 0 || shape.down.count() == 0) return;
  switch (shape.element_bytes) {
    case 1: return launch_pairs<std::uint8_t>(shape, pairs, stream);
    case 2: return launch_pairs<std::uint16_t>(shape, pairs, stream);
    case 4: return launch_pairs<u32>(shape, pairs, stream);
    default: return launch_pairs<u64>(shape, pairs, stream);
  }
}

}  // namespace glu_ckpt
