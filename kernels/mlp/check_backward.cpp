/// The checks of a backward's arguments.

#include <string_view>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/mlp/check_mlp.hpp"

namespace glu_ckpt {
namespace {

struct NamedMember {
  std::string_view name;
  MlpMember member;
};

constexpr NamedMember kMembers[] = {
    {"gate", &ExpertWeights::gate},       {"up", &ExpertWeights::up},
    {"down", &ExpertWeights::down},       {"gate bias", &ExpertWeights::gate_bias},
    {"up bias", &ExpertWeights::up_bias}, {"down bias", &ExpertWeights::down_bias},
};

/// Names a gradient in messages: "expert 3, gradient of gate".
std::string grad_text(std::size_t expert, std::string_view name) {
  return fmt::format("expert {}, gradient of {}", expert, name);
}

void check_part(const std::string& name, const StoredMatrix& grad, const StoredMatrix::Part& part) {
  const Placement& place = part.place;
  const i64 element_bytes = dtype_bits(grad.dtype) / 8;
  if (part.data == nullptr) fail(ErrorCode::Usage, {}, "{}: [{}, {}] without an address", name, grad.rows, grad.cols);
  if (place.block_rows < 1 || (place.block_rows < grad.rows && grad.rows % place.block_rows != 0))
    fail(ErrorCode::Usage, {}, "{}: {} rows in blocks of {}; the block must divide the rows", name, grad.rows,
         place.block_rows);
  const bool steps = (grad.rows == 1 || place.row_step >= element_bytes) &&
                     (grad.cols == 1 || place.col_step >= element_bytes) &&
                     (place.block_rows >= grad.rows || place.block_step >= element_bytes);
  if (!steps)
    fail(ErrorCode::Usage, {},
         "{}: steps of {}, {} and {} bytes from a row, a column and a block to the next; each "
         "element needs an address of its own",
         name, place.row_step, place.col_step, place.block_step);
  if (!is_aligned(part.data + place.offset, element_bytes) || place.row_step % element_bytes != 0 ||
      place.col_step % element_bytes != 0 || place.block_step % element_bytes != 0)
    fail(ErrorCode::Usage, {}, "{}: an address or a step is not a multiple of {}'s {} bytes", name,
         dtype_name(grad.dtype), element_bytes);
}

void check_grad(const GroupedMlp& mlp, const std::string& name, const StoredMatrix& grad, const StoredMatrix& weight) {
  if (!weight.is_there()) fail(ErrorCode::Usage, {}, "{}: the expert has no such matrix", name);
  if (grad.rows != weight.rows || grad.cols != weight.cols)
    fail(ErrorCode::Usage, {}, "{}: [{}, {}], expected [{}, {}]", name, grad.rows, grad.cols, weight.rows, weight.cols);
  if (grad.dtype != mlp.compute && grad.dtype != Dtype::F32)
    fail(ErrorCode::NotSupported, {}, "{}: {}; gradients are {} or F32", name, dtype_name(grad.dtype),
         dtype_name(mlp.compute));
  if (grad.tail_row < 0 || grad.tail_row > grad.rows)
    fail(ErrorCode::Usage, {}, "{}: {} rows whose tail begins at {}", name, grad.rows, grad.tail_row);
  if (grad.tail_row > 0) check_part(name, grad, grad.first);
  if (grad.tail_row < grad.rows) check_part(name, grad, grad.tail);
}

void check_rows(std::string_view name, const void* data, Dtype dtype, i64 rows) {
  if (rows == 0) return;
  if (data == nullptr) fail(ErrorCode::Usage, {}, "{}: the pointer to {} rows is null", name, rows);
  if (!is_aligned(data, dtype_bits(dtype) / 8))
    fail(ErrorCode::Usage, {}, "{} at {} is not aligned to {}", name, data, dtype_name(dtype));
}

}  // namespace

bool wants_grad(const MlpBackward& backward, MlpMember member) {
  return !backward.grads.empty() && (backward.grads[0].*member).is_there();
}

void check_mlp_backward(const MlpBackward& backward) {
  const GroupedMlp& mlp = backward.mlp;
  check_mlp(mlp);
  check_one_width(mlp);
  if (backward.grads.empty()) return;
  if (backward.grads.size() != mlp.experts.size())
    fail(ErrorCode::Usage, {}, "gradients for {} experts, of {}", backward.grads.size(), mlp.experts.size());
  for (const auto& [name, member] : kMembers)
    for (std::size_t e = 0; e < backward.grads.size(); ++e) {
      const StoredMatrix& grad = backward.grads[e].*member;
      const StoredMatrix& first = backward.grads[0].*member;
      if (grad.is_there() != first.is_there())
        fail(ErrorCode::Usage, {}, "{}: {}there, but that of expert 0 is {}; give it for all experts or for none",
             grad_text(e, name), grad.is_there() ? "" : "not ", grad.is_there() ? "not" : "there");
      if (!grad.is_there()) continue;
      check_grad(mlp, grad_text(e, name), grad, mlp.experts[e].*member);
      if (grad.dtype != first.dtype)
        fail(ErrorCode::Usage, {}, "{}: {}, but that of expert 0 is {}; they must be equal", grad_text(e, name),
             dtype_name(grad.dtype), dtype_name(first.dtype));
    }
}

void check_backward_step(Dtype compute, const MlpBackwardStep& step, bool reads_x) {
  if (step.rows < 0) fail(ErrorCode::Usage, {}, "{} rows", step.rows);
  if (reads_x) check_rows("x", step.x, compute, step.rows);
  check_rows("probs", step.probs, Dtype::F32, step.rows);
  check_rows("dout", step.dout, compute, step.rows);
  if (step.z != nullptr) check_rows("z", step.z, compute, step.rows);
  if (step.dx != nullptr) check_rows("dx", step.dx, compute, step.rows);
  if (step.dprobs != nullptr) check_rows("dprobs", step.dprobs, Dtype::F32, step.rows);
}

}  // namespace glu_ckpt
