#include "exec/memory_ends.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "core/compute.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "core/stream_copy.hpp"
#include "core/usable_cores.hpp"
#include "exec/backends.hpp"
#include "exec/move_parts.hpp"
#include "glu_ckpt/ops/device_copy.hpp"

namespace glu_ckpt {
namespace {

/// Bytes of an output that one thread makes at a time.
constexpr i64 kPartBytes = i64{4} << 20;
/// Plans of so many bytes and more are written past the caches, as change_glu_order() does.
constexpr i64 kUncachedBytes = i64{32} << 20;

bool on_cpu(const TensorView& view) { return view.device == "cpu"; }

/// Bytes [begin, end) of an output.
struct OutputPart {
  std::size_t tensor = 0;
  i64 begin = 0;
  i64 end = 0;
};

std::vector<OutputPart> cut_outputs(const Plan& plan, std::span<const TensorView> to) {
  std::vector<OutputPart> parts;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t)
    if (to[t].data != nullptr && on_cpu(to[t]))
      for (i64 begin = 0; begin < plan.outputs[t].bytes; begin += kPartBytes)
        parts.push_back({t, begin, std::min(plan.outputs[t].bytes, begin + kPartBytes)});
  return parts;
}

/// Moves that have one source.
void copy_from_one(std::span<const Move> moves, const std::byte* src, std::byte* dst, bool past_cache) {
  if (std::ranges::any_of(moves, [](const Move& move) { return move.run_bytes < kDirectRunBytes; }))
    return copy_in_host(moves, src, dst);
  for (const Move& move : moves)
    for_each_run(move, [&](i64 from, i64 to) {
      const auto bytes = static_cast<std::size_t>(move.run_bytes);
      if (past_cache)
        stream_copy(dst + to, src + from, bytes);
      else
        std::memcpy(dst + to, src + from, bytes);
    });
}

void make_part(const Plan& plan, const OutputPart& part, std::span<const TensorView> from, std::byte* dst,
               bool past_cache) {
  std::vector<Move> moves;
  for (std::size_t m = plan.first_move[part.tensor]; m < plan.first_move[part.tensor + 1]; ++m)
    clip_move(plan.moves[m], part.begin, part.end, [&](const Move& move) { moves.push_back(move); });
  std::ranges::stable_sort(moves, {}, &Move::src);
  for (auto begin = moves.begin(); begin != moves.end();) {
    const auto end = std::find_if(begin, moves.end(), [&](const Move& move) { return move.src != begin->src; });
    copy_from_one({begin, end}, from[begin->src].data, dst, past_cache);
    begin = end;
  }
}

void move_on_cpu(const Plan& plan, std::span<const TensorView> from, std::span<const TensorView> to, int jobs) {
  const std::vector<OutputPart> parts = cut_outputs(plan, to);
  i64 bytes = 0;
  for (const OutputPart& part : parts) bytes += part.end - part.begin;
  const int threads = static_cast<int>(std::clamp<i64>(bytes / kPartBytes, 1, jobs > 0 ? jobs : usable_cores()));
  parallel_for(parts.size(), threads, [&](std::size_t index, int) {
    make_part(plan, parts[index], from, to[parts[index].tensor].data, bytes >= kUncachedBytes);
  });
}

void move_on_gpu(const Plan& plan, std::span<const TensorView> from, std::span<const TensorView> to,
                 const std::string& device, GpuStream stream) {
  std::vector<Move> moves;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t)
    if (to[t].data != nullptr && to[t].device == device)
      moves.insert(moves.end(), plan.moves.begin() + static_cast<std::ptrdiff_t>(plan.first_move[t]),
                   plan.moves.begin() + static_cast<std::ptrdiff_t>(plan.first_move[t + 1]));
  if (moves.empty()) return;
  std::vector<const std::byte*> srcs;
  std::vector<std::byte*> dsts;
  for (const TensorView& view : from) srcs.push_back(view.data);
  for (const TensorView& view : to) dsts.push_back(view.data);
  const OnCudaDevice on(cuda_index(device));
  device_copy(moves, srcs, dsts, stream);
}

/// Computes a whole output, which is as small as a norm; what is on a GPU goes through host memory.
void compute_output(const Plan& plan, const Compute& wanted, const TensorView& from, const TensorView& to) {
  const auto bytes_of = [](i64 bytes) { return static_cast<std::size_t>(bytes); };
  const i64 out_bytes = plan.outputs[wanted.dst].bytes;
  const i64 in_bytes = out_bytes / (dtype_bits(to.dtype) / 8) * (dtype_bits(from.dtype) / 8);
  std::vector<std::byte> in(bytes_of(in_bytes)), out(bytes_of(out_bytes));
  copy_to_host(from, 0, in);
  compute(wanted.op, from.dtype, in, to.dtype, out);
  copy_from_host(to, 0, out);
}

}  // namespace

void copy_to_host(const TensorView& from, i64 offset, std::span<std::byte> out) {
  if (on_cpu(from))
    std::copy_n(from.data + offset, out.size(), out.begin());
  else
    copy_off_gpu(cuda_index(from.device), from.data + offset, out);
}

void copy_from_host(const TensorView& to, i64 offset, std::span<const std::byte> bytes) {
  if (on_cpu(to))
    std::ranges::copy(bytes, to.data + offset);
  else
    copy_onto_gpu(cuda_index(to.device), bytes, to.data + offset);
}

void MemorySource::read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const {
  const TensorRef& ref = info_.inventory.tensors.at(tensor);
  const TensorView& view = views_->at(tensor);
  for (const std::span<std::byte> piece : pieces) {
    if (piece.empty()) continue;
    if (view.data == nullptr)
      fail(ErrorCode::Usage, {{}, ref.name},
           "'{}': its elements have to be read to plan this conversion, and it has a shape only; plan from tensors",
           ref.name);
    if (offset < 0 || std::ssize(piece) > ref.bytes - offset)
      fail(ErrorCode::Io, {{}, ref.name}, "'{}': a read of {} bytes at {} of its {}", ref.name, piece.size(), offset,
           ref.bytes);
    copy_to_host(view, offset, piece);
    offset += std::ssize(piece);
  }
}

void MemorySink::write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) {
  if (views_[tensor].data != nullptr) copy_from_host(views_[tensor], offset, bytes);
}

void move_in_memory(const Plan& plan, std::span<const TensorView> from, std::span<const TensorView> to,
                    const MemoryRun& run) {
  std::set<std::string> devices;
  for (const TensorView& view : to)
    if (view.data != nullptr) devices.insert(view.device);
  if (devices.erase("cpu") > 0) move_on_cpu(plan, from, to, run.jobs);
  for (const std::string& device : devices) move_on_gpu(plan, from, to, device, run.stream);
  compute_in_memory(plan, from, to);
}

void compute_in_memory(const Plan& plan, std::span<const TensorView> from, std::span<const TensorView> to) {
  for (const Compute& wanted : plan.computes)
    if (to[wanted.dst].data != nullptr) compute_output(plan, wanted, from[wanted.src], to[wanted.dst]);
  for (const std::size_t output : plan.zeros)
    if (to[output].data != nullptr)
      copy_from_host(to[output], 0, std::vector<std::byte>(static_cast<std::size_t>(plan.outputs[output].bytes)));
}

}  // namespace glu_ckpt
