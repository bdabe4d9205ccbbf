#pragma once
/// What every grouped MLP asks of its arguments. Nothing that is pointed to is read.

#include <span>

#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt {

/// Shapes, dtypes and constants of the experts.
void check_mlp(const GroupedMlp& mlp);

/// The contract of grouped_mlp_host(): check_mlp(), rows and splits.
void check_grouped_mlp(const GroupedMlp& mlp, i64 rows, std::span<const i64> splits);

}  // namespace glu_ckpt
