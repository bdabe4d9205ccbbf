#include "expert_stacks.hpp"

#include "core/fail.hpp"
#include "glu_ckpt/forward.hpp"

namespace glu_ckpt::python {
namespace {

/// Rows of one expert, `block_rows` at a time; `role` 0 is the gate, 1 is up. Without a gate there is one role.
StoredMatrix matrix_of(const ExpertStack& stack, i64 expert, i64 block_rows, i64 role, i64 roles) {
  const i64 element_bytes = dtype_bits(stack.dtype) / 8, row_bytes = stack.cols * element_bytes;
  const bool grouped = stack.addresses.size() == 1;
  const auto* const first =
      reinterpret_cast<const std::byte*>(stack.addresses[grouped ? std::size_t{0} : static_cast<std::size_t>(expert)]);
  const Placement place{role * block_rows * row_bytes, block_rows, roles * block_rows * row_bytes, row_bytes,
                        element_bytes};
  const i64 rows = stack.rows / roles;
  return {stack.dtype, rows, stack.cols, {first + (grouped ? expert * stack.rows * row_bytes : 0), place}, {}, rows};
}

}  // namespace

std::vector<ExpertWeights> experts_of(const ExpertStacks& stacks, bool gated) {
  const i64 roles = gated ? 2 : 1;
  const auto block_of = [&](const ExpertStack& stack) {
    const i64 width = stack.rows / roles, block = !gated || stacks.block_rows == 0 ? width : stacks.block_rows;
    if (stack.rows % roles != 0 || block < 1 || width % block != 0)
      fail(ErrorCode::NotDivisible, {}, "fc1: {} rows; interleaved:{} needs a multiple of {}", stack.rows, block,
           roles * block);
    return block;
  };
  std::vector<ExpertWeights> made(static_cast<std::size_t>(stacks.experts));
  for (i64 e = 0; e < stacks.experts; ++e) {
    ExpertWeights& expert = made[static_cast<std::size_t>(e)];
    const auto first_layer = [&](const ExpertStack& stack, StoredMatrix& gate, StoredMatrix& up) {
      if (!stack.is_there()) return;
      const i64 block = block_of(stack);
      if (gated) gate = matrix_of(stack, e, block, 0, roles);
      up = matrix_of(stack, e, block, roles - 1, roles);
    };
    first_layer(stacks.fc1, expert.gate, expert.up);
    first_layer(stacks.fc1_bias, expert.gate_bias, expert.up_bias);
    if (stacks.fc2.is_there()) expert.down = matrix_of(stacks.fc2, e, stacks.fc2.rows, 0, 1);
    if (stacks.fc2_bias.is_there()) expert.down_bias = matrix_of(stacks.fc2_bias, e, stacks.fc2_bias.rows, 0, 1);
  }
  return made;
}

Activation activation_of(const std::string& kind, const ActivationConstants& constants) {
  const auto narrowed = [](const std::optional<double>& constant) {
    return constant ? std::optional(static_cast<float>(*constant)) : std::nullopt;
  };
  const Activation named{parse_activation(kind)};
  return choose_activation(
      {}, {named.kind, narrowed(constants.alpha), narrowed(constants.limit), narrowed(constants.offset)},
      named.is_gated());
}

}  // namespace glu_ckpt::python
