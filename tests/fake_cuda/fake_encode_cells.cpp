/// In the place of the kernels that encode: the CPU's loops, queued on the stream as a launch is. The kernels
/// themselves run in tests/fake_warp.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fake_cuda/fake_runtime.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/quant/encode_cells.hpp"
#include "quant/encode_row.hpp"

namespace glu_ckpt {
namespace {

using fake_cuda::Range;

/// An encoder with these formulas.
Encoder encoder_of(const CellRule& rule) {
  Encoder encoder;
  encoder.codes = rule.codes;
  encoder.row.rule = rule.rule;
  encoder.row.divides = rule.divides;
  encoder.row.rounds_quotient = rule.rounds;
  encoder.row.least = rule.least;
  encoder.row.ties = rule.ties;
  encoder.row.signs = rule.signs;
  return encoder;
}

void encode(const CellBatch& batch, const std::byte* weights, u32* flag, std::byte* codes, std::byte* scales) {
  const Encoder encoder = encoder_of(batch.rule);
  const Dtype dtype = batch.rule.bf16 ? Dtype::BF16 : Dtype::F32;
  const i64 row_bytes = batch.weight_bytes() / batch.rows, code_bytes = batch.code_bytes() / batch.rows;
  const auto cells = static_cast<std::size_t>(batch.grid_cols());
  for (i64 first = 0; first < batch.rows; first += batch.cell_rows) {
    std::vector<float> greatest(cells), factors(cells);
    std::vector<u32> stored(cells);
    const i64 end = std::min(first + batch.cell_rows, batch.rows);
    for (i64 row = first; row < end; ++row)
      raise_greatest(weights + row * row_bytes, batch.cols, dtype, batch.cell_cols, greatest.data());
    cell_scales(encoder, greatest, dtype, batch.second, stored.data(), factors.data());
    for (std::size_t i = 0; i < cells; ++i) {
      const bool makes_nan = !std::isfinite(factors[i]) || (batch.rule.divides && factors[i] == 0);
      if (greatest[i] >= kLeastWatched || makes_nan) *flag = 1;
      for (i64 byte = 0; byte < batch.scale_bytes; ++byte) *scales++ = static_cast<std::byte>(stored[i] >> (8 * byte));
    }
    for (i64 row = first; row < end; ++row)
      encode_row(encoder, weights + row * row_bytes, batch.cols, dtype, factors.data(), batch.cell_cols,
                 codes + row * code_bytes);
  }
}

Range range_of(const void* data, i64 bytes) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
}

}  // namespace

void encode_cells(const CellBatch& batch, const std::byte* weights, u32* flag, std::byte* codes, std::byte* scales,
                  GpuStream stream) {
  const std::vector<Range> used = {range_of(weights, batch.weight_bytes()), range_of(flag, sizeof(u32)),
                                   range_of(codes, batch.code_bytes()), range_of(scales, batch.scales_bytes())};
  const auto work = [=] { encode(batch, weights, flag, codes, scales); };
  if (const cudaError_t status = fake_cuda::launch("encode_cells", stream, used, work); status != cudaSuccess)
    cuda_launch_fail(status, "encode_cells", std::to_string(batch.rows) + " rows");
}

}  // namespace glu_ckpt
