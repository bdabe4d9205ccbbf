#pragma once
/// The grouped linear layer in 16-bit dtypes: tiles of both operands come into shared memory some steps ahead
/// (cp.async), are read as fragments (ldmatrix) and multiplied by warps (mma.m16n8k16). One template makes all three
/// products: operands differ only in which of their axes is dense in memory. Sums take k from first to last, 16 at a
/// time, whatever the tile; what is behind the last k counts as 0.

#include "kernels/grouped_gemm/linear_launch.hpp"
#include "kernels/grouped_gemm/mma_instructions.cuh"

namespace glu_ckpt::linear {

/// The first `count` elements of a piece at any address, and zeros for the rest.
__device__ inline void gather_piece(u32 to, const u16* from, i64 count) {
  u32 words[4] = {};
#pragma unroll
  for (int i = 0; i < kPiece; ++i)
    if (i < count) words[i / 2] |= static_cast<u32>(from[i]) << (16 * (i % 2));
  store_piece(to, words);
}

template <Along kAlong>
__device__ void load_fragment(u32 (&fragment)[4], u32 row) {
  if constexpr (kAlong == Along::K) {
    load_matrices(fragment, row);
  } else {
    load_transposed(fragment, row);
  }
}

/// Part of a matrix in device memory: rows of `step` elements, as they lie.
struct Window {
  const u16* first;
  i64 step;
  i64 rows;
  i64 cols;
};

/// One operand's tiles, of kMn by kMmaDepth. A row in memory is a row in shared memory, where it is permuted by
/// piece_place().
template <Along kAlong, int kMn, int kThreads>
struct TileShape {
  static constexpr int kRows = kAlong == Along::K ? kMn : kMmaDepth;
  static constexpr int kPieces = (kAlong == Along::K ? kMmaDepth : kMn) / kPiece;
  static constexpr int kPassRows = kThreads / kPieces;
  static_assert(kPieces % 8 == 0 && kThreads % kPieces == 0 && kRows % kPassRows == 0);
};

/// Brings an operand's tiles into shared memory, one after the other along k. Each thread has one column of pieces.
template <Along kAlong, int kMn, int kThreads, bool kWide>
class TileLoader {
  using Shape = TileShape<kAlong, kMn, kThreads>;

 public:
  __device__ explicit TileLoader(const Window& window)
      : row_(static_cast<i32>(threadIdx.x) / Shape::kPieces),
        piece_(static_cast<i32>(threadIdx.x) % Shape::kPieces),
        from_(window.first + row_ * window.step + piece_ * kPiece),
        step_(window.step),
        rows_(window.rows - row_),
        cols_(window.cols - piece_ * kPiece) {}

  /// Begins the next tile's way to `tile`.
  __device__ void load(u32 tile) {
#pragma unroll
    for (int row = 0; row < Shape::kRows; row += Shape::kPassRows) {
      const u32 to = tile + static_cast<u32>(piece_place(row_ + row, piece_, Shape::kPieces)) * 16U;
      const u16* const from = from_ + row * step_;
      const bool there = row < rows_ && cols_ > 0;
      if constexpr (kWide) {
        copy_piece(to, from, there);
      } else {
        gather_piece(to, from, there ? cols_ : 0);
      }
    }
    if constexpr (kAlong == Along::K) {
      from_ += kMmaDepth;
      cols_ -= kMmaDepth;
    } else {
      from_ += kMmaDepth * step_;
      rows_ -= kMmaDepth;
    }
  }

 private:
  i32 row_, piece_;
  /// This thread's first piece of the next tile, and what is left of the matrix from there on.
  const u16* from_;
  i64 step_;
  i64 rows_, cols_;
};

/// The address of a fragment's row, which begins `point` behind the tile's beginning.
template <Along kAlong, int kMn>
__device__ u32 fragment_address(u32 tile, MatrixPoint point) {
  constexpr int kPieces = (kAlong == Along::K ? kMmaDepth : kMn) / kPiece;
  const i32 row = kAlong == Along::K ? point.mn : point.k;
  const i32 col = kAlong == Along::K ? point.k : point.mn;
  return tile + static_cast<u32>(piece_place(row, col / kPiece, kPieces)) * 16U;
}

/// A warp's part of C, to which it adds one step's products.
template <typename Element, typename Tile, Along kA, Along kB>
class WarpSums {
  static constexpr int kRows = Tile::kRows / Tile::kWarpsM;
  static constexpr int kCols = kMmaCols / Tile::kWarpsN;
  static constexpr int kRowParts = kRows / 16;
  static constexpr int kColParts = kCols / 8;
  static_assert(kRows % 16 == 0 && kCols % 16 == 0);

