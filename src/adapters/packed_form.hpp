#pragma once
/// The forms of a family's packed experts, from the tables of namings, as adapters name them.

#include "adapters/read_factors.hpp"
#include "families/architecture.hpp"
#include "families/expert_keys.hpp"

namespace glu_ckpt {

/// The spelling of the family's experts on the hub, whose modules an adapter names; that of the model's own where its
/// family has no map.
const Naming* hub_naming(const Recognition& model);

/// The spelling of packed experts, which transformers has in memory where the hub has none.
const Naming* packed_naming(const Naming& hub, const Architecture* architecture);

/// The order of gate and up, and the axes, in the packed form that transformers has of the family; `sizes` says that
/// there are none.
AdaptedModel adapted_model(const Naming* hub, const Architecture* architecture);

}  // namespace glu_ckpt
