/// Every struct is taken apart by a structured binding of all its fields, which does not compile once it has gained
/// one: then the field belongs here, and in the reader below.

#include "plan/plan_bytes.hpp"

#include <limits>

#include "core/byte_fields.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// The bytes begin with this number; every change of their format increases it.
constexpr std::string_view kFirstText = "glu-ckpt plan 3 of " GLU_CKPT_VERSION;

constexpr i64 kMax = std::numeric_limits<i64>::max();
constexpr i64 kNumberBytes = 8;

// ---- writing ----------------------------------------------------------------------------------

void write(ByteWriter& out, i64 value) { out.number(value); }
void write(ByteWriter& out, u32 value) { out.number(value); }
void write(ByteWriter& out, std::size_t value) { out.number(static_cast<i64>(value)); }
void write(ByteWriter& out, Dtype value) { out.number(static_cast<i64>(value)); }
void write(ByteWriter& out, const std::string& value) { out.text(value); }

void write(ByteWriter& out, const Glu& glu) {
  const auto& [kind, block_rows] = glu;
  out.number(static_cast<i64>(kind));
  write(out, block_rows);
}

void write(ByteWriter& out, const std::optional<Glu>& glu) {
  out.number(glu ? 1 : 0);
  if (glu) write(out, *glu);
}

void write(ByteWriter& out, const MoveDim& dim) {
  const auto& [count, src_step, dst_step] = dim;
  for (const i64 value : {count, src_step, dst_step}) write(out, value);
}

void write(ByteWriter& out, const Move& move) {
  const auto& [src, dst, src_offset, dst_offset, dims, run_bytes] = move;
  write(out, src);
  write(out, dst);
  for (const i64 value : {src_offset, dst_offset, run_bytes}) write(out, value);
  for (const MoveDim& dim : dims) write(out, dim);
}

void write(ByteWriter& out, const Compute& compute) {
  const auto& [src, dst, op] = compute;
  write(out, src);
  write(out, dst);
  out.number(static_cast<i64>(op));
}

void write(ByteWriter& out, const CutTensor& cut) {
  const auto& [tensor, bytes] = cut;
  write(out, tensor);
  write(out, bytes);
}

void write(ByteWriter& out, const WrittenExperts& written) {
  const auto& [experts, bias_experts, glu, fused] = written;
  out.number(static_cast<i64>(experts));
  out.number(static_cast<i64>(bias_experts));
  write(out, glu);
  out.number(fused ? 1 : 0);
}

/// Below; it has a vector itself.
void write(ByteWriter& out, const OutputTensor& tensor);

template <typename T>
void write(ByteWriter& out, const std::vector<T>& items) {
  write(out, items.size());
  for (const T& item : items) write(out, item);
}

void write(ByteWriter& out, const OutputTensor& tensor) {
  const auto& [name, dtype, shape, bytes, shard, offset, from] = tensor;
  write(out, name);
  write(out, dtype);
  write(out, shape);
  write(out, bytes);
  write(out, shard);
  write(out, offset);
  write(out, from);
}

void write(ByteWriter& out, const LayoutAnswers& answers) {
  const auto& [naming, experts, glu, glu_source, shared_glu, optimizer_glu] = answers;
  write(out, naming);
  write(out, experts);
  write(out, glu);
  write(out, glu_source);
  write(out, shared_glu);
  write(out, optimizer_glu);
}

// ---- reading ----------------------------------------------------------------------------------

std::size_t read_index(ByteReader& in) { return static_cast<std::size_t>(in.number(0, kMax)); }
u32 read_u32(ByteReader& in) { return static_cast<u32>(in.number(0, std::numeric_limits<u32>::max())); }

Glu read_glu(ByteReader& in) {
  Glu glu;
  glu.kind = static_cast<Glu::Kind>(in.number(0, static_cast<i64>(Glu::Kind::None)));
  glu.block_rows = in.number();
  return glu;
}

std::optional<Glu> read_optional_glu(ByteReader& in) {
  if (in.number(0, 1) == 0) return std::nullopt;
  return read_glu(in);
}

MoveDim read_dim(ByteReader& in) {
  MoveDim dim;
  dim.count = in.number(0, kMax);
  dim.src_step = in.number();
  dim.dst_step = in.number();
  return dim;
}

Move read_move(ByteReader& in) {
  Move move;
  move.src = read_index(in);
  move.dst = read_index(in);
  move.src_offset = in.number();
  move.dst_offset = in.number();
  move.run_bytes = in.number(0, kMax);
  for (MoveDim& dim : move.dims) dim = read_dim(in);
  return move;
}

Compute read_compute(ByteReader& in) {
  Compute compute;
  compute.src = read_index(in);
  compute.dst = read_index(in);
  compute.op = static_cast<ComputeOp>(in.number(0, static_cast<i64>(ComputeOp::AddOne)));
  return compute;
}

CutTensor read_cut(ByteReader& in) {
  CutTensor cut;
  cut.tensor = read_index(in);
  cut.bytes = in.number(0, kMax);
  return cut;
}

