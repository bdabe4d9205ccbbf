#pragma once
/// The checks of arguments that all grouped MLPs share. They read nothing that is pointed to.

#include <span>

#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt {

/// Checks shapes, dtypes and constants of the experts. Throws Usage, NotSupported.
void check_mlp(const GroupedMlp& mlp);

/// Checks the contract of grouped_mlp_host(): check_mlp(), rows and splits. Throws Usage, NotSupported.
void check_grouped_mlp(const GroupedMlp& mlp, i64 rows, std::span<const i64> splits);

}  // namespace glu_ckpt
