#pragma once
/// Recognizes all of a model: its experts by the table of layouts, the rest by its configuration and the rows of its
/// family.

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// recognize(), and the rest of the model where hints.config is of a family that has a map. Tensors whose shapes
/// contradict the configuration are findings (Recognition::misfits), not failures: only a change of naming needs all.
Recognition recognize_model(const Inventory& inventory, const ModelHints& hints, const Record& record,
                            const SourceAnswers& answers);

/// Returns the first of `tensors`, which need not be the model's, whose name has a place outside of the experts and
/// whose shape contradicts the configuration.
std::optional<DenseMisfit> find_misfit(const Recognition& model, const std::vector<TensorRef>& tensors);

/// The tensors that hold dense matrices, or copies of some, and idle ones, sorted: of `others`, all that is understood.
std::vector<std::size_t> dense_tensors(const Recognition& recognition);

}  // namespace glu_ckpt
