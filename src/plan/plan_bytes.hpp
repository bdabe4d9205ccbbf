#pragma once
/// A plan as bytes: one process makes it, the others of the same run are given it.

#include <cstddef>
#include <span>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

std::vector<std::byte> plan_bytes(const Plan& plan);

/// The plan that gave these bytes. Whether it fits an inventory is check_plan()'s to say. Throws Io where they are of
/// no plan, of one whose numbers disagree, or of another version's.
Plan parse_plan_bytes(std::span<const std::byte> bytes);

}  // namespace glu_ckpt