 public:
  __device__ WarpSums()
      : lane_(static_cast<i32>(threadIdx.x) % 32),
        row_(static_cast<i32>(threadIdx.x) / 32 % Tile::kWarpsM * kRows),
        col_(static_cast<i32>(threadIdx.x) / 32 / Tile::kWarpsM * kCols) {}

  __device__ void add(u32 a_tile, u32 b_tile) {
    const MatrixPoint a_row = a_fragment_row(kA, lane_);
    const MatrixPoint b_row = b_fragment_row(kB, lane_);
#pragma unroll
    for (int k = 0; k < kMmaDepth; k += 16) {
      u32 a[kRowParts][4];
      u32 b[kColParts / 2][4];
#pragma unroll
      for (int i = 0; i < kRowParts; ++i)
        load_fragment<kA>(a[i], fragment_address<kA, Tile::kRows>(a_tile, {row_ + i * 16 + a_row.mn, k + a_row.k}));
#pragma unroll
      for (int j = 0; j < kColParts / 2; ++j)
        load_fragment<kB>(b[j], fragment_address<kB, kMmaCols>(b_tile, {col_ + j * 16 + b_row.mn, k + b_row.k}));
#pragma unroll
      for (int i = 0; i < kRowParts; ++i)
#pragma unroll
        for (int j = 0; j < kColParts; ++j) Element::mma(sums_[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
  }

  /// Calls store(row, col, sum of col, sum of col + 1) for all pairs of the tile that are this lane's.
  template <typename Store>
  __device__ void for_each_pair(const Store& store) const {
#pragma unroll
    for (int i = 0; i < kRowParts; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < kColParts; ++j) {
          const SumPlace place = sum_place(lane_, half);
          store(row_ + i * 16 + place.row, col_ + j * 8 + place.col, sums_[i][j][half * 2], sums_[i][j][half * 2 + 1]);
        }
  }

 private:
  i32 lane_;
  /// The first row and column of the warp's part of the tile.
  i32 row_, col_;
  float sums_[kRowParts][kColParts][4] = {};
};

/// The part of C that a tile covers: rows of `step` elements, of which `rows` by `cols` are there.
struct OutWindow {
  void* first;
  i64 step;
  i64 rows;
  i64 cols;
};

template <typename Element>
__device__ void store_one(void* c, i64 at, float sum, bool fp32, bool accumulate) {
  if (fp32) {
    float* const out = static_cast<float*>(c) + at;
    *out = accumulate ? sum + *out : sum;
  } else {
    u16* const out = static_cast<u16*>(c) + at;
    *out = Element::narrow(accumulate ? sum + Element::widen(*out) : sum);
  }
}

/// One store takes both, for c + at is aligned to two elements.
template <typename Element>
__device__ void store_two(void* c, i64 at, float first, float second, bool fp32) {
  if (fp32) {
    *reinterpret_cast<float2*>(static_cast<float*>(c) + at) = make_float2(first, second);
  } else {
    *reinterpret_cast<u32*>(static_cast<u16*>(c) + at) =
        static_cast<u32>(Element::narrow(first)) | static_cast<u32>(Element::narrow(second)) << 16;
  }
}

/// The operands of one tile.
struct TileWork {
  Window a, b;
  OutWindow c;
  i64 k;
};

/// TN and NN: the rows of C are an expert's.
template <typename Tile, Along kB>
__device__ TileWork work_by_rows(const LinearOperands& args, const TilePlace& place) {
  const i64 first = args.tiles.first_row[place.expert] + i64{place.m} * Tile::kRows;
  const i64 rows = args.tiles.first_row[place.expert + 1] - first;
  const i64 col = i64{place.n} * kMmaCols;
  const auto* const b = static_cast<const u16*>(args.matrices[place.expert]);
  TileWork work{};
  work.a = {static_cast<const u16*>(args.a) + first * args.k, args.k, rows, args.k};
  work.b = kB == Along::K ? Window{b + col * args.k, args.k, args.n - col, args.k}
                          : Window{b + col, args.n, args.k, args.n - col};
  work.c = {static_cast<u16*>(args.c) + (first * args.n + col), args.n, rows, args.n - col};
  work.k = args.k;
  return work;
}

/// NT: the rows of an expert are k.
template <typename Tile>
__device__ TileWork work_by_experts(const LinearOperands& args, const TilePlace& place, bool c_fp32) {
  const i64 first = args.tiles.first_row[place.expert];
  const i64 rows = args.tiles.first_row[place.expert + 1] - first;
  const i64 row = i64{place.m} * Tile::kRows;
  const i64 col = i64{place.n} * kMmaCols;
  auto* const c = const_cast<void*>(args.matrices[place.expert]);
  const i64 at = row * args.n + col;
  TileWork work{};
  work.a = {static_cast<const u16*>(args.a) + (first * args.m + row), args.m, rows, args.m - row};
  work.b = {static_cast<const u16*>(args.b) + (first * args.n + col), args.n, rows, args.n - col};
  work.c = {c_fp32 ? static_cast<void*>(static_cast<float*>(c) + at) : static_cast<u16*>(c) + at, args.n, args.m - row,
            args.n - col};
  work.k = rows;
  return work;
}

template <typename Element, typename Tile, Along kA, Along kB, bool kWide>
__device__ void multiply_tile(const TileWork& work, WarpSums<Element, Tile, kA, kB>& sums) {
  constexpr u32 kABytes = Tile::kABytes;
  constexpr u32 kStageBytes = Tile::kStageBytes;
  constexpr int kStages = Tile::kStages;
  const u32 stages = dynamic_shared();
  TileLoader<kA, Tile::kRows, Tile::kThreads, kWide> a(work.a);
  TileLoader<kB, kMmaCols, Tile::kThreads, kWide> b(work.b);
  const auto steps = static_cast<i32>((work.k + kMmaDepth - 1) / kMmaDepth);
  const auto load = [&](i32 step, i32 stage) {
    if (step < steps) {
      a.load(stages + static_cast<u32>(stage) * kStageBytes);
      b.load(stages + static_cast<u32>(stage) * kStageBytes + kABytes);
    }
    // An empty stage is closed, too, so that the number of open stages says which one has come.
    close_stage();
  };
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) load(step, step);
  i32 stage = 0;
  for (i32 step = 0; step < steps; ++step) {
    wait_for_stages<kStages - 2>();
    // Behind this barrier the step's tiles are there for all threads, and none still reads the stage that is filled
    // next.
    __syncthreads();
    load(step + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
    const u32 a_tile = stages + static_cast<u32>(stage) * kStageBytes;
    sums.add(a_tile, a_tile + kABytes);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
}

/// The product is by experts (NT) where A is dense along m.
template <typename Element, typename Tile, Along kA, Along kB, bool kWide>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    sm80_grouped_gemm(const __grid_constant__ LinearOperands args, bool c_fp32) {
  constexpr bool kByExperts = kA == Along::Mn;
  const auto block = static_cast<i32>(blockIdx.x);
  const auto n_tiles = static_cast<i32>((args.n + kMmaCols - 1) / kMmaCols);
  TileWork work{};
  if constexpr (kByExperts) {
    if (args.tiles.status->fault != SplitFault::None) return;
    const auto m_tiles = static_cast<i32>((args.m + Tile::kRows - 1) / Tile::kRows);
    work = work_by_experts<Tile>(args, place_by_experts(m_tiles, n_tiles, block), c_fp32);
    if (args.accumulate && work.k == 0) return;
  } else {
    const TilePlace place = place_by_rows(args.tiles.first_tile, args.num_experts, n_tiles, block);
    if (place.expert < 0) return;
    work = work_by_rows<Tile, kB>(args, place);
  }
  WarpSums<Element, Tile, kA, kB> sums;
  multiply_tile<Element, Tile, kA, kB, kWide>(work, sums);
  const bool fp32 = kByExperts && c_fp32;
  const bool accumulate = kByExperts && args.accumulate;
  sums.for_each_pair([&](i32 row, i32 col, float first, float second) {
    if (row >= work.c.rows || col >= work.c.cols) return;
    const i64 at = row * work.c.step + col;
    if (kWide && !accumulate) return store_two<Element>(work.c.first, at, first, second, fp32);
    store_one<Element>(work.c.first, at, first, fp32, accumulate);
    if (col + 1 < work.c.cols) store_one<Element>(work.c.first, at + 1, second, fp32, accumulate);
  });
}

}  // namespace glu_ckpt::linear
