/// The backward's products by ordinary multiplications in fp32, for every GPU, dtype and layout; and the sums over rows
/// and columns, which all ways share.
///
/// A block makes 64 rows by 64 columns of a product, a thread 4 by 4 of them. Sums take kStep products one after the
/// other, then those sums one after the other, whatever the layout.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/backward_layer.hpp"
#include "kernels/mlp/derivative.cuh"
#include "kernels/mlp/stored_element.cuh"

namespace glu_ckpt {
namespace {

constexpr int kTile = kSimtTileRows;
constexpr int kStep = 16;
constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;
constexpr int kEach = kTile / kSide;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr int kWarp = 32;
static_assert(kTile == kSimtPartCols);

using Sums = float[kEach][kEach];

__device__ inline float stored_at(const StoredMatrix& matrix, i64 row, i64 col) {
  const StoredRow at = stored_row(matrix, row);
  return stored_value(at.data + col * at.col_step, matrix.dtype);
}

__device__ inline const StoredMatrix& member(const StoredMatrix* table, int expert, MlpMatrix matrix) {
  return table[expert * kMlpMatrices + static_cast<int>(matrix)];
}

/// A tile whose rows are an expert's.
struct RowTile {
  i32 expert = -1;
  i64 row = 0, row_end = 0;

  __device__ explicit RowTile(const BackwardArgs& args) {
    const auto tile = static_cast<i32>(blockIdx.x);
    if (tile >= args.tiles.first_tile[args.experts]) return;
    expert = expert_of_tile(args.tiles.first_tile, args.experts, tile);
    row = args.tiles.first_row[expert] + static_cast<i64>(tile - args.tiles.first_tile[expert]) * kTile;
    row_end = args.tiles.first_row[expert + 1];
  }
};

/// Calls use(i, j, row, col) for the thread's places in a tile.
template <typename Use>
__device__ inline void for_each_place(const Use& use) {
  const int x = static_cast<int>(threadIdx.x) % kSide;
  const int y = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) use(i, j, y + kSide * i, x + kSide * j);
}

/// sums[i][j] = sum over k < depth of a(row, k) b(col, k).
template <typename A, typename B>
__device__ inline void multiply(Sums& sums, i64 depth, const A& a, const B& b) {
  __shared__ float a_tile[kStep][kTile + 1];
  __shared__ float b_tile[kStep][kTile + 1];
  for (i64 first = 0; first < depth; first += kStep) {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += kThreads) {
      const int r = i / kStep;
      const int k = i % kStep;
      a_tile[k][r] = first + k < depth ? a(r, first + k) : 0.0F;
      b_tile[k][r] = first + k < depth ? b(r, first + k) : 0.0F;
    }
    __syncthreads();
    Sums part = {};
#pragma unroll
    for (int k = 0; k < kStep; ++k)
      for_each_place(
          [&](int i, int j, int row, int col) { part[i][j] = fmaf(a_tile[k][row], b_tile[k][col], part[i][j]); });
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j) sums[i][j] += part[i][j];
    __syncthreads();
  }
}

