#pragma once
/// Refusals of what a plan would lose or contradict, by the bytes of small tensors and by the configuration.

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// Returns whether gate and up of the block, which are two tensors, become one.
bool fuses(const ExpertBlock& block, const TargetAnswers& to);

/// Refuses computed tensors of which an element would not come back. They are small, and read here.
void check_computed(const Source& source, const Plan& plan);

/// Refuses codes and scales that quantization_config contradicts, where they stand as their software stores them.
void check_quantized(const Source& source, const Recognition& model, const ModelHints& hints);

/// Refuses to put gate and up of INT4 into one tensor where their columns are reordered in ways of their own
/// (`weight_g_idx`).
void check_column_groups(const Source& source, const Recognition& model, const TargetAnswers& to);

/// Refuses a change of layout beside optimizer state that would stay in the old one.
void check_optimizer_parts(const Source& source, const ConvertOptions& options, const Plan& plan);

}  // namespace glu_ckpt
