#pragma once
/// The checks of arguments that all grouped MLPs share. They read nothing that is pointed to.

#include <span>

#include "glu_ckpt/ops/grouped_mlp_backward.hpp"

namespace glu_ckpt {

/// Checks shapes, dtypes and constants of the experts. Throws Usage, NotSupported.
void check_mlp(const GroupedMlp& mlp);

/// Checks the contract of grouped_mlp_host(): check_mlp(), rows and splits. Throws Usage, NotSupported.
void check_grouped_mlp(const GroupedMlp& mlp, i64 rows, std::span<const i64> splits);

/// Throws NotSupported unless there is at least one expert and all have one width F. Returns F.
i64 check_one_width(const GroupedMlp& mlp);

/// Checks the experts and the gradients of a backward. Throws Usage, NotSupported.
void check_mlp_backward(const MlpBackward& backward);

/// Checks the rows and addresses of a step, and of x too where it is read. Throws Usage.
void check_backward_step(Dtype compute, const MlpBackwardStep& step, bool reads_x);

using MlpMember = StoredMatrix ExpertWeights::*;
/// Says whether the gradient of a matrix is computed.
bool wants_grad(const MlpBackward& backward, MlpMember member);

}  // namespace glu_ckpt