template <typename Element, bool kGated>
__global__ void __launch_bounds__(kThreads) derive_simt(const __grid_constant__ BackwardArgs args) {
  const RowTile tile(args);
  if (tile.expert < 0) return;
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const StoredMatrix& down = member(args.weights, tile.expert, MlpMatrix::Down);
  const auto* const dout = static_cast<const Element*>(args.dout);
  Sums sums = {};
  multiply(
      sums, args.hidden,
      [&](int r, i64 k) { return tile.row + r < tile.row_end ? widen(dout[(tile.row + r) * args.hidden + k]) : 0.0F; },
      [&](int c, i64 k) { return first + c < args.width ? stored_at(down, k, first + c) : 0.0F; });
  const i64 pitch = args.dz_pitch();
  const i64 up = pitch - args.width;
  const auto* const z = static_cast<const Element*>(args.z);
  auto* const dz = static_cast<Element*>(args.dz);
  float dp[kEach] = {};
  with_formula<kGated>(args.activation, [&](auto formula) {
    for_each_place([&](int i, int j, int r, int c) {
      const i64 row = tile.row + r;
      const int col = first + c;
      if (row >= tile.row_end || col >= args.width) return;
      const float p = rounded_probability<Element>(args.probs, row, tile.row_end);
      const float a = kGated ? widen(z[row * pitch + col]) : 0.0F;
      const float u = widen(z[row * pitch + up + col]);
      const Derived made = derive<Element, decltype(formula)::value>(args.activation, a, u, sums[i][j], p);
      if (kGated) dz[row * pitch + col] = narrow<Element>(made.da);
      dz[row * pitch + up + col] = narrow<Element>(made.du);
      static_cast<Element*>(args.y)[row * args.width + col] = narrow<Element>(made.y);
      dp[i] += made.dp;
    });
  });
  // The 16 threads of a row of threads have a row of the tile together.
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int step = kSide / 2; step > 0; step /= 2) dp[i] += __shfl_xor_sync(kAllLanes, dp[i], step);
    const i64 row = tile.row + static_cast<int>(threadIdx.x) / kSide + kSide * i;
    if (threadIdx.x % kSide == 0 && row < tile.row_end) args.dp_parts[row * args.parts + blockIdx.y] = dp[i];
  }
}

template <typename Element>
__global__ void __launch_bounds__(kThreads) input_grad_simt(const __grid_constant__ BackwardArgs args) {
  const RowTile tile(args);
  if (tile.expert < 0) return;
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const i64 pitch = args.dz_pitch();
  const i64 up_col = pitch - args.width;
  const StoredMatrix& gate = member(args.weights, tile.expert, MlpMatrix::Gate);
  const StoredMatrix& up = member(args.weights, tile.expert, MlpMatrix::Up);
  const auto* const dz = static_cast<const Element*>(args.dz);
  Sums sums = {};
  multiply(
      sums, pitch,
      [&](int r, i64 k) { return tile.row + r < tile.row_end ? widen(dz[(tile.row + r) * pitch + k]) : 0.0F; },
      [&](int c, i64 k) {
        if (first + c >= args.hidden) return 0.0F;
        return k < up_col ? stored_at(gate, k, first + c) : stored_at(up, k - up_col, first + c);
      });
  for_each_place([&](int i, int j, int r, int c) {
    if (tile.row + r < tile.row_end && first + c < args.hidden)
      static_cast<Element*>(args.dx)[(tile.row + r) * args.hidden + first + c] = narrow<Element>(sums[i][j]);
  });
}

template <typename Element>
__device__ inline void store_grad(const StoredMatrix& grad, i64 row, i64 col, bool accumulate, float sum) {
  const StoredRow stored = stored_row(grad, row);
  auto* const at = const_cast<std::byte*>(stored.data) + col * stored.col_step;
  // -0 becomes 0 where nothing is added.
  const float value = accumulate ? sum + stored_value(at, grad.dtype) : sum + 0.0F;
  if (grad.dtype == Dtype::F32)
    *reinterpret_cast<float*>(at) = value;
  else
    *reinterpret_cast<Element*>(at) = narrow<Element>(value);
}

