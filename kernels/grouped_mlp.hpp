#pragma once
/// What every grouped MLP asks of its arguments.

#include <span>

#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {

/// The contract of grouped_mlp_host(): shapes, dtypes, constants and splits. Reads nothing that is pointed to.
void check_grouped_mlp(const GroupedMlp& mlp, i64 rows, std::span<const i64> splits);

}  // namespace glu_ckpt
