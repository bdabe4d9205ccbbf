#pragma once
/// The arguments that a run of Megatron-LM needs to load a converted model and compute what the original does.

#include "families/arg_rows.hpp"

namespace glu_ckpt {

/// `config` is the text of config.json. Requires Recognition::architecture. Throws NoMap where a field that every run
/// needs is missing, ConfigJson where one is impossible.
MegatronArgs megatron_args(const std::string& config, const Recognition& model, const GluOrders& to);

}  // namespace glu_ckpt