template <typename Element>
__global__ void __launch_bounds__(kThreads)
    weight_grad_simt(const __grid_constant__ BackwardArgs args, MlpMatrix matrix, int tiles_m) {
  if (args.tiles.status->fault != SplitFault::None) return;
  const auto expert = static_cast<int>(blockIdx.x) / tiles_m;
  const i64 first_row = args.tiles.first_row[expert];
  const i64 tokens = args.tiles.first_row[expert + 1] - first_row;
  if (tokens == 0 && args.accumulate) return;
  const StoredMatrix& grad = member(args.grads, expert, matrix);
  const i64 m = static_cast<i64>(static_cast<int>(blockIdx.x) - expert * tiles_m) * kTile;
  const i64 n = static_cast<i64>(blockIdx.y) * kTile;
  const bool down = matrix == MlpMatrix::Down;
  const i64 a_pitch = down ? args.hidden : args.dz_pitch();
  const i64 b_pitch = down ? args.width : args.hidden;
  const i64 a_col = matrix == MlpMatrix::Up ? args.dz_pitch() - args.width : 0;
  const auto* const a = static_cast<const Element*>(down ? args.dout : args.dz) + first_row * a_pitch + a_col;
  const auto* const b = static_cast<const Element*>(down ? args.y : args.x) + first_row * b_pitch;
  Sums sums = {};
  multiply(
      sums, tokens, [&](int r, i64 k) { return m + r < grad.rows ? widen(a[k * a_pitch + m + r]) : 0.0F; },
      [&](int c, i64 k) { return n + c < grad.cols ? widen(b[k * b_pitch + n + c]) : 0.0F; });
  for_each_place([&](int i, int j, int r, int c) {
    if (m + r < grad.rows && n + c < grad.cols) store_grad<Element>(grad, m + r, n + c, args.accumulate, sums[i][j]);
  });
}

/// Threads of a block along columns, and along rows.
constexpr int kBiasCols = 64;
constexpr int kBiasRows = 4;

template <typename Element>
__global__ void __launch_bounds__(kBiasCols* kBiasRows) bias_grad_kernel(const __grid_constant__ BiasGradArgs args) {
  if (args.tiles.status->fault != SplitFault::None) return;
  __shared__ float parts[kBiasRows][kBiasCols];
  const auto expert = static_cast<int>(blockIdx.y);
  const i64 first = args.tiles.first_row[expert];
  const i64 end = args.tiles.first_row[expert + 1];
  if (first == end && args.accumulate) return;
  const int x = static_cast<int>(threadIdx.x) % kBiasCols;
  const int y = static_cast<int>(threadIdx.x) / kBiasCols;
  const i64 col = static_cast<i64>(blockIdx.x) * kBiasCols + x;
  float sum = 0;
  if (col < args.cols)
    for (i64 row = first + y; row < end; row += kBiasRows) {
      const float value = widen(static_cast<const Element*>(args.data)[row * args.pitch + args.first_col + col]);
      sum = fmaf(value, args.probs != nullptr ? __ldg(args.probs + row) : 1.0F, sum);
    }
  parts[y][x] = sum;
  __syncthreads();
  if (y > 0 || col >= args.cols) return;
  for (int other = 1; other < kBiasRows; ++other) sum += parts[other][x];
  store_grad<Element>(args.grads[expert], col, 0, args.accumulate, sum);
}

/// kLanes lanes make one row's. Element is that of dout, which a bias is multiplied with.
template <typename Element, int kLanes>
__global__ void __launch_bounds__(kThreads)
    dprobs_kernel(const __grid_constant__ BackwardArgs args, const float* down_bias, i64 bias_pitch, float* dprobs) {
  const i64 row = static_cast<i64>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const bool is_there = row < args.tiles.first_row[args.experts];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float sum = 0;
  if (is_there)
    for (int part = lane; part < args.parts; part += kLanes) sum += args.dp_parts[row * args.parts + part];
  if (is_there && down_bias != nullptr) {
    i32 expert = 0;
    for (i32 low = 0, high = args.experts; high - low > 1;) {
      const i32 middle = (low + high) / 2;
      (args.tiles.first_row[middle] <= row ? low : high) = middle;
      expert = low;
    }
    const float* const bias = down_bias + expert * bias_pitch;
    const auto* const dout = static_cast<const Element*>(args.dout) + row * args.hidden;
    for (int h = lane; h < args.hidden; h += kLanes) sum = fmaf(widen(dout[h]), __ldg(bias + h), sum);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (is_there && lane == 0) dprobs[row] = sum;
}

/// Calls `use` with the lanes that add the parts of a row of dprobs, as a constant: as few as take one part each, up to
/// a warp. The order of the sum is that of a whole warp, whose other lanes would add zeros.
template <int kLanes = 1, typename Use>
void with_row_lanes(int parts, const Use& use) {
  if constexpr (kLanes < kWarp)
    if (kLanes < parts) return with_row_lanes<2 * kLanes>(parts, use);
  use(std::integral_constant<int, kLanes>{});
}

/// Calls `use` with a value of the dtype's type.
template <typename Use>
void with_element(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::BF16: return use(__nv_bfloat16{});
    case Dtype::F16: return use(__half{});
    default: return use(0.0F);
  }
}