/// `item_bytes`: the fewest that one item takes.
template <typename Read>
auto read_items(ByteReader& in, i64 item_bytes, const Read& read) {
  std::vector<decltype(read(in))> items(in.count(item_bytes));
  for (auto& item : items) item = read(in);
  return items;
}

OutputTensor read_output(ByteReader& in) {
  OutputTensor tensor;
  tensor.name = in.text();
  tensor.dtype = static_cast<Dtype>(in.number(0, static_cast<i64>(Dtype::U64)));
  tensor.shape = read_items(in, kNumberBytes, [](ByteReader& from) { return from.number(0, kMax); });
  tensor.bytes = in.number(0, kMax);
  tensor.shard = read_u32(in);
  tensor.offset = in.number(0, kMax);
  tensor.from = in.text();
  return tensor;
}

Experts read_experts(ByteReader& in) { return static_cast<Experts>(in.number(0, static_cast<i64>(Experts::Grouped))); }

WrittenExperts read_written(ByteReader& in) {
  WrittenExperts written;
  written.experts = read_experts(in);
  written.bias_experts = read_experts(in);
  written.glu = read_glu(in);
  written.fused = in.number(0, 1) == 1;
  return written;
}

LayoutAnswers read_answers(ByteReader& in) {
  LayoutAnswers answers;
  answers.naming = in.text();
  answers.experts = in.text();
  answers.glu = read_glu(in);
  answers.glu_source = in.text();
  answers.shared_glu = read_optional_glu(in);
  answers.optimizer_glu = read_optional_glu(in);
  return answers;
}

[[noreturn]] void refuse(const char* why) { fail(ErrorCode::Io, {}, "a plan that was handed over {}", why); }

/// Checks that every number which is used as an index is in range.
void check_numbers(const Plan& plan) {
  if (plan.first_move.size() != plan.outputs.size() + 1) refuse("does not say where the moves of each output begin");
  if (plan.first_move.front() != 0 || plan.first_move.back() != plan.moves.size()) refuse("leaves moves to no output");
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    if (plan.first_move[t] > plan.first_move[t + 1]) refuse("has moves of its outputs out of order");
    if (plan.outputs[t].shard >= plan.num_shards) refuse("has an output in no shard");
  }
  for (const Move& move : plan.moves)
    if (move.dst >= plan.outputs.size()) refuse("has a move to no output");
  for (const Compute& compute : plan.computes)
    if (compute.dst >= plan.outputs.size()) refuse("computes no output");
  for (const std::size_t output : plan.repeats)
    if (output >= plan.outputs.size()) refuse("repeats no output");
  for (const std::size_t output : plan.zeros)
    if (output >= plan.outputs.size()) refuse("has zeros in no output");
}

}  // namespace

std::vector<std::byte> plan_bytes(const Plan& plan) {
  const auto& [outputs, moves, first_move, num_shards, data_phases, dropped, computes, repeats, zeros, cuts, experts,
               from, to, rest, foreign_order, bytes, notes] = plan;
  ByteWriter out;
  out.text(kFirstText);
  write(out, outputs);
  write(out, moves);
  write(out, first_move);
  write(out, num_shards);
  write(out, data_phases);
  write(out, dropped);
  write(out, computes);
  write(out, repeats);
  write(out, zeros);
  write(out, cuts);
  write(out, experts);
  write(out, from);
  write(out, to);
  write(out, rest);
  write(out, foreign_order);
  write(out, bytes);
  write(out, notes);
  return out.take();
}

Plan parse_plan_bytes(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "a plan");
  if (in.text() != kFirstText) refuse("is of another version of this program");
  // The fewest bytes of each item: a move has 5 numbers and 3 more in each loop; an output 7, texts' lengths included.
  constexpr i64 kMoveBytes = (5 + 3 * std::tuple_size_v<decltype(Move::dims)>)*kNumberBytes;
  constexpr i64 kOutputBytes = 7 * kNumberBytes;
  Plan plan;
  plan.outputs = read_items(in, kOutputBytes, read_output);
  plan.moves = read_items(in, kMoveBytes, read_move);
  plan.first_move = read_items(in, kNumberBytes, read_index);
  plan.num_shards = read_u32(in);
  plan.data_phases =
      read_items(in, kNumberBytes, [](ByteReader& phases) { return phases.number(0, kDataPhaseBytes - 1); });
  plan.dropped = read_items(in, kNumberBytes, read_index);
  plan.computes = read_items(in, 3 * kNumberBytes, read_compute);
  plan.repeats = read_items(in, kNumberBytes, read_index);
  plan.zeros = read_items(in, kNumberBytes, read_index);
  plan.cuts = read_items(in, 2 * kNumberBytes, read_cut);
  plan.experts = read_items(in, 5 * kNumberBytes, read_written);
  plan.from = read_answers(in);
  plan.to = read_answers(in);
  plan.rest = in.text();
  plan.foreign_order = in.text();
  plan.bytes = in.number(0, kMax);
  plan.notes = read_items(in, kNumberBytes, [](ByteReader& notes) { return notes.text(); });
  in.end();
  check_numbers(plan);
  return plan;
}

}  // namespace glu_ckpt
