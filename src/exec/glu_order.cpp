#include "glu_ckpt/ops/glu_order.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "core/stream_copy.hpp"
#include "core/usable_cores.hpp"
#include "exec/backends.hpp"
#include "glu_ckpt/ops/device_copy.hpp"
#include "kernels/copy/in_place_cycles.hpp"

namespace glu_ckpt {
namespace {

/// Bytes that one thread of the CPU copies at a time.
constexpr i64 kChunkBytes = i64{4} << 20;
/// Outputs of this size and more are written past the caches: 1 GiB takes 0.21 s instead of 0.31 s on one core.
constexpr i64 kPastCacheBytes = i64{32} << 20;

std::size_t rows_axis(const TensorView& tensor, const GluChange& change) {
  const auto axes = static_cast<int>(tensor.shape.size());
  if (!change.axis && (axes < 1 || axes > 3))
    fail(ErrorCode::Usage, {}, "shape {}: say which axis has the 2F rows of gate and up", shape_text(tensor.shape));
  const int axis = change.axis.value_or(axes == 3 ? 1 : 0);
  if (axis < -axes || axis >= axes)
    fail(ErrorCode::Usage, {}, "shape {} has no axis {}", shape_text(tensor.shape), axis);
  return static_cast<std::size_t>(axis < 0 ? axis + axes : axis);
}

i64 product_of(const TensorView& tensor, std::size_t begin, std::size_t end) {
  i64 product = 1;
  for (std::size_t axis = begin; axis < end; ++axis) {
    const auto next = tensor.shape[axis] < 0 ? std::nullopt : checked_mul(product, tensor.shape[axis]);
    if (!next) fail(ErrorCode::ShapeOverflow, {}, "shape {}: no tensor has so many elements", shape_text(tensor.shape));
    product = *next;
  }
  return product;
}

/// The tensor as experts of 2F rows. Throws for everything that is wrong with it.
InPlaceGlu rows_of(const TensorView& tensor, const GluChange& change) {
  const std::size_t axis = rows_axis(tensor, change);
  if (!is_contiguous(tensor))
    fail(ErrorCode::Usage, {}, "shape {} with strides {} is not contiguous; make a contiguous copy of it",
         shape_text(tensor.shape), shape_text(tensor.strides));
  InPlaceGlu glu;
  glu.experts = product_of(tensor, 0, axis);
  glu.rows = tensor.shape[axis];
  glu.block_rows = change.block_rows;
  glu.interleave = change.interleave;
  const auto row_bits = checked_mul(product_of(tensor, axis + 1, tensor.shape.size()), dtype_bits(tensor.dtype));
  if (!row_bits || *row_bits % 8 != 0)
    fail(ErrorCode::Usage, {}, "shape {} of {}: a row is no whole number of bytes", shape_text(tensor.shape),
         dtype_name(tensor.dtype));
  glu.row_bytes = *row_bits / 8;
  const auto expert_bytes = checked_mul(glu.rows, glu.row_bytes);
  if (!expert_bytes || !checked_mul(*expert_bytes, glu.experts))
    fail(ErrorCode::ShapeOverflow, {}, "shape {} of {}: too many bytes", shape_text(tensor.shape),
         dtype_name(tensor.dtype));
  glu.expert_step = *expert_bytes;
  if (glu.block_rows < 1)
    fail(ErrorCode::Usage, {}, "K is {}; it counts the rows of a block, at least 1", glu.block_rows);
  if (glu.rows > 0 && (glu.block_rows > glu.rows / 2 || glu.rows % (2 * glu.block_rows) != 0))
    fail(ErrorCode::NotDivisible, {}, "shape {}: {} rows on axis {}; interleaved:{} needs a multiple of {}",
         shape_text(tensor.shape), glu.rows, axis, glu.block_rows, 2 * static_cast<u64>(glu.block_rows));
  if (tensor.data == nullptr && glu.experts * glu.expert_step > 0)
    fail(ErrorCode::Usage, {}, "shape {} without an address", shape_text(tensor.shape));
  return glu;
}

/// Gate and up of all experts, one move each.
std::array<Move, 2> glu_moves(const InPlaceGlu& glu) {
  const i64 block_bytes = glu.block_rows * glu.row_bytes, half_bytes = glu.expert_step / 2;
  const i64 blocks = glu.rows / (2 * glu.block_rows);
  std::array<Move, 2> moves;
  for (i64 role = 0; role < 2; ++role) {
    Move& move = moves[static_cast<std::size_t>(role)];
    move.dims[0] = {glu.experts, glu.expert_step, glu.expert_step};
    move.dims[1] = {blocks, block_bytes, 2 * block_bytes};
    move.src_offset = role * half_bytes;
    move.dst_offset = role * block_bytes;
    move.run_bytes = block_bytes;
    if (!glu.interleave) {
      std::swap(move.src_offset, move.dst_offset);
      std::swap(move.dims[1].src_step, move.dims[1].dst_step);
    }
  }
  return moves;
}

bool overlaps(const TensorView& in, const TensorView& out, i64 bytes) {
  const std::less<const std::byte*> before;
  return bytes > 0 && before(in.data, out.data + bytes) && before(out.data, in.data + bytes);
}

int threads_for(const GluRun& run, i64 bytes) {
  const int jobs = run.jobs > 0 ? run.jobs : usable_cores();
  return static_cast<int>(std::clamp<i64>(bytes / kChunkBytes, 1, jobs));
}

/// Long runs, each cut to chunks that threads share.
void copy_blocks(const InPlaceGlu& glu, const std::byte* in, std::byte* out, int threads) {
  const i64 block_bytes = glu.block_rows * glu.row_bytes, half = glu.rows / (2 * glu.block_rows);
  const i64 blocks = glu.experts * 2 * half, at_once = std::max<i64>(1, kChunkBytes / block_bytes);
  const bool past_cache = blocks * block_bytes >= kPastCacheBytes;
  const auto copy_block = [&](i64 number) {
    const i64 expert = number / (2 * half);
    const auto place = static_cast<u32>(number % (2 * half));
    const i64 to = next_block(place, static_cast<u32>(half), glu.interleave);
    std::byte* const target = out + expert * glu.expert_step + to * block_bytes;
    if (past_cache)
      stream_copy(target, in + number * block_bytes, static_cast<std::size_t>(block_bytes));
    else
      std::memcpy(target, in + number * block_bytes, static_cast<std::size_t>(block_bytes));
  };
  const i64 chunks = (blocks + at_once - 1) / at_once;
  parallel_for(static_cast<std::size_t>(chunks), threads, [&](std::size_t chunk, int) {
    const i64 first = static_cast<i64>(chunk) * at_once;
    for (i64 number = first; number < std::min(blocks, first + at_once); ++number) copy_block(number);
  });
}

/// Short runs, some experts at a time.
void copy_runs_of(const InPlaceGlu& glu, const std::byte* in, std::byte* out, int threads) {
  const i64 at_once = std::max<i64>(1, kChunkBytes / glu.expert_step);
  const i64 chunks = (glu.experts + at_once - 1) / at_once;
  parallel_for(static_cast<std::size_t>(chunks), threads, [&](std::size_t chunk, int) {
    const i64 first = static_cast<i64>(chunk) * at_once;
    InPlaceGlu part = glu;
    part.experts = std::min(at_once, glu.experts - first);
    copy_in_host(glu_moves(part), in + first * glu.expert_step, out + first * glu.expert_step);
  });
}

/// Follows one cycle of blocks of one expert, carrying one block at a time.
void follow_cycle(const InPlaceGlu& glu, const CycleSegment& cycle, std::byte* expert, std::byte* carried,
                  std::byte* saved) {
  const i64 block_bytes = glu.block_rows * glu.row_bytes;
  const auto half = static_cast<u32>(glu.rows / (2 * glu.block_rows));
  const auto bytes = static_cast<std::size_t>(block_bytes);
  u32 place = cycle.start;
  std::memcpy(carried, expert + place * block_bytes, bytes);
  for (u32 step = 0; step < cycle.steps; ++step) {
    place = next_block(place, half, glu.interleave);
    std::byte* const to = expert + place * block_bytes;
    if (step + 1 < cycle.steps) std::memcpy(saved, to, bytes);
    std::memcpy(to, carried, bytes);
    std::swap(carried, saved);
  }
}

void permute_in_host(const InPlaceGlu& glu, std::byte* data, int threads) {
  const i64 half = glu.rows / (2 * glu.block_rows);
  if (half > std::numeric_limits<u32>::max() / 4)
    fail(ErrorCode::Usage, {}, "{} rows in blocks of {} are too many blocks", glu.rows, glu.block_rows);
  // Cycles are not cut, so that no block has to be saved: a segment is a whole cycle.
  const std::vector<CycleSegment> cycles =
      cycle_segments(static_cast<u32>(half), glu.interleave, static_cast<u32>(2 * half));
  if (cycles.empty()) return;
  // One expert at a time to a thread, unless there are too few.
  const std::size_t parts = glu.experts >= threads ? 1 : cycles.size();
  const auto block_bytes = static_cast<std::size_t>(glu.block_rows * glu.row_bytes);
  const auto buffers = std::make_unique<std::byte[]>(2 * block_bytes * static_cast<std::size_t>(threads));
  parallel_for(static_cast<std::size_t>(glu.experts) * parts, threads, [&](std::size_t number, int worker) {
    std::byte* const buffer = buffers.get() + 2 * block_bytes * static_cast<std::size_t>(worker);
    std::byte* const expert = data + static_cast<i64>(number / parts) * glu.expert_step;
    if (parts > 1) return follow_cycle(glu, cycles[number % parts], expert, buffer, buffer + block_bytes);
    for (const CycleSegment& cycle : cycles) follow_cycle(glu, cycle, expert, buffer, buffer + block_bytes);
  });
}

}  // namespace

void change_glu_order(const TensorView& in, const TensorView& out, const GluChange& change, const GluRun& run) {
  const InPlaceGlu glu = rows_of(in, change);
  check_output_buffer(out, in.shape, in.dtype, in.device);
  const i64 bytes = glu.experts * glu.expert_step;
  if (bytes == 0) return;
  if (out.data == nullptr)
    fail(ErrorCode::Usage, {}, "output buffer: shape {} without an address", shape_text(out.shape));
  if (overlaps(in, out, bytes))
    fail(ErrorCode::Usage, {},
         "output buffer: its {} bytes overlap those of the input; give it memory of its own, or change in place",
         bytes);
  if (in.device != "cpu") {
    const OnCudaDevice on(cuda_index(in.device));
    const std::byte* const from = in.data;
    std::byte* const to = out.data;
    return device_copy(glu_moves(glu), std::span(&from, 1), std::span(&to, 1), run.stream);
  }
  const int threads = threads_for(run, bytes);
  // A run of a page or more is worth a memcpy of its own.
  if (glu.block_rows * glu.row_bytes >= 4096)
    copy_blocks(glu, in.data, out.data, threads);
  else
    copy_runs_of(glu, in.data, out.data, threads);
}

void change_glu_order_in_place(const TensorView& tensor, const GluChange& change, const GluRun& run) {
  const InPlaceGlu glu = rows_of(tensor, change);
  const i64 bytes = glu.experts * glu.expert_step;
  if (bytes == 0) return;
  if (tensor.device == "cpu") return permute_in_host(glu, tensor.data, threads_for(run, bytes));
  const OnCudaDevice on(cuda_index(tensor.device));
  in_place_glu(glu, tensor.data, run.stream);
}

}  // namespace glu_ckpt