unsigned tiles_of(i64 size) { return static_cast<unsigned>((size + kTile - 1) / kTile); }

dim3 row_grid(const BackwardArgs& args, i64 cols) {
  return {static_cast<unsigned>(max_expert_tiles(args.rows, args.experts, kTile)), tiles_of(cols)};
}

void check(const char* kernel, const BackwardArgs& args) {
  check_launch(kernel, [&] {
    return std::to_string(args.experts) + " experts, " + std::to_string(args.rows) + " rows, H " +
           std::to_string(args.hidden) + ", F " + std::to_string(args.width);
  });
}

}  // namespace

void launch_derive_simt(const BackwardArgs& args, GpuStream stream) {
  const dim3 grid = row_grid(args, args.width);
  with_element(args.dtype, [&](auto element) {
    const auto kernel = args.gated ? derive_simt<decltype(element), true> : derive_simt<decltype(element), false>;
    kernel<<<grid, kThreads, 0, stream>>>(args);
  });
  check("derive_simt", args);
}

void launch_input_grad_simt(const BackwardArgs& args, GpuStream stream) {
  const dim3 grid = row_grid(args, args.hidden);
  with_element(args.dtype,
               [&](auto element) { input_grad_simt<decltype(element)><<<grid, kThreads, 0, stream>>>(args); });
  check("input_grad_simt", args);
}

void launch_weight_grad_simt(const BackwardArgs& args, MlpMatrix matrix, GpuStream stream) {
  const bool down = matrix == MlpMatrix::Down;
  const unsigned tiles_m = tiles_of(down ? args.hidden : args.width);
  const dim3 grid(tiles_m * static_cast<unsigned>(args.experts), tiles_of(down ? args.width : args.hidden));
  with_element(args.dtype, [&](auto element) {
    weight_grad_simt<decltype(element)><<<grid, kThreads, 0, stream>>>(args, matrix, static_cast<int>(tiles_m));
  });
  check("weight_grad_simt", args);
}

void launch_bias_grad(const BiasGradArgs& args, GpuStream stream) {
  const dim3 grid(static_cast<unsigned>((args.cols + kBiasCols - 1) / kBiasCols), static_cast<unsigned>(args.experts));
  with_element(args.dtype, [&](auto element) {
    bias_grad_kernel<decltype(element)><<<grid, kBiasCols * kBiasRows, 0, stream>>>(args);
  });
  check_launch("bias_grad", [&] { return std::to_string(args.experts) + " experts, " + std::to_string(args.cols); });
}

void launch_dprobs(const BackwardArgs& args, const float* down_bias, i64 bias_pitch, float* dprobs, GpuStream stream) {
  const auto run = [&](auto element, auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    constexpr i64 kRows = kThreads / kLanes;
    const auto blocks = static_cast<unsigned>((args.rows + kRows - 1) / kRows);
    dprobs_kernel<decltype(element), kLanes><<<blocks, kThreads, 0, stream>>>(args, down_bias, bias_pitch, dprobs);
  };
  if (down_bias != nullptr)
    with_element(args.dtype, [&](auto element) { run(element, std::integral_constant<int, kWarp>{}); });
  else
    with_row_lanes(args.parts, [&](auto lanes) { run(0.0F, lanes); });
  check("dprobs", args);
}

}  // namespace glu_ckpt
